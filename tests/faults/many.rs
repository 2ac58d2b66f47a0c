//! Many short prompts; no one of them leaves anything behind.

use heg_sched::{Class, Finish};

use crate::world::{Answer, ONE_LANE, World, request};

/// The system resources that a process holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holdings {
    pub(crate) mappings: usize,
    pub(crate) descriptors: usize,
    pub(crate) resident_kib: usize,
}

impl Holdings {
    pub(crate) fn now() -> Self {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap();
        let status = read("status");
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let rss = rss.unwrap().trim().trim_end_matches(" kB");
        Self {
            mappings: read("maps").lines().count(),
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
            resident_kib: rss.parse().unwrap(),
        }
    }
}

/// Prompts of two tokens; `HEG_SHORT_PROMPTS` sets their number.
#[test]
fn short_prompts_leave_nothing_behind() {
    let prompts = std::env::var("HEG_SHORT_PROMPTS").ok();
    let prompts: u32 = prompts.map_or(2000, |count| count.parse().unwrap());
    let world = World::new("cpu-continuous-batching", ONE_LANE);
    let round = |from: u32, to: u32| {
        for first in (from..to).step_by(64) {
            let asked = (first..to.min(first + 64)).map(|at| {
                let mut request = request(Class::Proactive, &[at % 200, at / 200 % 200]);
                request.tokens_max = 1;
                Answer::of(&world.engine, request)
            });
            for answer in asked.collect::<Vec<_>>() {
                assert_eq!(answer.wait().1.finish, Finish::Complete);
            }
        }
    };
    let warm_up = prompts / 4;
    round(0, warm_up);
    world.is_empty_again();
    let before = Holdings::now();
    round(warm_up, prompts);
    world.is_empty_again();
    let after = Holdings::now();
    println!("{prompts} prompts: {before:?}, then {after:?}");
    // Other tests of this process start and end engines meanwhile.
    assert!(after.mappings < before.mappings + prompts as usize / 4);
}
