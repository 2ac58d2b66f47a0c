//! A mixed load with faults for any length of time: everybody learns how their request ended, and nothing grows.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use heg_runtime::engine::{Fault, Request, Rule, Victim};
use heg_sched::{Class, Finish};
use heg_tests::Seeded;

use crate::many::Holdings;
use crate::world::{ANSWER_TOKENS, Answer, ONE_LANE, TWO_LANES, World, impatient, request};

/// Number of concurrent requests.
const LIVE: usize = 12;

/// Runs for `HEG_SOAK_MINUTES` minutes, divided between the policies, or for seconds if that is not set. With minutes,
/// run it alone: only then does it check the resources of the process.
#[test]
fn a_load_with_faults_leaves_nothing_behind() {
    let minutes = std::env::var("HEG_SOAK_MINUTES").ok();
    let minutes: Option<f64> = minutes.map(|minutes| minutes.parse().unwrap());
    let policies = [
        ("agent-xpu", TWO_LANES),
        ("cpu-continuous-batching", ONE_LANE),
        ("igpu-continuous-batching", TWO_LANES),
        ("agent-xpu-one-device", ONE_LANE),
    ];
    let seconds = minutes.map_or(3.0, |minutes| minutes * 60.0 / policies.len() as f64);
    for (name, soc) in policies {
        let mut load = Load::new(name, soc);
        load.run(Duration::from_secs_f64(seconds / 4.0));
        load.world.is_empty_again();
        let before = Holdings::now();
        load.run(Duration::from_secs_f64(seconds * 0.75));
        load.world.is_empty_again();
        let after = Holdings::now();
        println!("{name}: {:?}, {before:?}, then {after:?}", load.ended);
        let count = |finish| load.ended.get(&finish).copied().unwrap_or(0);
        let ended: u64 = load.ended.values().sum();
        assert!(
            count(Finish::Complete) * 2 > ended,
            "{name}: {:?}",
            load.ended
        );
        if minutes.is_some() {
            assert!(after.mappings < before.mappings + 100, "{name}");
            assert!(after.descriptors < before.descriptors + 20, "{name}");
            assert!(
                after.resident_kib < before.resident_kib * 11 / 10 + 32_768,
                "{name}"
            );
        }
    }
}

struct Load {
    world: World,
    seeded: Seeded,
    ended: BTreeMap<Finish, u64>,
}

impl Load {
    fn new(name: &str, soc: &'static str) -> Self {
        let mut policy = impatient(name);
        policy.limits.kv_mib = 1;
        policy.prefill.window_tokens = 64;
        policy.limits.flash_mib = 4;
        Self {
            world: World::with(policy, name, soc, Vec::new()),
            seeded: Seeded::new(11),
            ended: BTreeMap::new(),
        }
    }

    fn run(&mut self, time: Duration) {
        let begin = Instant::now();
        let mut live = Vec::new();
        let mut asked = 0;
        while begin.elapsed() < time {
            live.push(self.submit());
            asked += 1;
            if asked % 16 == 0 {
                self.harm();
            }
            if live.len() >= LIVE {
                let next = self.seeded.below(live.len());
                self.end(live.swap_remove(next));
            }
        }
        self.world.plan.clear();
        for request in live {
            self.end(request);
        }
    }

    fn submit(&mut self) -> (usize, Answer) {
        let at = self.seeded.below(self.world.references.len());
        let class = match self.seeded.below(3) {
            0 => Class::Reactive,
            _ => Class::Proactive,
        };
        let deadline = (self.seeded.below(20) == 0).then_some(Duration::from_millis(20));
        let call = Request {
            flow: Some(self.world.engine.new_flow()),
            deadline,
            ..request(class, &self.world.references[at].prompt)
        };
        let answer = Answer::of(&self.world.engine, call);
        if self.seeded.below(20) == 0 {
            self.world.engine.cancel(answer.id);
        }
        (at, answer)
    }

    /// Plans a fault that happens once.
    fn harm(&mut self) {
        let faults = [
            Fault::Fail,
            Fault::Fail,
            Fault::Late,
            Fault::Hang,
            Fault::Unreserved,
            Fault::FlashFull,
            Fault::FlashUnreadable,
        ];
        self.world.plan.add(Rule {
            fault: faults[self.seeded.below(faults.len())],
            victim: Victim::Anybody,
            after: self.seeded.below(50) as u64,
            times: 1,
        });
    }

    fn end(&mut self, (at, answer): (usize, Answer)) {
        let flow = answer.flow.unwrap();
        let (tokens, ending) = answer.wait();
        let expected = &self.world.references[at].answer;
        assert_eq!(tokens, expected[..tokens.len()], "{}", self.world.name);
        if ending.finish == Finish::Complete {
            assert_eq!(tokens.len(), ANSWER_TOKENS as usize);
        }
        *self.ended.entry(ending.finish).or_default() += 1;
        // Some flows are left open, to be moved to flash, until the next call of this name.
        self.world.engine.end_flow(flow);
    }
}
