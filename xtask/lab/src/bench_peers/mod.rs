//! `cargo xtask bench-peers`: HEG beside OpenVINO GenAI on the same weights, in the same run.
//! Both sides take turns (A B A B …), each measurement in a process of its own, and medians are
//! compared: figures of a shared machine drift, ratios of one run hardly do.

pub(crate) mod genai;
pub(crate) mod ours;
mod report;

use crate::quality;
use anyhow::{Context, Result, bail};
use report::{Report, Samples};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use xtask::fail::Fail;
use xtask::workspace::{note, target_dir};
use xtask::{setup, synth};

/// Arguments of `cargo xtask bench-peers`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// A Hugging Face folder to measure with [default: llama-3.2-1b, synthesised]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// The same model, exported with 8-bit weights already [default: exported with optimum-cli]
    #[arg(long, value_name = "DIR")]
    genai_model: Option<PathBuf>,
    /// Number of rounds for each side
    #[arg(long, value_name = "N", default_value_t = ROUNDS)]
    rounds: NonZeroU32,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let subject = Subject::find(args.model.as_deref())?;
    let genai = genai::prepare(&subject, args.genai_model.as_deref())?;
    let ours = ours::prepare(&subject)?;
    note("one start of each, not counted, so that both find their files in memory");
    ours.start()?;
    genai.start_with("start-sdpa")?;
    let mut report = Report::new(&subject.name);
    for round in 1..=args.rounds.get() {
        note(format!("round {round} of {}: HEG", args.rounds));
        measure_ours(&ours, &mut report.ours)?;
        note(format!("round {round} of {}: GenAI", args.rounds));
        measure_genai(&genai, &mut report.genai)?;
    }
    note("accuracy of the same build and settings");
    let accuracy = quality::of_the_default();
    if args.json {
        let mut json = report.json();
        json["accuracy"] = accuracy.map_or(Value::Null, |accuracy| accuracy.json());
        println!("{json}");
        return Ok(());
    }
    print!("{}", report.table());
    if let Some(accuracy) = accuracy {
        print!("{ABOUT_ACCURACY}{}", accuracy.table());
    }
    Ok(())
}

const ABOUT_ACCURACY: &str = "
Accuracy at these settings, on a real model (random weights have no text to be right about):
";

/// What both sides do. Chosen: prompts of two chunks and of eight, an answer long enough to average over, and the batch
/// of eight that servers are usually quoted at.
const PREFILL_TOKENS: [u32; 2] = [512, 2048];
const DECODE_TOKENS: u32 = 32;
const BATCH: u32 = 8;
const START_PROMPT_TOKENS: u32 = 32;

fn measure_ours(ours: &ours::Ours, samples: &mut Samples) -> Result<()> {
    samples.add_all(&ours.bench()?, &report::BENCH_KEYS)?;
    let process_ms = ours.start()?;
    samples.add("process_ms", process_ms);
    samples.add("start_ms", process_ms);
    Ok(())
}

fn measure_genai(genai: &genai::GenAi, samples: &mut Samples) -> Result<()> {
    samples.add_all(&genai.micro()?, &report::BENCH_KEYS)?;
    // Its attention has two implementations, and which starts faster depends on the machine:
    // take the better one.
    let (first, second) = (
        genai.start_with("start-sdpa")?,
        genai.start_with("start-pa")?,
    );
    let better = match first.start_ms <= second.start_ms {
        true => first,
        false => second,
    };
    samples.add("process_ms", better.process_ms);
    samples.add("start_ms", better.start_ms);
    Ok(())
}

/// The model that all sides run.
pub(crate) struct Subject {
    /// The Hugging Face folder.
    pub(crate) folder: PathBuf,
    pub(crate) name: String,
    /// Where its other forms and the other sides' programs are kept.
    pub(crate) peers: PathBuf,
}

impl Subject {
    /// A Hugging Face folder; of llama-3.2-1b's shape, synthesised, unless one is given.
    pub(crate) fn find(model: Option<&Path>) -> Result<Self> {
        setup::ensure_openvino()?;
        let peers = target_dir().join("peers");
        fs::create_dir_all(&peers)
            .with_context(|| format!("cannot create `{}`", peers.display()))?;
        let folder = match model {
            Some(folder) => folder.to_path_buf(),
            None => synth::ensure_model(&synth::Args {
                like: "llama-3.2-1b".to_string(),
                output: None,
                seed: 0,
            })?,
        };
        let shown = folder.display();
        let folder = folder
            .canonicalize()
            .map_err(anyhow::Error::new)
            .with_context(|| Fail::input(format!("no model at `{shown}`")))?;
        let name = folder.file_name().context("the model folder has no name")?;
        let name = name.to_string_lossy().into_owned();
        Ok(Self {
            folder,
            name,
            peers,
        })
    }
}

/// Runs a program until it ends. Returns its first line on standard output as JSON, and the
/// milliseconds from before its start to that line.
pub(crate) fn timed_json(command: &mut Command, what: &str) -> Result<(Value, f64)> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let start = Instant::now();
    let mut child = command
        .spawn()
        .map_err(anyhow::Error::new)
        .with_context(|| {
            let program = command.get_program().to_string_lossy().into_owned();
            Fail::environment(format!("cannot start `{program}`"))
        })?;
    let (Some(stdout), Some(mut stderr)) = (child.stdout.take(), child.stderr.take()) else {
        bail!("a piped program has no output");
    };
    // Read beside standard output: a full pipe would stop the program.
    let complaints = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stderr.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let mut stdout = BufReader::new(stdout);
    let mut text = String::new();
    stdout
        .read_line(&mut text)
        .with_context(|| what.to_string())?;
    let elapsed_ms = start.elapsed().as_secs_f64() * 1e3;
    stdout
        .read_to_string(&mut text)
        .with_context(|| what.to_string())?;
    let status = child.wait().with_context(|| what.to_string())?;
    let said = complaints.join().unwrap_or_default();
    if !status.success() {
        let failed = Fail::child(status.code(), format!("{what} failed: {status}"));
        return Err(anyhow::anyhow!(xtask::workspace::last_lines(&said)).context(failed));
    }
    let value = serde_json::from_str(&text).with_context(|| format!("{what} printed no JSON"))?;
    Ok((value, elapsed_ms))
}

/// Numbers for programs' arguments: `512,2048`.
fn listed(numbers: &[u32]) -> String {
    let texts: Vec<String> = numbers.iter().map(u32::to_string).collect();
    texts.join(",")
}

/// A path as text, for programs' arguments.
pub(crate) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

const ROUNDS: NonZeroU32 = match NonZeroU32::new(3) {
    Some(rounds) => rounds,
    None => NonZeroU32::MIN,
};

const AFTER_HELP: &str = "\
The first time, this makes a Python environment in <target folder>/peers with pinned packages
(about 3 GB to download, 6 GB on disk, mostly PyTorch, which exports the model), writes random
weights of llama-3.2-1b's shape (2.5 GB), exports them for GenAI with 8-bit weights (1.2 GB) and
compiles the same folder for HEG. Later runs start measuring at once.

HEG_PEERS_VENV=DIR uses a Python environment that has the packages, and downloads nothing.

Accuracy stands beside speed: SmolLM2 at the same settings on both sides, as `cargo xtask quality
--models smollm2 --default-only` measures it (another 93 MB to download, once).

The start of GenAI is counted from after Python's start and imports, which favours it; a line of
its own gives both as whole processes.

Examples:
  cargo xtask bench-peers
  cargo xtask bench-peers --rounds 5 --json
  HEG_PEERS_VENV=~/venv cargo xtask bench-peers --model m1b --genai-model ov1b";

#[cfg(test)]
mod tests {
    use super::*;
    use xtask::fail::{exit_status, render};

    fn shell(script: &str) -> Result<(Value, f64)> {
        timed_json(Command::new("sh").args(["-c", script]), "the script")
    }

    #[test]
    fn the_clock_stops_at_the_first_line() {
        let start = Instant::now();
        let (value, ms) = shell("echo '{\"a\": 1}'; sleep 1").unwrap();
        assert_eq!(value["a"], 1);
        let after_the_line_ms = start.elapsed().as_secs_f64() * 1e3 - ms;
        assert!(after_the_line_ms > 300.0, "{after_the_line_ms}");
    }

    #[test]
    fn an_object_over_several_lines_is_read_whole() {
        let (value, _) = shell("echo '{'; echo '\"a\": 2 }'").unwrap();
        assert_eq!(value["a"], 2);
    }

    #[test]
    fn a_failing_program_keeps_its_status_and_last_words() {
        let error = shell("echo 'error: no such bundle' >&2; exit 3").unwrap_err();
        assert_eq!(exit_status(&error), 3);
        assert!(render(&error).contains("caused by: error: no such bundle"));
    }
}
