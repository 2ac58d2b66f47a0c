//! `cargo xtask evaluate --paper heterollm`: the evaluation of HeteroLLM (section 5) beside ours.
//!
//! Machines are those of SoC files with a pair of devices (`machine`), cuts are the solver's, and a prompt or a token is the
//! sum of its products and what lies between them (`pass`). `lines` holds the outcome against the paper's figures
//! (`figures`), `tables` prints everything.

mod figures;
mod line;
mod lines;
mod machine;
mod pass;
mod tables;

use anyhow::{Context, Result};
use line::Line;
use machine::Machine;
use serde::Serialize;
use std::fs;
use std::path::Path;
use xtask::fail::Fail;

/// Machines with the bytes of a weight: the paper's, in 4 bits with a 16-bit scale for each 128 (W4A16); and the one that
/// the project's kernels are compiled for, in 8 bits.
const MACHINES: [(&str, f64); 2] = [("snapdragon-8-gen3", 0.515_625), ("core-ultra-5-125h", 1.0)];

#[derive(Serialize)]
struct Summary<'a> {
    paper: &'static str,
    inconsistent: &'a [&'a str],
    lines: &'a [Line],
}

/// Evaluates, prints and writes into a folder.
pub(super) fn run(out: &Path) -> Result<()> {
    let unwritable = || Fail::environment(format!("cannot write to `{}`", out.display()));
    fs::create_dir_all(out).with_context(unwritable)?;
    let (report, lines) = evaluate()?;
    let summary = Summary {
        paper: "heterollm",
        inconsistent: &figures::INCONSISTENT,
        lines: &lines,
    };
    let summary = serde_json::to_string_pretty(&summary)? + "\n";
    fs::write(out.join("summary.json"), summary).with_context(unwritable)?;
    fs::write(out.join("report.md"), &report).with_context(unwritable)?;
    print!("{report}");
    println!("wrote {}", out.display());
    Ok(())
}

/// The report, and its lines.
fn evaluate() -> Result<(String, Vec<Line>)> {
    let machines = MACHINES.map(|(name, weight_bytes)| Machine::of(name, weight_bytes));
    let machines: Vec<Machine> = machines.into_iter().collect::<Result<_>>()?;
    let mut all = Vec::new();
    for (place, machine) in machines.iter().enumerate() {
        all.extend(match place {
            0 => lines::all(machine)?,
            _ => lines::elsewhere(machine)?,
        });
    }
    Ok((tables::report(&machines, &all)?, all))
}

#[cfg(test)]
mod tests;
