//! `heg list`, `heg rm`, `heg prune`, `heg rollback`: what is in the store.

use clap::Args;
use heg_ship::DeviceStore;
use serde_json::json;

use super::progress::{Output, bytes};
use super::{asked, store, store_path};

/// Arguments of `heg list`.
#[derive(Args)]
pub(crate) struct List {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Arguments of `heg rm`.
#[derive(Args)]
pub(crate) struct Remove {
    /// The names
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
}

/// Arguments of `heg prune`.
#[derive(Args)]
pub(crate) struct Prune {
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Arguments of `heg rollback`.
#[derive(Args)]
pub(crate) struct Rollback {
    /// The name
    #[arg(value_name = "NAME")]
    name: String,
}

fn waits() {
    eprintln!("note: another command changes the store: waiting for it");
}

/// Runs `heg list`.
pub(crate) fn list(arguments: &List) -> anyhow::Result<()> {
    let output = Output::of(arguments.json);
    let Some(store) = DeviceStore::open_existing(&store_path()?)? else {
        match output {
            Output::Json => println!(
                "{}",
                json!({"names": [], "store_bytes": 0, "unneeded_bytes": 0})
            ),
            Output::Text => println!("no names: `heg pull` fetches one, `heg import` takes a file"),
        }
        return Ok(());
    };
    let names = store.names()?;
    let (all, garbage) = (store.room_bytes()?, store.garbage()?);
    if output == Output::Json {
        let names = names.iter().map(|(name, record)| {
            let before: Vec<_> = record.before.iter().map(|held| held.bundle).collect();
            json!({"name": name.to_string(), "bundle": record.now.bundle, "bytes": record.now.bytes,
                   "slice": record.now.slice, "number": record.now.number, "version": record.now.version,
                   "before": before, "bad": record.bad})
        });
        let names: Vec<_> = names.collect();
        println!(
            "{}",
            json!({"store": store.path(), "names": names, "store_bytes": all, "unneeded_bytes": garbage.bytes})
        );
        return Ok(());
    }
    let width = names
        .iter()
        .map(|(name, _)| name.to_string().len())
        .max()
        .unwrap_or(0);
    for (name, record) in &names {
        let held = &record.now;
        let release = match (held.number, &held.version) {
            (Some(number), Some(version)) => format!("release {number} ({version})"),
            _ => "unsigned".to_owned(),
        };
        let before = match record.before.len() {
            0 => String::new(),
            count => format!(", {count} before it"),
        };
        let bad = match record.bad.len() {
            0 => String::new(),
            count => format!(", {count} passed over"),
        };
        let name = name.to_string();
        println!(
            "{name:<width$}  {}  {:>9}  {}  {release}{before}{bad}",
            held.bundle.short(),
            bytes(held.bytes),
            held.slice
        );
    }
    println!(
        "{} in `{}`, {} of it without a name (`heg prune`)",
        bytes(all),
        store.path().display(),
        bytes(garbage.bytes)
    );
    Ok(())
}

/// Runs `heg rm`.
pub(crate) fn remove(arguments: &Remove) -> anyhow::Result<()> {
    let store = store()?;
    let _lock = store.lock(&waits)?;
    for short in &arguments.names {
        let (name, _) = store.meant(&asked(short)?)?;
        store.forget(&name)?;
        println!("{name}  is forgotten; `heg prune` frees its room");
    }
    Ok(())
}

/// Runs `heg prune`.
pub(crate) fn prune(arguments: &Prune) -> anyhow::Result<()> {
    let store = store()?;
    let garbage = match arguments.dry_run {
        true => store.garbage()?,
        false => store.prune(&waits)?,
    };
    if arguments.json {
        println!(
            "{}",
            json!({"bundles": garbage.bundles, "files": garbage.files(), "bytes": garbage.bytes,
                              "partial_bytes": garbage.partial_bytes, "removed": !arguments.dry_run})
        );
        return Ok(());
    }
    let verb = if arguments.dry_run {
        "would free"
    } else {
        "freed"
    };
    println!(
        "{verb} {}: {} bundles without a name, {} files; of it {} of transfers that broke off",
        bytes(garbage.bytes),
        garbage.bundles.len(),
        garbage.files(),
        bytes(garbage.partial_bytes)
    );
    Ok(())
}

/// Runs `heg rollback`.
pub(crate) fn roll_back(arguments: &Rollback) -> anyhow::Result<()> {
    let store = store()?;
    let _lock = store.lock(&waits)?;
    let (name, record) = store.meant(&asked(&arguments.name)?)?;
    let held = store.roll_back(&name)?;
    let left = record.now.bundle;
    let marked = store
        .name(&name)?
        .is_some_and(|record| record.bad(left).is_some());
    let passed_over = match marked {
        true => format!("; updates pass {} over", left.short()),
        false => String::new(),
    };
    println!(
        "{name}  {} → {}{passed_over}",
        left.short(),
        held.bundle.short()
    );
    Ok(())
}
