//! The engine: a request gets the same tokens as alone, whatever runs beside it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use heg_runtime::Loaded;
use heg_runtime::engine::{
    EndTokens, Ending, Engine, EngineOptions, Entry, Generation, Request, Update,
};
use heg_runtime::exec::ExecutorOptions;
use heg_sched::Observer;
use heg_sched::{Action, Class, Event, Finish, Lane, LayerKernel, Micros, Work};
use heg_spec::{Policy, WeightForm, shipped};
use heg_tests::golden;
use heg_tests::questions::{Question, agent_30m, questions};
use heg_tests::{Seeded, Workbench, executor, fixture, greedy, openvino_or_skip};
use heg_text::Special;

const CHUNK_TOKENS: usize = 32;
const ANSWER_TOKENS: usize = 12;

/// A prompt, with a lone executor's answer.
struct Reference {
    prompt: Vec<u32>,
    answer: Vec<u32>,
}

fn bundle(workbench: &Workbench, model: &Path) -> PathBuf {
    let f32 = |spec: &mut heg_spec::ModelSpec| spec.weights = WeightForm::F32;
    workbench.compile(model, "model", f32).unwrap().0
}

/// Returns the golden prompts of tiny-agent.
fn golden() -> Vec<Vec<u32>> {
    golden::prompts(&fixture("tiny-agent")).unwrap()
}

/// Returns all evaluation prompts of a model.
fn evaluation(bundle: &Path, model: &Path) -> Vec<Vec<u32>> {
    let tokenizer = Loaded::open(bundle).unwrap().tokenizer().unwrap();
    let encode = |question: Question| tokenizer.encode(&question.prompt, Special::AsWritten);
    let questions = questions(model).unwrap().into_iter();
    questions
        .map(|question| encode(question).unwrap())
        .collect()
}

fn references(bundle: &Path, soc: &str, prompts: Vec<Vec<u32>>) -> Vec<Reference> {
    let mut executor = executor(bundle, soc, CHUNK_TOKENS).unwrap();
    let mut answer = |prompt: &[u32]| {
        let mut sequence = executor.sequence().unwrap();
        greedy(&mut executor, &mut sequence, prompt, ANSWER_TOKENS).unwrap()
    };
    let reference = |prompt: Vec<u32>| Reference {
        answer: answer(&prompt),
        prompt,
    };
    prompts.into_iter().map(reference).collect()
}

fn engine(bundle: &Path, soc: &str, policy: &str, options: EngineOptions) -> Engine {
    engine_with(bundle, soc, shipped::policy(policy).unwrap(), options)
}

fn engine_with(bundle: &Path, soc: &str, policy: Policy, options: EngineOptions) -> Engine {
    let loaded = Loaded::open(bundle).unwrap();
    let loader = loaded.loader(&shipped::soc(soc).unwrap()).unwrap();
    let options = EngineOptions {
        exec: ExecutorOptions {
            chunk_tokens: CHUNK_TOKENS,
            ..ExecutorOptions::default()
        },
        ..options
    };
    Engine::start(loader, policy, options).unwrap()
}

fn request(class: Class, prompt: &[u32]) -> Request {
    Request {
        tokens_max: ANSWER_TOKENS as u32,
        end_tokens: EndTokens::Ignored,
        ..Request::new(class, prompt.to_vec())
    }
}

/// Waits for the tokens of a request and its ending. Nothing may take minutes here.
fn wait(mut generation: Generation) -> (Vec<u32>, Ending) {
    let mut tokens = Vec::new();
    loop {
        match generation.next_within(Duration::from_secs(120)).unwrap() {
            Update::Accepted { .. } | Update::Prompt(_) | Update::Vector(_) => {
                assert!(tokens.is_empty())
            }
            Update::Token { id, .. } => tokens.push(id),
            Update::Finished(ending) => return (tokens, ending),
        }
    }
}

/// Checks that all requests at once, of either class, get the same tokens as alone, while others come and are
/// cancelled.
fn check_crowd(engine: &Engine, references: &[Reference], name: &str) {
    engine.wait_ready().unwrap();
    let mut seeded = Seeded::new(7);
    let mut answers = Vec::new();
    for (at, reference) in references.iter().enumerate() {
        let class = match seeded.below(3) {
            0 => Class::Reactive,
            _ => Class::Proactive,
        };
        answers.push((at, engine.generate(request(class, &reference.prompt))));
        if seeded.below(4) == 0 {
            let leaves = engine.submit(request(Class::Reactive, &reference.prompt), |_| {});
            std::thread::sleep(Duration::from_millis(seeded.below(20) as u64));
            engine.cancel(leaves);
        }
    }
    for (at, answer) in answers {
        let (tokens, ending) = wait(answer);
        assert_eq!(
            ending.finish,
            Finish::Complete,
            "{name}: {:?}",
            ending.error
        );
        assert_eq!(tokens, references[at].answer, "{name}, prompt {at}");
    }
    let status = engine.status().unwrap();
    println!(
        "{name}: {} prompts, {} tokens reused, {} launches at {:.1} us of scheduling and dispatch",
        references.len(),
        status.reused_tokens,
        status.launches,
        status.dispatch_us as f64 / status.launches.max(1) as f64,
    );
}

/// The lanes on which attention of prompts was launched, with the lengths of the context.
#[derive(Clone, Default)]
struct Attention(Arc<Mutex<BTreeMap<Lane, Vec<u32>>>>);

impl Observer for Attention {
    fn stepped(&mut self, _: Micros, _: &Event, actions: &[Action]) {
        let mut launched = self.0.lock().unwrap();
        for action in actions {
            if let Action::Launch {
                lane,
                work: Work::Prefill {
                    segment, kernel, ..
                },
                ..
            } = action
                && *kernel == LayerKernel::Mha
            {
                launched.entry(*lane).or_default().push(segment.context());
            }
        }
    }
}

/// Attention is compiled for the NPU's lane while prompts wait, runs there, and changes no token.
#[test]
fn a_crowd_gets_the_same_tokens_from_attention_that_was_compiled_meanwhile() {
    let test = "a_crowd_gets_the_same_tokens_from_attention_that_was_compiled_meanwhile";
    if !openvino_or_skip(test) {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let bundle = bundle(&workbench, &fixture("tiny-agent"));
    let references = references(&bundle, "host-roles-openvino", golden());
    let attention = Attention::default();
    let options = EngineOptions {
        observers: vec![Box::new(attention.clone())],
        ..EngineOptions::default()
    };
    let engine = engine(&bundle, "host-roles-openvino", "agent-xpu", options);
    for round in 0..3 {
        check_crowd(&engine, &references, &format!("round {round}"));
    }
    let status = engine.status().unwrap();
    assert_eq!(status.warm_failures, [""; 0]);
    // 256 rows, for which the bundle has no kernel, and 512.
    assert_eq!(status.warmed, 2);
    let launched = attention.0.lock().unwrap();
    let warm = &launched[&Lane::Npu];
    println!(
        "{} of attention on the NPU's lane, {} not",
        warm.len(),
        launched[&Lane::Igpu].len()
    );
    assert!(warm.iter().any(|context| *context <= 256), "{warm:?}");
}

/// On one lane and on two, by our scheduler and by a rival.
#[test]
fn a_crowd_gets_the_tokens_that_each_gets_alone() {
    let workbench = Workbench::new().unwrap();
    let bundle = bundle(&workbench, &fixture("tiny-agent"));
    for (soc, policy) in [
        ("host-roles", "agent-xpu"),
        ("host-cpu-f32", "cpu-continuous-batching"),
    ] {
        let references = references(&bundle, soc, golden());
        let engine = engine(&bundle, soc, policy, EngineOptions::default());
        check_crowd(&engine, &references, &format!("{soc}, {policy}"));
    }
}

/// Checks all evaluation prompts, with memory for few of them and flash for the rest.
fn check_evaluation(model: &Path, kv_mib: u32) {
    let workbench = Workbench::new().unwrap();
    let bundle = bundle(&workbench, model);
    let references = references(&bundle, "host-cpu-f32", evaluation(&bundle, model));
    let mut policy: Policy = shipped::policy("agent-xpu").unwrap();
    policy.limits.kv_mib = kv_mib;
    policy.limits.flash_mib = 4 * kv_mib;
    let options = EngineOptions {
        flash: Some(workbench.folder().to_owned()),
        ..EngineOptions::default()
    };
    let engine = engine_with(&bundle, "host-cpu-f32", policy, options);
    check_crowd(&engine, &references, &model.display().to_string());
}

#[test]
fn all_prompts_of_tiny_agent_at_once() {
    check_evaluation(&fixture("tiny-agent"), 8);
}

#[test]
fn all_prompts_of_agent_30m_at_once() {
    let test = "all_prompts_of_agent_30m_at_once";
    if let Some(model) = agent_30m(test)
        && std::env::var_os("HEG_FULL").is_some()
    {
        check_evaluation(&model, 64);
    }
}

#[test]
fn flows_go_on_where_they_were_also_from_flash() {
    let workbench = Workbench::new().unwrap();
    let bundle = bundle(&workbench, &fixture("tiny-agent"));
    let references = references(&bundle, "host-cpu-f32", golden());
    let options = EngineOptions {
        flash: Some(workbench.folder().to_owned()),
        ..EngineOptions::default()
    };
    let mut policy: Policy = shipped::policy("agent-xpu").unwrap();
    // A token takes 3 KiB: memory for about 680 of them, a few flows at a time.
    policy.limits.kv_mib = 2;
    policy.limits.flash_mib = 64;
    let engine = engine_with(&bundle, "host-cpu-f32", policy, options);
    let flows: Vec<_> = references.iter().map(|_| engine.new_flow()).collect();
    // First half of each prompt, then the whole one.
    for (reference, flow) in references.iter().zip(&flows) {
        let half = &reference.prompt[..reference.prompt.len() / 2];
        let mut request = request(Class::Proactive, half);
        request.flow = Some(*flow);
        request.tokens_max = 1;
        let (_, ending) = wait(engine.generate(request));
        assert_eq!(ending.finish, Finish::Complete, "{:?}", ending.error);
    }
    let mut reused = 0;
    for (reference, flow) in references.iter().zip(&flows) {
        let mut request = request(Class::Reactive, &reference.prompt);
        request.flow = Some(*flow);
        let (tokens, ending) = wait(engine.generate(request));
        assert_eq!(ending.finish, Finish::Complete, "{:?}", ending.error);
        assert_eq!(tokens, reference.answer);
        reused += ending.reused_tokens as usize;
    }
    let halves = references.iter().map(|r| r.prompt.len() / 2);
    assert_eq!(
        reused,
        halves.sum::<usize>(),
        "every flow found its first half"
    );
}

/// Submits a request that runs until it is cancelled, and waits for its first token.
fn background(engine: &Engine, class: Class, prompt: &[u32]) -> Generation {
    let mut generation = engine.generate(Request {
        tokens_max: 900,
        ..request(class, prompt)
    });
    while !matches!(generation.next().unwrap(), Update::Token { .. }) {}
    generation
}

#[test]
fn waits_for_the_first_kernel_are_told_apart() {
    let workbench = Workbench::new().unwrap();
    let bundle = bundle(&workbench, &fixture("tiny-agent"));
    let prompts = golden();
    let engine = engine(
        &bundle,
        "host-cpu-f32",
        "agent-xpu",
        EngineOptions::default(),
    );
    engine.wait_ready().unwrap();
    let reactive = |prompt: usize| {
        let (_, ending) = wait(engine.generate(request(Class::Reactive, &prompts[prompt])));
        assert_eq!(ending.finish, Finish::Complete, "{:?}", ending.error);
    };
    let end = |generation: Generation| {
        generation.cancel();
        assert_eq!(generation.wait().unwrap().1.finish, Finish::Cancelled);
    };
    // Proactive requests are not counted.
    let (_, ending) = wait(engine.generate(request(Class::Proactive, &prompts[0])));
    assert_eq!(ending.finish, Finish::Complete);
    reactive(0);
    let proactive = background(&engine, Class::Proactive, &prompts[1]);
    reactive(2);
    reactive(3);
    end(proactive);
    // This one arrives on an idle machine.
    let other = background(&engine, Class::Reactive, &prompts[1]);
    reactive(2);
    reactive(3);
    reactive(0);
    end(other);
    let status = engine.status().unwrap();
    let counts: Vec<_> = status.waits.iter().map(|w| (w.entry, w.count)).collect();
    let expected = [Entry::Idle, Entry::Preempting, Entry::Queued];
    assert_eq!(
        counts,
        expected.into_iter().zip([2, 2, 3]).collect::<Vec<_>>()
    );
    for wait in &status.waits {
        assert!(0 < wait.max_us && wait.median_us <= wait.p90_us && wait.p90_us <= wait.max_us);
    }
    assert!(0 < status.kernel_us_max && status.kernel_us_max <= status.stretch_us_max);
    println!("{status:?}");
}

#[test]
fn a_cancelled_call_leaves_what_it_computed_to_the_next() {
    let workbench = Workbench::new().unwrap();
    let bundle = bundle(&workbench, &fixture("tiny-agent"));
    let references = references(&bundle, "host-cpu-f32", golden());
    let longest = references.iter().max_by_key(|r| r.prompt.len()).unwrap();
    let engine = engine(
        &bundle,
        "host-cpu-f32",
        "agent-xpu",
        EngineOptions::default(),
    );
    let answer = background(&engine, Class::Proactive, &longest.prompt);
    answer.cancel();
    let (_, ending) = wait(answer);
    assert_eq!(ending.finish, Finish::Cancelled);
    let (tokens, ending) = wait(engine.generate(request(Class::Reactive, &longest.prompt)));
    assert_eq!(tokens, longest.answer);
    assert_eq!(ending.reused_tokens as usize, longest.prompt.len() - 1);
}

/// Every request would fail, so the engine does not start.
#[test]
fn a_policy_for_a_device_that_is_not_there_is_refused() {
    let workbench = Workbench::new().unwrap();
    let bundle = bundle(&workbench, &fixture("tiny-agent"));
    let refusal = |soc, policy| {
        let loaded = Loaded::open(&bundle).unwrap();
        let loader = loaded.loader(&shipped::soc(soc).unwrap()).unwrap();
        let policy = shipped::policy(policy).unwrap();
        let started = Engine::start(loader, policy, EngineOptions::default());
        started.map(|_| ()).unwrap_err().to_string()
    };
    insta::assert_snapshot!(refusal("host-cpu", "igpu-continuous-batching"), @"policy `igpu-continuous-batching` runs every kernel on the Igpu, and machine `host-cpu` has no such lane: choose a policy for its devices, or another machine");
    insta::assert_snapshot!(refusal("host-roles", "cpu-continuous-batching"), @"policy `cpu-continuous-batching` runs every kernel on the Cpu, and machine `host-roles` has no such lane: choose a policy for its devices, or another machine");
}
