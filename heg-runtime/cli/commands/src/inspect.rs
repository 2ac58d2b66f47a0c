//! `heg inspect`: the contents of a bundle, for people or as JSON; `inspect/kernels.rs`, the costs of its kernels;
//! `inspect/graph.rs`, the order of its kernels; `inspect/page.rs`, both as a page with pictures; `inspect/programs.rs`, the programs of its kernels on the CPU;
//! `inspect/modules.rs`, the modules with which a GPU runs these;
//! `inspect/partitions.rs`, the partitions of its products between two devices.

mod graph;
mod kernels;
mod modules;
mod page;
mod partitions;
mod programs;

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use heg_artifacts::SectionId;
use heg_artifacts::manifest::{BakedState, Binding, Kernel, Manifest};
use heg_runtime::Loaded;
use heg_spec::Group;
use programs::View;
use serde::Serialize;

use crate::options::located;

/// Arguments of `heg inspect`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The bundle: a file, or a name that `heg list` shows
    #[arg(value_name = "BUNDLE")]
    bundle: PathBuf,
    /// Print the whole manifest, or what `--kernels`, `--program` or `--partition` shows, as JSON
    #[arg(long)]
    json: bool,
    /// Show what a call costs with each variant of each kernel, and how the chunk was chosen
    #[arg(long, group = "costs")]
    kernels: bool,
    /// Write a page with the HEG and the rooflines as pictures, and all that `--kernels` shows
    #[arg(long, value_name = "FILE", group = "costs", conflicts_with = "json")]
    html: Option<PathBuf>,
    /// Show the CPU program of a kernel [default: of each kernel], step by step
    #[arg(long, value_name = "KERNEL", conflicts_with = "costs")]
    program: Option<Option<String>>,
    /// With `--program`: show the modules with which a GPU runs it instead, by step, and their sizes
    #[arg(long, requires = "program")]
    gpu: bool,
    /// Show how two devices share the products of a layer, on each machine that the bundle has a partition for
    #[arg(long, conflicts_with_all = ["costs", "program"])]
    partition: bool,
    #[command(flatten)]
    question: kernels::Question,
}

#[derive(Serialize)]
struct Report<'m> {
    bundle: String,
    bytes: usize,
    #[serde(flatten)]
    manifest: &'m Manifest,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let loaded = Loaded::open(&located(&arguments.bundle)?)?;
    if arguments.kernels {
        return kernels::run(&loaded, &arguments.question, arguments.json);
    }
    if let Some(file) = &arguments.html {
        return page::run(&loaded, &arguments.question, file);
    }
    if arguments.partition {
        return partitions::run(&loaded, arguments.json);
    }
    let bundle = loaded.bundle();
    if let Some(kernel) = &arguments.program {
        let view = match arguments.gpu {
            true => View::Modules,
            false => View::Steps,
        };
        return programs::run(bundle, kernel.as_deref(), view, arguments.json);
    }
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let report = Report {
            bundle: bundle.manifest_id().to_string(),
            bytes: bundle.mapping().len(),
            manifest: bundle.manifest(),
        };
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        return Ok(());
    }
    write!(
        out,
        "{}",
        describe(bundle.manifest(), bundle.mapping().len())
    )?;
    writeln!(out, "bundle    {}", bundle.manifest_id())?;
    Ok(())
}

fn describe(manifest: &Manifest, bytes: usize) -> String {
    let model = &manifest.model;
    let sections: u64 = manifest.sections.iter().map(|section| section.bytes).sum();
    let mut text = format!(
        "model     {} ({}), {} parameters as {}\n\
         shape     {} layers, hidden {}, {}/{} heads of {}, vocabulary {}, context {} tokens\n\
         file      {} in {} sections ({} of content)\n\
         text      tokenizer {}, chat template {}, ends with {:?}\n\
         made by   {} for OpenVINO {}\n\n",
        model.name,
        model.architecture,
        with_unit(model.parameters as f64, ""),
        model.weights,
        manifest.layers.len(),
        model.hidden,
        model.heads,
        model.kv_heads,
        model.head_dim,
        model.vocab,
        model.context_tokens,
        with_unit(bytes as f64, "B"),
        manifest.sections.len(),
        with_unit(sections as f64, "B"),
        presence(manifest.text.tokenizer.is_some()),
        presence(manifest.text.chat_template.is_some()),
        manifest.text.eos_ids,
        manifest.provenance.compiler,
        manifest.provenance.openvino,
    );
    text.push_str("kernel      uses  parameters  FLOP/token  variants\n");
    for (index, kernel) in manifest.kernels.iter().enumerate() {
        text.push_str(&kernel_line(manifest, index, kernel));
    }
    text.push('\n');
    text.push_str(&graph::describe(manifest));
    text.push_str(&partitions::piece_lines(manifest));
    for state in &manifest.states {
        text.push_str(&state_line(state, state_bytes(manifest, state)));
    }
    text
}

/// Bytes of a state's sections; other states may have some of them too.
fn state_bytes(manifest: &Manifest, state: &BakedState) -> u64 {
    let is_of_it = |id: &SectionId| *id == state.beginning || state.pages.contains(id);
    let sections = manifest.sections.iter();
    let sections = sections.filter(|section| is_of_it(&section.id));
    sections.map(|section| section.bytes).sum()
}

/// Describes a baked state: its tokens, bytes and numeric form.
pub(crate) fn state_line(state: &BakedState, bytes: u64) -> String {
    let form = state.form;
    format!(
        "state     {}: {} tokens in {} pages, {}; {:?} activations, {:?} keys and values, arithmetic {}\n",
        state.name,
        state.tokens.len(),
        state.pages.len(),
        with_unit(bytes as f64, "B"),
        form.activations,
        form.kv_cache,
        form.arithmetic,
    )
}

fn kernel_line(manifest: &Manifest, index: usize, kernel: &Kernel) -> String {
    let layers = manifest
        .layers
        .iter()
        .flat_map(|layer| [&layer.qkv, &layer.mha, &layer.ffn]);
    let uses = layers
        .chain([&manifest.head])
        .filter(|used| used.kernel.0 as usize == index)
        .count();
    format!(
        "{:<10} {:>5}  {:>10}  {:>10}  {}\n",
        kernel.name,
        uses,
        kernel.parameters.len(),
        with_unit(kernel.work.flops(1, 1), ""),
        variants(kernel)
    )
}

/// Names the variants; those that differ only in their shape are named together.
fn variants(kernel: &Kernel) -> String {
    let mut kinds: Vec<(String, String, String)> = Vec::new();
    for variant in &kernel.variants {
        let shape = variant.shape.to_string();
        let device = format!("{:?}", variant.device);
        let binding = match variant.binding {
            Binding::Constant => "",
            Binding::Input => ", weights as inputs",
        };
        let kv_cache = match variant.kv_cache {
            Some(element) if matches!(kernel.group, Group::Qkv | Group::Mha) => {
                format!(", {element:?} keys and values")
            }
            _ => String::new(),
        };
        let form = format!("({:?}{kv_cache}{binding})", variant.activations);
        let known = kinds
            .iter_mut()
            .find(|kind| kind.0 == device && kind.2 == form);
        match known {
            Some(kind) => kind.1 = format!("{}, {shape}", kind.1),
            None => kinds.push((device, shape, form)),
        }
    }
    let kinds: Vec<String> = kinds
        .iter()
        .map(|(device, shapes, form)| format!("{device} {shapes} {form}"))
        .collect();
    kinds.join("; ")
}

fn presence(present: bool) -> &'static str {
    if present { "present" } else { "absent" }
}

/// Formats a number with three digits and a decimal prefix: `1.25 GB`, `940 k`.
fn with_unit(number: f64, unit: &str) -> String {
    let prefixes = [("G", 1e9), ("M", 1e6), ("k", 1e3)];
    match prefixes.iter().find(|(_, size)| number >= *size) {
        Some((prefix, size)) => format!("{:.2} {prefix}{unit}", number / size),
        None => format!("{number:.0} {unit}").trim_end().to_owned(),
    }
}
