//! `heg inspect --kernels`: the cost of a call with each variant on a machine, and the choice of the chunk.
//!
//! Estimates come from the bundle's annotations of that machine, or else from its data sheet alone. Nothing is
//! run.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use heg_artifacts::manifest::{Binding, Kernel, Manifest, ShapeClass, Variant};
use heg_profiler::annotation::{
    ChunkSweep, DeviceAnnotation, Estimate, KernelCall, SocAnnotation, SweepLimits, estimate,
    footprint_bytes, of_data_sheet, sweep,
};
use heg_profiler::measure::Profile;
use heg_runtime::{EngineError, Loaded, RuntimeError, read_soc};
use heg_spec::{DeviceClass, Soc};
use serde::Serialize;

/// The machine and the call.
#[derive(Args)]
pub(super) struct Question {
    /// With --kernels or --html: the machine, a shipped SoC or a .ron file [default: the bundle's first, or
    /// core-ultra-5-125h]
    #[arg(long, value_name = "SOC", requires = "costs")]
    pub(super) soc: Option<String>,
    /// With --kernels or --html: a profile that `heg profile` wrote, before what the bundle says
    #[arg(long, value_name = "FILE", requires = "costs")]
    profile: Option<PathBuf>,
    /// With --kernels or --html: tokens of each sequence [default: 256, or the model's limit]
    #[arg(long, value_name = "TOKENS", requires = "costs", value_parser = clap::value_parser!(u32).range(1..))]
    tokens: Option<u32>,
    /// With --kernels or --html: rows of the KV cache that each sequence sees [default: 2048, or the model's limit]
    #[arg(long, value_name = "TOKENS", requires = "costs", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
    /// With --kernels or --html: sequences
    #[arg(long, value_name = "SEQUENCES", default_value_t = 1, requires = "costs", value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
}

/// The contents of the report; the JSON has all of them too.
#[derive(Serialize)]
struct Report<'m> {
    bundle: String,
    soc: String,
    /// The source of the machine's figures.
    origin: Origin,
    call: KernelCall,
    kernels: Vec<Row<'m>>,
    sweep: Option<ChunkSweep>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Origin {
    Bundle,
    DataSheet,
    /// A profile, which overrides either of the others.
    Profile,
}

impl Origin {
    /// Describes the source for people.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Bundle => "as the bundle knows it",
            Self::DataSheet => "by its data sheet alone: the bundle has no annotations of it",
            Self::Profile => "as it was measured there",
        }
    }
}

#[derive(Serialize)]
struct Row<'m> {
    kernel: &'m str,
    device: DeviceClass,
    openvino: String,
    shape: ShapeClass,
    binding: Binding,
    footprint_bytes: u64,
    /// The estimate; `None` if the variant's speed is unknown.
    estimate: Option<Estimate>,
}

/// The papers' machine, used for bundles that name none.
const DEFAULT_SOC: &str = "core-ultra-5-125h";

/// Prints the report.
pub(super) fn run(loaded: &Loaded, question: &Question, json: bool) -> anyhow::Result<()> {
    let manifest = loaded.bundle().manifest();
    let machine = Machine::asked(loaded, question)?;
    let call = question.call(manifest);
    let report = Report {
        bundle: loaded.bundle().manifest_id().to_string(),
        soc: machine.annotation.name.clone(),
        origin: machine.origin,
        call,
        kernels: rows(manifest, &machine.annotation, call),
        sweep: machine.sweep(manifest),
    };
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        return Ok(());
    }
    write!(out, "{}", describe(&report, &machine)?)?;
    Ok(())
}

impl Question {
    /// Returns the call of the question.
    pub(super) fn call(&self, manifest: &Manifest) -> KernelCall {
        let limit = manifest.model.context_tokens;
        KernelCall {
            tokens: self.tokens.unwrap_or(CHUNK_TOKENS.min(limit)),
            context: self.context.unwrap_or(CONTEXT_TOKENS.min(limit)),
            batch: self.batch,
        }
    }
}

/// Default number of tokens of the call: the papers' chunk, over the prompt length that the sweep assumes.
const CHUNK_TOKENS: u32 = 256;
const CONTEXT_TOKENS: u32 = 2048;

/// Reads a profile of this bundle, measured on any devices.
fn read_profile(file: &Path, loaded: &Loaded) -> anyhow::Result<Profile> {
    let profile = Profile::parse(&std::fs::read_to_string(file)?)?;
    let devices: Vec<_> = profile
        .devices
        .iter()
        .map(|one| one.identity.clone())
        .collect();
    profile.expect(loaded.bundle().manifest_id(), &devices)?;
    Ok(profile)
}

/// A machine with its known figures.
pub(super) struct Machine {
    pub(super) annotation: SocAnnotation,
    pub(super) origin: Origin,
    /// The machine's file, if there is one, with the sources of its figures.
    pub(super) file: Option<Soc>,
}

impl Machine {
    /// Returns the machine of the question, with its measurements.
    pub(super) fn asked(loaded: &Loaded, question: &Question) -> anyhow::Result<Self> {
        let Some(file) = &question.profile else {
            return Ok(Self::find(loaded, question.soc.as_deref())?);
        };
        let profile = read_profile(file, loaded)
            .with_context(|| format!("cannot use the profile `{}`", file.display()))?;
        let mut machine = Self::find(
            loaded,
            Some(question.soc.as_deref().unwrap_or(&profile.soc)),
        )?;
        for soc in profile.annotations(loaded.bundle().manifest()).socs {
            if soc.name == machine.annotation.name {
                machine.annotation.overlay(soc);
                machine.annotation.sweep = None;
                machine.origin = Origin::Profile;
            }
        }
        Ok(machine)
    }

    fn find(loaded: &Loaded, wanted: Option<&str>) -> Result<Self, RuntimeError> {
        let annotated = loaded
            .annotations()?
            .map_or_else(Vec::new, |found| found.socs);
        let file = match (wanted, annotated.first()) {
            (Some(name), _) if annotated.iter().any(|soc| soc.name == name) => read_soc(name).ok(),
            (Some(name), _) => Some(read_soc(name)?),
            (None, Some(first)) => read_soc(&first.name).ok(),
            (None, None) => Some(read_soc(DEFAULT_SOC)?),
        };
        let name = match (&file, wanted, annotated.first()) {
            (Some(file), ..) => file.name.clone(),
            (None, Some(wanted), _) => wanted.to_owned(),
            (None, None, first) => first.map_or_else(String::new, |soc| soc.name.clone()),
        };
        if let Some(annotation) = annotated.into_iter().find(|soc| soc.name == name) {
            return Ok(Self {
                annotation,
                origin: Origin::Bundle,
                file,
            });
        }
        let file = match file {
            Some(file) => file,
            None => read_soc(&name)?,
        };
        Ok(Self {
            annotation: of_data_sheet(&file).map_err(EngineError::from)?,
            origin: Origin::DataSheet,
            file: Some(file),
        })
    }

    /// Returns the sweep that chose the chunk: that of the annotations, or else one from their estimates.
    pub(super) fn sweep(&self, manifest: &Manifest) -> Option<ChunkSweep> {
        let limit = manifest.model.context_tokens;
        let limits = SweepLimits {
            context_tokens: SweepLimits::default().context_tokens.min(limit),
            ..SweepLimits::default()
        };
        let known = self.annotation.sweep.clone();
        known.or_else(|| sweep(manifest, &self.annotation, limits))
    }
}

/// Returns the rows of every variant that a device of the machine runs, device by device.
fn rows<'m>(manifest: &'m Manifest, soc: &SocAnnotation, call: KernelCall) -> Vec<Row<'m>> {
    let head = manifest.head.kernel.0 as usize;
    let mut rows = Vec::new();
    for device in &soc.devices {
        for (index, kernel) in manifest.kernels.iter().enumerate() {
            // Only the last row needs logits.
            let tokens = if index == head { 1 } else { call.tokens };
            let call = KernelCall { tokens, ..call };
            let variants = kernel.variants.iter();
            let own = variants.filter(|variant| variant.device == device.class);
            rows.extend(own.map(|variant| row(manifest, device, kernel, variant, call)));
        }
    }
    rows
}

fn row<'m>(
    manifest: &Manifest,
    device: &DeviceAnnotation,
    kernel: &'m Kernel,
    variant: &Variant,
    call: KernelCall,
) -> Row<'m> {
    let blob_bytes = blob_bytes(manifest, device, variant);
    Row {
        kernel: &kernel.name,
        device: device.class,
        openvino: device.openvino.clone(),
        shape: variant.shape,
        binding: variant.binding,
        footprint_bytes: footprint_bytes(kernel, variant, call, blob_bytes),
        estimate: estimate(device, kernel, variant, call, blob_bytes),
    }
}

/// Returns the length of the blob that the device would run; 0 if there is none.
fn blob_bytes(manifest: &Manifest, device: &DeviceAnnotation, variant: &Variant) -> u64 {
    let mut blobs = variant.blobs.iter();
    device
        .npu
        .and_then(|npu| blobs.find(|blob| blob.platform == npu.platform))
        .and_then(|blob| manifest.sections.iter().find(|s| s.id == blob.section))
        .map_or(0, |section| section.bytes)
}

fn describe(report: &Report<'_>, machine: &Machine) -> Result<String, std::fmt::Error> {
    let KernelCall {
        tokens,
        context,
        batch,
    } = report.call;
    let origin = report.origin.describe();
    let mut text = String::new();
    writeln!(text, "machine   {}, {origin}", report.soc)?;
    writeln!(
        text,
        "call      c {tokens}, n {}, b {batch}: tokens, visible rows of the KV cache, sequences; head: c 1\n",
        context.max(tokens)
    )?;
    for device in &machine.annotation.devices {
        writeln!(text, "{}", device_line(device))?;
    }
    text.push_str("\nkernel      device  shape      weights    runs    latency  bandwidth   footprint      energy  anchors\n");
    for row in &report.kernels {
        writeln!(text, "{}", row_line(row))?;
    }
    text.push('\n');
    describe_sweep(&mut text, report.sweep.as_ref())?;
    if let Some(file) = &machine.file {
        describe_sources(&mut text, file)?;
    }
    Ok(text)
}

fn device_line(device: &DeviceAnnotation) -> String {
    let mut facts = Vec::new();
    if let Some(npu) = device.npu {
        let clock = npu.frequency_mhz.map(|mhz| format!(" at {mhz} MHz"));
        facts.push(format!(
            "platform {}{}",
            npu.platform,
            clock.unwrap_or_default()
        ));
    }
    if let Some(peaks) = device.peaks {
        facts.push(scaled(peaks.flops_per_sec(), "FLOP/s"));
        facts.push(scaled(peaks.bytes_per_sec(), "B/s"));
    }
    if let Some(power) = device.power {
        let (prefill, decode) = (power.prefill_watts(), power.decode_watts());
        facts.push(format!("{prefill} W in prefill, {decode} W in decode"));
    }
    if facts.is_empty() {
        facts.push("nothing is known of its speed".to_owned());
    }
    let name = format!("{:?} ({})", device.class, device.openvino);
    format!("{name:<12}  {}", facts.join(", "))
}

fn row_line(row: &Row<'_>) -> String {
    let shape = row.shape.to_string();
    let weights = match row.binding {
        Binding::Constant => "constant",
        Binding::Input => "inputs",
    };
    let unknown = || "-".to_owned();
    let (runs, latency, bandwidth, energy, anchors) = match &row.estimate {
        None => (
            unknown(),
            unknown(),
            unknown(),
            unknown(),
            "none".to_owned(),
        ),
        Some(found) => (
            found.runs.to_string(),
            scaled(found.latency_us * 1e-6, "s"),
            found
                .bandwidth_utilisation
                .map_or_else(unknown, |share| format!("{:.1}%", share * 100.0)),
            found
                .energy_uj
                .map_or_else(unknown, |energy| scaled(energy * 1e-6, "J")),
            format!("{:?}", found.source),
        ),
    };
    format!(
        "{:<10}  {:<6}  {shape:<9}  {weights:<8}  {runs:>5}  {latency:>9}  {bandwidth:>9}  {:>10}  {energy:>10}  {anchors}",
        row.kernel,
        format!("{:?}", row.device),
        scaled(row.footprint_bytes as f64, "B"),
    )
}

fn describe_sweep(text: &mut String, sweep: Option<&ChunkSweep>) -> std::fmt::Result {
    let Some(sweep) = sweep else {
        return writeln!(
            text,
            "chunk     not chosen: no chunk has a known speed for every kernel"
        );
    };
    let limits = sweep.limits();
    writeln!(text, "chunk     per token  longest kernel   all kernels")?;
    for candidate in sweep.candidates() {
        let mark = if sweep.chosen() == Some(candidate.tokens) {
            "*"
        } else {
            " "
        };
        let kernels: Vec<String> = candidate
            .kernels
            .iter()
            .map(|cost| {
                let latency = scaled(cost.latency_us * 1e-6, "s");
                format!(
                    "{} {latency} ({:?}, {:?})",
                    cost.kernel, cost.device, cost.source
                )
            })
            .collect();
        writeln!(
            text,
            "{mark} {:<6}  {:>9}  {:>14}   {}",
            candidate.tokens,
            scaled(candidate.token_us * 1e-6, "s"),
            scaled(candidate.longest_us * 1e-6, "s"),
            kernels.join(", ")
        )?;
    }
    let chosen = match sweep.chosen() {
        Some(_) => "the smallest",
        None => "none is",
    };
    writeln!(
        text,
        "* {chosen} within {}% of the best time per token of a prompt of {} tokens, of those whose longest \
         kernel takes up to {}",
        limits.tolerance * 100.0,
        limits.context_tokens,
        scaled(limits.preemption_us * 1e-6, "s")
    )
}

fn describe_sources(text: &mut String, file: &Soc) -> std::fmt::Result {
    let sources = sources(file);
    if !sources.is_empty() {
        text.push_str("\nsources\n");
    }
    for (device, fact, source) in sources {
        writeln!(text, "{device:<6}  {fact:<9}  {source}")?;
    }
    Ok(())
}

/// Returns the sources of the figures in a machine's file: device or memory, fact, source.
pub(super) fn sources(file: &Soc) -> Vec<(String, &'static str, &String)> {
    let mut sources = Vec::new();
    if let Some(dram) = &file.dram {
        sources.push(("memory".to_owned(), "bandwidth", &dram.source));
    }
    for device in &file.devices {
        let name = format!("{:?}", device.class);
        let of = |fact, source| (name.clone(), fact, source);
        sources.extend(device.npu.as_ref().map(|npu| of("clock", &npu.source)));
        sources.extend(
            device
                .peaks
                .as_ref()
                .map(|peaks| of("peaks", &peaks.source)),
        );
        sources.extend(
            device
                .power
                .as_ref()
                .map(|power| of("power", &power.source)),
        );
        sources.extend(
            device
                .anchors
                .as_ref()
                .map(|anchors| of("anchors", &anchors.source)),
        );
    }
    sources
}

/// Formats a number with three digits and a decimal prefix: `15.7 ms`, `89.6 GB/s`.
pub(super) fn scaled(number: f64, unit: &str) -> String {
    const PREFIXES: [(&str, f64); 8] = [
        ("T", 1e12),
        ("G", 1e9),
        ("M", 1e6),
        ("k", 1e3),
        ("", 1.0),
        ("m", 1e-3),
        ("µ", 1e-6),
        ("n", 1e-9),
    ];
    // A number that rounds up to the next prefix, or to one more digit, is written with that.
    let prefix = PREFIXES.iter().find(|(_, size)| number >= 0.9995 * size);
    let (prefix, size) = prefix.copied().unwrap_or(("", 1.0));
    let value = number / size;
    let digits = match value {
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {prefix}{unit}")
}
