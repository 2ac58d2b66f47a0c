//! Relative speed of the sides of a pair, measured for each product while orders run. It follows a core that becomes
//! slower, and neighbours that take one.
//!
//! Each product has its own ratio, measured on the shares that the sides actually had. Fixed costs of a share are part
//! of it, so a cut by these times lets both sides end together. The time of another device is what it was busy for: the way
//! there and back is a hand-over.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use heg_spec::{CutProduct, Side};

use crate::division::index;
use crate::execution::Ran;
use crate::listed::ListedPhase;

/// Key of a ratio: calls of many rows compute, calls of few read weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PaceKey {
    /// The product; `None`: any other step.
    pub(crate) product: Option<CutProduct>,
    /// Whether the call has many rows, and so computes rather than reads weights.
    pub(crate) is_long: bool,
}

/// Measured speed ratios of two sides.
#[derive(Debug)]
pub(crate) struct Pace {
    /// For calls of few rows and of many: each product, and last all products together.
    of: [[PaceOf; PACES]; 2],
    /// Whether the sides are unlike devices.
    is_unlike: bool,
}

#[derive(Debug)]
struct PaceOf {
    /// Time of the first side divided by that of the second, for equal work.
    ratio: f64,
    /// Time of a unit on the second side, in ns; `None` before the first measurement.
    second_ns: Option<f64>,
    /// Orders that gave a ratio.
    learnt: u32,
    /// Work of each side in the running order.
    running: [Running; 2],
}

/// Work of one side, on its own cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Running {
    units: AtomicU64,
    took_ns: AtomicU64,
}

/// Work done, in multiply-adds, and the time it took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Done {
    pub(crate) units: u64,
    pub(crate) took_ns: u64,
}

impl Default for Pace {
    /// Ratios of sides that are taken to be alike, since nothing was measured yet.
    fn default() -> Self {
        let alike = |_| PaceOf {
            ratio: 1.0,
            second_ns: None,
            learnt: 0,
            running: Default::default(),
        };
        Self {
            of: [0, 1].map(|_| std::array::from_fn(alike)),
            is_unlike: false,
        }
    }
}

impl Pace {
    /// Ratios of a device beside a partner that nobody has measured: a first question is small.
    pub(crate) fn beside(partner: Side) -> Self {
        let mut pace = Self {
            is_unlike: true,
            ..Self::default()
        };
        for pace in pace.of.iter_mut().flatten() {
            pace.ratio = match partner {
                Side::First => UNKNOWN_TIMES,
                Side::Second => 1.0 / UNKNOWN_TIMES,
            };
        }
        pace
    }

    /// Time of a unit on each side, in ns; 1 before it is known.
    pub(crate) fn times(&self, key: PaceKey) -> [f64; 2] {
        let paces = &self.of[usize::from(key.is_long)];
        // Other steps are taken to be as fast as all products together.
        let own = key.product.and_then(place).unwrap_or(ALL);
        let PaceOf {
            ratio, second_ns, ..
        } = paces[own];
        let second_ns = second_ns.unwrap_or(1.0);
        [ratio * second_ns, second_ns]
    }

    /// Records a piece of a side: the time that a partner was busy with it, where it tells, else all of it.
    pub(crate) fn note(&self, side: Side, phase: &ListedPhase, ran: Ran, all: Duration) {
        let done = Done {
            units: ran.units as u64,
            took_ns: ran.busy.unwrap_or(all).as_nanos() as u64,
        };
        self.add(phase.pace_key(), side, done);
    }

    /// Records work of a side.
    fn add(&self, key: PaceKey, side: Side, done: Done) {
        // Other steps are not counted in multiply-adds.
        if let Some(own) = key.product.and_then(place)
            && done.units > 0
        {
            let running = &self.of[usize::from(key.is_long)][own].running[index(side)];
            running.units.fetch_add(done.units, Ordering::Relaxed);
            running.took_ns.fetch_add(done.took_ns, Ordering::Relaxed);
        }
    }

    /// Has what is measured next of a product count in full, since much may have changed.
    pub(crate) fn ask_again(&mut self, key: PaceKey) {
        if let Some(place) = key.product.and_then(place) {
            let pace = &mut self.of[usize::from(key.is_long)][place];
            pace.learnt = pace.learnt.min(1);
        }
    }

    /// Updates the ratios after an order.
    pub(crate) fn learn(&mut self) {
        let is_unlike = self.is_unlike;
        for paces in &mut self.of {
            let mut all = [Done::default(); 2];
            for pace in paces.iter_mut() {
                let done = pace.running.each_mut().map(Running::take);
                for (all, done) in all.iter_mut().zip(done) {
                    all.units += done.units;
                    all.took_ns += done.took_ns;
                }
                pace.learn(done, is_unlike);
            }
            paces[ALL].learn(all, is_unlike);
        }
    }
}

impl PaceOf {
    fn learn(&mut self, done: [Done; 2], is_unlike: bool) {
        let [first, second] = done.map(|done| done.took_ns as f64 / done.units as f64);
        let ratio = first / second;
        // A side that did nothing gives no ratio.
        if ratio.is_finite() && ratio > 0.0 {
            let (now, weight) = match is_unlike && self.learnt < EARLY {
                // Devices that are unlike differ by more than one order may suggest.
                true => (ratio, 1.0 / f64::from(self.learnt + 1)),
                false => {
                    let now = ratio.clamp(self.ratio / STEP_MAX, self.ratio * STEP_MAX);
                    (now, WEIGHT)
                }
            };
            self.ratio += (now - self.ratio) * weight;
            self.learnt = self.learnt.saturating_add(1);
        }
        let now = match second.is_finite() {
            true => second,
            false => first / self.ratio,
        };
        if now.is_finite() && now > 0.0 {
            let before = self.second_ns.unwrap_or(now);
            self.second_ns = Some(before + (now - before) * WEIGHT);
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

/// Index of a product; `None` for attention, whose work is not counted in multiply-adds.
fn place(product: CutProduct) -> Option<usize> {
    let mut all = CutProduct::ALL.into_iter();
    let place = all.position(|one| one == product);
    place.filter(|_| product != CutProduct::Attention)
}

/// Index of all products together.
const ALL: usize = CutProduct::ALL.len();

const PACES: usize = ALL + 1;

/// Weight of the latest order. Chosen: the ratio follows a change within some ten orders.
const WEIGHT: f64 = 0.125;

/// Largest change that one order may suggest. Chosen: a side that lost its core once changes shares by less than a
/// twentieth.
const STEP_MAX: f64 = 1.3;

/// Orders whose ratios count in full, of devices that are unlike. Chosen: the first reads weights for the first time.
const EARLY: u32 = 4;

/// Time of a partner that nobody has measured, divided by that of the CPU. Chosen: its first part costs no more than the
/// product alone even if it is thirty times slower than that.
const UNKNOWN_TIMES: f64 = 16.0;

#[cfg(test)]
mod tests {
    use super::*;

    const DOWN: PaceKey = PaceKey {
        product: Some(CutProduct::Down),
        is_long: false,
    };

    fn order(pace: &mut Pace, took_ns: [u64; 2]) {
        for (side, units, took_ns) in [
            (Side::First, 100, took_ns[0]),
            (Side::Second, 50, took_ns[1]),
        ] {
            pace.add(DOWN, side, Done { units, took_ns });
        }
        pace.learn();
    }

    fn ratio(pace: &Pace, key: PaceKey) -> f64 {
        let [first, second] = pace.times(key);
        first / second
    }

    #[test]
    fn speeds_are_learnt_from_orders_in_which_both_sides_work() {
        let mut pace = Pace::default();
        let done = Done {
            units: 100,
            took_ns: 1000,
        };
        pace.add(DOWN, Side::First, done);
        pace.learn();
        let other = PaceKey {
            product: None,
            is_long: true,
        };
        assert_eq!((ratio(&pace, DOWN), ratio(&pace, other)), (1.0, 1.0));
        for _ in 0..100 {
            order(&mut pace, [1000, 2000]);
        }
        assert!((ratio(&pace, DOWN) - 0.25).abs() < 0.001);
        // One order in which a side lost its core.
        order(&mut pace, [100_000, 2000]);
        assert!((0.25..0.26).contains(&ratio(&pace, DOWN)));
        for _ in 0..100 {
            order(&mut pace, [1000, 500]);
        }
        assert!((ratio(&pace, DOWN) - 1.0).abs() < 0.001);
    }

    #[test]
    fn unlike_devices_are_known_at_once_and_when_they_are_asked_again() {
        let mut pace = Pace::beside(Side::First);
        let done = |units, took_ns| Done { units, took_ns };
        assert_eq!(pace.times(DOWN), [UNKNOWN_TIMES, 1.0]);
        let order = |pace: &mut Pace, of: [Done; 2]| {
            for (side, done) in [(Side::First, of[0]), (Side::Second, of[1])] {
                pace.add(DOWN, side, done);
            }
            pace.learn();
            pace.times(DOWN)
        };
        assert_eq!(
            order(&mut pace, [done(0, 0), done(100, 100)]),
            [UNKNOWN_TIMES, 1.0]
        );
        assert_eq!(
            order(&mut pace, [done(100, 4000), done(100, 100)]),
            [40.0, 1.0]
        );
        for _ in 0..EARLY {
            order(&mut pace, [done(100, 4000), done(100, 100)]);
        }
        // It has become ten times as fast.
        let [first, _] = order(&mut pace, [done(100, 400), done(100, 100)]);
        assert!(first > 35.0, "{first}");
        pace.ask_again(DOWN);
        let [first, _] = order(&mut pace, [done(100, 400), done(100, 100)]);
        assert!(first < 25.0, "{first}");
    }

    #[test]
    fn a_product_has_a_pace_of_its_own_and_all_else_that_of_all() {
        let mut pace = Pace::default();
        for _ in 0..100 {
            order(&mut pace, [1000, 1000]);
        }
        assert!((ratio(&pace, DOWN) - 0.5).abs() < 0.001);
        let of = |product, is_long| ratio(&pace, PaceKey { product, is_long });
        assert_eq!(of(Some(CutProduct::Head), false), 1.0);
        assert_eq!(of(Some(CutProduct::Down), true), 1.0);
        for product in [None, Some(CutProduct::Attention)] {
            assert!((of(product, false) - 0.5).abs() < 0.001);
        }
    }
}
