//! On the engine a request gets the same tokens and logits as alone: if it is preempted and resumed, beside others in
//! batches, on rows that another call left in memory, and on rows that were on flash meanwhile.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use heg_artifacts::SectionId;
use heg_runtime::Loaded;
use heg_runtime::engine::{EndTokens, Ending, Engine, EngineOptions, Generation, Request, Update};
use heg_runtime::exec::ExecutorOptions;
use heg_sched::{Action, Class, Event, Finish, Micros, Observer, RequestId, Work};
use heg_spec::{Activations, Isa, Policy, Soc, shipped};
use heg_tests::Workbench;
use heg_text::{TokenLogProbs, log_probabilities};

use crate::gpu_lanes::gpu_or_skip;

use super::{Answer, PLAIN, SMOLLM2_VOCAB, Way, answers, count, prompts, smollm2, soc, tiny_agent};

const ANSWER_TOKENS: usize = 6;

/// A number beyond the vocabulary of any model here, so that all tokens come with their probabilities.
const WHOLE_VOCABULARY: u32 = 1 << 20;

/// Returns a hash of the log probabilities of the whole vocabulary. They are f64, which distinguishes all f32 logits.
fn digest(said: &TokenLogProbs) -> SectionId {
    let mut bytes = Vec::with_capacity(16 * (said.top.len() + 1));
    for one in [&said.token].into_iter().chain(&said.top) {
        bytes.extend_from_slice(&u64::from(one.token).to_le_bytes());
        bytes.extend_from_slice(&one.log_probability.to_bits().to_le_bytes());
    }
    SectionId::of(&bytes)
}

/// Returns the answer to each prompt by an executor that does nothing else, with other instructions and one thread.
pub(super) fn alone(bundle: &Path, prompts: &[Vec<u32>]) -> Vec<Answer> {
    let digest = |logits: &[f32], token| {
        digest(&log_probabilities(logits, token, WHOLE_VOCABULARY as usize))
    };
    let run = (PLAIN, Activations::I8, digest as super::Digest);
    answers(bundle, prompts, ANSWER_TOKENS, run)
}

pub(super) fn request(class: Class, prompt: &[u32]) -> Request {
    Request {
        tokens_max: ANSWER_TOKENS as u32,
        end_tokens: EndTokens::Ignored,
        log_probs: Some(WHOLE_VOCABULARY),
        ..Request::new(class, prompt.to_vec())
    }
}

/// Waits for the whole answer of a request.
pub(super) fn wait(mut generation: Generation) -> (Answer, Ending) {
    let mut answer = Answer::default();
    loop {
        match generation.next_within(PATIENCE).unwrap() {
            Update::Accepted { .. } | Update::Prompt(_) | Update::Vector(_) => {}
            Update::Token { id, log_probs } => {
                answer.tokens.push(id);
                answer.bits.push(digest(&log_probs.unwrap()));
            }
            Update::Finished(ending) => {
                assert_eq!(ending.finish, Finish::Complete, "{:?}", ending.error);
                return (answer, ending);
            }
        }
    }
}

/// The observed events of requests and caches.
#[derive(Debug, Default)]
struct Seen {
    /// Requests whose prompt is under way, in the order of their last launches.
    under_way: Vec<RequestId>,
    /// Requests whose prompt continued after another one's launch.
    resumed: BTreeSet<RequestId>,
    /// Number of caches that were written to flash.
    offloaded: usize,
}

struct Watch {
    seen: Arc<Mutex<Seen>>,
    /// Receives each request whose prompt starts.
    starts: Sender<RequestId>,
}

impl Observer for Watch {
    fn stepped(&mut self, _: Micros, event: &Event, actions: &[Action]) {
        let mut seen = self.seen.lock().unwrap();
        seen.offloaded += usize::from(matches!(event, Event::Offloaded(_)));
        for action in actions {
            match action {
                Action::Launch { work, .. } => {
                    for id in seen.launched(work) {
                        // Tests without preemption do not listen.
                        let _ = self.starts.send(id);
                    }
                }
                Action::Finish(id, _) => seen.under_way.retain(|other| other != id),
                _ => {}
            }
        }
    }
}

/// An engine with an observer.
struct Served {
    engine: Engine,
    seen: Arc<Mutex<Seen>>,
    starts: Receiver<RequestId>,
}

impl Seen {
    /// Notes a launch; returns the requests for which it is the first one.
    fn launched(&mut self, work: &Work) -> Vec<RequestId> {
        let mut prompts: Vec<RequestId> = match work {
            Work::Prefill { request, .. } | Work::Head(request) => vec![*request],
            Work::Mixed { prompts, .. } => prompts.iter().map(|(id, _)| *id).collect(),
            Work::Decode(_) => Vec::new(),
        };
        prompts.retain(|id| {
            let before = self.under_way.iter().position(|other| other == id);
            if let Some(at) = before {
                if at + 1 < self.under_way.len() {
                    self.resumed.insert(*id);
                }
                self.under_way.remove(at);
            }
            self.under_way.push(*id);
            before.is_none()
        });
        prompts
    }
}

/// The devices of this machine as a server would use them, with the best instructions.
pub(super) fn this_machine() -> Soc {
    let way = Way {
        threads: 2,
        isa: Isa::best(),
        ..PLAIN
    };
    soc(way, Activations::I8)
}

/// Returns an engine as a server would run it, with small chunks.
fn served(bundle: &Path, soc: &Soc, policy: Policy, workbench: &Workbench) -> Served {
    let loaded = Loaded::open(bundle).unwrap();
    let loader = loaded.loader(soc).unwrap();
    let seen = Arc::default();
    let (sender, starts) = channel();
    let watch = Watch {
        seen: Arc::clone(&seen),
        starts: sender,
    };
    let options = EngineOptions {
        exec: ExecutorOptions {
            chunk_tokens: 32,
            ..ExecutorOptions::default()
        },
        flash: Some(workbench.folder().to_owned()),
        observers: vec![Box::new(watch)],
        ..EngineOptions::default()
    };
    let engine = Engine::start(loader, policy, options).unwrap();
    engine.wait_ready().unwrap();
    Served {
        engine,
        seen,
        starts,
    }
}

/// Returns a shipped policy whose window is a few chunks, so that segments of longer prompts take turns in their rows.
pub(super) fn policy(name: &str) -> Policy {
    let mut policy = shipped::policy(name).unwrap();
    policy.prefill.window_tokens = 64;
    policy.limits.requests_max = 1000;
    policy.limits.kv_mib = 512;
    policy
}

/// Checks preemption. Half of the prompts are background work, submitted at once. When one of them starts, one of the
/// others is submitted as a reactive request and waited for.
fn check_preempted(
    bundle: &Path,
    workbench: &Workbench,
    prompts: &[Vec<u32>],
    (soc, policies): (&Soc, &[&str]),
) {
    let expected = alone(bundle, prompts);
    let (background, urgent) = prompts.split_at(prompts.len() / 2);
    for name in policies {
        let served = served(bundle, soc, policy(name), workbench);
        let ask = |class, prompt: &Vec<u32>| served.engine.generate(request(class, prompt));
        let mut asked: Vec<Generation> = background
            .iter()
            .map(|prompt| ask(Class::Proactive, prompt))
            .collect();
        let ids: BTreeSet<RequestId> = asked.iter().map(Generation::id).collect();
        for prompt in urgent {
            while !ids.contains(&served.starts.recv_timeout(PATIENCE).unwrap()) {}
            asked.push(ask(Class::Reactive, prompt));
        }
        for (at, (generation, expected)) in asked.into_iter().zip(&expected).enumerate() {
            assert_eq!(&wait(generation).0, expected, "{name}, prompt {at}");
        }
        let resumed = served.seen.lock().unwrap().resumed.len();
        println!("{name}: {resumed} of {} resumed", background.len());
        // A lane that stands beside another leaves it what is urgent.
        if policy(name).prefill.preempt && soc.devices.len() == 1 {
            assert!(resumed >= background.len() / 2, "{resumed}");
        }
    }
}

/// Maximum wait; nothing may take minutes here.
const PATIENCE: Duration = Duration::from_secs(300);

/// Returns a conversation in one flow: half of a prompt, all of it, its answer and more, then another turn in its
/// place.
fn turns(prompt: &[u32], answer: &[u32]) -> [Vec<u32>; 4] {
    let half = prompt[..prompt.len().div_ceil(2)].to_vec();
    let more = [prompt, answer, &half].concat();
    let other = [prompt, &[7], answer].concat();
    [half, prompt.to_vec(), more, other]
}

/// Runs all conversations concurrently, turn by turn; returns the number of tokens that were found in caches, and that
/// of each prompt's tokens that are in the prompt before it too. `first` is the number of the first conversation.
fn converse(
    engine: &Engine,
    conversations: &[[Vec<u32>; 4]],
    expected: &[Vec<Answer>],
    first: usize,
) -> [usize; 2] {
    let flows: Vec<_> = conversations.iter().map(|_| engine.new_flow()).collect();
    let (mut reused, mut possible) = (0, 0);
    for turn in 0..4 {
        for (at, (turns, flow)) in conversations.iter().zip(&flows).enumerate() {
            let class = match at % 2 {
                0 => Class::Reactive,
                _ => Class::Proactive,
            };
            let asked = Request {
                flow: Some(*flow),
                ..request(class, &turns[turn])
            };
            let (answer, ending) = wait(engine.generate(asked));
            let at = first + at;
            assert_eq!(answer, expected[turn][at], "turn {turn} of {at}");
            reused += ending.reused_tokens as usize;
            if let Some(before) = turn.checked_sub(1) {
                let (before, now) = (turns[before].iter(), turns[turn].iter());
                possible += before.zip(now).take_while(|(a, b)| a == b).count();
            }
        }
    }
    for flow in flows {
        engine.end_flow(flow);
    }
    [reused, possible]
}

/// Number of concurrent conversations. Chosen: fewer than the 128 caches that a scheduler has on flash.
const SIDE_BY_SIDE: usize = 100;

/// Checks that caches of idle flows stay in memory if there is enough, and otherwise go to flash.
fn check_flows(
    bundle: &Path,
    workbench: &Workbench,
    prompts: &[Vec<u32>],
    tight_mib: u32,
    (soc, name): (&Soc, &str),
) {
    let answers = alone(bundle, prompts);
    let conversations: Vec<[Vec<u32>; 4]> = prompts
        .iter()
        .zip(&answers)
        .map(|(prompt, answer)| turns(prompt, &answer.tokens))
        .collect();
    let expected: Vec<Vec<Answer>> = (0..4)
        .map(|turn| {
            let prompts: Vec<_> = conversations.iter().map(|one| one[turn].clone()).collect();
            alone(bundle, &prompts)
        })
        .collect();
    for is_tight in [false, true] {
        let mut policy = policy(name);
        if is_tight {
            policy.limits.kv_mib = tight_mib;
            policy.limits.flash_mib = 1024;
        }
        let served = served(bundle, soc, policy, workbench);
        let (mut reused, mut possible) = (0, 0);
        for (at, some) in conversations.chunks(SIDE_BY_SIDE).enumerate() {
            let found = converse(&served.engine, some, &expected, at * SIDE_BY_SIDE);
            reused += found[0];
            possible += found[1];
        }
        let offloaded = served.seen.lock().unwrap().offloaded;
        println!(
            "tight: {is_tight}: {reused} tokens reused of {possible}, {offloaded} caches on flash"
        );
        assert!(reused >= possible, "{reused} of {possible}");
        assert_eq!(
            offloaded > prompts.len(),
            is_tight,
            "{offloaded} caches on flash"
        );
    }
}

pub(super) const ONE_DEVICE: &str = "agent-xpu-one-device";

#[test]
fn tiny_agent_says_the_same_preempted_and_resumed() {
    let (workbench, bundle) = tiny_agent();
    let prompts = prompts(count(200, 30), 2048);
    let machine = (
        &this_machine(),
        &[ONE_DEVICE, "cpu-continuous-batching"][..],
    );
    check_preempted(&bundle, &workbench, &prompts, machine);
}

#[test]
fn tiny_agent_says_the_same_on_what_was_reused_or_on_flash() {
    let (workbench, bundle) = tiny_agent();
    let prompts = prompts(count(200, 30), 2048);
    let machine = (&this_machine(), ONE_DEVICE);
    check_flows(&bundle, &workbench, &prompts, 1, machine);
}

/// Machines with a GPU, and a policy of each.
fn gpu_machines() -> [(Soc, &'static str); 2] {
    let with = [("host-gpu", ONE_DEVICE), ("host-cpu-gpu", "agent-xpu")];
    with.map(|(soc, policy)| (shipped::soc(soc).unwrap(), policy))
}

#[test]
fn a_gpu_says_the_same_preempted_and_resumed() {
    if !gpu_or_skip("a_gpu_says_the_same_preempted_and_resumed") {
        return;
    }
    let (workbench, bundle) = tiny_agent();
    let prompts = prompts(count(66, 10), 2048);
    for (soc, policy) in gpu_machines() {
        check_preempted(&bundle, &workbench, &prompts, (&soc, &[policy]));
    }
}

#[test]
fn a_gpu_says_the_same_on_what_was_reused_or_on_flash() {
    if !gpu_or_skip("a_gpu_says_the_same_on_what_was_reused_or_on_flash") {
        return;
    }
    let (workbench, bundle) = tiny_agent();
    let prompts = prompts(count(66, 12), 2048);
    for (soc, policy) in gpu_machines().into_iter().skip(count(0, 1)) {
        check_flows(&bundle, &workbench, &prompts, 1, (&soc, policy));
    }
}

#[test]
fn smollm2_says_the_same_preempted_and_resumed() {
    if let Some((workbench, bundle)) = smollm2() {
        let prompts = prompts(count(50, 4), SMOLLM2_VOCAB);
        let machine = (
            &this_machine(),
            &[ONE_DEVICE, "cpu-continuous-batching"][..],
        );
        check_preempted(&bundle, &workbench, &prompts, machine);
    }
}

#[test]
fn smollm2_says_the_same_on_what_was_reused_or_on_flash() {
    if let Some((workbench, bundle)) = smollm2() {
        let prompts = prompts(count(50, 4), SMOLLM2_VOCAB);
        let machine = (&this_machine(), ONE_DEVICE);
        // Too little for the caches of the idle conversations.
        let tight_mib = count(16, 4) as u32;
        check_flows(&bundle, &workbench, &prompts, tight_mib, machine);
    }
}
