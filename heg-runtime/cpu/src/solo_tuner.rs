//! Decides whether one side of a pair does a product faster alone than both do together, by trying the alternative now
//! and then.
//!
//! The ratios in `pace` are measured while both sides share the memory bandwidth. A side that has a call to itself may
//! draw nearly all of the bandwidth, and waits for no other. So calls of few rows, which are bound by reading weights,
//! are compared: once when ratios are known, then at growing intervals, and again when their time has changed. A
//! comparison gives one phase per order to the alternative, for a few orders, and the other phases to the current
//! choice. Calls of many rows are bound by arithmetic, where each side has its own speed.

use heg_spec::{CutProduct, Side};

use crate::division::WorkItem;

/// A product over few tokens, bound by reading its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryBound {
    product: CutProduct,
    tokens: usize,
}

/// Duration of a completed phase.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PhaseTiming {
    pub(crate) memory_bound: MemoryBound,
    /// The side that did all of it; `None`: both.
    pub(crate) alone: Option<Side>,
    /// Number of weights read.
    pub(crate) weights: usize,
    /// Time since the end of the previous phase.
    pub(crate) took_ns: u64,
}

/// Chooses, for each memory-bound product, between one side alone and both together.
#[derive(Debug, Default)]
pub(crate) struct SoloTuner(Vec<Choice>);

/// The current choice for one product, and its measurements.
#[derive(Debug)]
struct Choice {
    memory_bound: MemoryBound,
    /// The side that does it alone; `None`: both share it.
    alone: Option<Side>,
    /// The side to try alone.
    candidate: Side,
    is_comparing: bool,
    /// Orders since the last comparison ended.
    age: u32,
    /// Orders from one comparison to the next.
    interval: u32,
    /// Samples of the running comparison, `[shared, alone]`.
    samples: [Samples; 2],
    /// Time of the current choice in ns per weight: at its last comparison, and lately.
    usual: f64,
    lately: f64,
    /// Whether the running order has such a phase.
    is_listed: bool,
    /// ns per weight of the first such phase of the running order, `[shared, alone]`. One is enough: interruptions are
    /// rare.
    running: [Option<f64>; 2],
}

/// Samples in ns per weight, one per order.
#[derive(Debug, Clone, Copy, Default)]
struct Samples {
    times: [f64; COMPARED],
    count: usize,
}

impl MemoryBound {
    /// The key of some work; `None` if it has many rows or no weights.
    pub(crate) fn of(work: &WorkItem, is_long: bool) -> Option<Self> {
        let product = work.product.filter(|product| {
            !is_long && *product != CutProduct::Attention && work.rows * work.columns > 0
        })?;
        Some(Self {
            product,
            tokens: work.tokens,
        })
    }
}

impl SoloTuner {
    /// The side to give the next phase of an order; `None`: both share it. `faster` is the faster side by `pace`.
    pub(crate) fn next(&mut self, memory_bound: MemoryBound, faster: Side) -> Option<Side> {
        if !self
            .0
            .iter()
            .any(|choice| choice.memory_bound == memory_bound)
        {
            self.0.push(Choice::new(memory_bound));
        }
        let choice = self.of(memory_bound)?;
        choice.next(faster)
    }

    /// Learns from the phases of a completed order, which stands for `orders`.
    pub(crate) fn learn(&mut self, phases: impl Iterator<Item = PhaseTiming>, orders: u32) {
        for ran in phases {
            if let Some(choice) = self.of(ran.memory_bound) {
                choice.add(ran);
            }
        }
        self.0.iter_mut().for_each(|choice| choice.learn(orders));
    }

    fn of(&mut self, memory_bound: MemoryBound) -> Option<&mut Choice> {
        let mut choices = self.0.iter_mut();
        choices.find(|choice| choice.memory_bound == memory_bound)
    }
}

impl Choice {
    fn new(memory_bound: MemoryBound) -> Self {
        Self {
            memory_bound,
            alone: None,
            candidate: Side::First,
            is_comparing: false,
            age: 0,
            interval: FIRST_AFTER,
            samples: Default::default(),
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
        let [together, one] = self.samples.map(|samples| samples.count);
        if self.alone.is_none() && together + one == 0 {
            self.candidate = faster;
        }
        // In orders with a single such phase, both choices take turns.
        let (own, other) = match self.alone {
            Some(_) => (one, together),
            None => (together, one),
        };
        if other <= own {
            self.alternative()
        } else {
            self.alone
        }
    }

    fn alternative(&self) -> Option<Side> {
        match self.alone {
            Some(_) => None,
            None => Some(self.candidate),
        }
    }

    fn add(&mut self, ran: PhaseTiming) {
        // A partition may have ignored the choice and used the other side.
        if ran.alone.is_none_or(|side| side == self.candidate) {
            let first = &mut self.running[usize::from(ran.alone.is_some())];
            first.get_or_insert(ran.took_ns as f64 / ran.weights as f64);
        }
    }

    /// Evaluates a completed order, which stands for `orders`.
    fn learn(&mut self, orders: u32) {
        if !std::mem::take(&mut self.is_listed) {
            return;
        }
        let took = std::mem::take(&mut self.running);
        if let Some(now) = took[usize::from(self.alone.is_some())] {
            self.age = self.age.saturating_add(orders);
            self.record(now);
        }
        if !self.is_comparing {
            self.is_comparing =
                self.age >= self.interval || (self.age >= AGAIN_MIN && self.has_changed());
            return;
        }
        for (samples, took) in self.samples.iter_mut().zip(took) {
            samples.add(took);
        }
        if let [Some(together), Some(one)] = self.samples.map(Samples::median) {
            self.choose(together, one);
        }
    }

    /// Records a sample of the current choice.
    fn record(&mut self, now: f64) {
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

    /// Ends a comparison: switches to the alternative if that was faster by [`GAIN_MIN`].
    fn choose(&mut self, together: f64, one: f64) {
        let (own, other) = match self.alone {
            Some(_) => (one, together),
            None => (together, one),
        };
        let is_better = other < own * (1.0 - GAIN_MIN);
        self.interval = if is_better || self.has_changed() {
            AGAIN
        } else {
            (self.interval * 2).clamp(AGAIN, AGAIN_MAX)
        };
        self.usual = own;
        if is_better {
            self.alone = self.alternative();
            self.usual = other;
        }
        self.lately = self.usual;
        self.samples = Default::default();
        (self.is_comparing, self.age) = (false, 0);
    }
}

impl Samples {
    fn add(&mut self, took: Option<f64>) {
        if let (Some(took), Some(free)) = (took, self.times.get_mut(self.count)) {
            *free = took;
            self.count += 1;
        }
    }

    /// The median, once there are [`COMPARED`] samples: one interrupted order decides nothing.
    fn median(mut self) -> Option<f64> {
        self.times.sort_by(f64::total_cmp);
        (self.count == COMPARED).then(|| self.times[COMPARED / 2])
    }
}

/// Samples per choice. Chosen: two interrupted orders are outvoted.
const COMPARED: usize = 5;

/// Orders before the first comparison. Chosen: `pace` needs as many.
const FIRST_AFTER: u32 = 8;

/// Orders to the next comparison after one that changed something. Chosen: some seconds of an answer.
const AGAIN: u32 = 64;

/// Most orders to the next comparison; the interval doubles each time the choice is confirmed. Chosen: five phases in
/// hundreds of orders cost nothing.
const AGAIN_MAX: u32 = 1024;

/// Fewest orders to the next comparison, whatever changes. Chosen: twice what `pace` needs.
const AGAIN_MIN: u32 = 16;

/// Least gain for a switch. Chosen: above the noise of two measurements.
const GAIN_MIN: f64 = 0.03;

/// Change of time that triggers a comparison. Chosen: below the effect of a neighbour that comes or goes.
const CHANGE_MIN: f64 = 1.25;

/// Weight of the latest order, and its largest change; as in `pace`.
const WEIGHT: f64 = 0.125;
const STEP_MAX: f64 = 1.3;

#[cfg(test)]
mod tests {
    use super::*;
    use heg_spec::Seeded;

    const DOWN: MemoryBound = MemoryBound {
        product: CutProduct::Down,
        tokens: 1,
    };

    /// A machine with given phase durations, shared and alone, within a percent; 2% of phases are interrupted.
    struct World {
        together_ns: f64,
        alone_ns: f64,
        noise: Seeded,
    }

    impl World {
        /// Runs an order of `phases` phases, and returns how many of them one side did alone.
        fn order(&mut self, tuner: &mut SoloTuner, phases: usize) -> usize {
            let ways: Vec<_> = (0..phases).map(|_| tuner.next(DOWN, Side::First)).collect();
            let ran = ways.iter().map(|alone| {
                let usual_ns = match alone {
                    Some(_) => self.alone_ns,
                    None => self.together_ns,
                };
                let interrupted = if self.noise.unit() < 0.02 { 10.0 } else { 1.0 };
                let took = usual_ns * interrupted * (0.99 + 0.02 * self.noise.unit());
                PhaseTiming {
                    memory_bound: DOWN,
                    alone: *alone,
                    weights: 1000,
                    took_ns: took as u64,
                }
            });
            let ran: Vec<_> = ran.collect();
            tuner.learn(ran.into_iter(), 1);
            ways.iter().flatten().count()
        }

        /// The fraction of phases that one side did alone in `orders` orders.
        fn share(&mut self, tuner: &mut SoloTuner, orders: usize, phases: usize) -> f64 {
            let all: usize = (0..orders).map(|_| self.order(tuner, phases)).sum();
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
                let mut tuner = SoloTuner::default();
                world.share(&mut tuner, 2 * COMPARED + FIRST_AFTER as usize, phases);
                let share = world.share(&mut tuner, 1000, phases);
                // The alternative is tried in single phases.
                assert!((share - expected).abs() < 0.05, "{alone_ns}: {share}");
            }
        });
    }

    #[test]
    fn a_change_is_found_out_either_way() {
        worlds(|world, phases| {
            let mut tuner = SoloTuner::default();
            world.share(&mut tuner, 300, phases);
            // The current choice becomes slower, which shows at once.
            for (together_ns, alone_ns, expected) in
                [(1e5, 1.9e5, 0.0), (3e5, 1.9e5, 1.0), (3e5, 4e5, 0.0)]
            {
                (world.together_ns, world.alone_ns) = (together_ns, alone_ns);
                world.share(&mut tuner, 4 * AGAIN_MIN as usize, phases);
                let share = world.share(&mut tuner, 40, phases);
                assert!((share - expected).abs() < 0.3, "{alone_ns}: {share}");
            }
            // The alternative becomes faster, which only a comparison shows.
            world.alone_ns = 2e5;
            world.share(&mut tuner, 2 * AGAIN_MAX as usize, phases);
            assert!(world.share(&mut tuner, 100, phases) > 0.7);
        });
    }

    #[test]
    fn what_is_about_the_same_stays_as_it_is() {
        worlds(|world, phases| {
            world.alone_ns = 0.995e5;
            let mut tuner = SoloTuner::default();
            assert!(world.share(&mut tuner, 1000, phases) < 0.06);
        });
    }

    #[test]
    fn the_side_that_is_tried_is_the_faster_one_then() {
        let mut tuner = SoloTuner::default();
        let mut tried = Vec::new();
        for _ in 0..40 {
            tried.extend(tuner.next(DOWN, Side::Second));
            let ran = PhaseTiming {
                memory_bound: DOWN,
                alone: None,
                weights: 1,
                took_ns: 1,
            };
            // A partition need not follow the choice.
            tuner.learn([ran].into_iter(), 1);
        }
        assert!(!tried.is_empty() && tried.iter().all(|side| *side == Side::Second));
    }

    #[test]
    fn products_of_few_tokens_read_weights() {
        let work = |product, rows| WorkItem {
            hand_over_ns: [0.0; 2],
            product,
            rows,
            columns: 64,
            tokens: 1,
            times: [1.0; 2],
            alone: None,
        };
        let down = work(Some(CutProduct::Down), 64);
        assert_eq!(MemoryBound::of(&down, false), Some(DOWN));
        assert_eq!(MemoryBound::of(&down, true), None);
        let attention = work(Some(CutProduct::Attention), 4);
        assert_eq!(MemoryBound::of(&attention, false), None);
        assert_eq!(MemoryBound::of(&work(None, 0), false), None);
    }
}
