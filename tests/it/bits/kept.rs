//! An answer on kept state is the answer without it, bit for bit: in a later process (here: a later engine), in batches,
//! preempted, with drafts, after an eviction, on another device, and where pages are damaged or another's.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use heg_runtime::Loaded;
use heg_runtime::engine::{
    Ending, Engine, EngineOptions, Generation, KeptStatus, Request, Speculation,
};
use heg_runtime::exec::ExecutorOptions;
use heg_sched::Class;
use heg_spec::{Policy, Soc, shipped};
use heg_state::{KeptLimits, PAGE_TOKENS, StateFolder, StateOwner};
use heg_tests::{Workbench, openvino_or_skip};

use super::served::{ONE_DEVICE, alone, policy, request, this_machine, wait};
use super::{Answer, SMOLLM2_VOCAB, count, prompts, smollm2, tiny_agent};
use crate::gpu_lanes::gpu_or_skip;

/// A model that is asked on one folder of kept state.
pub(super) struct Subject {
    workbench: Workbench,
    bundle: std::path::PathBuf,
    prompts: Vec<Vec<u32>>,
    expected: Vec<Answer>,
}

impl Subject {
    pub(super) fn new(
        (workbench, bundle): (Workbench, std::path::PathBuf),
        prompts: Vec<Vec<u32>>,
    ) -> Self {
        let expected = alone(&bundle, &prompts);
        Self {
            workbench,
            bundle,
            prompts,
            expected,
        }
    }

    fn tiny_agent(prompts: Vec<Vec<u32>>) -> Self {
        Self::new(tiny_agent(), prompts)
    }

    fn path(&self) -> std::path::PathBuf {
        self.workbench.folder().join("state")
    }

    fn folder(&self, mib: u32) -> StateFolder {
        StateFolder::open(&self.path(), KeptLimits::of_mib(mib)).unwrap()
    }

    /// An engine as a server would run it, that keeps state.
    fn engine(&self, soc: &Soc, policy: Policy, speculation: Speculation) -> Engine {
        let loader = Loaded::open(&self.bundle).unwrap().loader(soc).unwrap();
        let options = EngineOptions {
            exec: ExecutorOptions {
                chunk_tokens: 32,
                ..ExecutorOptions::default()
            },
            speculation,
            state: Some(Arc::new(self.folder(512))),
            ..EngineOptions::default()
        };
        let engine = Engine::start(loader, policy, options).unwrap();
        engine.wait_ready().unwrap();
        assert_eq!(engine.not_kept(), None);
        engine
    }

    fn plain_engine(&self) -> Engine {
        self.engine(&this_machine(), policy(ONE_DEVICE), Speculation::Off)
    }

    /// Asks all prompts at once, of either class, and compares the answers; returns the endings.
    fn ask_all(&self, engine: &Engine, owner: StateOwner, name: &str) -> Vec<Ending> {
        let ask = |(at, prompt): (usize, &Vec<u32>)| {
            let class = [Class::Reactive, Class::Proactive][at % 2];
            engine.generate(owned(owner, request(class, prompt)))
        };
        let asked: Vec<Generation> = self.prompts.iter().enumerate().map(ask).collect();
        let answered = asked.into_iter().zip(&self.expected).enumerate();
        let answered = answered.map(|(at, (generation, expected))| {
            let (answer, ending) = wait(generation);
            assert_eq!(&answer, expected, "{name}, prompt {at}");
            ending
        });
        answered.collect()
    }

    /// The tokens of whole pages that each prompt has, but for its last token, which is always run.
    fn whole_pages(&self) -> Vec<u32> {
        let whole = |prompt: &Vec<u32>| {
            let pages = prompt.len() / PAGE_TOKENS * PAGE_TOKENS;
            pages.min(prompt.len() - 1) as u32
        };
        self.prompts.iter().map(whole).collect()
    }

    fn files(&self) -> Vec<std::path::PathBuf> {
        let files = fs::read_dir(self.path()).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        let mut pages: Vec<_> = paths
            .filter(|path| path.extension().is_some_and(|e| e == "kv"))
            .collect();
        pages.sort();
        pages
    }
}

fn owned(owner: StateOwner, request: Request) -> Request {
    Request {
        state: Some(owner),
        ..request
    }
}

fn ours() -> StateOwner {
    StateOwner::this_user()
}

fn status(engine: &Engine) -> KeptStatus {
    engine.status().unwrap().kept.unwrap()
}

fn kept(endings: &[Ending]) -> Vec<u32> {
    endings.iter().map(|ending| ending.kept_tokens).collect()
}

/// Checks a model on kept state: with nothing kept, from the next engine on with whole pages, under each policy and
/// kind of draft.
pub(super) fn check(subject: &Subject) {
    let none = vec![0; subject.prompts.len()];
    let first = subject.plain_engine();
    let endings = subject.ask_all(&first, ours(), "nothing kept");
    assert_eq!(kept(&endings), none);
    drop(first);
    let ways = [
        (ONE_DEVICE, Speculation::Off),
        (ONE_DEVICE, Speculation::Tree),
        ("cpu-continuous-batching", Speculation::Chain),
    ];
    for (name, speculation) in ways {
        let engine = subject.engine(&this_machine(), policy(name), speculation);
        let endings = subject.ask_all(&engine, ours(), name);
        assert_eq!(kept(&endings), subject.whole_pages(), "{name}");
        let status = status(&engine);
        println!("{name}, {speculation:?}: {status:?}");
        let read: u32 = subject.whole_pages().iter().sum();
        assert_eq!(status.read_tokens, u64::from(read));
        assert_eq!((status.damaged, status.unread, status.gone), (0, 0, 0));
    }
    let stranger = subject.plain_engine();
    let other = StateOwner::new("client", b"other");
    let endings = subject.ask_all(&stranger, other, "a stranger");
    assert_eq!(kept(&endings), none, "found by a stranger");
}

#[test]
fn tiny_agent_says_the_same_on_kept_state() {
    check(&Subject::tiny_agent(prompts(count(200, 24), 2048)));
}

#[test]
fn smollm2_says_the_same_on_kept_state() {
    if let Some(model) = smollm2() {
        check(&Subject::new(model, prompts(count(20, 3), SMOLLM2_VOCAB)));
    }
}

#[test]
fn results_of_openvino_are_not_kept() {
    let name = "results_of_openvino_are_not_kept";
    if !openvino_or_skip(name) {
        return;
    }
    let (workbench, bundle) = tiny_agent();
    let soc = shipped::soc("host-cpu-openvino").unwrap();
    let loader = Loaded::open(&bundle).unwrap().loader(&soc).unwrap();
    let path = workbench.folder().join("state");
    let folder = StateFolder::open(&path, KeptLimits::of_mib(64)).unwrap();
    let options = EngineOptions {
        state: Some(Arc::new(folder)),
        ..EngineOptions::default()
    };
    let engine = Engine::start(loader, policy(ONE_DEVICE), options).unwrap();
    let why = engine.not_kept().unwrap();
    assert!(why.contains("OpenVINO"), "{why}");
    let prompt: Vec<u32> = (5..205).collect();
    let asked = owned(ours(), request(Class::Reactive, &prompt));
    wait(engine.generate(asked));
    assert_eq!(engine.status().unwrap().kept, None);
    drop(engine);
    let files = fs::read_dir(path).unwrap().map(|file| file.unwrap().path());
    assert!(
        files
            .into_iter()
            .all(|path| path.extension().is_none_or(|it| it != "kv"))
    );
}

/// Changes a file in one of three ways.
fn spoil(at: usize, path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    match at % 3 {
        0 => *bytes.last_mut().unwrap() ^= 1,
        1 => bytes.truncate(bytes.len() / 2),
        _ => bytes[40] ^= 1,
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_page_costs_time_and_is_written_again() {
    let subject = Subject::tiny_agent(prompts(40, 2048));
    drop(subject.ask_all(&subject.plain_engine(), ours(), "nothing kept"));
    let files = subject.files();
    for (at, path) in files.iter().enumerate() {
        spoil(at, path);
    }
    let engine = subject.plain_engine();
    let endings = subject.ask_all(&engine, ours(), "damaged");
    assert_eq!(kept(&endings), vec![0; 40]);
    let seen = status(&engine);
    println!("{seen:?}");
    assert!(seen.damaged > 0 && seen.trouble.unwrap().contains("damaged"));
    drop(engine);
    // Those behind the first were not looked at, and are still damaged.
    let endings = subject.ask_all(&subject.plain_engine(), ours(), "written again");
    assert!(kept(&endings).iter().sum::<u32>() > 0);
    for _ in 0..3 {
        subject.ask_all(&subject.plain_engine(), ours(), "written again");
    }
    let engine = subject.plain_engine();
    let endings = subject.ask_all(&engine, ours(), "whole again");
    assert_eq!(kept(&endings), subject.whole_pages());
}

#[test]
fn a_page_that_goes_while_its_request_waits_costs_only_time() {
    let subject = Subject::tiny_agent(prompts(40, 2048));
    drop(subject.ask_all(&subject.plain_engine(), ours(), "nothing kept"));
    let engine = subject.plain_engine();
    let found: Vec<_> = subject
        .prompts
        .iter()
        .map(|prompt| engine.find_kept(Some(ours()), prompt))
        .collect();
    for file in subject.files().iter().step_by(2) {
        fs::remove_file(file).unwrap();
    }
    for (at, kept) in found.into_iter().enumerate() {
        let asked = Request {
            kept: Some(kept),
            ..owned(ours(), request(Class::Reactive, &subject.prompts[at]))
        };
        let (answer, _) = wait(engine.generate(asked));
        assert_eq!(answer, subject.expected[at], "prompt {at}");
    }
    assert!(status(&engine).gone > 0);
}

#[test]
fn an_evicted_flow_goes_on_from_what_was_kept() {
    let subject = Subject::tiny_agent(prompts(40, 2048));
    // Memory for some prompts only, and no flash.
    let mut tight = policy(ONE_DEVICE);
    (tight.limits.kv_mib, tight.limits.flash_mib) = (1, 0);
    let engine = subject.engine(&this_machine(), tight, Speculation::Off);
    let first = subject.ask_all(&engine, ours(), "once");
    // What was kept in this process is there as soon as it is written.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while status(&engine).written_pages == 0 && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let again = subject.ask_all(&engine, ours(), "again");
    println!("{:?}", status(&engine));
    assert_eq!(kept(&first).iter().sum::<u32>(), 0);
    assert!(kept(&again).iter().sum::<u32>() > 0);
}

#[test]
fn a_gpu_goes_on_from_what_a_cpu_kept_and_the_other_way_round() {
    if !gpu_or_skip("a_gpu_goes_on_from_what_a_cpu_kept_and_the_other_way_round") {
        return;
    }
    let gpu = shipped::soc("host-gpu").unwrap();
    for (writes, reads) in [(this_machine(), gpu.clone()), (gpu, this_machine())] {
        let subject = Subject::tiny_agent(prompts(count(24, 4), 2048));
        let engine = |soc: &Soc| subject.engine(soc, policy(ONE_DEVICE), Speculation::Off);
        subject.ask_all(&engine(&writes), ours(), "writes");
        let endings = subject.ask_all(&engine(&reads), ours(), "reads");
        assert_eq!(kept(&endings), subject.whole_pages());
    }
}
