//! Times of the sides of a pair for their parts of each product of an order, for partitions that ask for them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use heg_spec::{CutProduct, Side};

use crate::division::index;

/// Times of the parts of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartTimes {
    /// The product.
    pub product: CutProduct,
    /// Time of each side, from the beginning of its first piece to the end of its last; `None` where it had none. It
    /// includes the way to another device and back.
    pub of_side: [Option<Duration>; 2],
}

/// Stretches of time in which sides were at work, by phase of the running order. It has no phases while nobody asks.
#[derive(Debug, Default)]
pub(crate) struct PartClock {
    phases: Vec<ClockedPhase>,
    zero: Option<Instant>,
}

/// The stretches of a phase, by side.
#[derive(Debug, Default)]
struct ClockedPhase {
    of_side: [Stretch; 2],
    /// Whether a side, or what it waits for, was so late that the other took a piece of it: then neither time is its own.
    is_mixed: AtomicBool,
}

/// The time of a side in a phase, in ns since the order began.
#[derive(Debug)]
struct Stretch {
    begin_ns: AtomicU64,
    end_ns: AtomicU64,
}

impl Default for Stretch {
    fn default() -> Self {
        Self {
            begin_ns: AtomicU64::new(u64::MAX),
            end_ns: AtomicU64::new(0),
        }
    }
}

impl PartClock {
    /// Prepares for an order with this number of phases; 0 if no partition asks.
    pub(crate) fn start(&mut self, phases: usize) {
        self.phases.clear();
        self.phases.resize_with(phases, Default::default);
        self.zero = (phases > 0).then(Instant::now);
    }

    /// Notes a piece of the side `of` that ends now on a thread of the side `on`.
    pub(crate) fn note(&self, phase: usize, of: Side, on: Side, begin: Instant) {
        let (Some(zero), Some(phase)) = (self.zero, self.phases.get(phase)) else {
            return;
        };
        if of != on {
            phase.is_mixed.store(true, Ordering::Relaxed);
        }
        let ns = |time: Duration| time.as_nanos() as u64;
        let Stretch { begin_ns, end_ns } = &phase.of_side[index(of)];
        begin_ns.fetch_min(ns(begin.saturating_duration_since(zero)), Ordering::Relaxed);
        end_ns.fetch_max(ns(zero.elapsed()), Ordering::Relaxed);
    }

    /// Times of the sides in a phase that ended; `None` where they are not known.
    pub(crate) fn of_phase(&self, phase: usize) -> Option<[Option<Duration>; 2]> {
        let of_side = |stretch: &Stretch| {
            let [begin, end] =
                [&stretch.begin_ns, &stretch.end_ns].map(|ns| ns.load(Ordering::Relaxed));
            end.checked_sub(begin).map(Duration::from_nanos)
        };
        let mut phases = self.phases.get(phase).into_iter();
        let phase = phases.find(|phase| !phase.is_mixed.load(Ordering::Relaxed))?;
        Some(phase.of_side.each_ref().map(of_side))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sides_time_is_from_its_first_piece_to_its_last() {
        let mut clock = PartClock::default();
        clock.start(2);
        let begin = Instant::now();
        clock.note(1, Side::Second, Side::Second, begin);
        std::thread::sleep(Duration::from_millis(2));
        clock.note(1, Side::Second, Side::Second, Instant::now());
        // A phase that the order does not have.
        clock.note(2, Side::First, Side::First, begin);
        assert_eq!(clock.of_phase(0), Some([None; 2]));
        let [first, second] = clock.of_phase(1).unwrap();
        assert_eq!(first, None);
        assert!(second.unwrap() >= Duration::from_millis(2));
        clock.note(1, Side::Second, Side::First, begin);
        assert_eq!(clock.of_phase(1), None);
        clock.start(0);
        clock.note(0, Side::First, Side::First, begin);
        assert_eq!(clock.of_phase(0), None);
    }
}
