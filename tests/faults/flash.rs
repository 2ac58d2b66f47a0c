//! KV caches that are evicted for others, and flash that is full or unreadable.

use heg_runtime::engine::{Fault, Request, Victim};
use heg_sched::{Class, Finish};

use crate::world::{Answer, World, policies, policy, request};

/// Number of flows with the same prompt: together they need several times the available memory.
const FLOWS_EACH: usize = 4;

/// Calls each flow with half of its prompt, then with all of it, while memory has room for few of them. Returns the
/// number of tokens that second calls found in a cache.
fn call_twice(world: &World) -> u32 {
    let prompts = || world.references.iter().cycle();
    let flows: Vec<_> = prompts()
        .take(FLOWS_EACH * world.references.len())
        .map(|_| world.engine.new_flow())
        .collect();
    let calls = || prompts().zip(&flows);
    for (reference, flow) in calls() {
        let half = &reference.prompt[..reference.prompt.len() / 2 + 1];
        let call = Request {
            flow: Some(*flow),
            tokens_max: 1,
            ..request(Class::Proactive, half)
        };
        let (_, ending) = Answer::of(&world.engine, call).wait();
        assert_eq!(
            ending.finish,
            Finish::Complete,
            "{}: {ending:?}",
            world.name
        );
    }
    let calls: Vec<_> = calls()
        .map(|(reference, flow)| {
            let call = Request {
                flow: Some(*flow),
                ..request(Class::Reactive, &reference.prompt)
            };
            (reference, *flow, Answer::of(&world.engine, call))
        })
        .collect();
    let mut reused = 0;
    for (reference, flow, answer) in calls {
        let (tokens, ending) = answer.wait();
        assert_eq!(
            ending.finish,
            Finish::Complete,
            "{}: {ending:?}",
            world.name
        );
        assert_eq!(tokens, reference.answer, "{}", world.name);
        reused += ending.reused_tokens;
        world.engine.end_flow(flow);
    }
    world.is_empty_again();
    reused
}

/// Returns a policy with memory for few flows, and flash for the others if `flash_mib` allows it.
fn tight(name: &str, soc: &'static str, flash_mib: u32) -> World {
    let mut policy = policy(name);
    policy.limits.kv_mib = 1;
    policy.limits.flash_mib = flash_mib;
    World::with(policy, name, soc, Vec::new())
}

#[test]
fn tokens_are_the_same_with_and_without_flash_under_every_policy() {
    for (policy, soc) in policies() {
        let halves = tight(policy, soc, 64);
        let expected = halves.references.iter();
        let expected: usize = FLOWS_EACH * expected.map(|r| r.prompt.len() / 2 + 1).sum::<usize>();
        let with = call_twice(&halves);
        let without = call_twice(&tight(policy, soc, 0));
        println!("{policy}: {with} tokens reused with flash, {without} without, of {expected}");
        assert!(with >= without, "{policy}");
    }
}

/// Each policy meets both faults, one of them once and the other one for good; with `HEG_FULL`, both in both ways.
#[test]
fn flash_that_is_full_or_unreadable_costs_time_and_nothing_else() {
    let is_full = std::env::var_os("HEG_FULL").is_some();
    for (number, (policy, soc)) in policies().enumerate() {
        let faults = [Fault::FlashFull, Fault::FlashUnreadable];
        let ways = faults.map(|fault| [(fault, 1), (fault, u64::MAX)]);
        let ways = ways.as_flattened().iter().zip([0, 1, 1, 0]);
        for ((fault, times), turn) in ways {
            if is_full || turn == number % 2 {
                let world = tight(policy, soc, 64);
                world.expect(*fault, Victim::Anybody, 0, *times);
                call_twice(&world);
                assert!(world.plan.happened() > 0, "{policy}: {fault:?}");
            }
        }
    }
}
