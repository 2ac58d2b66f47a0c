//! Cuts by what is known before anything runs: pieces of products that were measured on the devices, else the partition that
//! the compiler solved for the machine. Products that neither has are left to the solver, by speeds that are measured while orders run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use heg_cpu::{Partition, WorkItem};
use heg_spec::{Cut, CutProduct, Side};

use super::cut_counts::{CutCounter, CutSource};
use super::partition::{BySolver, number, solve_call, solved_product};
use crate::known_cuts::KnownCuts;

/// Products by the best that is known of them.
pub(super) struct Informed {
    known: KnownCuts,
    /// The side of the pair that is the first one here: a lane that takes the other's device is its own first side.
    first: Side,
    /// Cuts by measured pieces, by call; `None` where too few were measured.
    solved: RefCell<BTreeMap<ProductCall, Option<Cut>>>,
    online: BySolver,
    counter: Arc<CutCounter>,
}

/// The key of a solution by measured pieces: a product's name, its output rows and the tokens of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ProductCall {
    product: CutProduct,
    rows: usize,
    tokens: usize,
}

impl Informed {
    pub(super) fn new(known: KnownCuts, first: Side, counter: Arc<CutCounter>) -> Self {
        Self {
            known,
            first,
            solved: RefCell::default(),
            online: BySolver::default(),
            counter,
        }
    }

    /// Returns the cut of a product and its source, or `None` where neither source has it.
    fn known(&self, product: CutProduct, work: WorkItem) -> Option<(CutSource, Cut)> {
        let measured = self.measured(product, work);
        let measured = measured.map(|cut| (CutSource::Measured, cut));
        measured.or_else(|| Some((CutSource::Written, self.written(product, work)?)))
    }

    /// The cut that measured pieces of a product give.
    fn measured(&self, product: CutProduct, work: WorkItem) -> Option<Cut> {
        let pieces = self.known.measured.as_ref()?;
        let call = ProductCall {
            product,
            rows: work.rows,
            tokens: work.tokens,
        };
        let mut solved = self.solved.borrow_mut();
        if solved.len() >= CALLS_MAX {
            solved.clear();
        }
        let solve = || solve_call(pieces, product, work);
        solved.entry(call).or_insert_with(solve).clone()
    }

    /// The cut that the bundle has for a product.
    fn written(&self, product: CutProduct, work: WorkItem) -> Option<Cut> {
        let of_product = self.known.written.as_ref()?.product(product)?;
        if of_product.rows != number(work.rows) {
            return None;
        }
        let class = of_product.call(number(work.tokens))?;
        Some(class.cut.clone())
    }

    /// A cut of the pair, as the sides are here.
    fn as_here(&self, cut: Cut, work: WorkItem) -> Cut {
        match self.first {
            Side::First => cut,
            Side::Second => cut.mirrored(number(work.rows), number(work.tokens)),
        }
    }
}

/// Products by the bundle's partition alone, which its compiled pieces are for. Other products are the CPU's, and so
/// are those that the partner takes no area of: speeds and measured pieces would cut elsewhere.
pub(super) struct AsCompiled(Informed);

impl AsCompiled {
    pub(super) fn new(known: KnownCuts, first: Side, counter: Arc<CutCounter>) -> Self {
        let known = KnownCuts {
            measured: None,
            written: known.written,
        };
        Self(Informed::new(known, first, counter))
    }
}

impl Partition for AsCompiled {
    fn cut(&self, work: WorkItem) -> Cut {
        let Self(informed) = self;
        let written = solved_product(work).and_then(|product| informed.written(product, work));
        if written.is_some() {
            informed.counter.count(CutSource::Written);
        }
        informed.as_here(written.unwrap_or(Cut::Whole(Side::Second)), work)
    }
}

impl Partition for Informed {
    fn follows_speeds(&self, work: WorkItem) -> bool {
        solved_product(work).is_some_and(|product| self.known(product, work).is_none())
    }

    fn cut(&self, work: WorkItem) -> Cut {
        let Some(product) = solved_product(work) else {
            return self.online.cut(work);
        };
        // A side that is to do all, since it is faster alone or to be measured, does all.
        let is_free = work.alone.is_none();
        let known = is_free.then(|| self.known(product, work)).flatten();
        let (source, cut) = match known {
            Some((source, cut)) => (source, self.as_here(cut, work)),
            None => (CutSource::Online, self.online.cut(work)),
        };
        self.counter.count(source);
        cut
    }
}

/// Calls whose solutions are kept. Chosen: five products, of prompts that end anywhere in a chunk of 256 tokens.
const CALLS_MAX: usize = 1280;

#[cfg(test)]
mod tests {
    use heg_profiler::partition::{
        ClassCut, Company, MeasuredPair, PieceTable, ProductPartition, SocPartition,
    };
    use heg_profiler::predict::LatencyTable;

    use super::*;

    fn work(tokens: usize) -> WorkItem {
        WorkItem {
            product: Some(CutProduct::Down),
            rows: 2048,
            columns: 2048,
            tokens,
            times: [1.0; 2],
            hand_over_ns: [0.0; 2],
            alone: None,
        }
    }

    const fn rows(first: u32) -> Cut {
        Cut::Rows { first }
    }

    /// A document with a class of one row, and one of prompts up to 64 tokens.
    fn written() -> SocPartition {
        let class = |tokens, first| ClassCut {
            tokens,
            cut: rows(first),
            latency_us: 1.0,
            first_us: None,
            second_us: None,
        };
        SocPartition {
            soc: "x".to_owned(),
            static_tokens: vec![64],
            products: vec![ProductPartition {
                product: CutProduct::Down,
                rows: 2048,
                row_step: 16,
                prefill: vec![class(64, 320)],
                decode: vec![class(1, 160)],
            }],
        }
    }

    fn informed(first: Side) -> Informed {
        let known = KnownCuts {
            written: Some(written()),
            ..KnownCuts::default()
        };
        Informed::new(known, first, Arc::default())
    }

    #[test]
    fn products_are_cut_as_the_bundle_says() {
        let informed = informed(Side::First);
        assert_eq!(informed.cut(work(1)), rows(160));
        assert_eq!(informed.cut(work(2)), rows(320));
        assert_eq!(informed.cut(work(64)), rows(320));
        let counts = informed.counter.counts();
        assert_eq!((counts.written, counts.online), (3, 0));
    }

    #[test]
    fn a_lane_that_takes_the_others_device_gives_it_its_own_part() {
        let informed = informed(Side::Second);
        assert_eq!(informed.cut(work(64)), rows(2048 - 320));
    }

    #[test]
    fn what_the_bundle_has_no_class_for_is_cut_by_speeds() {
        let informed = informed(Side::First);
        assert_eq!(informed.cut(work(65)), rows(1024));
        let other = WorkItem {
            rows: 1024,
            ..work(64)
        };
        assert_eq!(informed.cut(other), rows(512));
        let head = WorkItem {
            product: Some(CutProduct::Head),
            ..work(1)
        };
        assert_eq!(informed.cut(head), rows(1024));
        let counts = informed.counter.counts();
        assert_eq!((counts.written, counts.online), (0, 3));
    }

    /// The second side needs three times as long for rows of the down projection over 1 to 64 tokens.
    fn measured() -> MeasuredPair {
        let table = |side, company, rows: &[u32], row_us: f64| {
            let entry = |tokens: u32, rows: u32| {
                let us = f64::from(rows) * f64::from(tokens) * row_us;
                (tokens, rows, us)
            };
            let tokens = [1, 64].into_iter();
            let entries =
                tokens.flat_map(|tokens| rows.iter().map(move |rows| entry(tokens, *rows)));
            PieceTable {
                product: CutProduct::Down,
                side,
                company,
                table: LatencyTable::try_from(entries.collect::<Vec<_>>()).unwrap(),
            }
        };
        let of_side = |side, row_us| {
            [
                table(side, Company::Alone, &[2048], row_us),
                table(side, Company::Beside, &[256, 1792], row_us),
            ]
        };
        let first = of_side(Side::First, 1.0);
        let tables = first.into_iter().chain(of_side(Side::Second, 3.0));
        MeasuredPair::of_tables(&tables.collect::<Vec<_>>())
    }

    #[test]
    fn measured_pieces_come_before_what_the_bundle_says() {
        let known = KnownCuts {
            measured: Some(measured()),
            written: Some(written()),
        };
        let informed = Informed::new(known, Side::First, Arc::default());
        assert_eq!(informed.cut(work(64)), rows(1536));
        assert_eq!(informed.cut(work(1)), rows(1536));
        // Online speeds say otherwise, and are not asked.
        let slower = WorkItem {
            times: [9.0, 1.0],
            ..work(64)
        };
        assert_eq!(informed.cut(slower), rows(1536));
        let out = WorkItem {
            product: Some(CutProduct::Out),
            ..work(64)
        };
        assert_eq!(informed.cut(out), rows(1024));
        let counts = informed.counter.counts();
        let found = (counts.measured, counts.written, counts.online);
        assert_eq!(found, (3, 0, 1));
        for tokens in 0..2 * CALLS_MAX {
            informed.cut(work(tokens + 1));
        }
        assert!(informed.solved.borrow().len() <= CALLS_MAX);
    }

    #[test]
    fn a_side_that_is_to_do_all_does_all() {
        let informed = informed(Side::First);
        for side in [Side::First, Side::Second] {
            let alone = WorkItem {
                alone: Some(side),
                ..work(1)
            };
            assert_eq!(informed.cut(alone), Cut::Whole(side));
        }
        assert_eq!(informed.counter.counts().written, 0);
    }
}
