//! `cargo xtask evaluate --paper heterollm`: the evaluation of HeteroLLM (section 5) compared with ours.
//!
//! Machines are those of SoC files with a pair of devices (`machine`), cuts are the solver's, and a prompt or a token
//! is the sum of its products and of the work between them (`pass`). `lines` compares the results with the paper's
//! figures (`figures`), `tables` prints everything.

mod figures;
mod lines;
mod machine;
mod pass;
mod tables;

use super::line::PaperLine;
use crate::output;
use anyhow::Result;
use machine::Machine;
use serde::Serialize;
use std::path::Path;

/// Machines with their bytes per weight: the paper's, in 4 bits with a 16-bit scale for each 128 (W4A16); and the one
/// for which the project's kernels are compiled, in 8 bits.
const MACHINES: [(&str, f64); 2] = [("snapdragon-8-gen3", 0.515_625), ("core-ultra-5-125h", 1.0)];

#[derive(Serialize)]
struct Summary<'a> {
    paper: &'static str,
    inconsistent: &'a [String],
    lines: &'a [PaperLine],
}

/// Evaluates, prints, and writes the results into a folder.
pub(super) fn run(out: &Path) -> Result<()> {
    let (report, lines) = evaluate()?;
    let says = figures::figures()?;
    let summary = Summary {
        paper: "heterollm",
        inconsistent: &says.inconsistent,
        lines: &lines,
    };
    let summary = output::pretty(&summary)?;
    output::write_all(out, [("summary.json", &*summary), ("report.md", &*report)])?;
    print!("{report}");
    println!("wrote {}", out.display());
    Ok(())
}

/// The report, and its lines.
fn evaluate() -> Result<(String, Vec<PaperLine>)> {
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
