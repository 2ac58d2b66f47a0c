//! `heg push`, `heg export`, `heg release`: bundles on their way to others.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use heg_artifacts::Bundle;
use heg_ship::{
    DeviceStore, ModelName, Pushed, Registry, ShipError, SignedRelease, Statement, export_file,
    export_layout,
};
use serde_json::json;

use super::progress::{Output, Shown, bytes, span};
use super::{Access, credentials, located, store_path};
use crate::failure::input;

/// Arguments of `heg push`.
#[derive(Args)]
pub(crate) struct Push {
    /// Bundles, each a file or a name of the store, and last the name in the registry
    #[arg(value_name = "BUNDLE… NAME", num_args = 2.., required = true)]
    bundles: Vec<String>,
    /// The statement of `heg release`; its signature is beside it, as `release.json.minisig`
    #[arg(long, value_name = "FILE")]
    release: Option<PathBuf>,
    /// Another repository of the same registry: parts that it has are mounted from there, and not sent
    #[arg(long, value_name = "NAME")]
    mount: Vec<ModelName>,
    #[command(flatten)]
    access: Access,
    /// Print lines of JSON: `planned`, `arrived`, `pushed`
    #[arg(long)]
    json: bool,
}

/// Arguments of `heg export`.
#[derive(Args)]
pub(crate) struct Export {
    /// A bundle: a file, or a name of the store
    #[arg(value_name = "BUNDLE")]
    bundle: PathBuf,
    /// A file, or `oci:DIR` or `oci:DIR:TAG` for a folder as an OCI image layout
    #[arg(long, short = 'o', value_name = "FILE")]
    to: String,
    /// The statement of `heg release` [default: that of the name]
    #[arg(long, value_name = "FILE")]
    release: Option<PathBuf>,
    /// Print lines of JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `heg release`.
#[derive(Args)]
pub(crate) struct Release {
    /// The bundles
    #[arg(value_name = "BUNDLE", required = true)]
    bundles: Vec<PathBuf>,
    /// Name in the registry, e.g. `registry.example/chat`
    #[arg(long, value_name = "NAME")]
    name: ModelName,
    /// Number, above those of all releases before
    #[arg(long, value_name = "N")]
    number: u64,
    /// Version for people
    #[arg(long, value_name = "TEXT")]
    version: String,
    /// Days until a newer release must exist
    #[arg(long, value_name = "DAYS")]
    valid_days: Option<u32>,
    /// Number of an earlier release that must not be used any more
    #[arg(long, value_name = "N")]
    withdraw: Vec<u64>,
    /// The file to write
    #[arg(long, short, value_name = "FILE", default_value = "release.json")]
    output: PathBuf,
}

fn open(path: &Path) -> anyhow::Result<Bundle> {
    let path = located(path)?;
    let opened = Bundle::open(&path).map_err(|source| ShipError::Bundle {
        place: path.display().to_string(),
        source,
    });
    Ok(opened?)
}

/// Runs `heg push`.
pub(crate) fn push(arguments: &Push) -> anyhow::Result<()> {
    let Some((name, bundles)) = arguments.bundles.split_last() else {
        return Err(input("expected bundles and a name"));
    };
    let name: ModelName = name.parse()?;
    let bundles: Vec<Bundle> = bundles
        .iter()
        .map(|path| open(Path::new(path)))
        .collect::<Result<_, _>>()?;
    let signed = arguments
        .release
        .as_deref()
        .map(SignedRelease::read)
        .transpose()?;
    let registry = Registry::new(&name, credentials(), &arguments.access.plain_http)?;
    let registry = registry.mounting_from(&arguments.mount)?;
    let output = Output::of(arguments.json);
    let shown = Shown::new(output, "pushing");
    let started = Instant::now();
    let pushed = registry.push(name.tag(), &bundles, signed.as_ref(), &shown);
    shown.end();
    report("pushed", &name.to_string(), &pushed?, output, started);
    Ok(())
}

fn report(verb: &str, place: &str, pushed: &Pushed, output: Output, started: Instant) {
    let slices: Vec<&str> = pushed
        .slices
        .iter()
        .map(|(slice, _)| slice.as_str())
        .collect();
    match output {
        Output::Json => println!(
            "{}",
            json!({"event": verb, "place": place, "slices": slices, "index": pushed.index.to_string(),
                   "all_bytes": pushed.all_bytes, "moved_bytes": pushed.moved_bytes, "mounted_bytes": pushed.mounted_bytes,
                   "seconds": started.elapsed().as_secs_f64()})
        ),
        Output::Text => println!(
            "{verb:<9} {place} ({}), {} of {} in {}",
            slices.join(", "),
            bytes(pushed.moved_bytes),
            bytes(pushed.all_bytes),
            span(started.elapsed())
        ),
    }
}

/// Runs `heg export`.
pub(crate) fn export(arguments: &Export) -> anyhow::Result<()> {
    let bundle = open(&arguments.bundle)?;
    let signed = match &arguments.release {
        Some(path) => Some(SignedRelease::read(path)?),
        None => known_release(&arguments.bundle)?,
    };
    let output = Output::of(arguments.json);
    let shown = Shown::new(output, "writing");
    let started = Instant::now();
    if let Some(rest) = arguments.to.strip_prefix("oci:") {
        let (folder, tag) = match rest.rsplit_once(':') {
            Some((folder, tag)) if !tag.contains(['/', '\\']) => (folder, tag),
            _ => (rest, "latest"),
        };
        let written = export_layout(Path::new(folder), tag, &[bundle], signed.as_ref(), &shown);
        shown.end();
        report("exported", &arguments.to, &written?, output, started);
        return Ok(());
    }
    let written = export_file(Path::new(&arguments.to), &bundle, signed.as_ref(), &shown);
    shown.end();
    let written = written?;
    match output {
        Output::Json => println!(
            "{}",
            json!({"event": "exported", "place": arguments.to, "bytes": written})
        ),
        Output::Text => println!(
            "exported  {}, {} in {}",
            arguments.to,
            bytes(written),
            span(started.elapsed())
        ),
    }
    Ok(())
}

/// The statement that the store has for a name, or that lies beside a file.
fn known_release(bundle: &Path) -> anyhow::Result<Option<SignedRelease>> {
    let store = DeviceStore::open_existing(&store_path()?)?;
    if let Some(store) = store
        && let Ok((_, record)) = store.meant(&bundle.to_string_lossy())
        && let Some(id) = record.now.release
    {
        return Ok(store.release(id)?);
    }
    Ok(SignedRelease::beside(bundle)?)
}

/// Runs `heg release`.
pub(crate) fn release(arguments: &Release) -> anyhow::Result<()> {
    let bundles: Vec<Bundle> = arguments
        .bundles
        .iter()
        .map(|path| open(path))
        .collect::<Result<_, _>>()?;
    let statement = Statement {
        name: &arguments.name,
        number: arguments.number,
        version: &arguments.version,
        valid_days: arguments.valid_days,
        withdrawn: BTreeSet::from_iter(arguments.withdraw.iter().copied()),
    };
    let text = statement.text(&bundles)?;
    heg_files::write_whole(&arguments.output, &[text.as_bytes()]).map_err(ShipError::from)?;
    let path = arguments.output.display();
    println!("wrote     {path}; sign it with `minisign -S -m {path}`");
    Ok(())
}
