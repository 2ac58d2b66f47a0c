//! Random requests to an engine, and random faults of it, for worlds whose devices fail as well.

use std::time::Duration;

use heg_runtime::engine::{Fault, Request, Rule, Victim};
use heg_sched::{Class, Finish};
use heg_tests::Seeded;

use crate::world::{ANSWER_TOKENS, Answer, World, request};

/// Submits requests; some are cancelled, have a deadline, or go on where another one was. Returns how they ended,
/// and whether their client may have asked for it.
pub(crate) fn load(world: &World, seeded: &mut Seeded, what: &str) -> Vec<(Finish, bool)> {
    for _ in 0..seeded.below(3) {
        world.plan.add(harm(seeded));
    }
    let mut live = Vec::new();
    let mut ended = Vec::new();
    for _ in 0..1 + seeded.below(8) {
        live.push(submit(world, seeded));
        if seeded.below(3) == 0 {
            let next = seeded.below(live.len());
            ended.push(end(world, live.swap_remove(next), what));
        }
    }
    ended.extend(live.into_iter().map(|asked| end(world, asked, what)));
    ended
}

fn harm(seeded: &mut Seeded) -> Rule {
    let faults = [
        Fault::Fail,
        Fault::Fail,
        Fault::Late,
        Fault::OutOfMemory,
        Fault::Unreserved,
        Fault::FlashFull,
    ];
    Rule {
        fault: faults[seeded.below(faults.len())],
        victim: Victim::Anybody,
        after: seeded.below(60) as u64,
        times: 1,
    }
}

/// A request, by the number of its prompt.
struct Asked {
    prompt: usize,
    answer: Answer,
    /// Whether it may end early without a fault.
    may_end: bool,
}

fn submit(world: &World, seeded: &mut Seeded) -> Asked {
    let prompt = seeded.below(world.references.len());
    let class = match seeded.below(2) {
        0 => Class::Reactive,
        _ => Class::Proactive,
    };
    let deadline = (seeded.below(10) == 0).then_some(Duration::from_millis(50));
    let call = Request {
        flow: Some(world.engine.new_flow()),
        deadline,
        ..request(class, &world.references[prompt].prompt)
    };
    let answer = Answer::of(&world.engine, call);
    let is_cancelled = seeded.below(10) == 0;
    if is_cancelled {
        world.engine.cancel(answer.id);
    }
    Asked {
        prompt,
        answer,
        may_end: is_cancelled || deadline.is_some(),
    }
}

fn end(world: &World, asked: Asked, what: &str) -> (Finish, bool) {
    let flow = asked.answer.flow.unwrap();
    let (tokens, ending) = asked.answer.wait();
    let expected = &world.references[asked.prompt].answer;
    assert_eq!(tokens, expected[..tokens.len()], "{what}");
    if ending.finish == Finish::Complete {
        assert_eq!(tokens.len(), ANSWER_TOKENS as usize, "{what}");
    }
    world.engine.end_flow(flow);
    (ending.finish, asked.may_end)
}
