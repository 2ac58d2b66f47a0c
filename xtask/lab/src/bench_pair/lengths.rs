//! Prompts of awkward lengths on a pair whose first side has static shapes.

use super::machines::Machine;
use super::measure::{Measured, Prompt};
use super::report::Report;
use crate::goal::Goal;
use anyhow::Result;
use heg_runtime::Loaded;
use heg_runtime::exec::{BySolver, Partition, Uncut};
use heg_spec::{Cut, CutProduct, Side};

/// Prompts that the solver cuts, that are padded, and that go through a pipe of sizes.
pub(super) fn prompts(loaded: &Loaded, rounds: usize, report: &mut Report) -> Result<()> {
    let shape = super::FAST.throttled(SECOND_TIMES).with_static(&SIZES);
    let mut prompt = Prompt::new(Machine::new(loaded, shape)?, 1)?;
    // What a side does faster alone is learnt of few tokens.
    for _ in 0..super::ORDERS_TO_LEARN {
        prompt.machine.share_by(Mode::Solver.partition())?;
        prompt.run_ms()?;
    }
    for tokens in LENGTHS {
        prompt.change(tokens);
        let mut times_ms = [const { Vec::new() }; 3];
        for round in 0..=rounds.min(ROUNDS_MAX) {
            for (mode, times_ms) in Mode::ALL.into_iter().zip(&mut times_ms) {
                prompt.machine.share_by(mode.partition())?;
                let took_ms = prompt.run_ms()?;
                if round > 0 {
                    times_ms.push(took_ms);
                }
            }
        }
        let [ours, padded, piped] = times_ms;
        let over_padding = match tokens {
            300 | 525 => 1.2,
            _ => 0.98,
        };
        let line = report.of(
            &format!("static sizes, {tokens} tokens"),
            "solver's cut",
            ours,
        );
        report.add(line.beside("padding", padded, [Goal::AtLeast(over_padding)]));
        report.add(line.beside("pipe", piped, [Goal::AtLeast(0.98)]));
    }
    Ok(())
}

/// Who has the products.
#[derive(Debug, Clone, Copy)]
enum Mode {
    Solver,
    /// The first side, in the next larger size.
    Padding,
    /// The first side, in one size after the other.
    Pipe,
}

impl Mode {
    const ALL: [Self; 3] = [Self::Solver, Self::Padding, Self::Pipe];

    fn partition(self) -> Box<dyn Partition> {
        let sizes: fn(usize) -> Vec<u32> = match self {
            Self::Solver => return Box::new(BySolver::new(&SIZES)),
            Self::Padding => padded,
            Self::Pipe => piped,
        };
        Box::new(OnFirst {
            sizes,
            rest: BySolver::new(&SIZES),
        })
    }
}

/// Products of prompts on the first side, all else as the solver says.
struct OnFirst {
    sizes: fn(usize) -> Vec<u32>,
    rest: BySolver,
}

impl Partition for OnFirst {
    fn cut(&self, work: Uncut) -> Cut {
        match work.product {
            Some(CutProduct::Attention | CutProduct::Head) | None => self.rest.cut(work),
            // Decoding has a shape of its own.
            Some(_) if work.tokens == 1 => Cut::Whole(Side::First),
            Some(_) => Cut::Tokens {
                sizes: (self.sizes)(work.tokens),
            },
        }
    }
}

fn padded(tokens: usize) -> Vec<u32> {
    let room = SIZES.into_iter().filter(|size| *size as usize >= tokens);
    room.take(1).collect()
}

fn piped(tokens: usize) -> Vec<u32> {
    let mut rest = tokens;
    let mut sizes = Vec::new();
    for size in SIZES.into_iter().rev() {
        while rest >= size as usize {
            sizes.push(size);
            rest -= size as usize;
        }
    }
    sizes.extend(padded(rest).into_iter().filter(|_| rest > 0));
    sizes
}

/// Those of the issue.
const LENGTHS: [usize; 9] = [1, 31, 32, 33, 135, 300, 525, 600, 1000];

const SIZES: [u32; 6] = [32, 64, 128, 256, 512, 1024];

/// Times as slow as the first side the second is. Chosen: a GPU beside an NPU, on a machine of the paper.
const SECOND_TIMES: u32 = 4;

/// Most rounds: prompts are long, and the differences large.
const ROUNDS_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_takes_one_size_and_a_pipe_several() {
        for (tokens, one, several) in [
            (1, &[32][..], &[32][..]),
            (32, &[32], &[32]),
            (33, &[64], &[32, 32]),
            (300, &[512], &[256, 32, 32]),
            (525, &[1024], &[512, 32]),
            (1024, &[1024], &[1024]),
        ] {
            assert_eq!((&*padded(tokens), &*piped(tokens)), (one, several));
        }
    }
}
