//! Random worlds: an engine with lanes of an NPU and of CPUs, requests of all kinds, and faults of driver, device and
//! engine. Tokens are right or a request ends with a status, nothing is left, and nothing hangs.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use heg_files::OwnFolder;
use heg_sched::Finish;
use heg_tests::Seeded;
use heg_tests::soft_npu::{InSoftNpu, NPU_SOCS, soft_npu_or_skip};

use super::asked::references;
use super::{Machine, Scene, ended, inside, lanes_of, policy_of};
use crate::random_load::load;
use crate::world::World;

const TEST: &str = "npu::worlds::in_random_worlds_tokens_are_right_and_nothing_is_left";

/// Worlds of an ordinary run: some twenty seconds of them on two processors.
const FEW: u64 = 24;

/// Seeds of a process, and where it writes the next one that is to be played.
const SEEDS: &str = "HEG_TEST_NPU_SEEDS";

/// Seeds of the worlds: `HEG_NPU_WORLDS=FIRST..END`, or the first ones.
fn seeds() -> Range<u64> {
    std::env::var("HEG_NPU_WORLDS").map_or(0..FEW, |text| range(&text))
}

fn range(text: &str) -> Range<u64> {
    let (first, end) = text.split_once("..").unwrap();
    first.parse().unwrap()..end.parse().unwrap()
}

/// The time after which a kernel counts as hung.
const HUNG_MS: u32 = 1500;

/// Policies with the machines that they run on; the last is that of a command that answers one prompt.
const MACHINES: [(Option<&str>, Machine); 5] = [
    (Some("agent-xpu"), Machine::TwoLanes),
    (Some("agent-xpu-v1"), Machine::TwoLanes),
    (Some("sd-npu"), Machine::TwoLanes),
    (Some("agent-xpu-one-device"), Machine::Alone),
    (None, Machine::Alone),
];

#[test]
fn in_random_worlds_tokens_are_right_and_nothing_is_left() {
    if let Some((inside, scene)) = inside() {
        let mut ground = Ground::new(inside, scene);
        return ground.play(range(&std::env::var(SEEDS).unwrap()));
    }
    if !soft_npu_or_skip(TEST) {
        return;
    }
    let seeds = seeds();
    // The NPUs one after the other, each with a part of the seeds.
    let parts = NPU_SOCS.len() as u64;
    let folder = tempfile::tempdir().unwrap();
    let next = folder.path().join("next");
    for (npu, scene) in (0..parts).zip(Scene::all()) {
        let part = (seeds.end - seeds.start).div_ceil(parts);
        let first = seeds.start + npu * part;
        let end = (first + part).min(seeds.end);
        let mut at = first;
        // A process ends with a device that is stuck: another one goes on.
        while at < end {
            let patience = Duration::from_secs(120 + 5 * (end - at));
            let variables = [
                (SEEDS, format!("{at}..{end}")),
                (NEXT, next.display().to_string()),
            ];
            scene.play(TEST, patience, &variables);
            at = std::fs::read_to_string(&next).unwrap().parse().unwrap();
        }
    }
}

/// File in which a process writes the next seed.
const NEXT: &str = "HEG_TEST_NPU_NEXT";

/// Counts over the worlds of a process.
#[derive(Debug, Default)]
struct Tally {
    worlds: u64,
    ended: BTreeMap<Finish, u64>,
    faults: BTreeMap<String, u64>,
    faults_of_engine: u64,
    longest: (Duration, u64),
}

/// The ground on which all worlds of a process stand.
struct Ground {
    inside: InSoftNpu,
    scene: Scene,
    cache: PathBuf,
    tally: Tally,
}

impl Ground {
    fn new(inside: InSoftNpu, scene: Scene) -> Self {
        let cache = Path::new(&std::env::var_os(super::FOLDER).unwrap()).join("cache");
        Self {
            inside,
            scene,
            cache,
            tally: Tally::default(),
        }
    }

    /// Plays worlds, up to one that leaves a device behind.
    fn play(&mut self, seeds: Range<u64>) {
        let begin = Instant::now();
        references(self.scene.bits);
        // From then on the device and its kernels are known.
        for machine in [Machine::TwoLanes, Machine::Alone] {
            let world = self.world(machine, None, true);
            drop(world);
        }
        let mut next = seeds.start;
        for seed in seeds {
            let start = Instant::now();
            let goes_on = self.live(seed);
            let tally = &mut self.tally;
            tally.longest = tally.longest.max((start.elapsed(), seed));
            tally.worlds += 1;
            next = seed + 1;
            if !goes_on {
                break;
            }
        }
        std::fs::write(std::env::var_os(NEXT).unwrap(), next.to_string()).unwrap();
        let platform = self.scene.npu.platform;
        println!("{platform}: {:?} in {:?}", self.tally, begin.elapsed());
    }

    /// A world on a machine, whose kernels were tested by one before if it is known.
    fn world(&self, machine: Machine, name: Option<&str>, is_known: bool) -> World {
        let mut loader = machine.loader(self.scene.bits.bundle());
        if is_known {
            loader = loader.with_cache(OwnFolder::create(&self.cache).unwrap());
        }
        let mut policy = policy_of(name, &loader);
        // Segments of the longer prompts take turns in their rows.
        policy.prefill.window_tokens = 64;
        policy.limits.timeout_min_ms = HUNG_MS;
        World::asking(references(self.scene.bits), loader, policy, lanes_of(name))
    }
}

/// Faults of driver and device, with the number of calls among which one fails.
const FAULTS: [(&str, usize); 12] = [
    ("lost", 60),
    ("lost", 60),
    ("memory", 40),
    ("memory", 40),
    ("import", 40),
    ("submit", 60),
    ("update", 200),
    ("create", 5),
    ("create-memory", 5),
    ("initialize", 5),
    ("queue", 5),
    ("late", 60),
];

/// Runs that give no result, which nobody takes for one.
const EMPTY: [&str; 3] = ["wrong", "nan", "unwritten"];

/// When faults happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Kernels are made ready that were never tested.
    Unknown,
    /// Kernels are made ready that were right before.
    Known,
    /// Requests are served.
    Ready,
}

/// Faults of a stage.
fn faults(seeded: &mut Seeded, stage: Stage) -> String {
    let count = [0, 1, 1, 2][seeded.below(4)];
    let one = |_| match (seeded.below(40), stage) {
        (0, _) => format!("hang@{}", 1 + seeded.below(40)),
        (1, _) => format!("abort@{}", 1 + seeded.below(40)),
        // Known answers find out numbers that are wrong: those of a bundle's first start, and those before the first
        // request. Nothing finds one run of those of a request.
        (2..=4, Stage::Unknown) => format!("negated@{}", 1 + seeded.below(4)),
        (2..=4, Stage::Known) => "negated".to_owned(),
        (5..=10, _) => {
            let name = EMPTY[seeded.below(EMPTY.len())];
            format!("{name}@{}{}", 1 + seeded.below(40), lasting(seeded))
        }
        _ => {
            let (name, calls) = FAULTS[seeded.below(FAULTS.len())];
            format!("{name}@{}{}", 1 + seeded.below(calls), lasting(seeded))
        }
    };
    (0..count).map(one).collect::<Vec<_>>().join(",")
}

/// Whether a fault stays.
fn lasting(seeded: &mut Seeded) -> &'static str {
    if seeded.below(3) == 0 { "+" } else { "" }
}

impl Ground {
    /// Lives through a world; returns whether its device is gone, and another one may begin.
    fn live(&mut self, seed: u64) -> bool {
        let mut seeded = Seeded::new(seed);
        let (name, machine) = MACHINES[seeded.below(MACHINES.len())];
        let is_known = seeded.below(4) > 0;
        let early = match is_known {
            true => faults(&mut seeded, Stage::Known),
            false => faults(&mut seeded, Stage::Unknown),
        };
        let late = faults(&mut seeded, Stage::Ready);
        // Where rows are not lent the plugin copies its own, with the numbers of the run before: no mark shows that.
        let is_copied = ["memory", "import"].map(|it| early.contains(it) || late.contains(it));
        let [early, late] = match is_copied {
            [false, false] => [early, late],
            _ => [early, late].map(|plan| plan.replace("unwritten", "nan")),
        };
        let what = format!(
            "world {seed}: {name:?} on {machine:?} of {}, `{early}`, then `{late}`",
            self.scene.npu.platform
        );
        self.inside.forget();
        self.inside.plan(&early);
        let world = self.world(machine, name, is_known);
        self.inside.plan(&late);
        let endings = load(&world, &mut seeded, &what);
        world.plan.clear();
        world.is_empty_again();
        let own = world.plan.happened();
        // A machine with other work may be as slow as a device that hangs.
        let health = format!("{:?}", world.engine.health());
        let is_late = health.contains("did not finish within") || health.contains("did not answer");
        drop(world);
        self.inside.plan("");
        let log = self.inside.log();
        let happened: Vec<&str> = log.of("FAULT").map(|fault| fault.text.as_str()).collect();
        for (finish, is_asked_for) in endings {
            *self.tally.ended.entry(finish).or_default() += 1;
            let is_fine = finish == Finish::Complete || is_asked_for;
            let is_explained = own > 0 || is_late || !happened.is_empty();
            assert!(
                is_fine || is_explained,
                "{what}: {finish:?} without a fault"
            );
        }
        for fault in &happened {
            *self.tally.faults.entry((*fault).to_owned()).or_default() += 1;
        }
        self.tally.faults_of_engine += own;
        let may_be_stuck = is_late || happened.contains(&"Hang");
        let patience = match may_be_stuck {
            true => Duration::ZERO,
            false => Duration::from_secs(10),
        };
        let log = ended(&self.inside, patience);
        match log.left() {
            Some(left) => {
                assert!(left == [0; 6] || may_be_stuck, "{what}: {left:?}");
                true
            }
            // No driver was ever asked for a context, or the device is left behind.
            None => {
                let is_used = log.count("import") + log.count("allocate") + log.count("graph") > 0;
                assert!(
                    may_be_stuck || !is_used,
                    "{what}: the device was not given back"
                );
                !is_used
            }
        }
    }
}
