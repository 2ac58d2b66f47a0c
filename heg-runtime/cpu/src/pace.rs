//! How fast the sides of a pair compute products, as measured while they run orders: a throttle shows, and a neighbour that
//! takes a core.
//!
//! Each product has a pace of its own, measured in the shares that the sides have of it. What a share costs beside its rows
//! is in it, so a cut by these times makes both sides end together, whatever their costs are made of.

use std::sync::atomic::{AtomicU64, Ordering};

use heg_spec::{CutProduct, Side};

use crate::division::index;

/// What has a pace: a product, or all else, in calls of many rows, which compute, or of few, which read weights.
pub(crate) type Kind = (Option<CutProduct>, bool);

/// What is known of the speed of two sides.
#[derive(Debug)]
pub(crate) struct Pace {
    /// For calls of few rows and of many: of each product, and at the end of all together.
    of: [[PaceOf; PACES]; 2],
}

#[derive(Debug)]
struct PaceOf {
    /// Time of the first side for the same work, divided by that of the second.
    ratio: f64,
    /// What the sides did in the order that runs.
    running: [Running; 2],
}

/// Work of one side, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Running {
    units: AtomicU64,
    took_ns: AtomicU64,
}

/// Work that was done, in products of a weight and an activation, and how long it took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Done {
    pub(crate) units: u64,
    pub(crate) took_ns: u64,
}

impl Pace {
    /// Of sides that take so many times as long as they would by themselves, and are alike otherwise.
    pub(crate) fn new(throttles: [u32; 2]) -> Self {
        let [first, second] = throttles.map(f64::from);
        let unknown = |_| PaceOf {
            ratio: first / second,
            running: Default::default(),
        };
        Self {
            of: [0, 1].map(|_| std::array::from_fn(unknown)),
        }
    }

    /// Time of the same work on each side, in any unit.
    pub(crate) fn times(&self, (product, is_long): Kind) -> [f64; 2] {
        let paces = &self.of[usize::from(is_long)];
        // Steps that are no products are as fast as all products together.
        let own = product.and_then(place).unwrap_or(ALL);
        [paces[own].ratio, 1.0]
    }

    /// Notes what a side did.
    pub(crate) fn add(&self, (product, is_long): Kind, side: Side, done: Done) {
        // Steps that are no products take a time of their own.
        if let Some(own) = product.and_then(place)
            && done.units > 0
        {
            let running = &self.of[usize::from(is_long)][own].running[index(side)];
            running.units.fetch_add(done.units, Ordering::Relaxed);
            running.took_ns.fetch_add(done.took_ns, Ordering::Relaxed);
        }
    }

    /// Takes in what an order has shown.
    pub(crate) fn learn(&mut self) {
        for paces in &mut self.of {
            let mut all = [Done::default(); 2];
            for pace in paces.iter_mut() {
                let done = pace.running.each_mut().map(Running::take);
                for (all, done) in all.iter_mut().zip(done) {
                    all.units += done.units;
                    all.took_ns += done.took_ns;
                }
                pace.learn(done);
            }
            paces[ALL].learn(all);
        }
    }
}

impl PaceOf {
    fn learn(&mut self, done: [Done; 2]) {
        let [first, second] = done.map(|done| done.took_ns as f64 / done.units as f64);
        let ratio = first / second;
        // Of a side that did nothing there is nothing to learn, and no comparison.
        if ratio.is_finite() && ratio > 0.0 {
            let now = ratio.clamp(self.ratio / STEP_MAX, self.ratio * STEP_MAX);
            self.ratio += (now - self.ratio) * WEIGHT;
        }
    }
}

impl Running {
    fn take(&mut self) -> Done {
        Done {
            units: std::mem::take(self.units.get_mut()),
            took_ns: std::mem::take(self.took_ns.get_mut()),
        }
    }
}

/// Place of a product; none for attention, whose work is no number of products.
fn place(product: CutProduct) -> Option<usize> {
    let mut all = CutProduct::ALL.into_iter();
    let place = all.position(|one| one == product);
    place.filter(|_| product != CutProduct::Attention)
}

/// Place of all products together.
const ALL: usize = CutProduct::ALL.len();

const PACES: usize = ALL + 1;

/// Weight of the latest order. Chosen: a neighbour that comes or goes is known after some ten orders.
const WEIGHT: f64 = 0.125;

/// Most that an order may differ from what is known. Chosen: a side that lost its core for a while, once, changes shares by
/// less than a twentieth.
const STEP_MAX: f64 = 1.3;

#[cfg(test)]
mod tests {
    use super::*;

    const DOWN: Kind = (Some(CutProduct::Down), false);

    fn order(pace: &mut Pace, took_ns: [u64; 2]) {
        for (side, units, took_ns) in [
            (Side::First, 100, took_ns[0]),
            (Side::Second, 50, took_ns[1]),
        ] {
            pace.add(DOWN, side, Done { units, took_ns });
        }
        pace.learn();
    }

    fn ratio(pace: &Pace, kind: Kind) -> f64 {
        let [first, second] = pace.times(kind);
        first / second
    }

    #[test]
    fn speeds_are_learnt_from_orders_in_which_both_sides_work() {
        let mut pace = Pace::new([1, 2]);
        let done = Done {
            units: 100,
            took_ns: 1000,
        };
        pace.add(DOWN, Side::First, done);
        pace.learn();
        assert_eq!((ratio(&pace, DOWN), ratio(&pace, (None, true))), (0.5, 0.5));
        for _ in 0..100 {
            order(&mut pace, [1000, 2000]);
        }
        assert!((ratio(&pace, DOWN) - 0.25).abs() < 0.001);
        // A side that lost its core once.
        order(&mut pace, [100_000, 2000]);
        assert!((0.25..0.26).contains(&ratio(&pace, DOWN)));
        for _ in 0..100 {
            order(&mut pace, [1000, 500]);
        }
        assert!((ratio(&pace, DOWN) - 1.0).abs() < 0.001);
    }

    #[test]
    fn a_product_has_a_pace_of_its_own_and_all_else_that_of_all() {
        let mut pace = Pace::new([1, 1]);
        for _ in 0..100 {
            order(&mut pace, [1000, 1000]);
        }
        assert!((ratio(&pace, DOWN) - 0.5).abs() < 0.001);
        assert_eq!(ratio(&pace, (Some(CutProduct::Head), false)), 1.0);
        assert_eq!(ratio(&pace, (Some(CutProduct::Down), true)), 1.0);
        for product in [None, Some(CutProduct::Attention)] {
            assert!((ratio(&pace, (product, false)) - 0.5).abs() < 0.001);
        }
    }
}
