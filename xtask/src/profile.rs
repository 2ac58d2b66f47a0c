//! `cargo xtask profile`: measures kernels on this machine, by the same `heg profile` that runs on a device. By default
//! it measures a model of a published shape with random weights.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use xtask::workspace::{self, Build, note, target_dir};
use xtask::{compile, setup, synth};

/// Arguments of `cargo xtask profile`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Bundles to measure [default: the shape of llama-3.2-1b, made and compiled first]
    #[arg(long = "model", value_name = "BUNDLE")]
    models: Vec<PathBuf>,
    /// Devices to measure: a shipped SoC (`host-cpu`, `host-cpu-f32`, `host-roles`) or a .ron file
    #[arg(long, value_name = "SOC", default_value = "host-cpu")]
    soc: String,
    /// About how long the kernels of a bundle may run in all
    #[arg(long, value_name = "SECONDS", default_value_t = 90)]
    budget: u64,
    /// Measure again what was measured before
    #[arg(long)]
    again: bool,
    /// Predict calls that were not measured, measure them, and fail if they differ too much
    #[arg(long)]
    check: bool,
    /// Seed of the calls that are checked
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    setup::ensure_openvino_for(&args.soc)?;
    let heg = workspace::build_heg(Build::Release)?;
    let models = match args.models.as_slice() {
        [] => vec![default_bundle()?],
        named => named.to_vec(),
    };
    for model in &models {
        note(format!("measuring {}", model.display()));
        profile(&heg, model, args)?;
    }
    Ok(())
}

fn profile(heg: &Path, model: &Path, args: &Args) -> Result<()> {
    let mut command = workspace::heg(heg);
    command
        .arg("profile")
        .arg(model)
        .args(["--soc", &args.soc])
        .args(["--budget", &args.budget.to_string()])
        .args(["--seed", &args.seed.to_string()]);
    let switches = [("--again", args.again), ("--check", args.check)];
    command.args(switches.iter().filter(|one| one.1).map(|one| one.0));
    workspace::run(&mut command, "heg profile")
}

/// The smallest published shape whose kernels do not fit into a cache.
fn default_bundle() -> Result<PathBuf> {
    let output = workspace::output();
    let shape = synth::Args {
        like: DEFAULT_SHAPE.to_owned(),
        output: None,
        seed: 0,
    };
    let model = synth::ensure_model(&shape, &output)?;
    let bundle = target_dir()
        .join("profile")
        .join(format!("{DEFAULT_SHAPE}-w8a16.heg"));
    let done = compile::compile(&model, &bundle, &output.store(), &compile::own_use())
        .with_context(|| format!("cannot compile {DEFAULT_SHAPE}"))?;
    println!("{done}");
    Ok(bundle)
}

const DEFAULT_SHAPE: &str = "llama-3.2-1b";

const AFTER_HELP: &str = "\
Prints the anchors of each device, a line per kernel, what devices do to each other where there are two, and with
--check a table of predictions beside measurements with their errors; exit status 1 if the median is above 10 % or
the 95th percentile above 25 %. The profile is kept in target/heg-cache/profiles, and one that was interrupted goes
on where it was. Other work on the machine makes a measurement longer, not wrong, as long as it pauses now and then.

Examples:
  cargo xtask profile --check
  cargo xtask profile --soc host-roles --model bundles/tiny-agent.heg
  cargo xtask profile --again --budget 300";
