//! `heg inspect --html`: a bundle as a single self-contained page, for a browser or for paper.
//!
//! The page is `page/page.html.jinja`, filled with the strings that are collected here; pictures are drawn in
//! `*_svg.rs`. All text from the bundle is escaped where it is written, cut to a length that fits, and
//! limited in number, so that no bundle makes a page that a browser cannot open.

mod chunk_svg;
mod graph_svg;
mod names;
mod outline;
mod roofline_svg;
mod rooflines;
mod shares_svg;
mod svg;
mod tables;

use std::path::Path;

use anyhow::Context;
use heg_artifacts::manifest::Manifest;
use heg_profiler::annotation::{ChunkSweep, KernelCall};
use heg_runtime::Loaded;
use minijinja::Value;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use serde::Serialize;

use self::chunk_svg::Bars;
use self::outline::{Lengths, Outline};
use self::rooflines::RooflineFigure;
use self::tables::{ChunkRow, EstimateTable, Matrix, SizeRow, SourceRow, VariantRow};
use super::kernels::{Machine, Question, scaled};

/// Maximum number of kernels in tables and charts. Chosen: models in use have up to ten.
const KERNELS_MAX: usize = 24;
/// Maximum number of variants of a kernel for one class of device: five chunks over eight buckets, and some
/// more.
const VARIANTS_MAX: usize = 64;
/// Maximum number of devices of a machine.
const DEVICES_MAX: usize = 6;
/// Maximum number of machines whose partitions are drawn.
const SOCS_MAX: usize = 6;

const TEMPLATE: &str = include_str!("page/page.html.jinja");

/// Writes the page.
pub(super) fn run(loaded: &Loaded, question: &Question, file: &Path) -> anyhow::Result<()> {
    let machine = Machine::asked(loaded, question)?;
    let text = page(loaded, question, &machine)?;
    std::fs::write(file, &text)
        .with_context(|| format!("the page cannot be written to `{}`", file.display()))?;
    println!("{}: {}", file.display(), scaled(text.len() as f64, "B"));
    Ok(())
}

fn page(loaded: &Loaded, question: &Question, machine: &Machine) -> anyhow::Result<String> {
    let mut templates = minijinja::Environment::new();
    templates.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?,
    );
    templates.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
    // Because of the name, values put into the template are escaped as HTML.
    templates.add_template("page.html", TEMPLATE)?;
    let mut page = Page::new(loaded, question, machine);
    if let Some(partitions) = loaded.partitions()? {
        let socs = partitions.socs.iter().take(SOCS_MAX);
        page.shares_svg = socs.map(shares_svg::draw).collect();
    }
    Ok(templates
        .get_template("page.html")?
        .render(Value::from(Serde(page)))?)
}

/// A number or a word with its name.
#[derive(Serialize)]
struct Fact {
    name: String,
    value: String,
}

fn fact(name: &str, value: impl Into<String>) -> Fact {
    Fact {
        name: name.to_owned(),
        value: value.into(),
    }
}

/// The data for the template. Fields that end in `svg` are drawn here and inserted unescaped.
#[derive(Serialize)]
struct Page {
    name: String,
    bundle: String,
    facts: Vec<Fact>,
    graph_wide_svg: String,
    graph_tall_svg: String,
    variants: Vec<VariantRow>,
    /// Number of kernels that no table shows.
    more_kernels: usize,
    machine: String,
    origin: &'static str,
    call: Vec<Fact>,
    key_svg: Vec<[String; 2]>,
    rooflines: Vec<RooflineFigure>,
    estimates: Vec<EstimateTable>,
    sweep: Option<SweepFigure>,
    /// The partitions of products between two devices, a picture for each machine.
    shares_svg: Vec<String>,
    contention: Option<Matrix>,
    sizes: Vec<SizeRow>,
    sources: Vec<SourceRow>,
    made_by: Vec<Fact>,
    inputs: Vec<Fact>,
    more_inputs: usize,
}

/// The chunk sweep.
#[derive(Serialize)]
struct SweepFigure {
    token_svg: String,
    longest_svg: String,
    rule: String,
    rows: Vec<ChunkRow>,
}

impl Page {
    fn new(loaded: &Loaded, question: &Question, machine: &Machine) -> Self {
        let bundle = loaded.bundle();
        let manifest = bundle.manifest();
        let call = question.call(manifest);
        let sweep = machine.sweep(manifest);
        let sections = manifest.sections.iter();
        let lengths: Lengths = sections.map(|found| (found.id, found.bytes)).collect();
        let outline = Outline::new(manifest, sweep.as_ref(), &lengths);
        let inputs = &manifest.provenance.inputs;
        let shown_inputs = inputs.iter().take(INPUTS_MAX);
        Page {
            name: names::name(&manifest.model.name, names::NAME),
            bundle: bundle.manifest_id().to_string(),
            facts: facts(manifest, bundle.mapping().len()),
            graph_wide_svg: graph_svg::wide(&outline),
            graph_tall_svg: graph_svg::tall(&outline),
            variants: tables::variants(manifest, &lengths),
            more_kernels: manifest.kernels.len().saturating_sub(KERNELS_MAX),
            machine: names::name(&machine.annotation.name, names::NAME),
            origin: machine.origin.describe(),
            call: call_facts(call),
            key_svg: rooflines::key(),
            rooflines: rooflines::figures(manifest, &machine.annotation, call),
            estimates: tables::estimates(manifest, &machine.annotation, call, &lengths),
            sweep: sweep.as_ref().map(sweep_figure),
            shares_svg: Vec::new(),
            contention: tables::contention(&machine.annotation.contention),
            sizes: tables::sizes(manifest, &lengths, bundle.mapping().len() as u64),
            sources: tables::sources(machine.file.as_ref()),
            made_by: made_by(manifest),
            inputs: shown_inputs
                .map(|(name, hash)| fact(&names::name(name, 64), hash.to_string()))
                .collect(),
            more_inputs: inputs.len().saturating_sub(INPUTS_MAX),
        }
    }
}

/// Maximum number of hashes of input files.
const INPUTS_MAX: usize = 32;

fn facts(manifest: &Manifest, bytes: usize) -> Vec<Fact> {
    let model = &manifest.model;
    let weights = model.weights.to_string();
    vec![
        fact(
            "architecture",
            names::name(&model.architecture, names::NAME),
        ),
        fact("parameters", scaled(model.parameters as f64, "")),
        fact("weights", weights),
        fact("layers", manifest.layers.len().to_string()),
        fact("hidden size", model.hidden.to_string()),
        fact(
            "heads",
            format!("{} / {} of {}", model.heads, model.kv_heads, model.head_dim),
        ),
        fact("vocabulary", model.vocab.to_string()),
        fact("context", format!("{} tokens", model.context_tokens)),
        fact("file", scaled(bytes as f64, "B")),
        fact("sections", manifest.sections.len().to_string()),
    ]
}

fn call_facts(call: KernelCall) -> Vec<Fact> {
    vec![
        fact("c", call.tokens.to_string()),
        fact("n", call.context.max(call.tokens).to_string()),
        fact("b", call.batch.to_string()),
    ]
}

fn made_by(manifest: &Manifest) -> Vec<Fact> {
    let made = &manifest.provenance;
    let short = |text: &str| names::name(text, 80);
    let mut facts = vec![
        fact("compiler", short(&made.compiler)),
        fact("OpenVINO", short(&made.openvino)),
    ];
    let npu = made.npu_compiler.as_deref().map(short);
    facts.extend(npu.map(|build| fact("NPU compiler", build)));
    facts.push(fact("manifest", format!("revision {}", manifest.revision)));
    facts
}

fn sweep_figure(sweep: &ChunkSweep) -> SweepFigure {
    let limits = sweep.limits();
    let candidates = || sweep.candidates().iter().take(CANDIDATES_MAX);
    let all = candidates().map(|candidate| (candidate.tokens, candidate.token_us));
    let preemptible = sweep
        .candidates()
        .iter()
        .filter(|candidate| candidate.longest_us <= limits.preemption_us);
    let best_us = preemptible
        .map(|candidate| candidate.token_us)
        .min_by(f64::total_cmp);
    let tolerance = format!("{}%", roofline_svg::figure(limits.tolerance * 100.0));
    let token = Bars {
        title: "time per token of the prompt, by chunk",
        bars: all.collect(),
        chosen: sweep.chosen(),
        bound: (
            best_us.map_or(f64::MAX, |best| best * (1.0 + limits.tolerance)),
            format!("best and {tolerance}"),
        ),
    };
    let longest = Bars {
        title: "longest kernel, by chunk",
        bars: candidates()
            .map(|candidate| (candidate.tokens, candidate.longest_us))
            .collect(),
        chosen: sweep.chosen(),
        bound: (limits.preemption_us, "preemption bound".to_owned()),
    };
    let chosen = match sweep.chosen() {
        Some(tokens) => format!("Chunk {tokens} is the smallest"),
        None => "No chunk is".to_owned(),
    };
    SweepFigure {
        token_svg: token.draw(),
        longest_svg: longest.draw(),
        rule: format!(
            "{chosen} within {tolerance} of the best time per token of a prompt of {} tokens, of those whose \
             longest kernel takes up to {}.",
            limits.context_tokens,
            scaled(limits.preemption_us * 1e-6, "s")
        ),
        rows: candidates()
            .map(|candidate| tables::chunk_row(candidate, sweep.chosen()))
            .collect(),
    }
}

/// Maximum number of candidates of a sweep.
const CANDIDATES_MAX: usize = 12;
