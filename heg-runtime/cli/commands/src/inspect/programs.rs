//! `heg inspect --program`: the programs of kernels on the CPU, step by step.

use std::collections::BTreeMap;
use std::io::Write;

use heg_artifacts::manifest::Kernel;
use heg_artifacts::program::Program;
use heg_artifacts::{Bundle, Error};

use super::modules;
use crate::failure::input;

/// The part of programs that is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// The steps.
    Steps,
    /// The modules with which a GPU runs them.
    Modules,
}

/// Prints the program of the requested kernel, or of each kernel.
pub(super) fn run(
    bundle: &Bundle,
    wanted: Option<&str>,
    view: View,
    json: bool,
) -> anyhow::Result<()> {
    let mut programs = Vec::new();
    for kernel in chosen(bundle, wanted)? {
        programs.push((kernel, program(bundle, kernel)?));
    }
    let manifest = bundle.manifest();
    let modules_of = |(kernel, program): &(&Kernel, Option<Program>)| {
        let program = program.as_ref()?;
        Some(modules::modules(manifest, kernel, program))
    };
    let absent = |kernel: &Kernel| format!("{}: no program for the CPU\n", kernel.name);
    let mut out = std::io::stdout().lock();
    match (view, json) {
        (View::Steps, true) => {
            let named = programs.iter().map(|(kernel, it)| (&kernel.name, it));
            serde_json::to_writer_pretty(&mut out, &named.collect::<BTreeMap<_, _>>())?;
            writeln!(out)?;
        }
        (View::Modules, true) => {
            let all: Vec<_> = programs.iter().filter_map(modules_of).collect();
            serde_json::to_writer_pretty(&mut out, &all)?;
            writeln!(out)?;
        }
        (View::Steps, false) => {
            let texts = programs.iter().map(|(kernel, program)| match program {
                Some(program) => program.text(kernel).to_string(),
                None => absent(kernel),
            });
            write!(out, "{}", texts.collect::<Vec<_>>().join("\n"))?;
        }
        (View::Modules, false) => {
            let texts = programs.iter().map(|one| match modules_of(one) {
                Some(modules) => modules.text(),
                None => absent(one.0),
            });
            let texts = texts.chain(modules::layer(manifest, &programs));
            let texts = texts.chain([modules::total(manifest)]);
            write!(out, "{}", texts.collect::<Vec<_>>().join("\n"))?;
        }
    }
    Ok(())
}

/// The requested kernel, or all of them.
fn chosen<'b>(bundle: &'b Bundle, wanted: Option<&str>) -> anyhow::Result<Vec<&'b Kernel>> {
    let kernels = &bundle.manifest().kernels;
    let Some(name) = wanted else {
        return Ok(kernels.iter().collect());
    };
    let chosen: Vec<&Kernel> = kernels.iter().filter(|it| it.name == name).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
        let message = format!("there is no kernel `{name}`, expected one of {names:?}");
        return Err(input(message));
    }
    Ok(chosen)
}

/// Returns a kernel's program, if it has one.
fn program(bundle: &Bundle, kernel: &Kernel) -> Result<Option<Program>, Error> {
    let mut sections = kernel.variants.iter().filter_map(|variant| variant.program);
    let read = |id| Program::read(&bundle.section_copy(id)?, kernel);
    sections.next().map(read).transpose()
}
