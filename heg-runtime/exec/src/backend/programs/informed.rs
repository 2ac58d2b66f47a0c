//! Cuts by what is known before anything runs: the partition that the compiler solved for the machine. What it has no class
//! for is left to the solver, by speeds that are measured while orders run.

use std::sync::Arc;

use heg_cpu::{Partition, WorkItem};
use heg_spec::{Cut, CutProduct, Side};

use super::cut_counts::{CutCounter, CutSource};
use super::partition::{BySolver, number, solved_product};
use crate::known_cuts::KnownCuts;

/// Products by the best that is known of them.
pub(super) struct Informed {
    known: KnownCuts,
    /// The side of the pair that is the first one here: a lane that takes the other's device is its own first side.
    first: Side,
    online: BySolver,
    counter: Arc<CutCounter>,
}

impl Informed {
    pub(super) fn new(known: KnownCuts, first: Side, counter: Arc<CutCounter>) -> Self {
        Self {
            known,
            first,
            online: BySolver::default(),
            counter,
        }
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

impl Partition for Informed {
    fn cut(&self, work: WorkItem) -> Cut {
        let Some(product) = solved_product(work) else {
            return self.online.cut(work);
        };
        // A side that is to do all, since it is faster alone or to be measured, does all.
        let is_free = work.alone.is_none();
        let written = is_free.then(|| self.written(product, work)).flatten();
        match written {
            Some(cut) => {
                self.counter.count(CutSource::Written);
                self.as_here(cut, work)
            }
            None => {
                self.counter.count(CutSource::Online);
                self.online.cut(work)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use heg_profiler::partition::{ClassCut, ProductPartition, SocPartition};

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
