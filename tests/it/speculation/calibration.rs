//! Likely tokens of prompts, and leftovers of drafts that are reused: answers stay the same, requests do not wait for it, and
//! nothing is left of cancelled requests.

use std::thread::sleep;
use std::time::{Duration, Instant};

use heg_runtime::engine::{Engine, Generation, Request, Speculation, Update};
use heg_spec::policy::DraftPolicy;
use heg_spec::{Policy, WeightForm, shipped};

use super::{Subject, answer, request};

/// A policy with every mechanism.
pub(super) const ALL: DraftPolicy = DraftPolicy {
    context: true,
    history: true,
    prediction: true,
    grammar: true,
    frequencies: true,
    learning: true,
    fixed_tokens: None,
    calibration: true,
    reuse: true,
};

fn policy(drafts: DraftPolicy) -> Policy {
    Policy {
        drafts,
        ..shipped::policy("agent-xpu-one-device").unwrap()
    }
}

fn engine(subject: &Subject, drafts: DraftPolicy, speculation: Speculation) -> Engine {
    subject.engine_under(policy(drafts), speculation, None).0
}

/// Waits until no rows of prompts wait for a bubble; returns the number of those with likely tokens.
pub(super) fn calibrated(engine: &Engine) -> u64 {
    let begin = Instant::now();
    loop {
        let status = engine.status().unwrap();
        if status.calibrating_rows == 0 {
            return status.calibrated_rows;
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "{status:?}");
        sleep(Duration::from_millis(2));
    }
}

/// Submits a prompt as the second call of a flow whose first call had the same prompt, so that all of it has likely
/// tokens.
fn ask_again(engine: &Engine, at: usize, prompt: &[u32]) -> (Vec<u32>, u64) {
    let flow = Some(engine.new_flow());
    let rows = calibrated(engine);
    let first = Request {
        flow,
        tokens_max: 1,
        ..request(at, prompt)
    };
    answer(engine.generate(first));
    let rows = calibrated(engine) - rows;
    let again = Request {
        flow,
        ..request(at, prompt)
    };
    (answer(engine.generate(again)).0, rows)
}

#[test]
fn answers_stay_the_same_with_every_mechanism() {
    let subject = Subject::tiny_agent(WeightForm::W8A16);
    let expected = subject.plain();
    let fixed = DraftPolicy {
        fixed_tokens: Some(12),
        ..ALL
    };
    for (drafts, speculation) in [
        (ALL, Speculation::Chain),
        (fixed, Speculation::Chain),
        (fixed, Speculation::Tree),
    ] {
        let drafting = engine(&subject, drafts, speculation);
        let mut rows = 0;
        for (at, prompt) in subject.prompts.iter().enumerate() {
            let (tokens, read) = ask_again(&drafting, at, prompt);
            assert_eq!(
                tokens, expected[at],
                "{drafts:?}, {speculation:?}, prompt {at}"
            );
            rows += read as usize;
        }
        // A flow keeps no cache of very few tokens, and no calibration with it.
        let prompts: usize = subject.prompts.iter().map(Vec::len).sum();
        assert!(2 * rows > prompts && rows <= prompts, "{rows} of {prompts}");
        subject.check_on(&drafting, &expected);
    }
}

#[test]
fn answers_stay_the_same_with_any_mechanism_off() {
    let subject = Subject::tiny_agent(WeightForm::W8A16);
    let expected = subject.plain();
    let off: [fn(&mut DraftPolicy); 7] = [
        |it| it.context = false,
        |it| it.history = false,
        |it| it.frequencies = false,
        |it| it.learning = false,
        |it| it.calibration = false,
        |it| it.reuse = false,
        |it| it.fixed_tokens = Some(0),
    ];
    for switch in off {
        // However long rows take here.
        let mut drafts = DraftPolicy {
            fixed_tokens: Some(12),
            ..ALL
        };
        switch(&mut drafts);
        let drafting = engine(&subject, drafts, Speculation::Tree);
        let mut accepted = 0;
        for (at, prompt) in subject.prompts.iter().enumerate().take(12) {
            let (tokens, ending) = answer(drafting.generate(request(at, prompt)));
            assert_eq!(tokens, expected[at], "{drafts:?}, prompt {at}");
            accepted += ending.drafts.unwrap().accepted_tokens;
        }
        assert_eq!(accepted == 0, drafts.fixed_tokens == Some(0), "{drafts:?}");
        let rows = calibrated(&drafting);
        assert_eq!(rows > 0, drafts.calibration, "{drafts:?}");
    }
}

#[test]
fn no_rows_of_a_prompt_are_read_while_a_request_waits() {
    let subject = Subject::tiny_agent(WeightForm::W8A16);
    let drafting = engine(&subject, ALL, Speculation::Chain);
    let asked = subject.prompts.iter().enumerate();
    let crowd: Vec<Generation> = asked
        .map(|(at, prompt)| drafting.generate(request(at, prompt)))
        .collect();
    for generation in crowd {
        for update in generation {
            let status = drafting.status().unwrap();
            let waits = |phases: heg_runtime::engine::Phases| phases.queued + phases.prefilling;
            if waits(status.reactive) + waits(status.proactive) > 0 {
                assert_eq!(status.calibrated_rows, 0, "{update:?}");
            }
        }
    }
    assert!(calibrated(&drafting) > 0);
}

#[test]
fn requests_come_and_go_amid_a_calibration() {
    let subject = Subject::tiny_agent(WeightForm::W8A16);
    let expected = subject.plain();
    let drafting = engine(&subject, ALL, Speculation::Chain);
    for (at, prompt) in subject.prompts.iter().enumerate() {
        // Cancelled at its first token, when its prompt is kept.
        let mut generation = drafting.generate(request(at, prompt));
        let first = |update: &Update| matches!(update, Update::Token { .. });
        assert!(generation.by_ref().any(|update| first(&update)));
        drop(generation);
        let (tokens, _) = answer(drafting.generate(request(at, prompt)));
        assert_eq!(tokens, expected[at], "prompt {at}");
        // The next one comes while this one's prompt is read.
        sleep(Duration::from_millis(9 + at as u64 % 4));
    }
    calibrated(&drafting);
}
