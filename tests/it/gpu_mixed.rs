//! Requests that people wait for among background work, on a lane of a GPU beside one of the CPU (`host-cpu-gpu`) under the
//! policy that ships for two lanes: the recorded trace has both lanes at work on one prompt, and the engine counts the
//! mechanisms that acted. The device is the one that `HEG_VK_DRIVER` names, or the first that is there.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use std::time::Duration;

use heg_runtime::Loaded;
use heg_runtime::engine::{EndTokens, Engine, EngineOptions, Generation, Request, Status, Update};
use heg_runtime::exec::ExecutorOptions;
use heg_sched::{Class, Finish, Lane, LayerKernel, Mechanism, RequestId};
use heg_spec::{Isa, Policy, shipped};
use heg_tests::{Workbench, fixture};
use heg_workload::{LaunchOutcome, RunTrace, TracedCall, TracedLaunch};

use crate::gpu_lanes::gpu_or_skip;
use crate::watched::Watch;

const CHUNK_TOKENS: usize = 32;

/// The results of a run: answers, the trace, and the engine's status at its end.
struct Mixed {
    answers: Vec<Vec<u32>>,
    trace: RunTrace,
    status: Status,
}

fn prompt(number: usize, tokens: usize) -> Vec<u32> {
    let token = |at: usize| (5 + (at * at + 7 * at * (number + 1) + 13 * number) % 200) as u32;
    (0..tokens).map(token).collect()
}

/// Background prompts, and as many that somebody waits for, each of which comes while one of those is read.
fn run(bundle: &Path, soc: &str, policy: Policy) -> Mixed {
    let watch = Watch::default();
    let loader = Loaded::open(bundle).unwrap();
    let mut soc = shipped::soc(soc).unwrap();
    for programs in soc.devices.iter_mut().filter_map(|it| it.programs.as_mut()) {
        // Of the CPU's instructions the slowest, so that a GPU in software is worth its chunks.
        (programs.isa, programs.threads) = (Some(Isa::Portable), Some(NonZeroU32::MIN));
    }
    let loader = loader.loader(&soc).unwrap();
    let options = EngineOptions {
        exec: ExecutorOptions {
            chunk_tokens: CHUNK_TOKENS,
            ..ExecutorOptions::default()
        },
        observers: vec![Box::new(watch.clone())],
        ..EngineOptions::default()
    };
    let engine = Engine::start(loader, policy, options).unwrap();
    engine.wait_ready().unwrap();
    let submit = |class, number, tokens| {
        engine.generate(Request {
            tokens_max: 8,
            end_tokens: EndTokens::Ignored,
            flow: Some(engine.new_flow()),
            ..Request::new(class, prompt(number, tokens))
        })
    };
    let mut answers = Vec::new();
    for round in 0..3 {
        let launches = watch.ask(|trace| trace.launches().len());
        let background = submit(Class::Proactive, 2 * round, 12 * CHUNK_TOKENS + 9);
        while watch.ask(|trace| trace.launches().len()) < launches + 4 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let person = submit(Class::Reactive, 2 * round + 1, 10 * CHUNK_TOKENS + 5);
        answers.extend([answer(person), answer(background)]);
    }
    let status = engine.status().unwrap();
    drop(engine);
    let trace = watch.ask(RunTrace::clone);
    Mixed {
        answers,
        trace,
        status,
    }
}

fn answer(mut generation: Generation) -> Vec<u32> {
    let mut tokens = Vec::new();
    loop {
        match generation.next_within(Duration::from_secs(120)).unwrap() {
            Update::Token { id, .. } => tokens.push(id),
            Update::Finished(ending) => {
                assert_eq!(ending.finish, Finish::Complete, "{:?}", ending.error);
                return tokens;
            }
            Update::Accepted { .. } | Update::Prompt(_) | Update::Vector(_) => {}
        }
    }
}

impl Mixed {
    fn acted(&self, mechanism: Mechanism) -> u64 {
        self.status.mechanisms.of(mechanism)
    }

    /// Token-wise kernels of whole chunks of each prompt, on the GPU's lane and on the CPU's.
    fn chunks(&self) -> BTreeMap<RequestId, [usize; 2]> {
        let mut all = BTreeMap::<RequestId, [usize; 2]>::new();
        let done = |launch: &&TracedLaunch| launch.outcome == LaunchOutcome::Done;
        for launch in self.trace.launches().iter().filter(done) {
            let TracedCall::Prefill {
                kernel, segment, ..
            } = launch.call
            else {
                continue;
            };
            if kernel != LayerKernel::Mha && segment.tokens as usize == CHUNK_TOKENS {
                let lane = usize::from(launch.lane != Lane::Npu);
                all.entry(launch.requests[0]).or_default()[lane] += 1;
            }
        }
        all
    }
}

fn bundle(workbench: &Workbench) -> PathBuf {
    let compiled = workbench.compile(&fixture("tiny-agent"), "model", |_| ());
    compiled.unwrap().0
}

#[test]
fn mixed_requests_use_both_lanes_and_mechanisms_act() {
    if !gpu_or_skip("mixed_requests_use_both_lanes_and_mechanisms_act") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let bundle = bundle(&workbench);
    let policy = |removed: &[Mechanism]| {
        let mut policy = shipped::policy("agent-xpu").unwrap();
        for mechanism in removed {
            mechanism.remove(&mut policy);
        }
        policy
    };
    let one = shipped::policy("agent-xpu-one-device").unwrap();
    let expected = run(&bundle, "host-cpu", one).answers;
    let mixed = run(&bundle, "host-cpu-gpu", policy(&[]));
    assert_eq!(mixed.answers, expected);
    let busy = mixed.status.lanes.iter().map(|lane| lane.busy_us);
    let busy: Vec<u64> = busy.collect();
    assert!(busy.len() == 2 && busy.iter().all(|us| *us > 0), "{busy:?}");
    let counts: Vec<(&str, u64)> = Mechanism::ALL
        .into_iter()
        .map(|mechanism| (mechanism.name(), mixed.acted(mechanism)))
        .filter(|(_, count)| *count > 0)
        .collect();
    let shared = [
        Mechanism::Split,
        Mechanism::SplitBesideProactive,
        Mechanism::Balance,
    ];
    let splits: u64 = shared.iter().map(|mechanism| mixed.acted(*mechanism)).sum();
    assert!(
        splits > 0 && mixed.acted(Mechanism::Preemption) > 0,
        "{counts:?}"
    );
    let chunks = mixed.chunks();
    let shared_by_both = chunks.values().filter(|[gpu, cpu]| *gpu > 0 && *cpu > 0);
    assert!(2 * shared_by_both.count() >= chunks.len(), "{chunks:?}");
    // Without them no prompt is shared, and none gives way.
    let off = [
        &shared[..],
        &[
            Mechanism::Preemption,
            Mechanism::ShortPromptsAside,
            Mechanism::LongPromptsAside,
            Mechanism::Ageing,
        ],
    ];
    let plain = run(&bundle, "host-cpu-gpu", policy(&off.concat()));
    assert_eq!(plain.answers, expected);
    for mechanism in off.concat() {
        assert_eq!(plain.acted(mechanism), 0, "{}", mechanism.name());
    }
    let chunks = plain.chunks();
    assert!(chunks.values().all(|[_, cpu]| *cpu == 0), "{chunks:?}");
}
