//! `cargo xtask farm plan`: the jobs by which machines that share a store compile each kernel of models × platforms ×
//! drivers once, as input of somebody else's scheduler: GNU parallel for a handful of machines, Slurm, Kubernetes.
//!
//! A job is a command that may be repeated: what it made is in the store by the hash of its inputs, so a second run finds
//! it there. Schedulers place jobs by label, retry and go on; nothing here waits for a machine.

mod jobs;
mod kubernetes;
mod matrix;
mod parallel;
mod slurm;

use anyhow::{Context, Result};
use clap::{Subcommand, ValueEnum};
use hegc::fail::Fail;
use matrix::FarmMatrix;
use std::fs;
use std::path::PathBuf;

/// Arguments of `cargo xtask farm`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the jobs of a matrix as input of a scheduler
    #[command(after_help = AFTER_HELP)]
    Plan(PlanArgs),
}

#[derive(clap::Args)]
struct PlanArgs {
    /// Models, platforms and machines, as RON
    #[arg(value_name = "FILE")]
    matrix: PathBuf,
    /// The scheduler
    #[arg(long = "as", value_enum, value_name = "SCHEDULER")]
    scheduler: Scheduler,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scheduler {
    /// A script for GNU parallel over ssh; `machines/LABEL` lists the machines with a label
    Parallel,
    /// A script that submits Slurm arrays; labels are features of nodes
    Slurm,
    /// A script that applies Indexed Jobs; labels are those of nodes
    Kubernetes,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let Command::Plan(args) = &args.command;
    let shown = args.matrix.display();
    let bad = || Fail::input(format!("cannot use the matrix `{shown}`"));
    let text = fs::read_to_string(&args.matrix).with_context(bad)?;
    let matrix = FarmMatrix::parse(&text).with_context(bad)?;
    print!("{}", script(&matrix, args.scheduler)?);
    Ok(())
}

fn script(matrix: &FarmMatrix, scheduler: Scheduler) -> Result<String> {
    let stages = jobs::of(matrix)?;
    Ok(match scheduler {
        Scheduler::Parallel => parallel::script(&stages),
        Scheduler::Slurm => slurm::script(&stages),
        Scheduler::Kubernetes => kubernetes::script(&stages, matrix)?,
    })
}

const AFTER_HELP: &str = "\
Examples:
  cargo xtask farm plan matrix.ron --as parallel > farm.sh && bash farm.sh
  cargo xtask farm plan matrix.ron --as slurm | bash
  cargo xtask farm plan matrix.ron --as kubernetes | bash

A matrix:
  (revision: 1, store: \"/mnt/farm\", key: Some(\"/etc/heg/farm.key\"),
   models: [(name: \"llama-3.2-1b\", path: \"/mnt/models/llama-3.2-1b\", weights: Some(\"w8a16\"), memory_gb: 8)],
   compilers: [(label: \"npu-8.4\", platforms: [3720, 4000])],
   profiles: [(label: \"lunar-lake\", soc: \"core-ultra-200v\")],
   push: Some(\"registry.acme.example/acme\"), tag: \"2026.11\")

With shared: Some(\"s3://bucket/heg\") the machines share that bucket instead of a folder: `store` is then each machine's own, and
credentials are in the environment of the jobs. Profiles, and bundles of several compilers, need a folder.";

#[cfg(test)]
mod tests;
