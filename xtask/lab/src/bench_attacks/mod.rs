//! `cargo xtask bench-attacks`: hostile clients and models against the release server, one after the other, each with a
//! server of its own. Another client is measured alone and beside each attack, and the project's goals are checked.

mod attack;
mod attacks;
mod measure;
mod models;
mod other;
mod report;
mod scene;
pub(crate) mod server;
pub(crate) mod tree;
mod verdict;
pub(crate) mod wire;

use crate::output;
use anyhow::{Context, Result};
use attack::Attack;
use measure::Bounds;
use report::{Report, header};
use std::path::{Path, PathBuf};
use xtask::fail::Fail;
use xtask::workspace::{self, Build, note};

/// Arguments of `cargo xtask bench-attacks`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The server's binary, such as one from before a change [default: heg of this checkout, built for release]
    #[arg(long, value_name = "PATH")]
    heg: Option<PathBuf>,
    /// Make only this attack; may be given more than once
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// List the attacks and make none
    #[arg(long)]
    list: bool,
    /// Times that the other client is measured alone and beside each attack
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Requests of the other client in each round, alone and beside; fewer where they take too long
    #[arg(long, value_name = "N", default_value_t = REQUESTS, value_parser = clap::value_parser!(u16).range(1..))]
    requests: u16,
    /// Address space of the server and each process that it starts, in GiB, so that none takes the machine's memory
    #[arg(long, value_name = "GIB", default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..))]
    address_gib: u64,
    /// Also write all figures to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Chosen: a median over rounds passes over one in which something else ran.
const ROUNDS: u16 = 3;

/// Chosen: the fewest that have a P99.
const REQUESTS: u16 = 100;

const AFTER_HELP: &str = "\
Goals, for each attack: the server lives (lives); all its processes together take at most 64 MiB above their own memory
and what a client may make them keep (memory); another client's median and P99 are at most 1.5 times those alone, and
50 ms more, and all its requests are answered (others); the sender is answered, or refused with 400, 413, 422, 429 or
504 and a reason, at most 1 s after its budget or deadline (sender); 100 ms after the sender has gone, no work of its
own is left (gone); and what else an attack looks at (steps). A goal that is missed is named below the table, and the
exit status is 1.

The other client's figures are medians over the rounds of each round's median and P99. Timings want an idle machine;
memory, statuses and lives do not. An attack takes at most a minute. Where an attack is a model's folder, compiling it
may also end in a refusal with status 2 or 3.

Examples:
  cargo xtask bench-attacks
  cargo xtask bench-attacks --only schema-bomb --only enum-pattern --rounds 1
  cargo xtask bench-attacks --heg path/to/an/older/heg --json before.json";

pub(crate) fn run(args: &Args) -> Result<()> {
    let chosen = chosen(&args.only)?;
    if args.list {
        for attack in &chosen {
            println!("{:<20} {:<4} {}", attack.name, attack.script, attack.about);
        }
        return Ok(());
    }
    let bounds = Bounds {
        heg: binary(args.heg.as_deref())?,
        rounds: args.rounds.into(),
        requests: args.requests.into(),
        address_gib: args.address_gib,
    };
    let mut report = Report::new(&bounds.heg.display().to_string(), bounds.rounds);
    note(header().trim_end());
    for attack in &chosen {
        let seen = measure::measure(attack, &bounds)
            .with_context(|| Fail::check(format!("cannot measure `{}`", attack.name)))?;
        note(report.add(attack, &seen).trim_end());
    }
    print!("{}", report.table());
    if let Some(file) = &args.json {
        output::write(file, &output::pretty(&report)?)?;
    }
    match report.failed().as_slice() {
        [] => Ok(()),
        failed => {
            let count = format!("{} of {} attacks miss a goal", failed.len(), chosen.len());
            Err(Fail::check(count).into())
        }
    }
}

/// The attacks of these names; all without any.
fn chosen(names: &[String]) -> Result<Vec<Attack>> {
    let mut all = attacks::all();
    for name in names {
        if !all.iter().any(|attack| attack.name == name) {
            let message = format!("no attack is called `{name}`");
            let hint = "cargo xtask bench-attacks --list prints their names";
            return Err(Fail::input(message).hint(hint).into());
        }
    }
    if !names.is_empty() {
        all.retain(|attack| names.iter().any(|name| attack.name == name));
    }
    Ok(all)
}

fn binary(given: Option<&Path>) -> Result<PathBuf> {
    let Some(given) = given else {
        return workspace::build_heg(Build::Release);
    };
    let found = given.canonicalize().map_err(anyhow::Error::new);
    found.with_context(|| {
        Fail::input(format!("no server at `{}`", given.display()))
            .hint("--heg takes the path of a heg binary")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use xtask::fail::exit_status;

    #[test]
    fn each_attack_has_a_name_of_its_own() {
        let all = attacks::all();
        let names: BTreeSet<&str> = all.iter().map(|attack| attack.name).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.iter().all(|attack| !attack.script.is_empty()));
    }

    #[test]
    fn only_named_attacks_are_made_and_unknown_names_are_refused() {
        let names = ["shutdown", "http"].map(str::to_owned);
        let found: Vec<&str> = chosen(&names).unwrap().iter().map(|it| it.name).collect();
        assert_eq!(found, ["http", "shutdown"]);
        let Err(error) = chosen(&["htp".to_owned()]) else {
            panic!("`htp` was found");
        };
        assert_eq!(error.to_string(), "no attack is called `htp`");
        assert_eq!(exit_status(&error), 2);
    }
}
