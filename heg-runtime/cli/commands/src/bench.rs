//! `heg bench`: prefill and decode rates of a bundle on this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::io::Write;
use std::num::NonZeroUsize;
use std::thread;
use std::time::Instant;

use clap::Args;
use heg_artifacts::manifest::Weight;
use heg_artifacts::{Bundle, Manifest, SectionId};
use heg_runtime::exec::{Executor, Sequence};
use heg_runtime::{Descent, ExecError};
use heg_sched::{Logits, chunks};
use serde::Serialize;

use crate::options::{Machine, peak_rss_bytes, print_descents};

/// Arguments of `heg bench`.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    machine: Machine,
    /// Prompt tokens of the prefill measurements
    #[arg(
        long,
        value_name = "TOKENS",
        value_delimiter = ',',
        default_value = "512"
    )]
    prefill: Vec<usize>,
    /// Tokens generated in the decode measurements
    #[arg(long, value_name = "TOKENS", default_value_t = 32)]
    decode: usize,
    /// Tokens in each sequence's KV cache before the decode measurements
    #[arg(long, value_name = "TOKENS", default_value_t = CONTEXT)]
    context: usize,
    /// Sequences in the batched decode measurement
    #[arg(long, value_name = "N", default_value_t = 8)]
    batch: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    load_ms: f64,
    /// Prefill speed by prompt length in tokens.
    prefill_tokens_per_s: BTreeMap<usize, f64>,
    decode_tokens_per_s: f64,
    /// Upper bound on the decode rate of one sequence: the rate at which all threads merely read the weights of a
    /// token.
    decode_limit_tokens_per_s: f64,
    batch_decode_tokens_per_s: f64,
    peak_rss_bytes: u64,
    /// Kernels that do not run on their best device, with the reasons.
    descents: Vec<Descent>,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let begin = Instant::now();
    let loaded = arguments.machine.open()?;
    let mut executor = arguments.machine.executor(&loaded, arguments.batch)?;
    executor.wait_ready()?;
    let load_ms = begin.elapsed().as_secs_f64() * 1e3;
    print_descents(executor.descents().get());
    let (tokens, context) = (arguments.decode, arguments.context);
    let mut prefill_tokens_per_s = BTreeMap::new();
    let mut read = None;
    for tokens in &arguments.prefill {
        // The first pass makes plugins pack weights and plan for these shapes; the second is measured.
        prefill(&mut executor, (*tokens).min(WARM_UP))?;
        let (sequence, seconds) = prefill(&mut executor, *tokens)?;
        prefill_tokens_per_s.insert(*tokens, *tokens as f64 / seconds);
        // Minutes of a long prompt would be waited for again.
        read = read.or_else(|| (*tokens == context).then_some(sequence));
    }
    let alone = match read {
        Some(sequence) => vec![sequence],
        None => behind(&mut executor, context, 1)?,
    };
    let decode_seconds = decode(&mut executor, tokens, alone)?;
    let batch_seconds = match arguments.batch {
        1 => decode_seconds,
        batch => {
            let sequences = behind(&mut executor, context, batch)?;
            decode(&mut executor, tokens, sequences)?
        }
    };
    let decode_limit_tokens_per_s = 1.0 / seconds_to_read(loaded.bundle())?;
    let report = Report {
        load_ms,
        prefill_tokens_per_s,
        decode_tokens_per_s: arguments.decode as f64 / decode_seconds,
        decode_limit_tokens_per_s,
        batch_decode_tokens_per_s: (arguments.decode * arguments.batch) as f64 / batch_seconds,
        peak_rss_bytes: peak_rss_bytes(),
        descents: executor.descents().get().to_vec(),
    };
    arguments.machine.remember(&loaded)?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
        return Ok(());
    }
    writeln!(out, "load            {:>8.0} ms", report.load_ms)?;
    for (tokens, rate) in &report.prefill_tokens_per_s {
        writeln!(out, "prefill {tokens:>6}  {rate:>8.1} tokens/s")?;
    }
    writeln!(
        out,
        "decode          {:>8.1} tokens/s, {:.0}% of {:.1} by merely reading the weights",
        report.decode_tokens_per_s,
        100.0 * report.decode_tokens_per_s / report.decode_limit_tokens_per_s,
        report.decode_limit_tokens_per_s
    )?;
    writeln!(
        out,
        "decode × {:<5}  {:>8.1} tokens/s",
        arguments.batch, report.batch_decode_tokens_per_s
    )?;
    writeln!(
        out,
        "peak memory     {:>8.0} MB",
        report.peak_rss_bytes as f64 / 1e6
    )?;
    Ok(())
}

/// The time of reading every weight of the kernels once with all cores, in seconds.
fn seconds_to_read(bundle: &Bundle) -> Result<f64, ExecError> {
    let sections = token_sections(bundle.manifest())
        .into_iter()
        .map(|id| bundle.section(id).map_err(ExecError::Section))
        .collect::<Result<Vec<&[u8]>, _>>()?;
    Ok(best_seconds(&sections))
}

/// The sections that a token of an answer reads.
pub(crate) fn token_sections(manifest: &Manifest) -> BTreeSet<SectionId> {
    let layers = manifest.layers.iter();
    let uses = layers.flat_map(|layer| [&layer.qkv, &layer.mha, &layer.ffn]);
    uses.chain([&manifest.head])
        .flat_map(|used| &used.weights)
        .filter_map(|id| manifest.weights.get(id.0 as usize))
        .flat_map(Weight::sections)
        .collect()
}

/// The rate at which all cores read memory that no cache holds, in bytes per second.
pub(crate) fn read_bytes_per_s() -> f64 {
    // A page that nothing was written to would be the same one everywhere.
    let memory = vec![1_u8; READ_BYTES];
    READ_BYTES as f64 / best_seconds(&[&memory])
}

/// Reads sections once with one thread for each core; returns the best time of a few runs, in seconds.
fn best_seconds(sections: &[&[u8]]) -> f64 {
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let read = &|number: usize| {
        let part = |section: &&[u8]| {
            let each = section.len().div_ceil(threads).max(1);
            section.chunks(each).nth(number).map_or(0, sum_of_words)
        };
        black_box(sections.iter().map(part).fold(0, u64::wrapping_add));
    };
    let once = || {
        let begin = Instant::now();
        thread::scope(|scope| {
            (0..threads).for_each(|number| {
                scope.spawn(move || read(number));
            });
        });
        begin.elapsed().as_secs_f64()
    };
    (0..READS).map(|_| once()).fold(f64::INFINITY, f64::min)
}

/// Memory that is read to find a machine's rate: more than its caches hold; chosen.
const READ_BYTES: usize = 256 << 20;

/// Tokens of a first pass. Chosen: minutes of a long prompt would be waited for twice.
const WARM_UP: usize = 2048;

/// Number of times that weights are read to find the bound; chosen.
const READS: usize = 5;

/// Adds a word of each cache line: the whole line is read, and memory is slower than the addition.
fn sum_of_words(bytes: &[u8]) -> u64 {
    let (lines, _) = bytes.as_chunks::<LINE_BYTES>();
    let words = lines.iter().filter_map(|line| line.first_chunk());
    words.fold(0, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

/// Bytes that come from memory together.
const LINE_BYTES: usize = 64;

/// Prefills `tokens` tokens; returns their sequence, and the time in seconds.
pub(crate) fn prefill(
    executor: &mut Executor,
    tokens: usize,
) -> Result<(Sequence, f64), ExecError> {
    let prompt = arbitrary_tokens(executor, tokens);
    let mut sequence = executor.sequence()?;
    let begin = Instant::now();
    for range in chunks(tokens, executor.options().chunk_tokens) {
        let logits = if range.end == tokens {
            Logits::LastRows
        } else {
            Logits::None
        };
        executor.prefill(&mut sequence, &prompt[range], logits)?;
    }
    Ok((sequence, begin.elapsed().as_secs_f64()))
}

/// Tokens of the prompts before decode measurements, unless more are asked for.
pub(crate) const CONTEXT: usize = 8;

/// Prefills `batch` sequences of `context` tokens each.
pub(crate) fn behind(
    executor: &mut Executor,
    context: usize,
    batch: usize,
) -> Result<Vec<Sequence>, ExecError> {
    let sequences = (0..batch).map(|_| Ok(prefill(executor, context.max(1))?.0));
    sequences.collect()
}

/// Decodes `tokens` tokens of each of these sequences; returns the time in seconds.
pub(crate) fn decode(
    executor: &mut Executor,
    tokens: usize,
    mut sequences: Vec<Sequence>,
) -> Result<f64, ExecError> {
    let next = arbitrary_tokens(executor, sequences.len());
    let mut step = || {
        let mut batch: Vec<&mut Sequence> = sequences.iter_mut().collect();
        executor.decode(&mut batch, &next).map(|_| ())
    };
    // The first step makes devices compile for these shapes.
    step()?;
    let begin = Instant::now();
    for _ in 0..tokens {
        step()?;
    }
    Ok(begin.elapsed().as_secs_f64())
}

/// Tokens spread over the vocabulary; their values do not matter for speed.
fn arbitrary_tokens(executor: &Executor, count: usize) -> Vec<u32> {
    let vocab = u64::from(executor.manifest().model.vocab);
    (0..count as u64)
        .map(|index| (index * 7919 % vocab) as u32)
        .collect()
}
