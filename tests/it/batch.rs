//! Batched decode: a sequence gets the same tokens in a batch as alone, whichever other sequences join, leave, or go
//! back.
//!
//! The prompts are golden ones, on whose greedy paths the best token leads by far more than a batch's different order
//! of additions can change.

use std::path::Path;

use heg_runtime::exec::{Executor, Sequence};
use heg_sched::{Logits, chunks};
use heg_spec::WeightForm;
use heg_tests::golden;
use heg_tests::{Seeded, Workbench, executor, fixture, greedy, openvino_or_skip};

/// A prompt with its greedy answer: `tokens` holds both.
struct Reference {
    prompt_tokens: usize,
    tokens: Vec<u32>,
}

/// The common start of all tests in this file.
struct Fixture {
    executor: Executor,
    references: Vec<Reference>,
}

impl Fixture {
    /// Compiles tiny-agent in f32 and answers 12 prompts, each alone.
    fn new(workbench: &Workbench, soc: &str) -> Self {
        let f32 = |spec: &mut heg_spec::ModelSpec| spec.weights = WeightForm::F32;
        let (bundle, _) = workbench
            .compile(&fixture("tiny-agent"), "tiny-agent", f32)
            .unwrap();
        let mut executor = executor(&bundle, soc, CHUNK_TOKENS).unwrap();
        let references = prompts(&fixture("tiny-agent"))
            .into_iter()
            .take(PROMPTS)
            .map(|prompt| {
                let mut sequence = executor.sequence().unwrap();
                let answer = greedy(&mut executor, &mut sequence, &prompt, ANSWER_TOKENS).unwrap();
                Reference {
                    prompt_tokens: prompt.len(),
                    tokens: [prompt, answer].concat(),
                }
            })
            .collect();
        Self {
            executor,
            references,
        }
    }

    /// Returns a sequence that holds the first `tokens` tokens of a reference: a prompt, or more.
    fn prefilled(&mut self, reference: usize, tokens: usize) -> Active {
        let mut active = Active {
            sequence: self.executor.sequence().unwrap(),
            reference,
        };
        self.append(&mut active, tokens);
        active
    }

    /// Prefills further tokens of the reference, in chunks, and checks the one that follows them.
    fn append(&mut self, active: &mut Active, tokens: usize) {
        let position = active.sequence.tokens();
        let reference = &self.references[active.reference];
        for chunk in chunks(tokens, self.executor.options().chunk_tokens) {
            let given = &reference.tokens[position + chunk.start..position + chunk.end];
            let logits = self
                .executor
                .prefill(&mut active.sequence, given, Logits::LastRows)
                .unwrap();
            let next = position + chunk.end;
            if next >= reference.prompt_tokens {
                let expected = reference.tokens.get(next);
                assert!(expected.is_none_or(|token| *token == largest(logits)));
            }
        }
    }

    /// Runs one step of a batch: each sequence gets its reference's next token, and must predict the one after that.
    fn decode(&mut self, batch: &mut [&mut Active]) {
        let given: Vec<u32> = batch
            .iter()
            .map(|active| self.references[active.reference].tokens[active.sequence.tokens()])
            .collect();
        let mut sequences: Vec<&mut Sequence> = batch
            .iter_mut()
            .map(|active| &mut active.sequence)
            .collect();
        let logits = self.executor.decode(&mut sequences, &given).unwrap();
        let vocab = logits.len() / given.len();
        let found: Vec<u32> = logits.chunks(vocab).map(largest).collect();
        for (index, active) in batch.iter().enumerate() {
            let (reference, next) = (&self.references[active.reference], active.sequence.tokens());
            if let Some(expected) = reference.tokens.get(next) {
                assert_eq!(
                    found[index],
                    *expected,
                    "token {next} of reference {}, at {index} of {}",
                    active.reference,
                    batch.len()
                );
            }
        }
    }

    /// Returns the number of tokens of a sequence that are still to be decoded.
    fn rest(&self, active: &Active) -> usize {
        self.references[active.reference].tokens.len() - active.sequence.tokens()
    }
}

/// A sequence on its way along a reference.
struct Active {
    sequence: Sequence,
    reference: usize,
}

/// Golden prompts in an order that puts different lengths beside each other.
fn prompts(model: &Path) -> Vec<Vec<u32>> {
    let prompts = golden::prompts(model).unwrap();
    let mut lengths: Vec<usize> = prompts.iter().map(Vec::len).collect();
    lengths.dedup();
    assert_eq!(lengths.len(), prompts.len(), "neighbours differ in length");
    prompts
}

/// Returns the token of the largest logit, the first among equals.
fn largest(logits: &[f32]) -> u32 {
    let best = |best: usize, (index, logit): (usize, &f32)| {
        if *logit > logits[best] { index } else { best }
    };
    logits.iter().enumerate().fold(0, best) as u32
}

/// Runs all checks on one device set, as compiling takes longer than running.
fn check(soc: &str) {
    if soc == "host-roles-openvino" && !openvino_or_skip(soc) {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let mut fixture = Fixture::new(&workbench, soc);
    for size in [1, 2, 5, 8] {
        check_batch(&mut fixture, size);
    }
    check_joining_and_leaving(&mut fixture);
    check_truncated(&mut fixture);
    check_refused(&mut fixture);
    for seed in [1, 2, 3] {
        println!("{soc}, seed {seed}");
        check_schedule(&mut fixture, seed);
    }
}

/// Checks sequences of one batch from beginning to end.
fn check_batch(fixture: &mut Fixture, size: usize) {
    let mut active: Vec<Active> = (0..size)
        .map(|reference| {
            let tokens = fixture.references[reference].prompt_tokens;
            fixture.prefilled(reference, tokens)
        })
        .collect();
    for _ in 0..ANSWER_TOKENS {
        let mut batch: Vec<&mut Active> = active.iter_mut().collect();
        fixture.decode(&mut batch);
    }
}

/// Checks a batch in which a sequence joins every second step, at the front, and the one at the back leaves when it is
/// done.
fn check_joining_and_leaving(fixture: &mut Fixture) {
    let mut active: Vec<Active> = Vec::new();
    for step in 0..PROMPTS {
        let tokens = fixture.references[step].prompt_tokens;
        let joining = fixture.prefilled(step, tokens);
        active.insert(0, joining);
        for _ in 0..2 {
            active.retain(|active| fixture.rest(active) > 0);
            active.truncate(BATCH);
            let mut batch: Vec<&mut Active> = active.iter_mut().collect();
            fixture.decode(&mut batch);
        }
    }
}

/// Checks that a sequence truncated to any earlier point, even into the prompt, continues as if nothing had happened.
fn check_truncated(fixture: &mut Fixture) {
    let prompt = fixture.references[0].prompt_tokens;
    let all = fixture.references[0].tokens.len();
    let mut active = fixture.prefilled(0, all);
    for kept in [all - 1, prompt + 1, prompt, prompt - 1, 33, 32, 1, 0] {
        active.sequence.truncate(kept);
        assert_eq!(active.sequence.tokens(), kept);
        // Rows beyond the truncation must no longer be seen, so other tokens are written there first.
        let detour = &fixture.references[1].tokens[..3];
        let detoured = fixture
            .executor
            .prefill(&mut active.sequence, detour, Logits::None);
        detoured.unwrap();
        active.sequence.truncate(kept);
        fixture.append(&mut active, all - kept);
    }
    active.sequence.truncate(usize::MAX);
    assert_eq!(active.sequence.tokens(), all, "more than there is");
}

/// Checks that a batch that is too large is refused as a whole, and its sequences go on.
fn check_refused(fixture: &mut Fixture) {
    let mut active: Vec<Active> = (0..=BATCH).map(|_| fixture.prefilled(2, 40)).collect();
    let mut sequences: Vec<&mut Sequence> = active
        .iter_mut()
        .map(|active| &mut active.sequence)
        .collect();
    let error = fixture
        .executor
        .decode(&mut sequences, &[5; BATCH + 1])
        .unwrap_err();
    assert!(error.to_string().starts_with("a batch of 9 "), "{error}");
    // So is one with a token that does not exist: none of its sequences has advanced.
    let error = fixture
        .executor
        .decode(&mut sequences[..2], &[5, u32::MAX])
        .unwrap_err();
    assert!(error.to_string().starts_with("token 4294967295"), "{error}");
    let tokens = fixture.references[2].prompt_tokens - 40;
    for active in &mut active {
        assert_eq!(active.sequence.tokens(), 40);
        fixture.append(active, tokens);
    }
}

/// Checks that each sequence stays on its path, whatever the schedule.
fn check_schedule(fixture: &mut Fixture, seed: u64) {
    let mut random = Seeded::new(seed);
    let mut active: Vec<Active> = Vec::new();
    for _ in 0..STEPS {
        active.retain(|active| fixture.rest(active) > 0);
        match random.below(10) {
            0..2 if active.len() < 2 * BATCH => {
                let reference = random.below(PROMPTS);
                let prompt = fixture.references[reference].prompt_tokens;
                let tokens = prompt + random.below(ANSWER_TOKENS / 2);
                active.push(fixture.prefilled(reference, tokens));
            }
            2 if !active.is_empty() => {
                active.swap_remove(random.below(active.len()));
            }
            3 if !active.is_empty() => {
                let index = random.below(active.len());
                let prompt = fixture.references[active[index].reference].prompt_tokens;
                let kept = random.within(prompt..active[index].sequence.tokens() + 1);
                active[index].sequence.truncate(kept);
            }
            _ => {
                let mut batch: Vec<&mut Active> = active.iter_mut().collect();
                random.shuffle(&mut batch);
                batch.truncate(random.within(1..BATCH + 1));
                if !batch.is_empty() {
                    fixture.decode(&mut batch);
                }
            }
        }
    }
}

#[test]
fn batches_on_one_lane() {
    check("host-cpu-f32");
}

#[test]
fn batches_on_two_lanes() {
    check("host-roles");
}

#[test]
fn batches_with_weights_as_inputs() {
    check("host-roles-openvino");
}

/// Largest batch of the tests' executor.
const BATCH: usize = 8;

/// Chunk size, smaller than all prompts, so that these come in several chunks.
const CHUNK_TOKENS: usize = 64;

/// Number of references: golden prompts with their answers.
const PROMPTS: usize = 12;

/// Number of tokens of each answer, stop token ignored.
const ANSWER_TOKENS: usize = 16;

/// Number of steps of a schedule: joining, leaving, going back, decoding.
const STEPS: usize = 50;

/// Logits of a prompt in chunks, and of a few tokens after it, as bits.
fn bits(bundle: &Path, soc: &str) -> Vec<u32> {
    let mut executor = executor(bundle, soc, 16).unwrap();
    let prompt: Vec<u32> = (0..40).map(|at| 5 + at * at % 200).collect();
    let mut sequence = executor.sequence().unwrap();
    let mut all = Vec::new();
    for chunk in chunks(prompt.len(), 16) {
        let tokens = &prompt[chunk];
        let logits = executor.prefill(&mut sequence, tokens, Logits::LastRows);
        all.extend_from_slice(logits.unwrap());
    }
    for token in [7, 300, 12] {
        let logits = executor.decode(&mut [&mut sequence], &[token]);
        all.extend_from_slice(logits.unwrap());
    }
    all.into_iter().map(f32::to_bits).collect()
}

#[test]
fn two_lanes_compute_the_bits_of_one() {
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "w8a16", |_| ());
    let bundle = compiled.unwrap().0;
    assert!(bits(&bundle, "host-roles") == bits(&bundle, "host-cpu"));
}
