//! Likely tokens of prompts (sd.npu §3.3), found in bubbles of the lane that has the head while the other one works: they are
//! the model's own, they are there for the answer at hand, and no answer changes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use heg_runtime::Loaded;
use heg_runtime::engine::{
    DraftSource, Engine, EngineOptions, FaultPlan, Likely, Request, ScopeId, Speculation, Status,
    Update,
};
use heg_runtime::exec::ExecutorOptions;
use heg_sched::{Class, Finish, Lane, RequestId};
use heg_spec::policy::NpuAttention;
use heg_spec::{Policy, shipped};

use crate::world::{ANSWER_TOKENS, TWO_LANES, bundle, policy, request};

/// Likely tokens by request and position.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<BTreeMap<RequestId, BTreeMap<u32, Likely>>>>);

impl Heard {
    fn of(&self, request: RequestId) -> BTreeMap<u32, Likely> {
        let all = self.0.lock().unwrap();
        all.get(&request).cloned().unwrap_or_default()
    }
}

/// A policy under which prompts are the NPU's but for attention, and answers are drafted from likely tokens.
fn calibrating() -> Policy {
    let mut policy = policy("agent-xpu");
    let prefill = &mut policy.prefill;
    (prefill.elastic, prefill.balance) = (false, false);
    (prefill.short_prompts_aside, prefill.long_prompts_aside_ms) = (false, None);
    prefill.split_beside_proactive_ms = None;
    prefill.attention = NpuAttention::Off;
    policy.drafts.calibration = true;
    // However long rows take here.
    policy.drafts.fixed_tokens = Some(12);
    policy
}

/// An engine whose NPU takes its time, and what was found likely.
fn engine(policy: Policy, speculation: Speculation) -> (Engine, Heard) {
    let heard = Heard::default();
    let plan = FaultPlan::default();
    // Chosen: longer than a slice of this model's rows, on a machine that is busy.
    plan.slow_down(Lane::Npu, Duration::from_millis(40));
    let kept = heard.clone();
    plan.hear_likely(move |request, position, likely| {
        let mut all = kept.0.lock().unwrap();
        let of_request = all.entry(request).or_default();
        of_request.extend((position..).zip(likely.iter().copied()));
    });
    let loader = Loaded::open(bundle()).unwrap();
    let loader = loader.loader(&shipped::soc(TWO_LANES).unwrap()).unwrap();
    let options = EngineOptions {
        exec: ExecutorOptions {
            chunk_tokens: 32,
            ..ExecutorOptions::default()
        },
        speculation,
        ..EngineOptions::default()
    };
    let engine = Engine::start_with_faults(loader, policy, options, plan).unwrap();
    engine.wait_ready().unwrap();
    (engine, heard)
}

/// Prompts of one segment and of several, the last of them short or whole.
fn prompts() -> Vec<Vec<u32>> {
    let prompt = |length: u32| {
        (0..length)
            .map(|i| 5 + (i * i + 7 * i + length) % 200)
            .collect()
    };
    [20, 96, 161, 230].map(prompt).to_vec()
}

/// A reply: its tokens, and the likely tokens after each row of the prompt, if they were asked for.
fn ask(engine: &Engine, request: Request) -> (RequestId, Vec<u32>, Vec<Likely>) {
    let (sender, updates) = std::sync::mpsc::channel();
    let id = engine.submit(request, move |update| {
        let _ = sender.send(update);
    });
    let likely = |top: &[heg_text::LogProb]| {
        let best = top.iter();
        Likely::new(best.map(|it| (it.token, it.log_probability.exp())))
    };
    let (mut tokens, mut rows) = (Vec::new(), Vec::new());
    for update in updates {
        match update {
            Update::Accepted { .. } | Update::Vector(_) => {}
            Update::Prompt(scores) => rows.extend(scores.iter().map(|score| likely(&score.top))),
            Update::Token { id, log_probs } => {
                if let Some(first) = log_probs.filter(|_| tokens.is_empty()) {
                    rows.push(likely(&first.top));
                }
                tokens.push(id);
            }
            Update::Finished(ending) => {
                assert_eq!(ending.finish, Finish::Complete, "{:?}", ending.error);
                break;
            }
        }
    }
    (id, tokens, rows)
}

/// Waits until no rows wait for a bubble.
fn settled(engine: &Engine) -> Status {
    let begin = Instant::now();
    loop {
        let status = engine.status().unwrap();
        if status.calibrating_rows == 0 {
            return status;
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "{status:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Each row's likely tokens are those whose log probabilities the model gives where it is asked, to the last bit, whether
/// they were found while the prompt was in progress or later.
#[test]
fn likely_tokens_of_a_prompt_are_the_models_own() {
    let (calibrating, heard) = engine(calibrating(), Speculation::Tree);
    for prompt in prompts() {
        let flow = Some(calibrating.new_flow());
        let (id, tokens, _) = ask(
            &calibrating,
            Request {
                flow,
                ..request(Class::Reactive, &prompt)
            },
        );
        settled(&calibrating);
        let asked = Request {
            // Its prompt is computed, not reused.
            scope: ScopeId(7),
            speculation: Some(Speculation::Off),
            prompt_log_probs: Some(Likely::COUNT as u32),
            log_probs: Some(Likely::COUNT as u32),
            ..request(Class::Reactive, &prompt)
        };
        let (_, expected_tokens, expected) = ask(&calibrating, asked);
        assert_eq!(tokens, expected_tokens);
        assert_eq!(expected.len(), prompt.len());
        let found = heard.of(id);
        assert!(
            found.keys().copied().eq(0..prompt.len() as u32),
            "{found:?}"
        );
        for (row, (found, expected)) in found.values().zip(&expected).enumerate() {
            assert_eq!(found, expected, "row {row} of {}", prompt.len());
        }
    }
    let status = settled(&calibrating);
    let (early, all) = (status.calibrated_early_rows, status.calibrated_rows);
    println!("{early} of {all} rows before the first token");
    assert!(
        early > 0 && early < all && status.uncalibrated_rows == 0,
        "{status:?}"
    );
}

/// An answer is drafted from what its own prefill found, and is the same; without the mechanism nothing is found.
#[test]
fn the_answer_at_hand_is_drafted_from_its_prefill() {
    let (plain, _) = engine(calibrating(), Speculation::Off);
    let (drafting, heard) = engine(calibrating(), Speculation::Tree);
    let mut off = calibrating();
    off.drafts.calibration = false;
    let (without, unheard) = engine(off, Speculation::Tree);
    for prompt in prompts() {
        let request = || Request {
            tokens_max: 3 * ANSWER_TOKENS,
            ..request(Class::Reactive, &prompt)
        };
        let (_, expected, _) = ask(&plain, request());
        for engine in [&drafting, &without] {
            let (_, tokens, _) = ask(engine, request());
            assert_eq!(tokens, expected);
        }
    }
    let drafted = |status: &Status| {
        let sources = &status.draft_sources;
        sources
            .get(&DraftSource::Calibrated)
            .copied()
            .unwrap_or_default()
            .drafted
    };
    let status = drafting.status().unwrap();
    println!("{:?}", status.draft_sources);
    assert!(
        drafted(&status) > 0 && !heard.0.lock().unwrap().is_empty(),
        "{status:?}"
    );
    let status = without.status().unwrap();
    assert!(
        drafted(&status) == 0 && unheard.0.lock().unwrap().is_empty(),
        "{status:?}"
    );
}
