//! Generation: one request from prompt tokens to its end, token by token.

use std::time::{Duration, Instant};

use crate::engine::FinishReason;
use crate::error::RuntimeError;
use crate::exec::{Executor, Sequence};
use heg_sched::{Logits, chunks};
use heg_text::{Answer, Restriction, Sampler, SamplingParams};

/// What a request asks for.
#[derive(Debug, Clone)]
pub struct GenerateOptions {
    /// Most tokens to generate.
    pub tokens_max: usize,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Tokens that end generation; empty to ignore them.
    pub eos_ids: Vec<u32>,
}

/// Whether the receiver of tokens wants more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Continue {
    /// Go on.
    Yes,
    /// Stop here: a stop string was met, or nobody listens any more.
    No,
}

/// How long a request took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Timing {
    /// From the beginning to the first token.
    pub ttft: Duration,
    /// From the first token to the last.
    pub decode: Duration,
    /// Tokens generated.
    pub generated: usize,
}

impl Timing {
    /// Time per output token after the first, in milliseconds; 0 for a single token.
    pub fn tpot_ms(&self) -> f64 {
        match self.generated {
            0 | 1 => 0.0,
            generated => self.decode.as_secs_f64() * 1e3 / (generated - 1) as f64,
        }
    }
}

/// Runs `prompt` on `sequence`, which may hold earlier tokens, and gives each new token to `on_token`.
///
/// The last token is returned but not run: a following call on the same sequence must begin with it, unless
/// it ended generation.
pub fn generate(
    executor: &mut Executor,
    sequence: &mut Sequence,
    prompt: &[u32],
    options: &GenerateOptions,
    on_token: impl FnMut(u32) -> Result<Continue, RuntimeError>,
) -> Result<(FinishReason, Timing), RuntimeError> {
    generate_restricted(executor, sequence, prompt, options, None, on_token)
}

/// As [`generate`], with the answer held to a form; it ends where the form is complete.
pub fn generate_restricted(
    executor: &mut Executor,
    sequence: &mut Sequence,
    prompt: &[u32],
    options: &GenerateOptions,
    restriction: Option<Box<dyn Restriction>>,
    mut on_token: impl FnMut(u32) -> Result<Continue, RuntimeError>,
) -> Result<(FinishReason, Timing), RuntimeError> {
    let context = executor.manifest().model.context_tokens as usize;
    let asked = sequence.tokens() + prompt.len();
    if prompt.is_empty() {
        return Err(RuntimeError::EmptyPrompt);
    }
    if asked > context {
        return Err(RuntimeError::Context { asked, context });
    }
    let begin = Instant::now();
    let mut sampler = Sampler::new(options.sampling, prompt)?.restricted(restriction);
    if options.tokens_max == 0 {
        return Ok((FinishReason::Length, Timing::default()));
    }
    let chunk_tokens = executor.options().chunk_tokens;
    let (mut token, mut answer) = (0, Answer::Open);
    for chunk in chunks(prompt.len(), chunk_tokens) {
        let logits = if chunk.end == prompt.len() {
            Logits::LastRows
        } else {
            Logits::None
        };
        let row = executor.prefill(sequence, &prompt[chunk], logits)?;
        if logits == Logits::LastRows {
            (token, answer) = sampler.sample(row)?;
        }
    }
    let mut timing = Timing {
        ttft: begin.elapsed(),
        ..Timing::default()
    };
    let first = Instant::now();
    loop {
        timing.generated += 1;
        timing.decode = first.elapsed();
        let ended = answer == Answer::Complete || options.eos_ids.contains(&token);
        if on_token(token)? == Continue::No || ended {
            return Ok((FinishReason::Stop, timing));
        }
        if timing.generated >= options.tokens_max || sequence.tokens() >= context {
            return Ok((FinishReason::Length, timing));
        }
        let row = executor.decode(&mut [sequence], &[token])?;
        (token, answer) = sampler.sample(row)?;
    }
}
