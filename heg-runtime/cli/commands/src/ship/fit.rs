//! `heg fit`: whether a bundle of a registry fits this machine, known before a byte of its weights is fetched.

use std::time::Instant;

use anyhow::Context;
use clap::Args;
use heg_artifacts::Manifest;
use heg_artifacts::plain::escape;
use heg_files::TempFile;
use heg_runtime::exec::ExecutorOptions;
use heg_runtime::fit::{MemoryNeed, available_bytes};
use heg_runtime::{Loaded, auto};
use heg_ship::{Accepted, Candidate, CountedSource, DeviceStore, Look, ModelName, SliceWish};
use heg_trust::Word;
use serde::Serialize;

use super::npu::machine_npu;
use super::progress::bytes;
use super::{Access, agrees, asked, print_warnings, store_path, trust};
use crate::bench;
use crate::failure::Finding;

/// Arguments of `heg fit`.
#[derive(Args)]
pub(crate) struct Fit {
    /// The name, e.g. `registry.example/chat:stable`, or an alias of `sources.ron`
    #[arg(value_name = "NAME")]
    name: String,
    /// Kind of devices: `cpu`, or `npu-4000` with blobs for that platform [default: that of this machine's NPU, else `cpu`]
    #[arg(long, value_name = "SLICE")]
    slice: Option<String>,
    /// Fetch the kernels too, and run a prompt of 512 tokens and 32 tokens of an answer over empty weights: the same work
    /// and the same traffic as with the real ones
    #[arg(long)]
    measure: bool,
    /// Agree to look at a bundle that nobody signed, where the policy leaves that to a person
    #[arg(long)]
    allow_unsigned: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: Access,
}

#[derive(Serialize)]
struct Report {
    name: String,
    /// Number of the signed release; `None` for a bundle that nobody signed.
    number: Option<u64>,
    model: String,
    parameters: u64,
    weights: String,
    slice: String,
    /// The reason why it is not the best one for this machine's NPU; `None` if it is.
    slice_reason: Option<String>,
    /// Slices under the name.
    offered: Vec<String>,
    bundle_bytes: u64,
    here_bytes: u64,
    fetch_bytes: u64,
    /// Room on the store's disk; `None` without a store, or if the system does not say.
    free_bytes: Option<u64>,
    mapped_bytes: u64,
    /// Bytes of keys and values of a token.
    token_bytes: u64,
    context_tokens: u32,
    /// Memory that a new process may use; `None` if the system does not say.
    available_bytes: Option<u64>,
    /// Upper bound on the decode rate: the rate at which this machine merely reads a token's weights.
    decode_limit_tokens_per_s: f64,
    measured: Option<Measured>,
    /// Requests that this report took, and the bytes that they brought.
    requests: u64,
    moved_bytes: u64,
    fits: bool,
    /// Reasons why it does not fit, or fits in part only.
    remarks: Vec<String>,
}

/// Speed over empty weights.
#[derive(Serialize)]
struct Measured {
    /// Devices that ran the kernels.
    soc: String,
    prompt_tokens: usize,
    first_token_s: f64,
    decode_tokens_per_s: f64,
    /// Time of the whole measurement, in seconds.
    took_s: f64,
}

/// Runs the command; a bundle that does not fit is a finding.
pub(crate) fn fit(arguments: &Fit) -> anyhow::Result<()> {
    let name: ModelName = asked(&arguments.name)?.parse()?;
    let places = arguments.access.places(&name)?;
    let source = CountedSource::new(&places);
    let store = match store_path() {
        Ok(path) => DeviceStore::open_existing(&path)?,
        Err(_) => None,
    };
    let candidate = Look {
        store: store.as_ref(),
        trust: &trust()?,
        name: &name,
        slice: match &arguments.slice {
            Some(slice) => SliceWish::Named(slice),
            None => SliceWish::Best(machine_npu()),
        },
        agrees: &agrees(arguments.allow_unsigned),
    }
    .at(&source, name.tag())?;
    print_warnings(&candidate.accepted);
    let mut report = Report::of(&name, &candidate)?;
    report.judge();
    if arguments.measure && report.fits {
        report.measured = Some(measure(&candidate)?);
    }
    (report.requests, report.moved_bytes) = (source.requests(), source.bytes());
    match arguments.json {
        true => println!("{}", serde_json::to_string(&report)?),
        false => report.print(),
    }
    if report.fits {
        return Ok(());
    }
    let message = format!("`{name}` does not fit this machine");
    Err(Finding { message }.into())
}

impl Report {
    fn of(name: &ModelName, candidate: &Candidate<'_>) -> anyhow::Result<Self> {
        let manifest = candidate.manifest();
        let need = MemoryNeed::of(manifest);
        let model = &manifest.model;
        Ok(Self {
            name: name.to_string(),
            number: release_number(&candidate.accepted),
            model: model.name.clone(),
            parameters: model.parameters,
            weights: model.weights.to_string(),
            slice: candidate.slice.clone(),
            offered: candidate.offered.clone(),
            slice_reason: candidate.second_best.as_ref().map(ToString::to_string),
            bundle_bytes: candidate.amounts.bundle_bytes,
            here_bytes: candidate.amounts.here_bytes,
            fetch_bytes: candidate.amounts.fetch_bytes,
            free_bytes: candidate.free_bytes,
            mapped_bytes: need.mapped_bytes,
            token_bytes: need.token_bytes,
            context_tokens: model.context_tokens,
            available_bytes: available_bytes(),
            decode_limit_tokens_per_s: bench::read_bytes_per_s() / token_weight_bytes(manifest),
            measured: None,
            requests: 0,
            moved_bytes: 0,
            fits: true,
            remarks: Vec::new(),
        })
    }

    /// Compares needs with what there is.
    fn judge(&mut self) {
        if let Some(free) = self.free_bytes.filter(|free| *free < self.fetch_bytes) {
            self.fits = false;
            self.remarks.push(format!(
                "the store's disk has room for {}, and {} would be fetched",
                bytes(free),
                bytes(self.fetch_bytes)
            ));
        }
        let Some(available) = self.available_bytes else {
            return;
        };
        let room = available.saturating_sub(self.mapped_bytes);
        let tokens = room.checked_div(self.token_bytes).unwrap_or(u64::MAX);
        if available < self.mapped_bytes || tokens < CONTEXT_TOKENS_MIN {
            self.fits = false;
            self.remarks.push(format!(
                "there is memory for {} of the {} of weights",
                bytes(available),
                bytes(self.mapped_bytes)
            ));
        } else if tokens < u64::from(self.context_tokens) {
            self.remarks.push(format!(
                "there is memory for a context of {tokens} tokens, of at most {}",
                self.context_tokens
            ));
        }
    }

    fn print(&self) {
        let signed = match self.number {
            Some(number) => format!("release {number}"),
            None => "by nobody".to_owned(),
        };
        let free = self.free_bytes.map_or(String::new(), |free| {
            format!("; the disk has {} free", bytes(free))
        });
        let cache = self
            .token_bytes
            .saturating_mul(u64::from(self.context_tokens));
        let available = match self.available_bytes {
            Some(available) => format!(", of {}", bytes(available)),
            None => String::new(),
        };
        let reason = self.slice_reason.as_ref();
        let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
        println!("signed    {signed}");
        println!(
            "model     {}, {:.2} G parameters as {}, context of {} tokens",
            escape(&self.model),
            self.parameters as f64 / 1e9,
            self.weights,
            self.context_tokens
        );
        println!(
            "slice     {}, of {}{}",
            escape(&self.slice),
            escape(&self.offered.join(", ")),
            escape(&reason)
        );
        println!(
            "download  {}, of it {} here: {}{free}",
            bytes(self.bundle_bytes),
            bytes(self.here_bytes),
            bytes(self.fetch_bytes)
        );
        println!(
            "memory    {}, and {} for {} tokens{available}",
            bytes(self.mapped_bytes),
            bytes(cache),
            self.context_tokens
        );
        let limit = self.decode_limit_tokens_per_s;
        match &self.measured {
            Some(measured) => println!(
                "speed     {:.1} tokens/s, of {limit:.1} by merely reading the weights; the first token after {} tokens in \
                 {:.2} s (on {}, in {:.1} s, over empty weights)",
                measured.decode_tokens_per_s,
                measured.prompt_tokens,
                measured.first_token_s,
                measured.soc,
                measured.took_s
            ),
            None => println!(
                "speed     at most {limit:.1} tokens/s, by merely reading the weights; `--measure` runs the kernels"
            ),
        }
        let verdict = match (self.fits, self.remarks.join("; ")) {
            (true, remarks) if remarks.is_empty() => "fits".to_owned(),
            (true, remarks) => format!("fits: {remarks}"),
            (false, remarks) => format!("does not fit: {remarks}"),
        };
        println!("verdict   {verdict}");
    }
}

fn release_number(accepted: &Accepted) -> Option<u64> {
    match &accepted.word {
        Word::Signed { release, .. } => Some(release.number),
        Word::Unsigned => None,
    }
}

/// Bytes of weights that a token of an answer reads.
fn token_weight_bytes(manifest: &Manifest) -> f64 {
    let sections = bench::token_sections(manifest);
    let all = manifest.sections.iter();
    let read = all.filter(|section| sections.contains(&section.id));
    read.map(|section| section.bytes as f64).sum()
}

/// Runs the bundle's kernels over empty weights.
fn measure(candidate: &Candidate<'_>) -> anyhow::Result<Measured> {
    let begin = Instant::now();
    let folder = std::env::temp_dir();
    let sketch = TempFile::create(&folder, "heg-fit-")?;
    candidate.write_sketch(sketch.file())?;
    let loaded = Loaded::open(sketch.path()).context("cannot run kernels over empty weights")?;
    // Its kernels were hashed, and its weights have no hash that holes could have.
    loaded.bundle().trust_sections();
    let soc = auto::choose(None)?.soc;
    let context_tokens = loaded.bundle().manifest().model.context_tokens as usize;
    let prompt_tokens = PROMPT_TOKENS.min(context_tokens / 2);
    let options = ExecutorOptions {
        batch: 1,
        ..ExecutorOptions::default()
    };
    let mut executor = loaded.executor(&soc, options)?;
    // The first pass brings the pages.
    bench::prefill(&mut executor, prompt_tokens)?;
    let (_, first_token_s) = bench::prefill(&mut executor, prompt_tokens)?;
    let tokens = ANSWER_TOKENS.min(context_tokens / 4);
    let sequences = bench::behind(&mut executor, bench::CONTEXT, 1)?;
    let decode_s = bench::decode(&mut executor, tokens, sequences)?;
    Ok(Measured {
        soc: soc.name,
        prompt_tokens,
        first_token_s,
        decode_tokens_per_s: tokens as f64 / decode_s,
        took_s: begin.elapsed().as_secs_f64(),
    })
}

/// The least context that a bundle is worth running with, in tokens. Chosen.
const CONTEXT_TOKENS_MIN: u64 = 512;

/// Tokens of the measured prompt.
const PROMPT_TOKENS: usize = 512;

/// Tokens of the measured answer.
const ANSWER_TOKENS: usize = 32;
