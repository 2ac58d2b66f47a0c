//! Mechanisms of prompts.

use heg_sched::{Class, Mechanism};

use super::{CHUNK, World, end, policy};

/// A prompt's attention makes the iteration that runs on the iGPU give way at its next layer. Without the rule the answer
/// goes first, and the prompt waits for its end.
#[test]
fn a_prompt_goes_before_the_iteration_that_runs() {
    let world = World::annotated();
    let run = |prefill_first: bool| {
        let policy = policy("agent-xpu", |policy| {
            policy.decode.prefill_first = prefill_first
        });
        let played = world.play(policy, |stage| {
            let answer = stage.ask(Class::Reactive, 20, 400);
            stage.wait_for_first_tokens(1);
            let prompt = stage.ask(Class::Reactive, 10 * CHUNK, 1);
            [answer, prompt].into_iter().for_each(end);
        });
        let ended = played.requests(Class::Reactive)[0].ended.unwrap().0;
        let waits = played.first_token(Class::Reactive, 1) > ended;
        (played.acted(Mechanism::PrefillFirst), waits)
    };
    let (acted, waits) = run(true);
    assert!(acted > 0 && !waits, "{acted}");
    assert_eq!(run(false), (0, true));
}

/// While a person's prompt has the lanes, a background one has what that leaves of the NPU, if its kernels end in time.
/// Without the rule it has nothing.
#[test]
fn a_background_prompt_is_held_to_the_bubbles_of_a_persons() {
    // Where nothing is known of bandwidth there is no pressure, which would hold it back as well.
    let world = World::plain();
    let run = |bound: bool| {
        let policy = policy("agent-xpu-v1", |policy| {
            policy.pressure.as_mut().unwrap().duration_bound = bound;
        });
        let played = world.play(policy, |stage| {
            let background = stage.ask(Class::Proactive, 12 * CHUNK, 1);
            stage.wait_for_kernels(Class::Proactive, 4);
            let person = stage.ask(Class::Reactive, 28 * CHUNK, 1);
            [person, background].into_iter().for_each(end);
        });
        played.acted(Mechanism::Backfill)
    };
    assert!(run(true) > 0);
    assert_eq!(run(false), 0);
}

/// Of two background prompts that wait behind a person's, the one that takes less time goes on first; in the order of
/// arrival the longer one would.
#[test]
fn the_shorter_background_prompt_goes_on_first() {
    let world = World::annotated();
    let run = |removed: bool| {
        let policy = policy("agent-xpu-v1", |policy| {
            policy.pressure = None;
            if removed {
                Mechanism::LeastTimeToCompletion.remove(policy);
            }
        });
        let played = world.play(policy, |stage| {
            let person = stage.ask(Class::Reactive, 20 * CHUNK, 1);
            stage.wait_for_kernels(Class::Reactive, 2);
            let long = stage.ask(Class::Proactive, 16 * CHUNK, 1);
            let short = stage.ask(Class::Proactive, 2 * CHUNK, 1);
            [person, long, short].into_iter().for_each(end);
        });
        let [long, short] = [0, 1].map(|place| played.first_token(Class::Proactive, place));
        (
            played.acted(Mechanism::LeastTimeToCompletion) > 0,
            short < long,
        )
    };
    assert_eq!(run(false), (true, true));
    assert_eq!(run(true), (false, false));
}

/// NPU and iGPU draw 10 and 25 W by the annotations: with 30 W they take turns.
#[test]
fn lanes_take_turns_within_the_power_budget() {
    let world = World::annotated();
    let run = |watts: Option<u32>| {
        let policy = policy("agent-xpu-quiet", |policy| {
            policy.limits.igpu_percent_max = None;
            policy.limits.power_watts_max = watts;
        });
        let played = world.play(policy, |stage| {
            let answer = stage.ask(Class::Reactive, 20, 100);
            stage.wait_for_first_tokens(1);
            let background = stage.ask(Class::Proactive, 12 * CHUNK, 1);
            [answer, background].into_iter().for_each(end);
        });
        (
            played.acted(Mechanism::PowerBudget) > 0,
            played.side_by_side(),
        )
    };
    assert_eq!(run(Some(30)), (true, 0));
    let (acted, beside) = run(None);
    assert!(!acted && beside > 0, "{beside}");
}
