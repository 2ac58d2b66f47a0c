//! An engine with faults, and the answers of its requests without them.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use heg_runtime::Loaded;
use heg_runtime::engine::{
    DeviceTurns, EndTokens, Ending, Engine, EngineOptions, Fault, FaultPlan, Lanes, Request, Rule,
    Speculation, Update, Victim,
};
use heg_runtime::exec::{ExecutorOptions, Loader};
use heg_sched::Observer;
use heg_sched::{Class, Finish, FlowId, RequestId, Switching};
use heg_spec::{DeviceClass, Policy, WeightForm, shipped};
use heg_tests::{Workbench, executor, fixture, greedy};
use tempfile::{NamedTempFile, TempDir};

pub(crate) const CHUNK_TOKENS: usize = 32;
pub(crate) const ANSWER_TOKENS: u32 = 8;

/// Returns all shipped policies, each with a machine that has its lanes.
pub(crate) fn policies() -> impl Iterator<Item = (&'static str, &'static str)> {
    shipped::POLICIES.iter().map(|(name, _)| {
        let one_device = *name == "agent-xpu-one-device"
            || shipped::policy(name).unwrap().device == DeviceClass::Cpu;
        (*name, if one_device { ONE_LANE } else { TWO_LANES })
    })
}

pub(crate) const ONE_LANE: &str = "host-cpu-f32";
pub(crate) const TWO_LANES: &str = "host-roles";
/// A lane of a GPU beside one of the CPU, and a GPU alone.
pub(crate) const GPU_AND_CPU: &str = "host-cpu-gpu";
pub(crate) const GPU_ALONE: &str = "host-gpu";
pub(crate) const GPU_PAIR: &str = "host-pair-gpu";

/// Returns the bundle of the tiny agent in f32.
pub(crate) fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| compiled("faults-tiny-agent.heg", WeightForm::F32))
}

/// Returns the bundle of the tiny agent with integer weights, as GPUs are made for.
pub(crate) fn gpu_bundle() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| compiled("faults-tiny-agent-gpu.heg", WeightForm::W8A16))
}

/// Compiles a bundle once for a process. It is in Cargo's folder, since nothing removes the files of a static.
fn compiled(name: &str, weights: WeightForm) -> PathBuf {
    let workbench = Workbench::new().unwrap();
    let change = |spec: &mut heg_spec::ModelSpec| spec.weights = weights;
    let compiled = workbench.compile(&fixture("tiny-agent"), "model", change);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Another process of these tests may have it mapped, so it is replaced, not written.
    let copy = NamedTempFile::new_in(folder).unwrap();
    std::fs::copy(compiled.unwrap().0, copy.path()).unwrap();
    let bundle = folder.join(name);
    copy.persist(&bundle).unwrap();
    bundle
}

/// Returns the bundle for a machine, and the machine whose answers are its references: a GPU says what the CPU says.
fn bundle_for(soc: &'static str) -> (&'static Path, &'static str) {
    match soc {
        GPU_AND_CPU | GPU_ALONE | GPU_PAIR => (gpu_bundle(), "host-cpu"),
        soc => (bundle(), soc),
    }
}

/// A prompt, and its answer by an executor that nothing else uses.
#[derive(Debug, Clone)]
pub(crate) struct Reference {
    pub(crate) prompt: Vec<u32>,
    pub(crate) answer: Vec<u32>,
}

impl Reference {
    /// Returns the draft after `so_far` tokens of prompt and answer: the rest of the answer with its second or third
    /// token wrong, and a wrong alternative to its first token.
    fn draft(&self, so_far: usize) -> Vec<(u32, Option<u16>)> {
        let given = so_far - self.prompt.len();
        let mut rest = self.answer.get(given..).unwrap_or_default().to_vec();
        if let Some(token) = rest.get_mut(1 + given % 2) {
            *token = wrong(*token);
        }
        let before = [None].into_iter().chain((0..).map(Some));
        let mut draft: Vec<_> = rest.into_iter().zip(before).collect();
        if let Some((first, _)) = draft.first().copied() {
            draft.push((wrong(first), None));
        }
        draft
    }
}

fn wrong(token: u32) -> u32 {
    (token + 1) % 200
}

/// Prompts of several lengths, with a machine's answers.
pub(crate) fn references(soc: &'static str) -> &'static [Reference] {
    static ONE: OnceLock<Vec<Reference>> = OnceLock::new();
    static TWO: OnceLock<Vec<Reference>> = OnceLock::new();
    static PLUGIN: OnceLock<Vec<Reference>> = OnceLock::new();
    static GPU: OnceLock<Vec<Reference>> = OnceLock::new();
    let known = match soc {
        ONE_LANE => &ONE,
        TWO_LANES => &TWO,
        GPU_AND_CPU | GPU_ALONE | GPU_PAIR => &GPU,
        _ => &PLUGIN,
    };
    known.get_or_init(|| {
        let (bundle, soc) = bundle_for(soc);
        let mut executor = executor(bundle, soc, CHUNK_TOKENS).unwrap();
        let lengths = [3, 40, 17, 70, 33, 100, 9, 55];
        let reference = |(at, length): (usize, usize)| {
            let token = |i: usize| (5 + (i * i + 7 * i * (at + 1) + 13 * at) % 200) as u32;
            let prompt: Vec<u32> = (0..length).map(token).collect();
            let mut sequence = executor.sequence().unwrap();
            let answer = greedy(
                &mut executor,
                &mut sequence,
                &prompt,
                ANSWER_TOKENS as usize,
            );
            Reference {
                answer: answer.unwrap(),
                prompt,
            }
        };
        lengths.into_iter().enumerate().map(reference).collect()
    })
}

/// Returns a shipped policy, in which kernels count as hung only after a time that no busy machine takes.
pub(crate) fn policy(name: &str) -> Policy {
    let mut policy = shipped::policy(name).unwrap();
    policy.limits.timeout_min_ms = 30_000;
    policy.limits.kv_mib = 64;
    policy
}

/// Returns a shipped policy, in which kernels count as hung early.
pub(crate) fn impatient(name: &str) -> Policy {
    let mut policy = policy(name);
    policy.limits.timeout_min_ms = 2000;
    policy
}

/// An engine, with the faults that are planned for it.
pub(crate) struct World {
    pub(crate) name: String,
    pub(crate) engine: Engine,
    pub(crate) plan: FaultPlan,
    pub(crate) references: &'static [Reference],
    /// The folder of caches on flash.
    _folder: TempDir,
}

impl World {
    pub(crate) fn new(name: &str, soc: &'static str) -> Self {
        Self::with(policy(name), name, soc, Vec::new())
    }

    /// Creates a world whose kernels count as hung early.
    pub(crate) fn impatient(name: &str, soc: &'static str) -> Self {
        Self::with(impatient(name), name, soc, Vec::new())
    }

    pub(crate) fn with(
        policy: Policy,
        name: &str,
        soc: &'static str,
        observers: Vec<Box<dyn Observer>>,
    ) -> Self {
        Self::planned(policy, name, soc, observers, FaultPlan::default())
    }

    /// Creates a world with a plan that exists before the engine starts.
    pub(crate) fn planned(
        policy: Policy,
        name: &str,
        soc: &'static str,
        observers: Vec<Box<dyn Observer>>,
        plan: FaultPlan,
    ) -> Self {
        let options = EngineOptions {
            observers,
            ..in_chunks(CHUNK_TOKENS)
        };
        Self::of(policy, (name, soc), options, plan)
    }

    /// Creates a world whose engine shares its machine with others.
    pub(crate) fn sharing(turns: &DeviceTurns) -> Self {
        let name = "agent-xpu-one-device";
        let options = EngineOptions {
            turns: turns.clone(),
            ..in_chunks(CHUNK_TOKENS)
        };
        Self::of(
            policy(name),
            (name, ONE_LANE),
            options,
            FaultPlan::default(),
        )
    }

    /// Creates a world on a loader's devices, whose kernels count as hung after a time.
    pub(crate) fn on(loader: Loader, (name, soc): (&str, &'static str), hung_ms: u32) -> Self {
        let mut policy = policy(name);
        policy.limits.timeout_min_ms = hung_ms;
        let options = in_chunks(CHUNK_TOKENS);
        Self::over(loader, policy, (name, soc), options, FaultPlan::default())
    }

    /// Creates a world on a loader's devices under a policy, with lanes as a command or a server has them and with other
    /// prompts.
    pub(crate) fn asking(
        references: &'static [Reference],
        loader: Loader,
        policy: Policy,
        lanes: Lanes,
    ) -> Self {
        let options = EngineOptions {
            lanes,
            ..in_chunks(CHUNK_TOKENS)
        };
        Self::among(references, loader, policy, options, FaultPlan::default())
    }

    /// Creates a world whose answers are drafted, right except for a few tokens. Its kernels count as hung early.
    pub(crate) fn drafting(name: &str, soc: &'static str, speculation: Speculation) -> Self {
        let mut policy = impatient(name);
        // However long rows take here.
        policy.drafts.fixed_tokens = Some(12);
        Self::drafting_under(policy, soc, speculation, Vec::new())
    }

    pub(crate) fn drafting_under(
        policy: Policy,
        soc: &'static str,
        speculation: Speculation,
        observers: Vec<Box<dyn Observer>>,
    ) -> Self {
        let options = EngineOptions {
            speculation,
            observers,
            ..in_chunks(CHUNK_TOKENS)
        };
        let name = policy.name.clone();
        Self::of(policy, (&name, soc), options, FaultPlan::default()).drafts()
    }

    /// Creates a world that switches the graphs of its layers, at every boundary where `plan` demands it, with drafts.
    pub(crate) fn switching(
        (name, soc): (&str, &'static str),
        way: Switching,
        plan: FaultPlan,
    ) -> Self {
        let mut policy = policy(name);
        policy.prefill.switching = way;
        let options = EngineOptions {
            speculation: Speculation::Chain,
            ..in_chunks(2 * CHUNK_TOKENS)
        };
        Self::of(policy, (name, soc), options, plan).drafts()
    }

    /// Adds drafts from the requests' answers, and from wrong tokens.
    fn drafts(self) -> Self {
        let references = self.references;
        self.plan.draft(move |_: RequestId, so_far: &[u32]| {
            let mut all = references.iter();
            let asked = all.find(|reference| so_far.starts_with(&reference.prompt));
            asked.map_or_else(Vec::new, |reference| reference.draft(so_far.len()))
        });
        self
    }

    fn of(
        policy: Policy,
        (name, soc): (&str, &'static str),
        options: EngineOptions,
        plan: FaultPlan,
    ) -> Self {
        let loaded = Loaded::open(bundle_for(soc).0).unwrap();
        let loader = loaded.loader(&shipped::soc(soc).unwrap()).unwrap();
        Self::over(loader, policy, (name, soc), options, plan)
    }

    /// Creates a world on a loader's devices.
    fn over(
        loader: Loader,
        policy: Policy,
        (name, soc): (&str, &'static str),
        options: EngineOptions,
        plan: FaultPlan,
    ) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::among(references(soc), loader, policy, options, plan)
        }
    }

    fn among(
        references: &'static [Reference],
        loader: Loader,
        policy: Policy,
        options: EngineOptions,
        plan: FaultPlan,
    ) -> Self {
        let name = policy.name.clone();
        let folder = tempfile::tempdir().unwrap();
        let options = EngineOptions {
            flash: Some(folder.path().to_owned()),
            ..options
        };
        let engine = Engine::start_with_faults(loader, policy, options, plan.clone()).unwrap();
        engine.wait_ready().unwrap();
        Self {
            name,
            engine,
            plan,
            references,
            _folder: folder,
        }
    }

    /// Plans a fault.
    pub(crate) fn expect(&self, fault: Fault, victim: Victim, after: u64, times: u64) {
        self.plan.add(Rule {
            fault,
            victim,
            after,
            times,
        });
    }

    /// Submits a reference prompt, on a flow of its own. Some requests ask for the log probabilities of their prompt.
    pub(crate) fn submit(&self, at: usize) -> Answer {
        let class = match at % 3 {
            0 => Class::Reactive,
            _ => Class::Proactive,
        };
        let flow = self.engine.new_flow();
        Answer::of(
            &self.engine,
            Request {
                flow: Some(flow),
                prompt_log_probs: (at % 4 == 1).then_some(1),
                ..request(class, &self.references[at].prompt)
            },
        )
    }

    /// Submits all prompts at once; returns their endings, after checking that every served request got the right
    /// tokens.
    pub(crate) fn crowd(&self) -> Vec<Ending> {
        let answers: Vec<Answer> = (0..self.references.len())
            .map(|at| self.submit(at))
            .collect();
        let endings = answers.into_iter().zip(self.references);
        let endings = endings.map(|(answer, reference)| {
            let (id, flow) = (answer.id, answer.flow);
            let (tokens, ending) = answer.wait();
            let expected = &reference.answer[..tokens.len().min(reference.answer.len())];
            assert_eq!(tokens, expected, "{}, {id}", self.name);
            if ending.finish == Finish::Complete {
                assert_eq!(tokens.len(), reference.answer.len(), "{}, {id}", self.name);
            }
            self.engine.end_flow(flow.unwrap());
            ending
        });
        endings.collect()
    }

    /// Runs a crowd in which every request is served.
    pub(crate) fn crowd_is_served(&self) {
        for (at, ending) in self.crowd().into_iter().enumerate() {
            let name = &self.name;
            assert_eq!(
                ending.finish,
                Finish::Complete,
                "{name}, prompt {at}: {:?}",
                ending.error
            );
        }
    }

    /// Checks that nothing is left of ended requests and flows.
    pub(crate) fn is_empty_again(&self) {
        let begin = Instant::now();
        loop {
            let status = self.engine.status().unwrap();
            let live = [status.reactive, status.proactive];
            let live = live.map(|phases| phases.queued + phases.prefilling + phases.decoding);
            if (status.kv_bytes, status.flows_kept, live) == (0, 0, [0, 0]) {
                return;
            }
            let late = begin.elapsed() > Duration::from_secs(120);
            assert!(!late, "{}: {status:?}", self.name);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn in_chunks(chunk_tokens: usize) -> EngineOptions {
    EngineOptions {
        exec: ExecutorOptions {
            chunk_tokens,
            ..ExecutorOptions::default()
        },
        ..EngineOptions::default()
    }
}

pub(crate) fn request(class: Class, prompt: &[u32]) -> Request {
    Request {
        tokens_max: ANSWER_TOKENS,
        end_tokens: EndTokens::Ignored,
        ..Request::new(class, prompt.to_vec())
    }
}

/// The updates of a request, to be waited for.
pub(crate) struct Answer {
    pub(crate) id: RequestId,
    pub(crate) flow: Option<FlowId>,
    /// The prompt, if its log probabilities are asked for.
    scored: Option<Vec<u32>>,
    updates: Receiver<Update>,
}

impl Answer {
    pub(crate) fn of(engine: &Engine, request: Request) -> Self {
        let (sender, updates) = channel();
        let flow = request.flow;
        let scored = request.prompt_log_probs.map(|_| request.prompt.clone());
        let id = engine.submit(request, move |update| {
            let _ = sender.send(update);
        });
        Self {
            id,
            flow,
            scored,
            updates,
        }
    }

    /// Waits until the request is accepted; returns the forecast of its first token.
    pub(crate) fn predicted_ttft(&self) -> Duration {
        let first = self.updates.recv_timeout(Duration::from_secs(240));
        let Ok(Update::Accepted { predicted_ttft }) = first else {
            unreachable!("a request is accepted first, found {first:?}")
        };
        predicted_ttft
    }

    /// Returns the ending, if there is one already.
    pub(crate) fn try_wait(&self) -> Option<Ending> {
        let ending = |update| match update {
            Update::Finished(ending) => Some(ending),
            Update::Accepted { .. }
            | Update::Prompt(_)
            | Update::Token { .. }
            | Update::Vector(_) => None,
        };
        self.updates.try_iter().find_map(ending)
    }

    /// Waits for the tokens and the ending. Nothing may take minutes here.
    pub(crate) fn wait(mut self) -> (Vec<u32>, Ending) {
        let mut tokens = Vec::new();
        loop {
            match self.updates.recv_timeout(Duration::from_secs(240)).unwrap() {
                Update::Accepted { .. } | Update::Vector(_) => assert!(tokens.is_empty()),
                Update::Prompt(scores) => {
                    // Whatever was lost on the way, each token arrives once.
                    let said: Vec<u32> = scores.iter().map(|score| score.token.token).collect();
                    assert_eq!(said, self.scored.take().unwrap()[1..]);
                }
                Update::Token { id, .. } => {
                    assert!(self.scored.is_none());
                    tokens.push(id);
                }
                Update::Finished(ending) => return (tokens, ending),
            }
        }
    }
}
