//! The way in which a pair with another device runs a pass: together, each product by both, or all of it by one of them.
//!
//! A GPU that runs a pass alone has it as few submissions, where a pair waits for one at each product: results are the same
//! either way. An NPU computes the areas that were compiled for it, whatever they take, or the CPU computes them: results are
//! as near as either device's. The faster way is found by trying: a GPU alone only where its part of products says that it may
//! be faster, and either way now and then, in a few passes that end early where they are slower.

use std::time::Duration;

use heg_sched::Class;

/// The devices of a pair that run a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PairWay {
    /// Both, each with a share of every product.
    #[default]
    Together,
    /// The device that is no CPU.
    Partner,
    /// The CPU.
    Cpu,
}

/// The prospect of a device in a pass that it may run alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prospect {
    /// Nothing yet.
    Unknown,
    /// The time that it would need for the products of a pass, in ns, by its parts of them.
    Products { ns: u64 },
    /// It shares no products, so it runs whole passes or nothing: it begins.
    Whole,
}

/// Passes that take about the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PassKind {
    pub(crate) class: Option<Class>,
    pub(crate) launches: usize,
    /// Rows, rounded up to a power of two.
    pub(crate) rows: usize,
}

/// The ways of a pair's passes.
#[derive(Debug)]
pub(crate) struct PairWays {
    /// The way beside [`PairWay::Together`].
    alone: PairWay,
    choices: Vec<Choice>,
    /// Whether the device failed, so that it runs nothing alone any more.
    is_lost: bool,
}

/// The way of passes of one kind, with what was measured.
#[derive(Debug)]
struct Choice {
    kind: PassKind,
    way: PairWay,
    /// The way that it does not run, but for trials.
    other: PairWay,
    prospect: Prospect,
    /// Times of the latest passes on this way, in ns.
    recent: Vec<u64>,
    /// The time of a pass when the way was chosen, in ns.
    usual_ns: u64,
    /// Passes since the other way was tried.
    passes: u32,
    /// Passes from one trial to the next.
    interval: u32,
    trial: Option<Trial>,
}

/// A trial of the other way.
#[derive(Debug, Default)]
struct Trial {
    /// Whether a first pass, which makes commands and brings rows, has run.
    is_warm: bool,
    times: Vec<u64>,
}

impl PairWays {
    /// The two ways of a pair: both together, and `alone`.
    pub(crate) const fn new(alone: PairWay) -> Self {
        Self {
            alone,
            choices: Vec::new(),
            is_lost: false,
        }
    }

    /// The way of the next pass of a kind. `prospect`: that of passes that nothing is known of.
    pub(crate) fn choose(&mut self, kind: PassKind, prospect: Prospect) -> PairWay {
        if self.is_lost {
            return PairWay::Together;
        }
        self.of(kind, prospect).next()
    }

    /// Notes the prospect of the device in passes of a kind, as the latest one that both ran says; `Unknown`: it says nothing.
    pub(crate) fn expect(&mut self, kind: PassKind, prospect: Prospect) {
        if prospect != Prospect::Unknown {
            self.of(kind, prospect).prospect = prospect;
        }
    }

    /// Learns from a pass that ran to its end.
    pub(crate) fn learn(&mut self, kind: PassKind, way: PairWay, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.of(kind, Prospect::Unknown).learn(way, took_ns);
    }

    /// Leaves all further passes to the pair.
    pub(crate) fn lose_partner(&mut self) {
        self.is_lost = true;
    }

    fn of(&mut self, kind: PassKind, prospect: Prospect) -> &mut Choice {
        let known = self.choices.iter().position(|choice| choice.kind == kind);
        let at = known.unwrap_or_else(|| {
            if self.choices.len() == KINDS_MAX {
                self.choices.remove(0);
            }
            self.choices.push(Choice::new(kind, self.alone, prospect));
            self.choices.len() - 1
        });
        &mut self.choices[at]
    }
}

impl Choice {
    const fn new(kind: PassKind, alone: PairWay, prospect: Prospect) -> Self {
        let (way, other) = match prospect {
            Prospect::Whole => (alone, PairWay::Together),
            Prospect::Unknown | Prospect::Products { .. } => (PairWay::Together, alone),
        };
        Self {
            kind,
            way,
            other,
            prospect,
            recent: Vec::new(),
            usual_ns: 0,
            passes: 0,
            interval: FIRST,
            trial: None,
        }
    }

    fn next(&mut self) -> PairWay {
        if self.trial.is_none() && self.is_due() && self.is_promising() {
            self.trial = Some(Trial::default());
        }
        match &self.trial {
            Some(_) => self.other,
            None => self.way,
        }
    }

    /// Whether the other way is to be tried, if it may be faster.
    fn is_due(&self) -> bool {
        let now = median(&self.recent);
        let has_changed = now > CHANGED * self.usual_ns as f64 && self.usual_ns > 0;
        let is_known = self.recent.len() == RECENT;
        is_known && (self.passes >= self.interval || (has_changed && self.passes >= CHANGED_AFTER))
    }

    fn is_promising(&self) -> bool {
        match (self.other, self.prospect) {
            (PairWay::Cpu | PairWay::Together, _) | (PairWay::Partner, Prospect::Whole) => true,
            (PairWay::Partner, Prospect::Unknown) => false,
            (PairWay::Partner, Prospect::Products { ns }) => {
                (ns as f64) < PROMISING * median(&self.recent)
            }
        }
    }

    fn learn(&mut self, way: PairWay, took_ns: u64) {
        let usual = median(&self.recent);
        let Some(trial) = &mut self.trial else {
            if way == self.way {
                self.passes = self.passes.saturating_add(1);
                if self.recent.len() == RECENT {
                    self.recent.remove(0);
                }
                self.recent.push(took_ns);
            }
            return;
        };
        if way == self.way {
            return;
        }
        let worst = match trial.is_warm {
            true => WORSE,
            false => WORSE_AT_FIRST,
        };
        if took_ns as f64 > worst * usual {
            self.stay();
            return;
        }
        if !std::mem::replace(&mut trial.is_warm, true) {
            return;
        }
        trial.times.push(took_ns);
        let other = median(&trial.times);
        let is_clear = !(CLEAR..1.0 / CLEAR).contains(&(other / usual));
        if trial.times.len() < if is_clear { TRIED } else { TRIED_CLOSE } {
            return;
        }
        match other < BETTER * usual {
            true => self.change(other),
            false => self.stay(),
        }
    }

    fn stay(&mut self) {
        self.interval = (self.interval * 2).min(AGAIN_MAX);
        self.usual_ns = median(&self.recent) as u64;
        (self.trial, self.passes) = (None, 0);
    }

    fn change(&mut self, usual: f64) {
        std::mem::swap(&mut self.way, &mut self.other);
        self.interval = AGAIN;
        self.usual_ns = usual as u64;
        self.recent.clear();
        (self.trial, self.passes) = (None, 0);
    }
}

/// The median; 0 of nothing.
fn median(times_ns: &[u64]) -> f64 {
    let mut times_ns = times_ns.to_vec();
    times_ns.sort_unstable();
    let middle = times_ns.get(times_ns.len() / 2);
    middle.map_or(0.0, |ns| *ns as f64)
}

/// Kinds that are kept. Chosen: two classes, of ten sizes of chunks and batches.
const KINDS_MAX: usize = 64;

/// Passes whose times say what is usual. Chosen: four interrupted ones are outvoted.
const RECENT: usize = 9;

/// Passes before the first trial. Chosen: by then a pair knows how fast its device is.
const FIRST: u32 = 9;

/// Passes to the next trial after one that changed something. Chosen: a trial that ends early costs less than a percent.
const AGAIN: u32 = 256;

/// Most passes to the next trial; each that changes nothing doubles them.
const AGAIN_MAX: u32 = 4096;

/// Passes of a trial that count. Chosen: an interrupted one is outvoted.
const TRIED: usize = 3;

/// The same where both ways take about the same time, so that a few more cost little. Chosen: as many as say what is usual.
const TRIED_CLOSE: usize = RECENT;

/// The ratio of two times that few passes decide: below it, or above its inverse.
const CLEAR: f64 = 0.85;

/// The times of usual ones with which a trial ends early, at a first pass and at another.
const WORSE_AT_FIRST: f64 = 8.0;
const WORSE: f64 = 1.25;

/// The part of a usual time below which the other way is taken. Chosen: above the noise of two measurements.
const BETTER: f64 = 0.97;

/// The times of a usual pass that a device's products may take for it to be tried alone. Chosen: small parts of products are
/// a few times slower, by unit, than whole ones.
const PROMISING: f64 = 4.0;

/// The times of the usual one at which a pass has become slower, and the fewest passes before that counts.
const CHANGED: f64 = 1.5;
const CHANGED_AFTER: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use heg_spec::Seeded;

    const KIND: PassKind = PassKind {
        class: None,
        launches: 91,
        rows: 1,
    };

    const FAST: Prospect = Prospect::Products { ns: 1_000_000 };

    /// Times of a pass, together and by a device alone.
    struct World {
        together_us: f64,
        alone_us: f64,
        /// Difference of passes that are alike, as a part of their time.
        spread: f64,
        noise: Seeded,
    }

    impl World {
        /// Runs passes; returns the time that they took, by that of the faster way.
        fn run(&mut self, ways: &mut PairWays, passes: usize, partner_us: Option<f64>) -> f64 {
            let ns = partner_us.map(|us| (us * 1e3) as u64);
            let prospect = ns.map_or(Prospect::Unknown, |ns| Prospect::Products { ns });
            self.run_with(ways, passes, prospect)
        }

        fn run_with(&mut self, ways: &mut PairWays, passes: usize, prospect: Prospect) -> f64 {
            let mut all = 0.0;
            for _ in 0..passes {
                let way = ways.choose(KIND, Prospect::Unknown);
                let usual = match way {
                    PairWay::Together => self.together_us,
                    PairWay::Partner | PairWay::Cpu => self.alone_us,
                };
                let interrupted = if self.noise.unit() < 0.02 { 3.0 } else { 1.0 };
                let spread = self.spread * (self.noise.unit() - 0.5);
                let took = usual * interrupted * (1.0 + spread);
                ways.learn(KIND, way, Duration::from_nanos((took * 1e3) as u64));
                ways.expect(KIND, prospect);
                all += usual;
            }
            all / (passes as f64 * self.together_us.min(self.alone_us))
        }
    }

    fn worlds(mut check: impl FnMut(&mut World)) {
        for seed in 1..=20 {
            check(&mut World {
                together_us: 4450.0,
                alone_us: 1870.0,
                spread: 0.02,
                noise: Seeded::new(seed),
            });
        }
    }

    #[test]
    fn the_faster_way_is_found_and_costs_less_than_three_percent_more() {
        worlds(|world| {
            for partner_us in [1870.0, 4000.0, 5000.0, 9000.0] {
                world.alone_us = partner_us;
                let mut ways = PairWays::new(PairWay::Partner);
                world.run(&mut ways, 40, Some(partner_us / 2.0));
                let times = world.run(&mut ways, 20_000, Some(partner_us / 2.0));
                assert!(times < 1.03, "{partner_us}: {times}");
            }
        });
    }

    #[test]
    fn a_device_that_cannot_be_faster_is_never_tried() {
        worlds(|world| {
            world.alone_us = 1e9;
            for known in [None, Some(1e6)] {
                let mut ways = PairWays::new(PairWay::Partner);
                assert!(world.run(&mut ways, 20_000, known) < 1.0001);
            }
        });
    }

    #[test]
    fn a_device_that_shares_no_product_begins_and_is_left_where_it_is_slower() {
        worlds(|world| {
            for partner_us in [1870.0, 9000.0] {
                world.alone_us = partner_us;
                let mut ways = PairWays::new(PairWay::Partner);
                assert_eq!(ways.choose(KIND, Prospect::Whole), PairWay::Partner);
                world.run_with(&mut ways, 40, Prospect::Whole);
                let times = world.run_with(&mut ways, 20_000, Prospect::Whole);
                assert!(times < 1.03, "{partner_us}: {times}");
            }
        });
    }

    #[test]
    fn a_cpu_that_is_faster_than_what_was_compiled_for_both_runs_passes_alone() {
        worlds(|world| {
            for (together_us, cpu_us) in [(9000.0, 1870.0), (1870.0, 4000.0), (1870.0, 90_000.0)] {
                (world.together_us, world.alone_us) = (together_us, cpu_us);
                let mut ways = PairWays::new(PairWay::Cpu);
                world.run(&mut ways, 40, None);
                let times = world.run(&mut ways, 20_000, None);
                assert!(times < 1.03, "{cpu_us}: {times}");
            }
        });
    }

    #[test]
    fn a_way_that_is_a_little_faster_is_found_on_a_busy_machine() {
        for times in [0.93, 1.07] {
            let (mut all, mut worst) = (0.0, 0.0_f64);
            worlds(|world| {
                (world.alone_us, world.spread) = (times * world.together_us, 0.2);
                let mut ways = PairWays::new(PairWay::Cpu);
                world.run(&mut ways, 600, None);
                let times = world.run(&mut ways, 2000, None);
                (all, worst) = (all + times / 20.0, worst.max(times));
            });
            assert!(all < 1.002, "{times}: {all}, at worst {worst}");
        }
    }

    #[test]
    fn a_way_that_has_become_slow_is_left() {
        worlds(|world| {
            let mut ways = PairWays::new(PairWay::Partner);
            world.run(&mut ways, 300, Some(1000.0));
            assert_eq!(ways.choose(KIND, FAST), PairWay::Partner);
            world.alone_us = 20_000.0;
            world.run(&mut ways, 60, Some(1000.0));
            assert!(world.run(&mut ways, 200, Some(1000.0)) < 1.6);
        });
    }

    #[test]
    fn a_lost_device_runs_nothing_alone() {
        worlds(|world| {
            let mut ways = PairWays::new(PairWay::Partner);
            world.run(&mut ways, 300, Some(1000.0));
            ways.lose_partner();
            assert_eq!(ways.choose(KIND, FAST), PairWay::Together);
        });
    }
}
