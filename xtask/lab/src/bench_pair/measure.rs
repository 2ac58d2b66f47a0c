//! Measurements on a machine: a kernel alone, and decode steps.

use super::machines::Machine;
use anyhow::{Context, Result, anyhow};
use heg_artifacts::manifest::Role;
use heg_runtime::Rung;
use heg_runtime::exec::{Executor, ExecutorOptions, LoneKernel, Place, Sequence};
use heg_sched::Logits;
use heg_spec::{Group, Seeded};
use std::time::Instant;

/// Something that takes time.
pub(super) trait Measured {
    /// Does it once, and says how long it took, in ms.
    fn run_ms(&mut self) -> Result<f64>;
}

/// Measures all of them in turn, `rounds` times, after a first round that does not count: the times of each. Each round has an
/// order of its own, or one of them would always follow the same other, which leaves it the caches as it used them.
pub(super) fn in_turn<const N: usize>(
    all: &mut [impl Measured],
    rounds: usize,
) -> Result<[Vec<f64>; N]> {
    let mut times_ms = vec![Vec::with_capacity(rounds); all.len()];
    let mut seeded = Seeded::new(1);
    let mut order: Vec<usize> = (0..all.len()).collect();
    for round in 0..=rounds {
        seeded.shuffle(&mut order);
        for one in &order {
            let took_ms = all[*one].run_ms()?;
            if round > 0 {
                times_ms[*one].push(took_ms);
            }
        }
    }
    times_ms
        .try_into()
        .map_err(|_| anyhow!("as many are measured as are compared"))
}

fn timed_ms(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    work()?;
    Ok(begin.elapsed().as_secs_f64() * 1e3)
}

/// The last kernel of the first layer, alone.
pub(super) struct Kernel {
    pub(super) machine: Machine,
    kernel: LoneKernel,
}

impl Kernel {
    pub(super) fn new(mut machine: Machine, tokens: usize) -> Result<Self> {
        let loader = machine.take_loader()?;
        let manifest = loader.bundle().manifest();
        let first = manifest.layers.first().context("the model has no layers")?;
        let declared = manifest.kernels.get(first.ffn.kernel.0 as usize);
        let mut variants = declared
            .map_or(&[][..], |declared| &declared.variants)
            .iter();
        let variant = variants.position(|variant| variant.program.is_some());
        let rung = Rung {
            role: machine.role,
            variant: variant.context("the bundle has no CPU programs")?,
            source: machine.source,
        };
        let place = Place {
            layer: Some(0),
            group: Group::Ffn,
        };
        let mut kernel = LoneKernel::prepare(&loader, place, rung)?;
        kernel.size(tokens, 1)?;
        let inputs: Vec<(Role, usize)> = kernel
            .inputs()
            .map(|port| (port.role, port.width as usize))
            .collect();
        for (seed, (role, width)) in (1..).zip(inputs) {
            let mut numbers = Seeded::new(seed);
            let values: Vec<f32> = (0..tokens * width)
                .map(|_| numbers.unit() as f32 - 0.5)
                .collect();
            kernel.set(role, &values)?;
        }
        Ok(Self { machine, kernel })
    }
}

impl Measured for Kernel {
    fn run_ms(&mut self) -> Result<f64> {
        timed_ms(|| Ok(self.kernel.infer()?))
    }
}

/// A prompt of one chunk.
pub(super) struct Prefilling {
    pub(super) machine: Machine,
    executor: Executor,
    sequence: Sequence,
}

impl Prefilling {
    pub(super) fn new(mut machine: Machine) -> Result<Self> {
        let executor = executor(&mut machine)?;
        let sequence = executor.sequence()?;
        Ok(Self {
            machine,
            executor,
            sequence,
        })
    }
}

impl Measured for Prefilling {
    fn run_ms(&mut self) -> Result<f64> {
        self.sequence.truncate(0);
        let prompt = tokens(PROMPT_TOKENS);
        timed_ms(|| {
            self.executor
                .prefill(&mut self.sequence, &prompt, Logits::None)?;
            Ok(())
        })
    }
}

/// Decode steps of one sequence behind a prompt.
pub(super) struct Decoding {
    pub(super) machine: Machine,
    executor: Executor,
    sequence: Sequence,
}

impl Decoding {
    pub(super) fn new(mut machine: Machine) -> Result<Self> {
        let mut executor = executor(&mut machine)?;
        let mut sequence = executor.sequence()?;
        executor.prefill(&mut sequence, &tokens(PROMPT_TOKENS), Logits::None)?;
        Ok(Self {
            machine,
            executor,
            sequence,
        })
    }
}

impl Measured for Decoding {
    /// Of one step, behind one that does not count, since it may find the weights out of the caches.
    fn run_ms(&mut self) -> Result<f64> {
        self.sequence.truncate(PROMPT_TOKENS);
        self.executor.decode(&mut [&mut self.sequence], &[3])?;
        let all_ms = timed_ms(|| {
            for token in tokens(STEPS) {
                self.executor.decode(&mut [&mut self.sequence], &[token])?;
            }
            Ok(())
        })?;
        Ok(all_ms / STEPS as f64)
    }
}

fn executor(machine: &mut Machine) -> Result<Executor> {
    let options = ExecutorOptions {
        chunk_tokens: PROMPT_TOKENS,
        batch: 1,
        ..ExecutorOptions::default()
    };
    let mut executor = Executor::new(machine.take_loader()?, options)?;
    executor.wait_ready()?;
    Ok(executor)
}

/// Tokens that every vocabulary has.
fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|token| 3 + token % 200).collect()
}

/// Tokens of a prompt, as one chunk.
pub(super) const PROMPT_TOKENS: usize = 64;

/// Decode steps of a measurement.
const STEPS: usize = 16;
