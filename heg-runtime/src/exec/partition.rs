//! How two roles that run kernels together share them, at the levels of HeteroLLM §4: whole operators, or parts of each
//! product as its solver says.

use std::cell::RefCell;

use heg_cpu::{Partition, TILE_OUTPUTS, Uncut};
use heg_profiler::partition::{Company, CutPiece, CutRules, CutShape, PairLatencies, solve};
use heg_spec::policy::PairLevel;
use heg_spec::{Cut, CutProduct, Side};

/// How the sides share work at a level; the first one has static shapes of such sizes, or any where there are none.
pub(super) fn partition(level: PairLevel, static_tokens: &[u32]) -> Box<dyn Partition> {
    match level {
        PairLevel::Layer => Box::new(ByOperator::new(static_tokens)),
        PairLevel::Tensor => Box::new(BySolver::new(static_tokens)),
    }
}

/// Products on the first side, padded where its shapes are static; attention and steps on single rows on the second.
pub struct ByOperator {
    static_tokens: Vec<u32>,
}

impl ByOperator {
    /// For a first side with static shapes of such sizes, or any where there are none.
    pub fn new(static_tokens: &[u32]) -> Self {
        Self {
            static_tokens: static_tokens.to_vec(),
        }
    }

    /// The largest size as often as there are more tokens, and the next larger one for the rest.
    fn sizes(&self, largest: u32, tokens: usize) -> Vec<u32> {
        let often = tokens.saturating_sub(1) / (largest as usize).max(1);
        let rest = tokens - often * largest as usize;
        let mut sizes = vec![largest; often];
        sizes.extend(padded(&self.static_tokens, rest));
        sizes
    }
}

impl Partition for ByOperator {
    fn cut(&self, work: Uncut) -> Cut {
        match work.product {
            Some(CutProduct::Attention) | None => Cut::Whole(Side::Second),
            Some(product) => match self.static_tokens.iter().max() {
                Some(largest) if !has_own_shape(product, work.tokens) => Cut::Tokens {
                    sizes: self.sizes(*largest, work.tokens),
                },
                _ => Cut::Whole(Side::First),
            },
        }
    }
}

/// Whether a product has a shape for just these tokens: single ones have, as in decoding, and the head, which no prompt goes
/// through as a whole.
fn has_own_shape(product: CutProduct, tokens: usize) -> bool {
    tokens == 1 || product == CutProduct::Head
}

/// The smallest static size that has room for so many tokens.
fn padded(static_tokens: &[u32], tokens: usize) -> Option<u32> {
    let sizes = static_tokens.iter().copied();
    sizes.filter(|size| *size as usize >= tokens).min()
}

/// Everything by one share of the first side.
pub struct ByShare(f64);

impl ByShare {
    /// From nothing, 0, to all, 1.
    pub fn new(share: f64) -> Self {
        Self(share)
    }

    /// The share with which sides end together that take so long for the same work.
    fn of(work: Uncut) -> Self {
        let [first, second] = work.times;
        Self(second / (first + second))
    }
}

impl Partition for ByShare {
    fn cut(&self, work: Uncut) -> Cut {
        let Self(share) = *self;
        let faster = match share < 0.5 {
            true => Side::Second,
            false => Side::First,
        };
        let tokens = |share: f64| Cut::Tokens {
            sizes: vec![part(work.tokens, 1, share)],
        };
        match work.product {
            None if work.tokens == 1 => Cut::Whole(faster),
            None => tokens(share),
            // Few heads cannot be shared evenly, but tokens can. Later ones see more, as their number squared.
            Some(CutProduct::Attention) if work.tokens > 1 && !is_near(work.rows, share) => {
                tokens(share.sqrt())
            }
            Some(CutProduct::Attention) => Cut::Rows {
                first: part(work.rows, 1, share),
            },
            Some(_) => Cut::Rows {
                first: part(work.rows, TILE_ROWS as usize, share),
            },
        }
    }
}

/// A share of `all`, in whole steps.
fn part(all: usize, step: usize, share: f64) -> u32 {
    let steps = all as f64 * share / step as f64;
    number((steps.round() as usize * step).min(all))
}

/// Whether so many heads can be shared so, within a twentieth of them.
fn is_near(heads: usize, share: f64) -> bool {
    let exact = heads as f64 * share;
    (f64::from(part(heads, 1, share)) - exact).abs() <= 0.05 * heads as f64
}

/// Products as the solver says for sides as fast as they were measured, the rest by the same speeds.
pub struct BySolver {
    static_tokens: Vec<u32>,
    /// What was solved of late.
    solved: RefCell<Vec<Solved>>,
}

struct Solved {
    work: Uncut,
    cut: Cut,
}

impl BySolver {
    /// For a first side with static shapes of such sizes, or any where there are none.
    pub fn new(static_tokens: &[u32]) -> Self {
        Self {
            static_tokens: static_tokens.to_vec(),
            solved: RefCell::default(),
        }
    }

    /// All of a product on a side, if that has a shape with room for its tokens.
    fn alone(&self, side: Side, product: CutProduct, work: Uncut) -> Option<Cut> {
        let is_padded = side == Side::First
            && !self.static_tokens.is_empty()
            && !has_own_shape(product, work.tokens);
        match is_padded {
            true => Some(Cut::Tokens {
                sizes: vec![padded(&self.static_tokens, work.tokens)?],
            }),
            false => Some(Cut::Whole(side)),
        }
    }

    fn solve(&self, product: CutProduct, work: Uncut) -> Cut {
        let tokens = number(work.tokens);
        let shape = CutShape {
            product,
            rows: number(work.rows),
            depth: number(work.columns),
            matrices: 1,
            unit_rows: 1,
            row_bytes: 0.0,
        };
        let own = [tokens];
        let is_any = self.static_tokens.is_empty() || has_own_shape(product, work.tokens);
        let rules = CutRules {
            static_tokens: if is_any { &own } else { &self.static_tokens },
            row_step: TILE_ROWS,
            home: Side::Second,
            // They wait for each other at the end of each phase, however it is cut.
            hand_over_us: 0.0,
        };
        let best = solve(&Times(work.times), &shape, tokens, rules).ok();
        match best.map(|best| best.cut) {
            Some(Cut::Whole(side)) => self.alone(side, product, work),
            cut => cut,
        }
        .unwrap_or(Cut::Whole(Side::Second))
    }
}

impl Partition for BySolver {
    fn cut(&self, work: Uncut) -> Cut {
        let product = match work.product {
            Some(product) if product != CutProduct::Attention => product,
            _ => return ByShare::of(work).cut(work),
        };
        let alone = work.alone.and_then(|side| self.alone(side, product, work));
        if let Some(cut) = alone {
            return cut;
        }
        let mut solved = self.solved.borrow_mut();
        if let Some(known) = solved.iter().find(|known| known.is_of(work)) {
            return known.cut.clone();
        }
        // What was solved for other speeds goes, and the oldest.
        solved.retain(|known| !known.is_same_call(work));
        if solved.len() == SOLVED_MAX {
            solved.remove(0);
        }
        let cut = self.solve(product, work);
        let known = cut.clone();
        solved.push(Solved { work, cut: known });
        cut
    }
}

impl Solved {
    fn is_same_call(&self, work: Uncut) -> bool {
        let call = |work: Uncut| Uncut {
            times: [0.0; 2],
            ..work
        };
        call(self.work) == call(work)
    }

    /// Whether it is the solution of some work, or of work for sides that are hardly faster or slower.
    fn is_of(&self, work: Uncut) -> bool {
        let share = |work| ByShare::of(work).0;
        self.is_same_call(work) && (share(self.work) - share(work)).abs() < SHARE_STEP
    }
}

/// Time of the same work on each side. What a part costs beside its rows was measured with it.
struct Times([f64; 2]);

impl PairLatencies for Times {
    fn piece_us(&self, side: Side, piece: CutPiece<'_>, _: Company) -> Option<f64> {
        let Self([first, second]) = *self;
        let time = match side {
            Side::First => first,
            Side::Second => second,
        };
        Some(time * f64::from(piece.rows) * f64::from(piece.tokens))
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Output rows of a product's tile.
const TILE_ROWS: u32 = TILE_OUTPUTS as u32;

/// Solutions that are kept. Chosen: a model has five products, for decoding, chunks, and what is left of prompts.
const SOLVED_MAX: usize = 40;

/// Change of a side's share that has a product solved again. Chosen: well below what it can gain.
const SHARE_STEP: f64 = 0.002;

#[cfg(test)]
mod tests {
    use super::*;

    fn work(product: CutProduct, rows: usize, tokens: usize) -> Uncut {
        Uncut {
            product: Some(product),
            rows,
            columns: 2048,
            tokens,
            times: [1.0; 2],
            alone: None,
        }
    }

    fn rows(tokens: usize) -> Uncut {
        Uncut {
            product: None,
            columns: 0,
            ..work(CutProduct::Down, 0, tokens)
        }
    }

    const fn cut(first: u32) -> Cut {
        Cut::Rows { first }
    }

    #[test]
    fn shares_are_in_whole_tiles() {
        let even = ByShare::new(0.5);
        assert_eq!(even.cut(work(CutProduct::Down, 2048, 256)), cut(1024));
        assert_eq!(even.cut(work(CutProduct::GateUp, 1408, 1)), cut(704));
        assert_eq!(even.cut(work(CutProduct::Out, 200, 1)), cut(96));
        let uneven = ByShare::new(0.75);
        assert_eq!(uneven.cut(work(CutProduct::Down, 2048, 256)), cut(1536));
        assert_eq!(uneven.cut(work(CutProduct::Attention, 8, 256)), cut(6));
        let of_three = work(CutProduct::Attention, 3, 100);
        assert_eq!(even.cut(of_three), Cut::Tokens { sizes: vec![71] });
        assert_eq!(even.cut(work(CutProduct::Attention, 3, 1)), cut(2));
        let slow_first = ByShare::new(0.2);
        assert_eq!(slow_first.cut(rows(1)), Cut::Whole(Side::Second));
        assert_eq!(slow_first.cut(rows(10)), Cut::Tokens { sizes: vec![2] });
    }

    #[test]
    fn the_solver_has_sides_of_any_speed_end_together() {
        let solver = BySolver::new(&[]);
        for second in [0.2, 0.5, 1.0, 1.9, 2.0, 3.0, 4.2, 9.0] {
            for tokens in [1, 32, 256] {
                for (product, rows) in [(CutProduct::Down, 2048), (CutProduct::GateUp, 8192)] {
                    let work = Uncut {
                        times: [1.0, second],
                        ..work(product, rows, tokens)
                    };
                    let Cut::Rows { first } = solver.cut(work) else {
                        panic!("{:?} is no row-cut", solver.cut(work));
                    };
                    let exact = rows as f64 * second / (1.0 + second);
                    assert!((f64::from(first) - exact).abs() < f64::from(TILE_ROWS));
                }
            }
        }
        assert!(solver.solved.borrow().len() <= SOLVED_MAX);
    }

    #[test]
    fn speeds_that_change_a_little_are_not_solved_again() {
        let solver = BySolver::new(&[]);
        let at = |second: f64| {
            solver.cut(Uncut {
                times: [1.0, second],
                ..work(CutProduct::GateUp, 8192, 256)
            })
        };
        let before = at(2.0);
        assert_eq!(at(2.001), before);
        assert_ne!(at(2.1), before);
        assert_eq!(solver.solved.borrow().len(), 1);
    }

    #[test]
    fn what_a_side_does_faster_alone_is_not_shared() {
        let sizes = [32, 64];
        let (any, fixed) = (BySolver::new(&[]), BySolver::new(&sizes));
        let at = |solver: &BySolver, alone, tokens| {
            solver.cut(Uncut {
                alone,
                ..work(CutProduct::Down, 2048, tokens)
            })
        };
        for (side, tokens) in [(Side::First, 1), (Side::First, 5), (Side::Second, 5)] {
            assert_eq!(at(&any, Some(side), tokens), Cut::Whole(side));
        }
        assert_eq!(at(&fixed, Some(Side::First), 1), Cut::Whole(Side::First));
        assert_eq!(at(&fixed, Some(Side::Second), 5), Cut::Whole(Side::Second));
        let padded = Cut::Tokens { sizes: vec![32] };
        assert_eq!(at(&fixed, Some(Side::First), 5), padded);
        assert!(matches!(at(&any, None, 1), Cut::Rows { .. }));
    }

    #[test]
    fn a_first_side_with_static_shapes_is_padded_or_leaves_a_margin() {
        let sizes = [32, 64, 128, 256, 512];
        let (layer, tensor) = (ByOperator::new(&sizes), BySolver::new(&sizes));
        let at = |partition: &dyn Partition, tokens, second| {
            partition.cut(Uncut {
                times: [1.0, second],
                ..work(CutProduct::Down, 2048, tokens)
            })
        };
        let tokens = |sizes: &[u32]| Cut::Tokens {
            sizes: sizes.to_vec(),
        };
        assert_eq!(at(&layer, 300, 4.0), tokens(&[512]));
        assert_eq!(at(&layer, 512, 4.0), tokens(&[512]));
        assert_eq!(at(&layer, 600, 4.0), tokens(&[512, 128]));
        // 256 tokens there, and 44 here: H's own example.
        assert_eq!(at(&tensor, 300, 6.0), tokens(&[256]));
        assert_eq!(at(&tensor, 600, 9.0), tokens(&[512, 32]));
        assert!(matches!(at(&tensor, 256, 4.0), Cut::Rows { .. }));
        let few = at(&tensor, 31, 4.0);
        assert!(
            matches!(
                few,
                Cut::Hybrid {
                    padded_tokens: 32,
                    ..
                }
            ),
            "{few}"
        );
        // A margin of one token is too little for the second side, which has rows of all tokens too.
        let hybrid = at(&tensor, 33, 4.0);
        assert!(
            matches!(
                hybrid,
                Cut::Hybrid {
                    first: 1024..2048,
                    padded_tokens: 32
                }
            ),
            "{hybrid}"
        );
        assert!(matches!(at(&tensor, 1, 4.0), Cut::Rows { .. }));
        assert_eq!(at(&layer, 1, 4.0), Cut::Whole(Side::First));
    }
}
