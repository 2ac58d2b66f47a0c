//! sd.npu as a whole, under the policy that ships, on a lane of an NPU and one that plays the iGPU: likely tokens from
//! prefill, trees, verification by the NPU, and the rest of rejected drafts. Answers are those of a CPU in f32.

use std::time::{Duration, Instant};

use heg_runtime::engine::{
    DraftSource, EndTokens, Engine, EngineOptions, Generation, Request, Speculation,
};
use heg_runtime::exec::ExecutorOptions;
use heg_sched::{Class, Finish};
use heg_tests::soft_npu::{InSoftNpu, soft_npu_or_skip};

use super::asked::references;
use super::{Machine, Scene, inside, lanes_of, policy_of};
use crate::world::ANSWER_TOKENS;

const TEST: &str = "npu::whole::each_act_of_sd_npu_is_seen_on_its_lanes";

#[test]
fn each_act_of_sd_npu_is_seen_on_its_lanes() {
    if let Some((inside, scene)) = inside() {
        return act(&inside, scene);
    }
    if soft_npu_or_skip(TEST) {
        // On one NPU: `trees` has all of them.
        let scene = Scene::all().nth(1).unwrap();
        scene.play(TEST, Duration::from_secs(300), &[]);
    }
}

/// Sources of drafts under the policy.
const SOURCES: [DraftSource; 4] = [
    DraftSource::Context,
    DraftSource::History,
    DraftSource::Calibrated,
    DraftSource::Reuse,
];

fn act(inside: &InSoftNpu, scene: Scene) {
    inside.forget();
    let engine = engine(scene);
    ask(&engine, scene, Class::Reactive);
    // Rows without a bubble have one now.
    let begin = Instant::now();
    while engine.status().unwrap().calibrating_rows > 0 {
        assert!(begin.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut seen = (0, [0; SOURCES.len()]);
    for round in 0..ROUNDS_MAX {
        ask(&engine, scene, Class::Proactive);
        go_on(&engine, scene, round);
        let sources = engine.status().unwrap().draft_sources;
        let drafted = SOURCES.map(|it| sources.get(&it).copied().unwrap_or_default().drafted);
        seen = (inside.log().count("tree"), drafted);
        if seen.0 > 0 && drafted.iter().all(|tokens| *tokens > 0) {
            break;
        }
    }
    let status = engine.status().unwrap();
    drop(engine);
    let (early, rows) = (status.calibrated_early_rows, status.calibrated_rows);
    println!("{seen:?}, {:?}", status.draft_sources);
    println!("{early} of {rows} rows calibrated before the first token");
    let (trees, drafted) = seen;
    assert!(trees > 0 && rows > 0, "{status:?}");
    assert!(drafted.iter().all(|tokens| *tokens > 0), "{status:?}");
    assert!(status.accepted_tokens > 0, "{status:?}");
}

/// Rounds after which what was not seen does not happen. Chosen: far more than it takes.
const ROUNDS_MAX: u32 = 40;

/// Goes on behind all prompts and their answers, each time in another way: such an answer is in no history, and much of its
/// prompt has likely tokens from earlier calls.
fn go_on(engine: &Engine, scene: Scene, round: u32) {
    for reference in references(scene.bits) {
        let prompt = [&*reference.prompt, &reference.answer, &[round]].concat();
        let generation = engine.generate(Request {
            tokens_max: 6 * ANSWER_TOKENS,
            end_tokens: EndTokens::Ignored,
            ..Request::new(Class::Proactive, prompt)
        });
        let (_, ending) = generation.wait().unwrap();
        assert_eq!(ending.finish, Finish::Complete, "{:?}", ending.error);
    }
}

/// Asks all prompts at once.
fn ask(engine: &Engine, scene: Scene, class: Class) {
    let all = references(scene.bits);
    let asked = all.iter().map(|reference| {
        engine.generate(Request {
            tokens_max: 6 * ANSWER_TOKENS,
            end_tokens: EndTokens::Ignored,
            ..Request::new(class, reference.prompt.clone())
        })
    });
    let asked: Vec<Generation> = asked.collect();
    for (generation, reference) in asked.into_iter().zip(all) {
        let (tokens, ending) = generation.wait().unwrap();
        assert_eq!(ending.finish, Finish::Complete, "{:?}", ending.error);
        assert!(tokens.starts_with(&reference.answer), "{scene:?}");
    }
}

/// An engine under the policy as it ships.
fn engine(scene: Scene) -> Engine {
    let loader = Machine::TwoLanes.loader(scene.bits.bundle());
    let name = Some("sd-npu");
    let policy = policy_of(name, &loader);
    let options = EngineOptions {
        exec: ExecutorOptions {
            chunk_tokens: 32,
            ..ExecutorOptions::default()
        },
        lanes: lanes_of(name),
        speculation: Speculation::Tree,
        ..EngineOptions::default()
    };
    let engine = Engine::start(loader, policy, options).unwrap();
    engine.wait_ready().unwrap();
    engine
}
