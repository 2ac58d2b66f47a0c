//! `heg pull`, `heg update`, `heg import`: bundles on their way into the store.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use heg_artifacts::plain::escape;
use heg_runtime::verified;
use heg_ship::{
    BadBundle, DeviceStore, FetchOptions, Layout, ModelName, PullOutcome, Pulled, Replicas,
    ShipError, SliceWish, is_layout,
};
use serde_json::json;

use super::known_answers::ask_kernels;
use super::npu::machine_npu;
use super::progress::{Output, Shown, bytes, span};
use super::{Access, agrees, asked, print_warnings, store, trust};
use crate::failure::input;

/// Options for fetching bundles.
#[derive(Args)]
struct Fetching {
    /// Kind of devices: `cpu`, or `npu-4000` with blobs for that platform [default: the name's present one, else that of this machine's NPU, else `cpu`]
    #[arg(long, value_name = "SLICE")]
    slice: Option<String>,
    /// Number of connections
    #[arg(long, value_name = "N", default_value_t = FetchOptions::default().jobs)]
    jobs: NonZero<usize>,
    /// Bytes per second for all connections together, e.g. `10MB`
    #[arg(long, value_name = "RATE", value_parser = rate)]
    limit: Option<NonZero<u64>>,
    /// Number of bundles that a name stood for before and that are kept
    #[arg(long, value_name = "N", default_value_t = 1)]
    keep: usize,
    /// Agree to use a bundle that nobody signed, where the policy leaves that to a person
    #[arg(long)]
    allow_unsigned: bool,
    /// Print lines of JSON: `planned`, `arrived`, and `pulled`, `unchanged` or `passed_over`
    #[arg(long)]
    json: bool,
}

/// Arguments of `heg pull`.
#[derive(Args)]
pub(crate) struct Pull {
    /// The name, e.g. `registry.example/chat:stable`, or an alias of `sources.ron`
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    fetching: Fetching,
    #[command(flatten)]
    access: Access,
}

/// Arguments of `heg update`.
#[derive(Args)]
pub(crate) struct Update {
    /// Names of the store [default: all that came from a registry]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    fetching: Fetching,
    #[command(flatten)]
    access: Access,
    /// Do not ask the new bundle's kernels for their known answers before the name moves
    #[arg(long)]
    no_doctor: bool,
}

/// Arguments of `heg import`.
#[derive(Args)]
pub(crate) struct Import {
    /// A bundle's file, or `oci:DIR` or `oci:DIR:TAG` for an OCI image layout
    #[arg(value_name = "FILE")]
    from: String,
    /// Name that the bundle gets [default: the name in its statement, else that of the file or folder]
    #[arg(long = "as", value_name = "NAME")]
    name: Option<ModelName>,
    #[command(flatten)]
    fetching: Fetching,
}

/// Source of a bundle.
enum Origin<'o> {
    Replicas(Replicas),
    Layout(Layout, String),
    File(&'o Path),
}

/// The reason for bringing a bundle.
enum Wish<'w> {
    /// A person asks for it.
    Asked,
    /// It is newer, and its kernels answer first.
    Newer(&'w dyn Fn(&Path) -> Result<(), ShipError>),
}

/// Runs `heg pull`.
pub(crate) fn pull(arguments: &Pull) -> anyhow::Result<()> {
    let name: ModelName = asked(&arguments.name)?.parse()?;
    let places = arguments.access.places(&name)?;
    let store = store()?;
    let origin = Origin::Replicas(places);
    bring(&store, &name, &origin, &arguments.fetching, &Wish::Asked)
}

/// Runs `heg update`. One name after the other; the first that fails ends it.
pub(crate) fn update(arguments: &Update) -> anyhow::Result<()> {
    let store = store()?;
    let mut names = Vec::new();
    for short in &arguments.names {
        names.push(store.meant(&asked(short)?)?.0);
    }
    if arguments.names.is_empty() {
        let all = store.names()?.into_iter();
        names.extend(
            all.filter(|(name, held)| name.host().is_some() && held.now.index.is_some())
                .map(|(name, _)| name),
        );
    }
    for name in &names {
        let examine = |path: &Path| match arguments.no_doctor {
            true => Ok(()),
            false => ask_kernels(name, path),
        };
        let origin = Origin::Replicas(arguments.access.places(name)?);
        let wish = Wish::Newer(&examine);
        bring(&store, name, &origin, &arguments.fetching, &wish)?;
    }
    Ok(())
}

/// Runs `heg import`.
pub(crate) fn import(arguments: &Import) -> anyhow::Result<()> {
    let store = store()?;
    let from = &arguments.from;
    let given = arguments.name.clone();
    if let Some(rest) = from.strip_prefix("oci:") {
        let (layout, tag, folder) = layout(rest)?;
        let name = given.map_or_else(|| name_of_file(&folder, &tag), Ok)?;
        let origin = Origin::Layout(layout, tag);
        return bring(&store, &name, &origin, &arguments.fetching, &Wish::Asked);
    }
    let path = Path::new(from);
    let name = match given {
        Some(name) => name,
        None => stated_name(path)?.map_or_else(|| name_of_file(path, "latest"), Ok)?,
    };
    bring(
        &store,
        &name,
        &Origin::File(path),
        &arguments.fetching,
        &Wish::Asked,
    )
}

/// The layout in `DIR` or `DIR:TAG`, and the tag; without one, the only one that there is.
fn layout(text: &str) -> anyhow::Result<(Layout, String, PathBuf)> {
    let split = text
        .rsplit_once(':')
        .filter(|_| !is_layout(Path::new(text)));
    let (folder, tag) = split.map_or((text, None), |(folder, tag)| (folder, Some(tag)));
    let layout = Layout::new(Path::new(folder));
    let tag = match tag {
        Some(tag) => tag.to_owned(),
        None => match <[String; 1]>::try_from(layout.tags()?) {
            Ok([tag]) => tag,
            Err(tags) => {
                let tags = tags.join("`, `");
                return Err(input(format!(
                    "`{folder}` has the tags `{tags}`: choose one with `oci:{folder}:TAG`"
                )));
            }
        },
    };
    Ok((layout, tag, PathBuf::from(folder)))
}

/// The name in the statement beside a bundle's file.
fn stated_name(path: &Path) -> anyhow::Result<Option<ModelName>> {
    let Some(signed) = heg_ship::SignedRelease::beside(path)? else {
        return Ok(None);
    };
    let release = heg_trust::Release::parse(&signed.release)?;
    Ok(Some(release.name.parse()?))
}

/// The name of a file or folder as the name of a bundle.
fn name_of_file(path: &Path, tag: &str) -> anyhow::Result<ModelName> {
    let stem = path
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .to_lowercase();
    let name = format!("{stem}:{tag}").parse();
    name.map_err(|_| {
        input(format!(
            "`{}` gives no name: choose one with `--as`",
            path.display()
        ))
    })
}

/// Brings a bundle, and says what came.
fn bring(
    store: &DeviceStore,
    name: &ModelName,
    origin: &Origin<'_>,
    fetching: &Fetching,
    wish: &Wish<'_>,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let output = Output::of(fetching.json);
    let shown = Shown::new(output, "fetching");
    let trust = trust()?;
    let present = store.name(name)?.map(|record| record.now);
    let slice = match (&fetching.slice, &present) {
        (Some(slice), _) => SliceWish::Named(slice),
        // The choice of a person stays, and no driver is asked.
        (None, Some(held)) if held.slice_asked => SliceWish::Kept(&held.slice),
        (None, held) => match (machine_npu(), held) {
            // Blobs stay where the NPU is unknown.
            (None, Some(held)) => SliceWish::Kept(&held.slice),
            (npu, _) => SliceWish::Best(npu),
        },
    };
    let pull = heg_ship::Pull {
        store,
        trust: &trust,
        name,
        slice,
        agrees: &agrees(fetching.allow_unsigned),
        examine: match wish {
            Wish::Asked => &|_| Ok(()),
            Wish::Newer(examine) => examine,
        },
        takes_bad: matches!(wish, Wish::Asked),
        keep: fetching.keep,
        options: FetchOptions {
            jobs: fetching.jobs,
            limit_bytes_per_s: fetching.limit,
            ..FetchOptions::default()
        },
        progress: &shown,
    };
    let pulled = match origin {
        Origin::Replicas(places) => pull.from_source(places, name.tag()),
        Origin::Layout(layout, tag) => pull.from_source(layout, tag),
        Origin::File(path) => {
            let pulled = pull.from_file(path);
            pulled.map(|pulled| PullOutcome::Pulled(Box::new(pulled)))
        }
    };
    shown.end();
    match pulled? {
        PullOutcome::Pulled(pulled) => {
            // Every byte was checked while it came: the first start hashes nothing.
            if let Some(cache) = verified::cache_folder()? {
                verified::remember_checked(&store.bundle(pulled.held.bundle)?, &cache);
            }
            print_warnings(&pulled.accepted);
            report(name, &pulled, output, started.elapsed());
        }
        PullOutcome::Unchanged => match output {
            Output::Json => println!(
                "{}",
                json!({"event": "unchanged", "name": name.to_string()})
            ),
            Output::Text => println!("{name}  is up to date"),
        },
        PullOutcome::PassedOver(bad) => report_passed_over(name, &bad, output),
    }
    Ok(())
}

fn report_passed_over(name: &ModelName, bad: &BadBundle, output: Output) {
    match output {
        Output::Json => println!(
            "{}",
            json!({"event": "passed_over", "name": name.to_string(), "bundle": bad.bundle,
                   "number": bad.number, "reason": bad.reason})
        ),
        Output::Text => println!(
            "{name}  stays: {bad} is passed over, since {}; `heg pull {name}` takes it all the same",
            bad.reason
        ),
    }
}

fn report(name: &ModelName, pulled: &Pulled, output: Output, took: Duration) {
    let held = &pulled.held;
    if output == Output::Json {
        let before = pulled.before.as_ref();
        let object = json!({
            "event": "pulled", "name": name.to_string(), "bundle": held.bundle, "model": pulled.model,
            "slice": held.slice, "slice_reason": pulled.second_best.as_ref().map(ToString::to_string),
            "number": held.number, "version": held.version,
            "before": before.map(|held| held.bundle), "before_number": before.and_then(|held| held.number),
            "bundle_bytes": held.bytes, "moved_bytes": pulled.moved_bytes, "requests": pulled.requests,
            "changed_parts": pulled.changed_parts, "seconds": took.as_secs_f64(),
        });
        println!("{object}");
        return;
    }
    let release =
        |number: Option<u64>| number.map_or("unsigned".to_owned(), |number| number.to_string());
    let change = match &pulled.before {
        Some(before) => format!("{} → {}", release(before.number), release(held.number)),
        None => release(held.number),
    };
    let parts: Vec<&str> = pulled
        .changed_parts
        .iter()
        .map(String::as_str)
        .filter(|part| *part != "head")
        .collect();
    let changed = match parts.len() {
        0 => String::new(),
        1..=4 => format!("  {}", parts.join(", ")),
        count => format!("  {count} parts"),
    };
    println!(
        "{name}  {change}{changed}\npulled    {} ({}, {}), {} of {} in {}; checked, nothing is left to hash",
        escape(&pulled.model),
        held.bundle.short(),
        held.slice,
        bytes(pulled.moved_bytes),
        bytes(held.bytes),
        span(took)
    );
    if let Some(why) = &pulled.second_best {
        println!("slice     {}: {}", held.slice, escape(&why.to_string()));
    }
}

/// Parses a rate: a number of bytes, or one with `kB`, `MB` or `GB` behind it.
fn rate(text: &str) -> Result<NonZero<u64>, String> {
    let units = [("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("", 1.0)];
    let parsed = units.iter().find_map(|(unit, factor)| {
        let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        NonZero::new((number * factor) as u64)
    });
    parsed.ok_or_else(|| "expected a rate like `10MB`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units() {
        let rates = ["10MB", "1.5 GB", "200kB", "4096"].map(|text| rate(text).unwrap().get());
        assert_eq!(rates, [10_000_000, 1_500_000_000, 200_000, 4096]);
        assert!(
            ["", "0", "fast", "-1MB", "NaN"]
                .iter()
                .all(|text| rate(text).is_err())
        );
    }
}
