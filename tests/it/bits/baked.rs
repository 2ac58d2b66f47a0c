//! An answer behind a baked state is the answer without it, bit for bit: greedy and sampled, in batches, preempted, with
//! drafts, on another device; and where a page is damaged, or the state is of another form or model.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use heg_artifacts::layout::reseal;
use heg_artifacts::{Bundle, Section, SectionId, with_state, write_amended};
use heg_runtime::engine::{
    BakedStatus, Ending, Engine, EngineOptions, Generation, Request, Speculation, StateChoice,
};
use heg_runtime::exec::ExecutorOptions;
use heg_runtime::{Beginning, Loaded, bake, summary};
use heg_sched::Class;
use heg_spec::{Activations, Policy, Soc, shipped};
use heg_state::{KeptLimits, PAGE_TOKENS, StateFolder, StateOwner};
use heg_tests::Workbench;
use heg_text::SamplingParams;

use super::served::{ONE_DEVICE, alone, policy, request, this_machine, wait};
use super::{Answer, SMOLLM2_VOCAB, count, prompts, smollm2, soc, tiny_agent};
use crate::gpu_lanes::gpu_or_skip;

/// A bundle with two states, and prompts that begin with them, or do not.
pub(super) struct Subject {
    _workbench: Workbench,
    plain: PathBuf,
    bundle: PathBuf,
    prompts: Vec<Vec<u32>>,
    /// Leading tokens of each prompt that are in a state.
    baked: Vec<u32>,
}

/// Tokens of the first state: its last page is not whole, nor is that of the second.
const FIRST: usize = 3 * PAGE_TOKENS + 17;

impl Subject {
    pub(super) fn new(
        (workbench, plain): (Workbench, PathBuf),
        vocab: usize,
        count: usize,
    ) -> Self {
        let bundle = workbench.folder().join("baked.heg");
        // The second state has the first one's first page.
        let long = prompts(1, vocab)[0]
            .iter()
            .chain(&prompts(80, vocab).concat())
            .copied()
            .collect::<Vec<u32>>();
        let first: Vec<u32> = long[..FIRST].to_vec();
        let mut second = first[..PAGE_TOKENS + 5].to_vec();
        second.extend(first.iter().rev().take(PAGE_TOKENS));
        fs::copy(&plain, &bundle).unwrap();
        for (name, tokens) in [("mail", &first), ("notes", &second)] {
            write_state(&bundle, name, tokens, Activations::I8);
        }
        let (mut all, mut baked) = (Vec::new(), Vec::new());
        for (at, rest) in prompts(count, vocab).into_iter().enumerate() {
            // All of a state, less than it, its whole pages, or another beginning.
            let begins = match at % 5 {
                0 => &first[..],
                1 => &second[..],
                2 => &first[..2 * PAGE_TOKENS + 3],
                3 => &first[..3 * PAGE_TOKENS],
                _ => &first[1..],
            };
            let prompt: Vec<u32> = match at % 20 {
                3 | 5 => begins.to_vec(),
                _ => [begins, &rest].concat(),
            };
            let common = |state: &[u32]| {
                let same = state.iter().zip(&prompt).take_while(|(a, b)| a == b);
                same.count()
            };
            let tokens = common(&first).max(common(&second));
            let tokens = match tokens < PAGE_TOKENS {
                true => 0,
                false => tokens.min(prompt.len() - 1),
            };
            baked.push(tokens as u32);
            all.push(prompt);
        }
        Self {
            _workbench: workbench,
            plain,
            bundle,
            prompts: all,
            baked,
        }
    }

    fn tiny_agent(count: usize) -> Self {
        Self::new(tiny_agent(), 2048, count)
    }

    fn expected(&self) -> Vec<Answer> {
        alone(&self.plain, &self.prompts)
    }

    /// Asks all prompts at once, of either class, and compares the answers; returns the endings.
    fn ask_all(&self, engine: &Engine, expected: &[Answer], name: &str) -> Vec<Ending> {
        let ask = |(at, prompt): (usize, &Vec<u32>)| {
            let class = [Class::Reactive, Class::Proactive][at % 2];
            engine.generate(request(class, prompt))
        };
        let asked: Vec<Generation> = self.prompts.iter().enumerate().map(ask).collect();
        let answered = asked.into_iter().zip(expected).enumerate();
        let answered = answered.map(|(at, (generation, expected))| {
            let (answer, ending) = wait(generation);
            assert_eq!(&answer, expected, "{name}, prompt {at}");
            ending
        });
        answered.collect()
    }
}

/// Bakes a state into a bundle, in place.
fn write_state(bundle: &Path, name: &str, tokens: &[u32], activations: Activations) {
    let loaded = Loaded::open(bundle).unwrap();
    let options = ExecutorOptions {
        chunk_tokens: 50,
        ..ExecutorOptions::default()
    };
    let soc = soc(super::PLAIN, activations);
    let mut executor = loaded.executor(&soc, options).unwrap();
    let beginning = Beginning {
        messages: Vec::new(),
        tools: Vec::new(),
    };
    let baking = bake(&mut executor, name, &beginning, tokens).unwrap();
    baking.write(&loaded, bundle, &|_| ()).unwrap();
}

/// An engine as a server would run it.
fn engine(
    bundle: &Path,
    soc: &Soc,
    policy: Policy,
    (speculation, baked): (Speculation, StateChoice),
) -> Engine {
    let loader = Loaded::open(bundle).unwrap().loader(soc).unwrap();
    let options = EngineOptions {
        exec: ExecutorOptions {
            chunk_tokens: 32,
            ..ExecutorOptions::default()
        },
        speculation,
        baked,
        ..EngineOptions::default()
    };
    let engine = Engine::start(loader, policy, options).unwrap();
    engine.wait_ready().unwrap();
    engine
}

fn plain_engine(bundle: &Path) -> Engine {
    let choice = (Speculation::Off, StateChoice::Any);
    engine(bundle, &this_machine(), policy(ONE_DEVICE), choice)
}

fn status(engine: &Engine) -> BakedStatus {
    engine.status().unwrap().baked.unwrap()
}

fn baked(endings: &[Ending]) -> Vec<u32> {
    endings.iter().map(|ending| ending.baked_tokens).collect()
}

/// Checks a model under each policy and kind of draft. Prompts of one class are preempted by those of the other.
pub(super) fn check(subject: &Subject) {
    let expected = subject.expected();
    let ways = [
        (ONE_DEVICE, Speculation::Off),
        (ONE_DEVICE, Speculation::Tree),
        ("cpu-continuous-batching", Speculation::Chain),
    ];
    for (name, speculation) in ways {
        let choice = (speculation, StateChoice::Any);
        let engine = engine(&subject.bundle, &this_machine(), policy(name), choice);
        assert_eq!(engine.passed_states(), []);
        let endings = subject.ask_all(&engine, &expected, name);
        for (at, (ending, baked)) in endings.iter().zip(&subject.baked).enumerate() {
            // What an earlier prompt left in memory may be longer.
            let reused = (ending.baked_tokens, ending.reused_tokens);
            let from_memory = ending.baked_tokens == 0 && ending.reused_tokens > 0;
            assert!(
                from_memory || reused.0 == *baked,
                "{name}, prompt {at}: {reused:?}"
            );
        }
        let all: u32 = baked(&endings).iter().sum();
        let status = status(&engine);
        let read: u64 = status.read_tokens.iter().map(|(_, tokens)| tokens).sum();
        println!("{name}, {speculation:?}: {status:?}");
        assert_eq!((read, status.damaged), (u64::from(all), 0));
        assert!(all > 0 && status.read_tokens.len() == 2);
    }
}

#[test]
fn tiny_agent_says_the_same_behind_baked_states() {
    check(&Subject::tiny_agent(count(200, 24)));
}

#[test]
fn smollm2_says_the_same_behind_baked_states() {
    if let Some(model) = smollm2() {
        check(&Subject::new(model, SMOLLM2_VOCAB, count(20, 3)));
    }
}

/// One after the other, each with a seed of its own, on a lane for one request at a time.
#[test]
fn sampled_answers_are_the_same() {
    let subject = Subject::tiny_agent(20);
    let answers = |baked: StateChoice| {
        let soc = this_machine();
        let loader = Loaded::open(&subject.bundle).unwrap().loader(&soc).unwrap();
        let options = EngineOptions {
            baked,
            ..EngineOptions::default()
        };
        let engine = Engine::start_single_with(loader, options).unwrap();
        let answers = subject.prompts.iter().zip(0..).map(|(prompt, seed)| {
            let sampling = SamplingParams {
                temperature: 1.0,
                seed,
                ..SamplingParams::default()
            };
            let asked = Request {
                sampling,
                tokens_max: 24,
                ..request(Class::Reactive, prompt)
            };
            let (answer, ending) = wait(engine.generate(asked));
            (answer, ending.baked_tokens)
        });
        answers.unzip::<Answer, u32, Vec<Answer>, Vec<u32>>()
    };
    let (without, none) = answers(StateChoice::Off);
    let (with, tokens) = answers(StateChoice::Any);
    let (named, of_one) = answers(StateChoice::Named("notes".to_owned()));
    assert!(without == with && without == named);
    assert_eq!(none, vec![0; 20]);
    let sum = |tokens: &[u32]| tokens.iter().sum::<u32>();
    println!("{tokens:?} {of_one:?}");
    assert!(sum(&tokens) > sum(&of_one) && sum(&of_one) > 0);
}

#[test]
fn a_state_that_is_not_there_is_named_with_those_that_are() {
    let subject = Subject::tiny_agent(1);
    let loader = Loaded::open(&subject.bundle).unwrap();
    let loader = loader.loader(&this_machine()).unwrap();
    let options = EngineOptions {
        baked: StateChoice::Named("main".to_owned()),
        ..EngineOptions::default()
    };
    let refused = Engine::start_single_with(loader, options).err().unwrap();
    assert_eq!(
        refused.to_string(),
        "the bundle has no state `main`, expected one of `mail`, `notes`"
    );
}

#[test]
fn a_beginning_comes_back_and_nonsense_is_refused() {
    let subject = Subject::tiny_agent(1);
    let loaded = Loaded::open(&subject.bundle).unwrap();
    let none = Beginning {
        messages: Vec::new(),
        tools: Vec::new(),
    };
    assert_eq!(loaded.beginning("mail").unwrap(), none);
    let text = b"{\"messages\": 5}".to_vec();
    let section = Section {
        id: SectionId::of(&text),
        bytes: text.len() as u64,
    };
    let manifest = loaded.bundle().manifest();
    let mut state = manifest.states[0].clone();
    state.beginning = section.id;
    let manifest = with_state(manifest, state, &[section]);
    write_amended(
        &subject.bundle,
        &manifest,
        loaded.bundle(),
        &[text],
        &|_| (),
    )
    .unwrap();
    let refused = Loaded::open(&subject.bundle).unwrap().beginning("mail");
    let refused = refused.unwrap_err();
    assert_eq!(refused.exit_status() as u8, 3);
    assert_eq!(
        refused.chain(),
        "state `mail` has messages that cannot be read: invalid type: integer `5`, expected a sequence at line 1 column 14"
    );
}

/// Pages of a state are for everyone; what is longer in kept state goes before, for its owner.
#[test]
fn the_longer_of_kept_and_baked_wins() {
    let subject = Subject::tiny_agent(5);
    let expected = subject.expected();
    let folder = tempfile::tempdir().unwrap();
    let ask = |owner: StateOwner| {
        let kept = StateFolder::open(folder.path(), KeptLimits::of_mib(64)).unwrap();
        let loader = Loaded::open(&subject.bundle).unwrap();
        let options = EngineOptions {
            state: Some(Arc::new(kept)),
            ..EngineOptions::default()
        };
        let loader = loader.loader(&this_machine()).unwrap();
        let engine = Engine::start(loader, policy(ONE_DEVICE), options).unwrap();
        let endings = subject
            .prompts
            .iter()
            .zip(&expected)
            .map(|(prompt, expected)| {
                let asked = Request {
                    state: Some(owner),
                    flow: Some(engine.new_flow()),
                    ..request(Class::Reactive, prompt)
                };
                let (answer, ending) = wait(engine.generate(asked));
                assert_eq!(answer, *expected);
                (ending.kept_tokens, ending.baked_tokens)
            });
        endings.collect::<Vec<_>>()
    };
    let only_baked = |of: &[(u32, u32)]| {
        let baked: Vec<u32> = of.iter().map(|(_, baked)| *baked).collect();
        assert_eq!(baked, subject.baked);
        assert!(of.iter().all(|(kept, _)| *kept == 0));
    };
    let ann = StateOwner::new("client", b"ann");
    only_baked(&ask(ann));
    for ((kept, baked), prompt) in ask(ann).into_iter().zip(&subject.prompts) {
        let whole = (prompt.len() / PAGE_TOKENS * PAGE_TOKENS).min(prompt.len() - 1) as u32;
        assert!(kept.max(baked) >= whole, "{kept} {baked}");
        assert!(kept == 0 || baked == 0);
    }
    only_baked(&ask(StateOwner::new("client", b"ben")));
}

#[test]
fn a_damaged_page_costs_time_and_no_token() {
    let subject = Subject::tiny_agent(20);
    let expected = subject.expected();
    let whole = Bundle::open(&subject.bundle).unwrap();
    let mail = &whole.manifest().states[0];
    for (page, begins) in [(0, 0), (2, 2)] {
        let range = whole.section_range(mail.pages[page]).unwrap();
        let mut bytes = fs::read(&subject.bundle).unwrap();
        bytes[range.end as usize - 5] ^= 4;
        reseal(&mut bytes);
        let damaged = subject.bundle.with_file_name("damaged.heg");
        fs::write(&damaged, bytes).unwrap();
        let engine = plain_engine(&damaged);
        let first = subject.ask_all(&engine, &expected, "damaged");
        let seen = status(&engine);
        println!("{:?} {seen:?}", baked(&first));
        let trouble = seen.trouble.unwrap();
        assert!(seen.damaged > 0 && trouble.contains("blake3"), "{trouble}");
        let named = format!("page {page} of a baked state is damaged");
        assert!(trouble.contains(&named), "{trouble}");
        // From then on the state ends before that page.
        let again = wait(engine.generate(request(Class::Reactive, &subject.prompts[0]))).1;
        assert!(again.baked_tokens <= begins * PAGE_TOKENS as u32);
        assert_eq!(status(&engine).damaged, seen.damaged);
    }
}

/// A page of another place, or of other tokens, has a right hash and a wrong head.
#[test]
fn a_page_in_a_wrong_place_is_not_used() {
    let subject = Subject::tiny_agent(20);
    let expected = subject.expected();
    let mut bytes = fs::read(&subject.bundle).unwrap();
    let whole = Bundle::open(&subject.bundle).unwrap();
    let [mail, notes] = &whole.manifest().states[..] else {
        panic!("two states");
    };
    assert_eq!(
        mail.pages[0], notes.pages[0],
        "pages of one beginning are shared"
    );
    let swap = |bytes: &mut Vec<u8>, a: SectionId, b: SectionId| {
        let text = whole.mapping()[4096..].to_vec();
        let (a, b) = (a.to_string(), b.to_string());
        let find = |what: &str| {
            let at = text.windows(what.len()).position(|w| w == what.as_bytes());
            4096 + at.unwrap()
        };
        // The state lists its pages before the sections are listed.
        let (at_a, at_b) = (find(&a), find(&b));
        bytes[at_a..at_a + a.len()].copy_from_slice(b.as_bytes());
        bytes[at_b..at_b + b.len()].copy_from_slice(a.as_bytes());
    };
    swap(&mut bytes, mail.pages[1], mail.pages[2]);
    reseal(&mut bytes);
    let wrong = subject.bundle.with_file_name("wrong.heg");
    fs::write(&wrong, bytes).unwrap();
    let engine = plain_engine(&wrong);
    subject.ask_all(&engine, &expected, "swapped");
    let seen = status(&engine);
    let trouble = seen.trouble.unwrap();
    assert!(trouble.contains("another head"), "{trouble}");
}

/// Another form of arithmetic, another model: a descent, or a miss, and an ordinary prefill.
#[test]
fn a_state_of_another_form_is_passed_over_with_its_reason() {
    let subject = Subject::tiny_agent(5);
    let other = subject.bundle.with_file_name("other.heg");
    fs::copy(&subject.plain, &other).unwrap();
    write_state(&other, "mail", &subject.prompts[0], Activations::I16);
    let engine = plain_engine(&other);
    let endings = subject.ask_all(&engine, &subject.expected(), "another form");
    assert_eq!(baked(&endings), [0; 5]);
    let passed = summary(engine.passed_states());
    assert_eq!(
        passed,
        [
            "state `mail`: CPU pages -> CPU prefill: baked with I16 activations, Bf16 keys and values, arithmetic 2; here \
          devices have I8 activations, Bf16 keys and values, arithmetic 2"
        ]
    );
    assert!(
        engine
            .descents()
            .iter()
            .any(|it| it.kernel == "state `mail`")
    );
}

#[test]
fn a_gpu_goes_on_behind_what_a_cpu_baked() {
    if !gpu_or_skip("a_gpu_goes_on_behind_what_a_cpu_baked") {
        return;
    }
    let subject = Subject::tiny_agent(count(24, 4));
    let gpu = shipped::soc("host-gpu").unwrap();
    let choice = (Speculation::Off, StateChoice::Any);
    let engine = engine(&subject.bundle, &gpu, policy(ONE_DEVICE), choice);
    let endings = subject.ask_all(&engine, &subject.expected(), "on a GPU");
    assert!(baked(&endings).iter().sum::<u32>() > 0);
}

/// The bits of a revision of the arithmetic, in the whole pages of a state. Where a test of them fails, raise
/// `ARITHMETIC_REVISION` of `heg-cpu`: states that were baked with the one before must not be used any more.
pub(super) fn bits_of_revision(subject: &Subject) -> String {
    let bundle = Bundle::open(&subject.bundle).unwrap();
    let state = &bundle.manifest().states[0];
    let whole = state.tokens.len() / PAGE_TOKENS;
    let rows: Vec<u8> = state
        .pages
        .iter()
        .take(whole)
        .flat_map(|page| bundle.section(*page).unwrap()[4096..].to_vec())
        .collect();
    format!(
        "revision {}: {}",
        state.form.arithmetic,
        SectionId::of(&rows)
    )
}

#[test]
fn bits_of_a_state_are_those_of_their_revision() {
    let pinned = bits_of_revision(&Subject::tiny_agent(1));
    insta::assert_snapshot!(pinned, @"revision 2: d16cb2f25d6176443bf75d1c38f4f6ca64187a1a9aaf058cee26c80d8273d1ac");
}
