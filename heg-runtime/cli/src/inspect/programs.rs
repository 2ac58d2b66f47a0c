//! `heg inspect --program`: the programs of kernels on the CPU, step by step.

use std::collections::BTreeMap;
use std::io::Write;

use heg_artifacts::manifest::Kernel;
use heg_artifacts::program::Program;
use heg_artifacts::{Bundle, Error};

use crate::failure::input;

/// Prints the program of the requested kernel, or of each kernel.
pub(super) fn run(bundle: &Bundle, wanted: Option<&str>, json: bool) -> anyhow::Result<()> {
    let kernels = &bundle.manifest().kernels;
    let chosen: Vec<&Kernel> = match wanted {
        None => kernels.iter().collect(),
        Some(name) => kernels
            .iter()
            .filter(|kernel| kernel.name == name)
            .collect(),
    };
    if let (Some(name), []) = (wanted, chosen.as_slice()) {
        let names: Vec<&str> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
        let message = format!("there is no kernel `{name}`, expected one of {names:?}");
        return Err(input(message));
    }
    let mut programs = BTreeMap::new();
    let mut texts = Vec::new();
    for kernel in chosen {
        let program = program(bundle, kernel)?;
        texts.push(match &program {
            Some(program) => program.text(kernel).to_string(),
            None => format!("{}: no program for the CPU\n", kernel.name),
        });
        programs.insert(&kernel.name, program);
    }
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, &programs)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", texts.join("\n"))?;
    }
    Ok(())
}

/// Returns a kernel's program, if it has one.
fn program(bundle: &Bundle, kernel: &Kernel) -> Result<Option<Program>, Error> {
    let mut sections = kernel.variants.iter().filter_map(|variant| variant.program);
    let read = |id| Program::read(&bundle.section_copy(id)?, kernel);
    sections.next().map(read).transpose()
}
