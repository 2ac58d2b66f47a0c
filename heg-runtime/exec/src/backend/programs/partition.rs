//! Cuts of kernels between two roles that run them together, at the levels of HeteroLLM §4: whole operators, or parts of
//! each product as its solver says: where nothing was known before (`informed`), for speeds and hand-overs that are measured
//! while orders run. CPU programs, and those of a GPU, take any
//! number of tokens, so no cut is padded here.

use std::cell::RefCell;
use std::sync::Arc;

use heg_cpu::{Partition, PartnerForms, TILE_OUTPUTS, WorkItem};
use heg_profiler::partition::{Company, CutPiece, CutRules, CutShape, PairLatencies, solve};
use heg_spec::policy::PairLevel;
use heg_spec::{Cut, CutProduct, Side};

use super::cut_counts::CutCounter;
use super::informed::{AsCompiled, Informed};
use crate::backend::PairSetup;

/// Returns the partition of work between the sides of a pair, in a device whose first side has that side's role.
pub(super) fn partition(
    setup: &PairSetup,
    first: Side,
    counter: &Arc<CutCounter>,
) -> Box<dyn Partition> {
    match setup.pairing.level {
        PairLevel::Layer => Box::new(ByOperator),
        PairLevel::Tensor => {
            let counter = Arc::clone(counter);
            let partner = setup.partner.as_ref().map(|partner| partner.device.forms());
            match partner {
                Some(PartnerForms::Compiled) => {
                    Box::new(AsCompiled::new(setup.known.clone(), first, counter))
                }
                Some(PartnerForms::AnySize) | None => {
                    Box::new(Informed::new(setup.known.clone(), first, counter))
                }
            }
        }
    }
}

/// Products on the first side; attention and steps on single rows on the second.
struct ByOperator;

impl Partition for ByOperator {
    fn cut(&self, work: WorkItem) -> Cut {
        match work.product {
            Some(CutProduct::Attention) | None => Cut::Whole(Side::Second),
            Some(_) => Cut::Whole(Side::First),
        }
    }
}

/// Everything by one share of the first side.
struct ByShare(f64);

impl ByShare {
    /// The share with which sides end together that take so long for the same work.
    fn of(work: WorkItem) -> Self {
        let [first, second] = work.times;
        Self(second / (first + second))
    }
}

impl Partition for ByShare {
    fn cut(&self, work: WorkItem) -> Cut {
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

/// Whether heads can be shared like this, within a twentieth of them.
fn is_near(heads: usize, share: f64) -> bool {
    let exact = heads as f64 * share;
    (f64::from(part(heads, 1, share)) - exact).abs() <= 0.05 * heads as f64
}

/// Products as the solver says for sides as fast as they were measured, the rest by the same speeds.
#[derive(Default)]
pub(super) struct BySolver {
    /// The latest solutions.
    solved: RefCell<Vec<Solved>>,
}

struct Solved {
    work: WorkItem,
    cut: Cut,
}

impl BySolver {
    fn solve(product: CutProduct, work: WorkItem) -> Cut {
        let solved = solve_call(&Times(work), product, work);
        solved.unwrap_or(Cut::Whole(Side::Second))
    }
}

/// Solves the cut of a product by the latencies of the two sides; `None` where one is missing.
pub(super) fn solve_call(
    latencies: &impl PairLatencies,
    product: CutProduct,
    work: WorkItem,
) -> Option<Cut> {
    let tokens = number(work.tokens);
    let shape = CutShape {
        product,
        rows: number(work.rows),
        depth: number(work.columns),
        matrices: 1,
        unit_rows: 1,
        row_bytes: 0.0,
    };
    let rules = CutRules {
        // Programs take any number of tokens.
        static_tokens: &[tokens],
        row_step: TILE_ROWS,
        home: Side::Second,
        // CPU programs wait for each other at the end of each phase, however it is cut, and another device has its way
        // there and back beside the work of the other side.
        hand_over_us: 0.0,
    };
    let best = solve(latencies, &shape, tokens, rules).ok()?;
    Some(best.cut)
}

/// The product of some work that a solver cuts; `None` for attention and for steps on single rows.
pub(super) fn solved_product(work: WorkItem) -> Option<CutProduct> {
    let is_solved = |product: &CutProduct| *product != CutProduct::Attention;
    work.product.filter(is_solved)
}

impl Partition for BySolver {
    fn follows_speeds(&self, work: WorkItem) -> bool {
        solved_product(work).is_some()
    }

    fn cut(&self, work: WorkItem) -> Cut {
        let Some(product) = solved_product(work) else {
            return ByShare::of(work).cut(work);
        };
        if let Some(side) = work.alone {
            return Cut::Whole(side);
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
        let cut = Self::solve(product, work);
        let known = cut.clone();
        solved.push(Solved { work, cut: known });
        cut
    }
}

impl Solved {
    fn is_same_call(&self, work: WorkItem) -> bool {
        let call = |work: WorkItem| WorkItem {
            times: [0.0; 2],
            hand_over_ns: [0.0; 2],
            ..work
        };
        call(self.work) == call(work)
    }

    /// Whether it is the solution of some work, or of work for sides that are hardly faster or slower.
    fn is_of(&self, work: WorkItem) -> bool {
        let share = |work| ByShare::of(work).0;
        // The work that fits into a hand-over.
        let missed = |work: WorkItem| {
            let [first, second] = work.hand_over_ns;
            (first + second) / (work.times[0] + work.times[1])
        };
        let (before, now) = (missed(self.work), missed(work));
        self.is_same_call(work)
            && (share(self.work) - share(work)).abs() < SHARE_STEP
            && (before - now).abs() <= HAND_OVER_STEP * before.max(now)
    }
}

/// Time of work on each side, and of the way there and back.
struct Times(WorkItem);

impl PairLatencies for Times {
    fn piece_us(&self, side: Side, piece: CutPiece<'_>, _: Company) -> Option<f64> {
        let Self(work) = self;
        let index = usize::from(side == Side::Second);
        let units = f64::from(piece.rows) * f64::from(piece.tokens) * f64::from(piece.shape.depth);
        Some((work.hand_over_ns[index] + work.times[index] * units) / 1e3)
    }
}

pub(super) fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Output rows of a product's tile.
pub(crate) const TILE_ROWS: u32 = TILE_OUTPUTS as u32;

/// Solutions that are kept. Chosen: a model has five products, for decoding, chunks, and what is left of prompts.
const SOLVED_MAX: usize = 40;

/// Change of a side's share that has a product solved again. Chosen: well below what it can gain.
const SHARE_STEP: f64 = 0.002;

/// Change of a hand-over, beside the time of the work, that has a product solved again. Chosen: medians are counted in
/// steps of a quarter.
const HAND_OVER_STEP: f64 = 0.2;

#[cfg(test)]
mod tests {
    use super::*;

    fn work(product: CutProduct, rows: usize, tokens: usize) -> WorkItem {
        WorkItem {
            product: Some(product),
            rows,
            columns: 2048,
            tokens,
            times: [1.0; 2],
            hand_over_ns: [0.0; 2],
            alone: None,
        }
    }

    fn rows(tokens: usize) -> WorkItem {
        WorkItem {
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
        let even = ByShare(0.5);
        assert_eq!(even.cut(work(CutProduct::Down, 2048, 256)), cut(1024));
        assert_eq!(even.cut(work(CutProduct::GateUp, 1408, 1)), cut(704));
        assert_eq!(even.cut(work(CutProduct::Out, 200, 1)), cut(96));
        let uneven = ByShare(0.75);
        assert_eq!(uneven.cut(work(CutProduct::Down, 2048, 256)), cut(1536));
        assert_eq!(uneven.cut(work(CutProduct::Attention, 8, 256)), cut(6));
        let of_three = work(CutProduct::Attention, 3, 100);
        assert_eq!(even.cut(of_three), Cut::Tokens { sizes: vec![71] });
        assert_eq!(even.cut(work(CutProduct::Attention, 3, 1)), cut(2));
        let slow_first = ByShare(0.2);
        assert_eq!(slow_first.cut(rows(1)), Cut::Whole(Side::Second));
        assert_eq!(slow_first.cut(rows(10)), Cut::Tokens { sizes: vec![2] });
    }

    #[test]
    fn the_solver_has_sides_of_any_speed_end_together() {
        let solver = BySolver::default();
        for second in [0.2, 0.5, 1.0, 1.9, 2.0, 3.0, 4.2, 9.0] {
            for tokens in [1, 32, 256] {
                for (product, rows) in [(CutProduct::Down, 2048), (CutProduct::GateUp, 8192)] {
                    let work = WorkItem {
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
    fn a_device_gets_no_more_than_it_can_do_beside_its_way_there_and_back() {
        let solver = BySolver::default();
        let at = |tokens, hand_over_us: f64| {
            solver.cut(WorkItem {
                // The first side is three times as fast.
                times: [0.01, 0.03],
                hand_over_ns: [hand_over_us * 1e3, 0.0],
                ..work(CutProduct::Down, 2048, tokens)
            })
        };
        // All of it takes the second side 126 us for a token.
        assert_eq!(at(1, 0.0), cut(1536));
        let Cut::Rows { first } = at(1, 40.0) else {
            panic!("{:?} is no row-cut", at(1, 40.0));
        };
        assert!((1000..1100).contains(&first), "{first}");
        assert_eq!(at(1, 200.0), Cut::Whole(Side::Second));
        let Cut::Rows { first } = at(256, 200.0) else {
            panic!("{:?} is no row-cut", at(256, 200.0));
        };
        assert!(first > 1500, "{first}");
    }

    #[test]
    fn speeds_that_change_a_little_are_not_solved_again() {
        let solver = BySolver::default();
        let at = |second: f64| {
            solver.cut(WorkItem {
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
    fn work_that_a_side_does_faster_alone_is_not_shared() {
        let solver = BySolver::default();
        let at = |alone, tokens| {
            solver.cut(WorkItem {
                alone,
                ..work(CutProduct::Down, 2048, tokens)
            })
        };
        for (side, tokens) in [(Side::First, 1), (Side::First, 5), (Side::Second, 5)] {
            assert_eq!(at(Some(side), tokens), Cut::Whole(side));
        }
        assert!(matches!(at(None, 1), Cut::Rows { .. }));
    }

    #[test]
    fn whole_operators_stay_on_their_side() {
        let side = |work| ByOperator.cut(work);
        for tokens in [1, 300] {
            let product = work(CutProduct::Down, 2048, tokens);
            assert_eq!(side(product), Cut::Whole(Side::First));
            let attention = work(CutProduct::Attention, 8, tokens);
            assert_eq!(side(attention), Cut::Whole(Side::Second));
            assert_eq!(side(rows(tokens)), Cut::Whole(Side::Second));
        }
    }
}
