//! `heg state`: what is kept of prompts for later runs; and the options of the commands that keep it.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::{Args, Subcommand};
use heg_artifacts::SectionId;
use heg_artifacts::plain::escape;
use heg_runtime::{Loaded, verified};
use heg_state::{KeptLimits, ListedPage, ListedPrefix, Listing, Purge, StateFolder};
use serde_json::{Value, json};

use crate::failure::input;

/// The folder of kept state, and its limits.
#[derive(Args)]
pub(crate) struct Keep {
    /// Disk for the KV cache of prompts, so that no later run reads them again, in MiB; 0 keeps nothing and finds nothing. Not encrypted, for this user alone; what is not asked for a month goes
    #[arg(long, value_name = "N", default_value_t = STATE_MIB)]
    state_mib: u32,
    /// Folder for it [default: `state` in HEG's cache folder]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl Keep {
    /// Opens the folder, and says on standard error what it holds. A folder that nobody named is no reason to fail.
    pub(crate) fn folder(&self) -> anyhow::Result<Option<StateFolder>> {
        if self.state_mib == 0 {
            return Ok(None);
        }
        let limits = KeptLimits::of_mib(self.state_mib);
        let Some(path) = place(self.state_dir.as_deref())? else {
            eprintln!("note: keeps nothing of prompts: there is no cache folder for this user");
            return Ok(None);
        };
        let opened =
            StateFolder::open(&path, limits).and_then(|folder| Ok((folder.usage()?, folder)));
        let ((pages, bytes), folder) = match opened {
            Ok(opened) => opened,
            Err(error) if self.state_dir.is_some() => return Err(error.into()),
            Err(error) => {
                let why = format!("{:#}", anyhow::Error::from(error));
                eprintln!("note: keeps nothing of prompts: {}", escape(&why));
                return Ok(None);
            }
        };
        eprintln!(
            "note: keeps prompts for later runs in `{}`: {pages} pages, {:.0} of {} MiB; `--state-mib 0` keeps none",
            escape(&path.to_string_lossy()),
            mib(bytes),
            self.state_mib
        );
        Ok(Some(folder))
    }
}

/// Arguments of `heg state`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
    /// The folder [default: `state` in HEG's cache folder]
    #[arg(long, value_name = "DIR", global = true)]
    state_dir: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Action {
    /// List the kept prefixes, the longest first
    List,
    /// Show what is kept of one prompt: its tokens and, with its bundle, its text
    Show {
        /// Its name in the list
        #[arg(value_name = "NAME")]
        name: String,
        /// The bundle that it was kept for, to show text
        #[arg(long, value_name = "BUNDLE")]
        bundle: Option<PathBuf>,
    },
    /// Remove what is kept
    Purge {
        /// Only what was kept for this bundle
        #[arg(long, value_name = "BUNDLE")]
        bundle: Option<PathBuf>,
    },
}

const EXAMPLES: &str = "Examples:
  heg state list
  heg state show 4f1c09d2a7b3 --bundle model.heg
  heg state purge --json";

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let path = place(arguments.state_dir.as_deref())?;
    let path =
        path.ok_or_else(|| input("there is no cache folder for this user: give --state-dir"))?;
    let folder = match path.exists() {
        true => Some(StateFolder::open(&path, KeptLimits::NONE)?),
        false => None,
    };
    let listing = folder.as_ref().map(StateFolder::list).transpose()?;
    let listing = listing.unwrap_or_default();
    match &arguments.action {
        Action::List => list(&path, &listing, arguments.json),
        Action::Show { name, bundle } => {
            let prefixes = listing.prefixes();
            let mut named = prefixes
                .iter()
                .filter(|it| it.last.name.link().starts_with(name));
            let found = named
                .next()
                .filter(|_| !name.is_empty() && named.next().is_none());
            let found = found.ok_or_else(|| {
                input(format!(
                    "no prefix or several have a name that begins with `{}`: see `heg state list`",
                    escape(name)
                ))
            })?;
            show(&listing, found, bundle.as_deref(), arguments.json)?;
        }
        Action::Purge { bundle } => {
            let what = match bundle {
                Some(bundle) => {
                    Purge::Bundle(*Loaded::open(bundle)?.bundle().manifest_id().as_bytes())
                }
                None => Purge::All,
            };
            let removed = folder.map(|folder| folder.purge(what)).transpose()?;
            let (pages, bytes) = removed.unwrap_or_default();
            match arguments.json {
                true => println!("{}", json!({"pages": pages, "bytes": bytes})),
                false => println!("removed {pages} pages, {:.1} MiB", mib(bytes)),
            }
        }
    }
    Ok(())
}

fn list(path: &Path, listing: &Listing, as_json: bool) {
    let prefixes = listing.prefixes();
    if as_json {
        let prefixes: Vec<Value> = prefixes.iter().map(described).collect();
        let damaged = listing.damaged.iter();
        let damaged: Vec<Value> = damaged
            .map(|(name, why)| json!({"file": name.as_str(), "why": why}))
            .collect();
        let object = json!({
            "folder": path.to_string_lossy(),
            "bytes": listing.bytes,
            "pages": listing.pages.len(),
            "prefixes": prefixes,
            "damaged": damaged,
        });
        return println!("{object}");
    }
    println!(
        "{}: {} prefixes, {} pages, {:.1} MiB",
        escape(&path.to_string_lossy()),
        prefixes.len(),
        listing.pages.len(),
        mib(listing.bytes)
    );
    if !prefixes.is_empty() {
        println!("name           tokens  last used  owner     bundle");
    }
    for prefix in &prefixes {
        println!(
            "{}  {:>7}  {:>9}  {}  {}{}",
            short_name(prefix),
            prefix.tokens,
            age(prefix.last.used),
            prefix.last.head.owner.short().get(..8).unwrap_or_default(),
            bundle_of(prefix).short(),
            if prefix.is_whole {
                ""
            } else {
                "  (pages before it are gone)"
            },
        );
    }
    for (name, why) in &listing.damaged {
        println!("{}: {}", name.as_str(), escape(why));
    }
}

fn show(
    listing: &Listing,
    prefix: &ListedPrefix<'_>,
    bundle: Option<&Path>,
    as_json: bool,
) -> anyhow::Result<()> {
    let tokens: Vec<u32> = listing
        .pages_of(prefix)
        .into_iter()
        .flat_map(|page: &ListedPage| page.head.tokens().to_vec())
        .collect();
    let loaded = bundle.map(Loaded::open).transpose()?;
    if let Some(loaded) = &loaded
        && loaded.bundle().manifest_id() != bundle_of(prefix)
    {
        let kept_for = bundle_of(prefix).short();
        return Err(input(format!(
            "it was kept for bundle {kept_for}, and this is another one"
        )));
    }
    let tokenizer = loaded.as_ref().map(Loaded::tokenizer).transpose()?;
    let text = tokenizer
        .map(|tokenizer| tokenizer.decode(&tokens))
        .transpose()?;
    if as_json {
        let mut object = described(prefix);
        object["token_ids"] = tokens.into();
        object["text"] = text.into();
        println!("{object}");
        return Ok(());
    }
    println!("name    {}", short_name(prefix));
    println!(
        "tokens  {}, in pages of {:.2} MiB",
        prefix.tokens,
        mib(prefix.last.bytes)
    );
    println!("used    {} ago", age(prefix.last.used));
    println!("owner   {}", prefix.last.head.owner.short());
    println!("bundle  {}", bundle_of(prefix));
    match text {
        Some(text) => println!("text    {}", escape(&text)),
        None => println!("ids     {tokens:?}"),
    }
    Ok(())
}

fn described(prefix: &ListedPrefix<'_>) -> Value {
    let used = prefix.last.used.duration_since(SystemTime::UNIX_EPOCH);
    json!({
        "name": prefix.last.name.link(),
        "tokens": prefix.tokens,
        "whole": prefix.is_whole,
        "page_bytes": prefix.last.bytes,
        "used": used.map_or(0, |used| used.as_secs()),
        "owner": prefix.last.head.owner.short(),
        "bundle": bundle_of(prefix).to_string(),
    })
}

/// The folder, whether or not it is there; `None` if nobody named one and this user has no cache folder.
fn place(asked: Option<&Path>) -> anyhow::Result<Option<PathBuf>> {
    if let Some(asked) = asked {
        return Ok(Some(asked.to_owned()));
    }
    Ok(verified::cache_folder()?.map(|cache| cache.path().join("state")))
}

fn bundle_of(prefix: &ListedPrefix<'_>) -> SectionId {
    SectionId::from_bytes(prefix.last.head.model.bundle)
}

fn short_name<'a>(prefix: &'a ListedPrefix<'_>) -> &'a str {
    prefix.last.name.link().get(..12).unwrap_or_default()
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Returns the time since then, in its largest whole unit.
fn age(then: SystemTime) -> String {
    let seconds = then.elapsed().unwrap_or_default().as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Default budget. Chosen: 64 000 tokens of a model of a billion parameters, and less than its bundle.
const STATE_MIB: u32 = 2048;
