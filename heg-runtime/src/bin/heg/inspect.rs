//! `heg inspect`: what a bundle holds, for people or as JSON.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use heg_artifacts::manifest::{Binding, Kernel, Manifest, ShapeClass};
use heg_runtime::Loaded;
use serde::Serialize;

/// Arguments of `heg inspect`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The bundle
    #[arg(value_name = "BUNDLE")]
    bundle: PathBuf,
    /// Print the whole manifest as JSON
    #[arg(long)]
    json: bool,
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
    let loaded = Loaded::open(&arguments.bundle)?;
    let bundle = loaded.bundle();
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
        "model     {} ({}), {:.1} M parameters as {:?}\n\
         shape     {} layers, hidden {}, {}/{} heads of {}, vocabulary {}, context {} tokens\n\
         file      {:.1} MB in {} sections ({:.1} MB of content)\n\
         text      tokenizer {}, chat template {}, ends with {:?}\n\
         made by   {} for OpenVINO {}\n\n",
        model.name,
        model.architecture,
        model.parameters as f64 / 1e6,
        model.weights,
        manifest.layers.len(),
        model.hidden,
        model.heads,
        model.kv_heads,
        model.head_dim,
        model.vocab,
        model.context_tokens,
        bytes as f64 / 1e6,
        manifest.sections.len(),
        sections as f64 / 1e6,
        presence(manifest.text.tokenizer.is_some()),
        presence(manifest.text.chat_template.is_some()),
        manifest.text.eos_ids,
        manifest.provenance.compiler,
        manifest.provenance.openvino,
    );
    text.push_str("kernel      uses  parameters  GFLOP/token  variants\n");
    for (index, kernel) in manifest.kernels.iter().enumerate() {
        text.push_str(&kernel_line(manifest, index, kernel));
    }
    text.push('\n');
    text
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
    let variants: Vec<String> = kernel
        .variants
        .iter()
        .map(|variant| {
            let shape = match variant.shape {
                ShapeClass::Dynamic => "dynamic".to_owned(),
                ShapeClass::Static { tokens } => tokens.to_string(),
            };
            let binding = match variant.binding {
                Binding::Constant => "",
                Binding::Input => ", weights as inputs",
            };
            format!(
                "{:?} {shape} ({:?}{binding})",
                variant.device, variant.activations
            )
        })
        .collect();
    format!(
        "{:<10} {:>5}  {:>10}  {:>11.4}  {}\n",
        kernel.name,
        uses,
        kernel.parameters.len(),
        kernel.work.flops(1, 1) / 1e9,
        variants.join("; ")
    )
}

fn presence(present: bool) -> &'static str {
    if present { "present" } else { "absent" }
}
