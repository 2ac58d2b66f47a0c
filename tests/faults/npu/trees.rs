//! Trees of drafted tokens on an NPU's static attention: the branch that is accepted stands behind others, and answers are
//! those of a CPU in f32.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use heg_runtime::engine::{
    DraftCounts, EndTokens, Engine, EngineOptions, FaultPlan, Generation, Request, Speculation,
};
use heg_runtime::exec::{ExecutorOptions, Loader};
use heg_sched::{Action, Class, Event, Finish, Lane, Micros, Observer, RequestId, Work};
use heg_tests::soft_npu::{InSoftNpu, soft_npu_or_skip};

use super::asked::references;
use super::{Machine, Scene, WeightBits, inside, lanes_of, policy_of};
use crate::world::{ANSWER_TOKENS, Reference};

const TEST: &str = "npu::trees::an_npu_verifies_branches_that_stand_behind_others";

#[test]
fn an_npu_verifies_branches_that_stand_behind_others() {
    if let Some((inside, scene)) = inside() {
        alone(&inside, scene);
        return beside_a_lane_that_decodes(&inside, scene);
    }
    if soft_npu_or_skip(TEST) {
        for scene in Scene::all().filter(|scene| scene.bits == WeightBits::Eight) {
            scene.play(TEST, Duration::from_secs(300), &[]);
        }
    }
}

/// An NPU that does everything takes the whole tree in one step, and says so.
fn alone(inside: &InSoftNpu, scene: Scene) {
    inside.forget();
    let loader = Machine::Alone.loader(scene.bits.bundle());
    let all = references(scene.bits);
    let engine = engine(loader, None, all.to_vec(), Verifications::default());
    for reference in references(scene.bits) {
        let (tokens, counts) = answer(engine.generate(request(reference, Class::Reactive)));
        assert!(tokens.starts_with(&reference.answer), "{scene:?}");
        // All that are known but the first, which the prompt gives.
        assert_eq!(counts.accepted_tokens, ANSWER_TOKENS - 1, "{scene:?}");
    }
    let layers = engine.manifest().layers.len();
    drop(engine);
    let trees = inside.log().count("tree");
    assert_eq!(trees, layers * references(scene.bits).len(), "{scene:?}");
}

/// While the other lane decodes, the NPU's verifies, by attention of its own.
fn beside_a_lane_that_decodes(inside: &InSoftNpu, scene: Scene) {
    inside.forget();
    let verifications = Verifications::default();
    let loader = Machine::TwoLanes.loader(scene.bits.bundle());
    let all = references(scene.bits);
    let engine = engine(
        loader,
        Some("agent-xpu"),
        all.to_vec(),
        verifications.clone(),
    );
    for _ in 0..10 {
        let asked = all
            .iter()
            .map(|it| engine.generate(request(it, Class::Proactive)));
        let asked: Vec<Generation> = asked.collect();
        for (generation, reference) in asked.into_iter().zip(all) {
            let (tokens, _) = answer(generation);
            assert!(tokens.starts_with(&reference.answer), "{scene:?}");
        }
    }
    let count = verifications.0.load(Ordering::Relaxed);
    let layers = engine.manifest().layers.len();
    drop(engine);
    let trees = inside.log().count("tree");
    println!("{scene:?}: {count} verifications on the NPU's lane, {trees} of a layer over trees");
    assert!(count > 0 && trees >= layers, "{scene:?}: {count}, {trees}");
}

/// An engine that verifies the answers to these prompts as branches behind others.
pub(super) fn engine(
    loader: Loader,
    name: Option<&str>,
    all: Vec<Reference>,
    verifications: Verifications,
) -> Engine {
    let mut policy = policy_of(name, &loader);
    policy.limits.timeout_min_ms = 30_000;
    // However long rows take here.
    policy.drafts.fixed_tokens = Some(31);
    policy.decode.second_lane = name.is_some();
    let options = EngineOptions {
        exec: ExecutorOptions {
            chunk_tokens: 32,
            ..ExecutorOptions::default()
        },
        lanes: lanes_of(name),
        speculation: Speculation::Tree,
        observers: vec![Box::new(verifications)],
        ..EngineOptions::default()
    };
    let plan = FaultPlan::default();
    plan.draft(move |_: RequestId, so_far: &[u32]| {
        let asked = all.iter().find(|it| so_far.starts_with(&it.prompt));
        asked.map_or_else(Vec::new, |it| behind_others(it, so_far.len()))
    });
    let engine = Engine::start_with_faults(loader, policy, options, plan).unwrap();
    engine.wait_ready().unwrap();
    engine
}

/// The rest of an answer as a branch of a tree, with two other branches before each of its tokens.
fn behind_others(reference: &Reference, so_far: usize) -> Vec<(u32, Option<u16>)> {
    let given = so_far - reference.prompt.len();
    let mut tree = Vec::new();
    let mut before = None;
    for token in reference.answer.get(given..).unwrap_or_default() {
        let [first, second] = [1, 2].map(|by| (token + by) % 250);
        tree.push((first, before));
        tree.push((second, Some(tree.len() as u16 - 1)));
        tree.push((second, before));
        tree.push((*token, before));
        before = Some(tree.len() as u16 - 1);
    }
    tree
}

pub(super) fn request(reference: &Reference, class: Class) -> Request {
    Request {
        // A draft ends before its answer, and the tree has four tokens for each of the answer's.
        tokens_max: 4 * ANSWER_TOKENS,
        end_tokens: EndTokens::Ignored,
        ..Request::new(class, reference.prompt.clone())
    }
}

pub(super) fn answer(generation: Generation) -> (Vec<u32>, DraftCounts) {
    let (tokens, ending) = generation.wait().unwrap();
    assert_eq!(ending.finish, Finish::Complete, "{:?}", ending.error);
    (tokens, ending.drafts.unwrap())
}

/// Counts verifications on the NPU.
#[derive(Clone, Default)]
pub(super) struct Verifications(Arc<AtomicUsize>);

impl Observer for Verifications {
    fn stepped(&mut self, _: Micros, _: &Event, actions: &[Action]) {
        let on_npu = actions.iter().filter(|action| match action {
            Action::Launch { lane, work, .. } => {
                *lane == Lane::Npu && matches!(work, Work::Decode(_))
            }
            _ => false,
        });
        self.0.fetch_add(on_npu.count(), Ordering::Relaxed);
    }
}
