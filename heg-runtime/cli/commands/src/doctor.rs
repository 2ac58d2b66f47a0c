//! `heg doctor`: checks the known answer of every kernel, on every device and in every form in which it can run; or the
//! results of a GPU's arithmetic.

mod gpu;
mod npu;

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use heg_artifacts::plain::escape;
use heg_runtime::RuntimeError;
use heg_runtime::exec::{
    Diagnosis, Examined, NpuReport, Place, TestOutcome, clear_quarantine, diagnose,
};
use heg_runtime::verdicts::Verdict;
use heg_spec::Group;
use serde::Serialize;

use crate::failure::input;
use crate::options::Machine;

/// Arguments of `heg doctor`.
#[derive(Args)]
#[command(mut_arg("bundle", |bundle| bundle.required(false).required_unless_present("gpu")))]
pub(crate) struct Arguments {
    #[command(flatten)]
    machine: Option<Machine>,
    /// Say what a GPU's arithmetic does, remember it for `--soc auto`, and run no bundle: of the device with this name or driver, or the first
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    #[arg(conflicts_with_all = ["bundle", "clear"])]
    gpu: Option<String>,
    /// Say what the NPU and its driver are, how they know the bundle's memory, which blobs fit, and how long each known answer took
    #[arg(long, conflicts_with = "clear")]
    npu: bool,
    /// Write all that the command found to this file as JSON, to compare machines
    #[arg(long, value_name = "FILE", requires = "npu")]
    record: Option<PathBuf>,
    /// Clear the list of quarantined kernels, and run nothing
    #[arg(long)]
    clear: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "clear")]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    healthy: bool,
    /// The device or program that runs kernels, for each role.
    runs: Vec<String>,
    /// The NPU, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    npu: Option<NpuReport>,
    kernels: Vec<Entry<'a>>,
}

/// The result of one place on one rung.
#[derive(Serialize)]
struct Entry<'a> {
    kernel: &'a str,
    layer: Option<u32>,
    device: &'a str,
    role: &'a str,
    shape: Option<&'a str>,
    source: Option<&'a str>,
    /// Largest error; `None` if the kernel was not run, or an output is NaN.
    worst: Option<f32>,
    tolerance: Option<f32>,
    verdict: &'static str,
    /// The device's error message, if it refused the kernel.
    refused: Option<&'a str>,
    /// Time of making the form ready and running it, in milliseconds.
    took_ms: f64,
}

/// Runs the command; wrong answers are an error.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(name) = &arguments.gpu {
        return gpu::run(name, arguments.json);
    }
    let Some(machine) = &arguments.machine else {
        return Err(input("a bundle is needed, or `--gpu`"));
    };
    let loaded = machine.open()?;
    let loader = machine.loader(&loaded)?;
    if arguments.clear {
        let cleared = clear_quarantine(&loader)?;
        println!("{cleared} kernels are no longer quarantined");
        return Ok(());
    }
    if arguments.npu && loader.npu_report().is_none() {
        return Err(input(
            "the machine has no NPU: name one that has with `--soc`",
        ));
    }
    let diagnosis = diagnose(&loader, |_| ())?;
    if diagnosis.asked.is_none() {
        return Err(input(
            "the bundle has no known answers: compile it again with a newer compiler",
        ));
    }
    machine.remember(&loaded)?;
    let npu = arguments.npu.then(|| loader.npu_report()).flatten();
    let report = Report {
        healthy: !diagnosis.found_wrong(),
        runs: loader.what_runs(),
        npu,
        kernels: diagnosis.examined.iter().map(entry).collect(),
    };
    if let Some(path) = &arguments.record {
        npu::record(path, &report)?;
    }
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        for line in &report.runs {
            writeln!(out, "runs      {}", escape(line))?;
        }
        if let Some(npu) = &report.npu {
            write!(out, "{}", npu::text(npu, &diagnosis.examined))?;
        }
        write!(out, "{}", table(&diagnosis))?;
    }
    let wrong = diagnosis
        .examined
        .iter()
        .filter(|examined| verdict(examined) == WRONG)
        .count();
    if wrong > 0 {
        return Err(RuntimeError::WrongAnswers { wrong }.into());
    }
    Ok(())
}

fn entry(examined: &Examined) -> Entry<'_> {
    let answered = examined.outcome.verdict();
    Entry {
        kernel: &examined.kernel,
        layer: examined.place.layer,
        device: &examined.step.device,
        role: examined.step.role,
        shape: examined.step.shape.as_deref(),
        source: examined.step.source.as_deref(),
        worst: answered
            .map(|verdict| verdict.worst)
            .filter(|worst| worst.is_finite()),
        tolerance: answered.map(|verdict| verdict.tolerance),
        verdict: verdict(examined),
        refused: match &examined.outcome {
            TestOutcome::Refused(message) => Some(message),
            _ => None,
        },
        took_ms: examined.took.as_secs_f64() * 1e3,
    }
}

fn verdict(examined: &Examined) -> &'static str {
    match &examined.outcome {
        TestOutcome::Answered(verdict) if verdict.is_right() => "right",
        TestOutcome::Answered(_) => WRONG,
        TestOutcome::NotAsked => "not asked",
        TestOutcome::NoPlugin => "not tried",
        TestOutcome::Refused(_) => "refused",
    }
}

pub(crate) const WRONG: &str = "WRONG";

/// A line for a kernel on a rung, with all layers of the same verdict.
struct Line<'a> {
    first: &'a Examined,
    layers: Vec<Option<u32>>,
    worst: Option<Verdict>,
}

fn table(diagnosis: &Diagnosis) -> String {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for examined in &diagnosis.examined {
        let answered = examined.outcome.verdict();
        let same = |line: &&mut Line<'_>| {
            line.first.kernel == examined.kernel
                && line.first.rung == examined.rung
                && verdict(line.first) == verdict(examined)
        };
        match lines.iter_mut().find(same) {
            Some(line) => {
                line.layers.push(examined.place.layer);
                let worse = |known: &Verdict| answered.is_some_and(|new| new.worst > known.worst);
                if line.worst.as_ref().is_some_and(worse) {
                    line.worst = answered;
                }
            }
            None => lines.push(Line {
                first: examined,
                layers: vec![examined.place.layer],
                worst: answered,
            }),
        }
    }
    let mut text = format!(
        "{:<10} {:<9} {:<14} {:<12} {:<10} {:>9} {:>9}  verdict\n",
        "kernel", "layers", "device", "variant", "from", "worst", "tolerance"
    );
    for line in &lines {
        text.push_str(&line.text());
    }
    text
}

impl Line<'_> {
    fn text(&self) -> String {
        let step = &self.first.step;
        let number =
            |value: Option<f32>| value.map_or("-".to_owned(), |value| format!("{value:.1e}"));
        let refused = match &self.first.outcome {
            TestOutcome::Refused(message) => format!(": {message}"),
            TestOutcome::NoPlugin => ": OpenVINO is not there".to_owned(),
            TestOutcome::Answered(_) | TestOutcome::NotAsked => String::new(),
        };
        format!(
            "{:<10} {:<9} {:<14} {:<12} {:<10} {:>9} {:>9}  {}{refused}\n",
            self.first.kernel,
            self.range(),
            step.device_in_role(),
            step.shape.as_deref().unwrap_or("-"),
            step.source.as_deref().unwrap_or("-"),
            number(self.worst.map(|verdict| verdict.worst)),
            number(self.worst.map(|verdict| verdict.tolerance)),
            verdict(self.first),
        )
    }

    /// Formats the layers: `0-15`, `3`, `0,7`; attention with a single kernel is run once for all its layers.
    fn range(&self) -> String {
        if let Place {
            group: Group::Mha, ..
        } = self.first.place
        {
            return "all".to_owned();
        }
        let layers: Vec<u32> = self.layers.iter().filter_map(|layer| *layer).collect();
        match layers.as_slice() {
            [] => "-".to_owned(),
            [only] => only.to_string(),
            [first, .., last] if *last as usize == *first as usize + layers.len() - 1 => {
                format!("{first}-{last}")
            }
            [first, second] => format!("{first},{second}"),
            [first, .., last] => format!("{first}..{last}"),
        }
    }
}
