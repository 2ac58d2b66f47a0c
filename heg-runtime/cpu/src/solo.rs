//! Whether one side of a pair is faster alone than both are together, found out by trying the other way now and then.
//!
//! How fast the sides are is learnt where they share a call (`pace`), and so the bandwidth of the memory. That tells
//! nothing of a call that one side has to itself: it may draw nearly all of the bandwidth, and waits for nobody. So calls of
//! few rows, which read weights, are compared: once when speeds are known, then ever more seldom, and again when what
//! they take has changed. A comparison gives one phase of an order to the other way, the rest of the product's to the one
//! in use, some orders long. Calls of many rows compute, which each side does at its own speed whoever works beside it.

use heg_spec::{CutProduct, Side};

use crate::division::Uncut;

/// A product over few tokens, which takes as long as its weights are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    product: CutProduct,
    tokens: usize,
}

/// A phase that has run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ran {
    pub(crate) reading: Reading,
    /// The side that did all of it; none where both did.
    pub(crate) alone: Option<Side>,
    /// Weights that were read.
    pub(crate) weights: usize,
    /// From the end of the phase before it.
    pub(crate) took_ns: u64,
}

/// What is known of each product.
#[derive(Debug, Default)]
pub(crate) struct Solos(Vec<Choice>);

/// Who does a product, and what is known of that and of the other way.
#[derive(Debug)]
struct Choice {
    reading: Reading,
    /// The side that does it alone; none where both share it.
    alone: Option<Side>,
    /// The side that alone is the other way.
    lone: Side,
    is_comparing: bool,
    /// Orders since the last comparison.
    age: u32,
    /// Those until the next.
    interval: u32,
    /// Of a comparison: both together, and one alone.
    found: [Found; 2],
    /// Time of the way in use in ns a weight, when it was last compared and of late.
    usual: f64,
    lately: f64,
    /// Whether the order that runs has such a phase.
    is_listed: bool,
    /// What its first phase took of either way, in ns a weight: of as many as are compared, for an interruption is rare.
    running: [Option<f64>; 2],
}

/// Times of orders in ns a weight.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    times: [f64; COMPARED],
    count: usize,
}

impl Reading {
    /// What some work is; none where it computes, or has no weights.
    pub(crate) fn of(work: &Uncut, is_long: bool) -> Option<Self> {
        let product = work.product.filter(|product| {
            !is_long && *product != CutProduct::Attention && work.rows * work.columns > 0
        })?;
        Some(Self {
            product,
            tokens: work.tokens,
        })
    }
}

impl Solos {
    /// The side that does the next phase of an order alone; none where both share it. `faster` is the one that is so of both.
    pub(crate) fn next(&mut self, reading: Reading, faster: Side) -> Option<Side> {
        if !self.0.iter().any(|choice| choice.reading == reading) {
            self.0.push(Choice::new(reading));
        }
        let choice = self.of(reading)?;
        choice.next(faster)
    }

    /// Takes in what an order has shown.
    pub(crate) fn learn(&mut self, phases: impl Iterator<Item = Ran>) {
        for ran in phases {
            if let Some(choice) = self.of(ran.reading) {
                choice.add(ran);
            }
        }
        self.0.iter_mut().for_each(Choice::learn);
    }

    fn of(&mut self, reading: Reading) -> Option<&mut Choice> {
        let mut choices = self.0.iter_mut();
        choices.find(|choice| choice.reading == reading)
    }
}

impl Choice {
    fn new(reading: Reading) -> Self {
        Self {
            reading,
            alone: None,
            lone: Side::First,
            is_comparing: false,
            age: 0,
            interval: FIRST_AFTER,
            found: Default::default(),
            usual: 0.0,
            lately: 0.0,
            is_listed: false,
            running: Default::default(),
        }
    }

    fn next(&mut self, faster: Side) -> Option<Side> {
        let is_first = !std::mem::replace(&mut self.is_listed, true);
        if !(is_first && self.is_comparing) {
            return self.alone;
        }
        let [together, one] = self.found.map(|found| found.count);
        if self.alone.is_none() && together + one == 0 {
            self.lone = faster;
        }
        // Where an order has one such phase, the ways take turns.
        let (own, other) = match self.alone {
            Some(_) => (one, together),
            None => (together, one),
        };
        match other <= own {
            true => self.other_way(),
            false => self.alone,
        }
    }

    fn other_way(&self) -> Option<Side> {
        match self.alone {
            Some(_) => None,
            None => Some(self.lone),
        }
    }

    fn add(&mut self, ran: Ran) {
        // Somebody else may have given it to the other side.
        if ran.alone.is_none_or(|side| side == self.lone) {
            let first = &mut self.running[usize::from(ran.alone.is_some())];
            first.get_or_insert(ran.took_ns as f64 / ran.weights as f64);
        }
    }

    /// Ends an order.
    fn learn(&mut self) {
        if !std::mem::take(&mut self.is_listed) {
            return;
        }
        let took = std::mem::take(&mut self.running);
        if let Some(now) = took[usize::from(self.alone.is_some())] {
            self.age += 1;
            self.notes(now);
        }
        if !self.is_comparing {
            self.is_comparing =
                self.age >= self.interval || (self.age >= AGAIN_MIN && self.has_changed());
            return;
        }
        for (found, took) in self.found.iter_mut().zip(took) {
            found.add(took);
        }
        if let [Some(together), Some(one)] = self.found.map(Found::middle) {
            self.chooses(together, one);
        }
    }

    /// Takes in what the way in use took.
    fn notes(&mut self, now: f64) {
        if self.lately == 0.0 {
            (self.usual, self.lately) = (now, now);
        }
        let now = now.clamp(self.lately / STEP_MAX, self.lately * STEP_MAX);
        self.lately += (now - self.lately) * WEIGHT;
    }

    fn has_changed(&self) -> bool {
        let change = self.lately / self.usual;
        !(1.0 / CHANGE_MIN..CHANGE_MIN).contains(&change)
    }

    /// Ends a comparison.
    fn chooses(&mut self, together: f64, one: f64) {
        let (own, other) = match self.alone {
            Some(_) => (one, together),
            None => (together, one),
        };
        let is_better = other < own * (1.0 - GAIN_MIN);
        self.interval = match is_better || self.has_changed() {
            true => AGAIN,
            false => (self.interval * 2).clamp(AGAIN, AGAIN_MAX),
        };
        self.usual = own;
        if is_better {
            self.alone = self.other_way();
            self.usual = other;
        }
        self.lately = self.usual;
        self.found = Default::default();
        (self.is_comparing, self.age) = (false, 0);
    }
}

impl Found {
    fn add(&mut self, took: Option<f64>) {
        if let (Some(took), Some(free)) = (took, self.times.get_mut(self.count)) {
            *free = took;
            self.count += 1;
        }
    }

    /// The middle one, once there are enough: one order that was interrupted decides nothing.
    fn middle(mut self) -> Option<f64> {
        self.times.sort_by(f64::total_cmp);
        (self.count == COMPARED).then(|| self.times[COMPARED / 2])
    }
}

/// Orders of each way that are compared. Chosen: two that were interrupted are outvoted.
const COMPARED: usize = 5;

/// Orders before the first comparison. Chosen: those from which speeds are learnt.
const FIRST_AFTER: u32 = 8;

/// Orders from a comparison that changed something to the next. Chosen: some seconds of an answer.
const AGAIN: u32 = 64;

/// Most orders to the next, each time that the same was found twice as many. Chosen: five phases of hundreds of orders are
/// nothing.
const AGAIN_MAX: u32 = 1024;

/// Least orders to the next, whatever changes. Chosen: those from which speeds are learnt, twice.
const AGAIN_MIN: u32 = 16;

/// What the other way must gain. Chosen: more than two measurements of the same differ by.
const GAIN_MIN: f64 = 0.03;

/// Change of the time that calls for another comparison. Chosen: less than a neighbour that comes or goes makes.
const CHANGE_MIN: f64 = 1.25;

/// Weight of the latest order, and most that it may differ; as of speeds.
const WEIGHT: f64 = 0.125;
const STEP_MAX: f64 = 1.3;

#[cfg(test)]
mod tests {
    use super::*;
    use heg_spec::Seeded;

    const DOWN: Reading = Reading {
        product: CutProduct::Down,
        tokens: 1,
    };

    /// A machine on which phases take so long, shared and alone, and a hundredth more or less; now and then one is interrupted.
    struct World {
        together_ns: f64,
        alone_ns: f64,
        noise: Seeded,
    }

    impl World {
        /// Runs an order of so many phases, and returns how many of these one side did.
        fn order(&mut self, solos: &mut Solos, phases: usize) -> usize {
            let ways: Vec<_> = (0..phases).map(|_| solos.next(DOWN, Side::First)).collect();
            let ran = ways.iter().map(|alone| {
                let usual_ns = match alone {
                    Some(_) => self.alone_ns,
                    None => self.together_ns,
                };
                let interrupted = if self.noise.unit() < 0.02 { 10.0 } else { 1.0 };
                let took = usual_ns * interrupted * (0.99 + 0.02 * self.noise.unit());
                Ran {
                    reading: DOWN,
                    alone: *alone,
                    weights: 1000,
                    took_ns: took as u64,
                }
            });
            let ran: Vec<_> = ran.collect();
            solos.learn(ran.into_iter());
            ways.iter().flatten().count()
        }

        /// The share of phases that one side did alone, of so many orders.
        fn share(&mut self, solos: &mut Solos, orders: usize, phases: usize) -> f64 {
            let all: usize = (0..orders).map(|_| self.order(solos, phases)).sum();
            all as f64 / (orders * phases) as f64
        }
    }

    fn worlds(check: impl Fn(&mut World, usize)) {
        for seed in 1..=20 {
            for phases in [1, 2, 16] {
                let noise = Seeded::new(seed);
                let mut world = World {
                    together_ns: 1e5,
                    alone_ns: 0.9e5,
                    noise,
                };
                check(&mut world, phases);
            }
        }
    }

    #[test]
    fn one_side_gets_what_it_does_faster_alone_and_both_get_the_rest() {
        worlds(|world, phases| {
            for (alone_ns, expected) in [(0.9e5, 1.0), (1.1e5, 0.0), (1.9e5, 0.0), (0.5e5, 1.0)] {
                world.alone_ns = alone_ns;
                let mut solos = Solos::default();
                world.share(&mut solos, 2 * COMPARED + FIRST_AFTER as usize, phases);
                let share = world.share(&mut solos, 1000, phases);
                // The other way is tried in one phase of some orders.
                assert!((share - expected).abs() < 0.05, "{alone_ns}: {share}");
            }
        });
    }

    #[test]
    fn a_change_is_found_out_either_way() {
        worlds(|world, phases| {
            let mut solos = Solos::default();
            world.share(&mut solos, 300, phases);
            // What was the better way takes longer from now on, which shows at once.
            for (together_ns, alone_ns, expected) in
                [(1e5, 1.9e5, 0.0), (3e5, 1.9e5, 1.0), (3e5, 4e5, 0.0)]
            {
                (world.together_ns, world.alone_ns) = (together_ns, alone_ns);
                world.share(&mut solos, 4 * AGAIN_MIN as usize, phases);
                let share = world.share(&mut solos, 40, phases);
                assert!((share - expected).abs() < 0.3, "{alone_ns}: {share}");
            }
            // The other one becomes better, which only a comparison shows.
            world.alone_ns = 2e5;
            world.share(&mut solos, 2 * AGAIN_MAX as usize, phases);
            assert!(world.share(&mut solos, 100, phases) > 0.7);
        });
    }

    #[test]
    fn what_is_about_the_same_stays_as_it_is() {
        worlds(|world, phases| {
            world.alone_ns = 0.995e5;
            let mut solos = Solos::default();
            assert!(world.share(&mut solos, 1000, phases) < 0.06);
        });
    }

    #[test]
    fn the_side_that_is_tried_is_the_faster_one_then() {
        let mut solos = Solos::default();
        let mut tried = Vec::new();
        for _ in 0..40 {
            tried.extend(solos.next(DOWN, Side::Second));
            let ran = Ran {
                reading: DOWN,
                alone: None,
                weights: 1,
                took_ns: 1,
            };
            // Whoever cuts does not have to follow.
            solos.learn([ran].into_iter());
        }
        assert!(!tried.is_empty() && tried.iter().all(|side| *side == Side::Second));
    }

    #[test]
    fn products_of_few_tokens_read_weights() {
        let work = |product, rows| Uncut {
            product,
            rows,
            columns: 64,
            tokens: 1,
            times: [1.0; 2],
            alone: None,
        };
        let down = work(Some(CutProduct::Down), 64);
        assert_eq!(Reading::of(&down, false), Some(DOWN));
        assert_eq!(Reading::of(&down, true), None);
        let attention = work(Some(CutProduct::Attention), 4);
        assert_eq!(Reading::of(&attention, false), None);
        assert_eq!(Reading::of(&work(None, 0), false), None);
    }
}
