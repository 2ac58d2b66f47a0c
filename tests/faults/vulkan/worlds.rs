//! Random worlds: an engine with a lane of a GPU, requests of all kinds, and faults of the driver and of the engine. Tokens
//! are right or a request ends with a status, nothing is left, and nothing hangs.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use heg_runtime::Loaded;
use heg_runtime::exec::Loader;
use heg_sched::Finish;
use heg_spec::shipped;
use heg_tests::Seeded;
use heg_vk_faults::{Installed, VkCounts, VkFault, VkPlan, VkRule};
use tempfile::TempDir;

use super::examined::{examiner, open};
use super::{Seen, layered, plan};
use crate::random_load::load;
use crate::world::{GPU_ALONE, GPU_AND_CPU, World, gpu_bundle};

/// Policies with the machines that they run on.
const MACHINES: [Machine; 6] = [
    ("agent-xpu", GPU_AND_CPU),
    ("agent-xpu", GPU_AND_CPU),
    ("agent-xpu-v1", GPU_AND_CPU),
    ("sd-npu", GPU_AND_CPU),
    ("agent-xpu-one-device", GPU_ALONE),
    ("igpu-continuous-batching", GPU_ALONE),
];

/// Worlds of an ordinary run: some twenty seconds of them on two processors.
const FEW: u64 = 8;

/// Seeds of the worlds: `HEG_GPU_WORLDS=FIRST..END`, or the first ones.
fn seeds() -> Range<u64> {
    let asked = std::env::var("HEG_GPU_WORLDS").ok();
    let parsed = asked.map(|text| {
        let (first, end) = text.split_once("..").unwrap();
        first.parse().unwrap()..end.parse().unwrap()
    });
    parsed.unwrap_or(0..FEW)
}

#[test]
fn in_random_worlds_tokens_are_right_and_nothing_is_left() {
    let test = "vulkan::worlds::in_random_worlds_tokens_are_right_and_nothing_is_left";
    let seeds = seeds();
    let patience = Duration::from_secs(180 + 10 * (seeds.end - seeds.start));
    layered(test, patience, |layer| {
        let mut tally = Tally::default();
        let ground = Ground::new(layer, self::seeds());
        let begin = Instant::now();
        for seed in self::seeds() {
            let start = Instant::now();
            ground.world(seed, &mut tally);
            tally.longest = tally.longest.max((start.elapsed(), seed));
            tally.worlds += 1;
        }
        println!("{tally:?} in {:?}", begin.elapsed());
    });
}

/// Counts over all worlds.
#[derive(Debug, Default)]
struct Tally {
    worlds: u64,
    ended: BTreeMap<Finish, u64>,
    faults: BTreeMap<String, u64>,
    faults_of_engine: u64,
    /// Devices that were left alone since they may still use their memory.
    stuck: u64,
    longest: (Duration, u64),
}

/// The ground on which all worlds stand.
struct Ground<'a> {
    layer: &'a Installed,
    cache: TempDir,
    /// By machine, and by whether its device is known, what an engine without requests asks of it, where a world needs it:
    /// each takes the time of a world or two, and is seen before any fault.
    at_rest: BTreeMap<(Machine, bool), VkCounts>,
}

/// A policy with the machine that it runs on.
type Machine = (&'static str, &'static str);

/// The part of a world that its seed decides first.
struct Setting {
    machine: Machine,
    crashes: bool,
    is_known: bool,
}

impl Setting {
    fn drawn(seeded: &mut Seeded) -> Self {
        Self {
            machine: MACHINES[seeded.below(MACHINES.len())],
            crashes: seeded.below(20) == 0,
            is_known: seeded.below(4) > 0,
        }
    }
}

impl<'a> Ground<'a> {
    fn new(layer: &'a Installed, seeds: Range<u64>) -> Self {
        let mut ground = Self {
            layer,
            cache: tempfile::tempdir().unwrap(),
            at_rest: BTreeMap::new(),
        };
        for seed in seeds {
            let it = Setting::drawn(&mut Seeded::new(seed));
            let key = (it.machine, it.is_known);
            if !ground.at_rest.contains_key(&key) {
                let counts = ground.started(it.machine, it.is_known);
                ground.at_rest.insert(key, counts);
            }
        }
        ground
    }

    /// Counts of an engine that starts and ends, without faults.
    fn started(&self, machine: Machine, is_known: bool) -> VkCounts {
        let start = || {
            plan(self.layer, &VkPlan::default());
            drop(World::on(
                self.loader(machine.1, is_known),
                machine,
                HUNG_MS,
            ));
        };
        if is_known {
            // From then on the device and its kernels are known.
            start();
        }
        start();
        Seen::of(self.layer).ends[0]
    }

    fn loader(&self, soc: &str, is_known: bool) -> Loader {
        if is_known {
            return open(&examiner(self.cache.path(), Duration::from_secs(60)), soc);
        }
        let loaded = Loaded::open(gpu_bundle()).unwrap();
        loaded.loader(&shipped::soc(soc).unwrap()).unwrap()
    }
}

/// The time after which a kernel counts as hung.
const HUNG_MS: u32 = 1500;

/// A fault of the driver that this process survives.
fn rule(seeded: &mut Seeded, at_rest: &VkCounts) -> VkRule {
    let mut below = |count: u64| seeded.below(count as usize) as u64;
    let (loading, running) = (at_rest.submissions, 60);
    let anywhere = |below: &mut dyn FnMut(u64) -> u64, loading: u64| below(loading + running);
    let (fault, after, times) = match below(8) {
        0 | 1 => (VkFault::LostAtSubmission, anywhere(&mut below, loading), 1),
        2 => (VkFault::LostAtWait, anywhere(&mut below, at_rest.waits), 1),
        3 => (
            VkFault::Late {
                millis: 1 + below(400),
            },
            anywhere(&mut below, loading),
            1 + below(3),
        ),
        // While kernels are made ready nobody looks for a minute.
        4 => (VkFault::NeverSignalled, loading + below(running), 1),
        5 => {
            let times = [1, 2, u64::MAX][below(3) as usize];
            let after = anywhere(&mut below, at_rest.allocations);
            (VkFault::NoMemory, after, times)
        }
        // Known answers find out what is wrong then, and nothing does later.
        6 if loading > 8 => {
            let times = [1, loading][below(2) as usize];
            let after = below(loading);
            (VkFault::WrongAnswer, after, times.min(loading - after))
        }
        _ => (
            VkFault::NoPipeline,
            below(at_rest.pipelines + 8),
            1 + below(2),
        ),
    };
    VkRule {
        fault,
        after,
        times,
    }
}

impl Ground<'_> {
    fn world(&self, seed: u64, tally: &mut Tally) {
        let mut seeded = Seeded::new(seed);
        let Setting {
            machine,
            crashes,
            is_known,
        } = Setting::drawn(&mut seeded);
        let (name, soc) = machine;
        let faults = seeded.below(3);
        let at_rest = &self.at_rest[&(machine, is_known)];
        let rules = (0..faults).map(|_| rule(&mut seeded, at_rest));
        let mut planned = VkPlan {
            rules: rules.collect(),
            ..VkPlan::default()
        };
        if crashes {
            planned = VkPlan::of(VkFault::CrashAtPipeline, seeded.below(10) as u64, 1);
        }
        plan(self.layer, &planned);
        let fresh = tempfile::tempdir().unwrap();
        let loader = match crashes {
            true => open(&examiner(fresh.path(), Duration::from_secs(60)), soc),
            false => self.loader(soc, is_known),
        };
        let world = World::on(loader, (name, soc), HUNG_MS);
        let what = format!("world {seed}: {name} on {soc}, {planned:?}");
        let ended = load(&world, &mut seeded, &what);
        world.plan.clear();
        world.is_empty_again();
        let own = world.plan.happened();
        // A machine with other work may be as slow as a device that hangs.
        let health = format!("{:?}", world.engine.health());
        let is_late = health.contains("did not finish within") || health.contains("did not answer");
        drop(world);
        let silent = ["never-signalled", "late"];
        let seen = Seen::of(self.layer);
        let mut faults = seen.faults.iter();
        let is_stuck = is_late || faults.any(|fault| silent.contains(&fault.as_str()));
        let seen = match is_stuck || crashes {
            true => seen,
            false => Seen::at_end(self.layer),
        };
        // A silent device of the world before may end in this one.
        let unended = seen.devices.saturating_sub(seen.ends.len());
        match is_stuck || crashes {
            true => tally.stuck += unended as u64,
            false => assert_eq!(unended, 0, "{what}: {seen:?}"),
        }
        for end in &seen.ends {
            assert_eq!(end.left(), 0, "{what}: {seen:?}");
        }
        for (finish, is_asked_for) in ended {
            *tally.ended.entry(finish).or_default() += 1;
            let is_fine = finish == Finish::Complete || is_asked_for;
            let happened = own > 0 || is_late || !seen.faults.is_empty();
            assert!(is_fine || happened, "{what}: {finish:?} without a fault");
        }
        for fault in seen.faults {
            *tally.faults.entry(fault).or_default() += 1;
        }
        tally.faults_of_engine += own;
    }
}
