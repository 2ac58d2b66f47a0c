//! Histories of earlier answers: full, switched off, and kept over a restart.

use heg_runtime::Loaded;
use heg_runtime::engine::{Engine, Request, ScopeId, Speculation};
use heg_runtime::history::{PastAnswers, TokenSet};
use heg_spec::policy::DraftPolicy;
use heg_spec::{WeightForm, shipped};

use super::{Subject, answer, request};

/// Returns the answers to the first prompts, and the number of decode steps that they took.
fn answers(engine: &Engine, subject: &Subject) -> (Vec<Vec<u32>>, u32) {
    let mut steps = 0;
    let asked = subject.prompts.iter().take(PROMPTS).enumerate();
    let answers = asked.map(|(at, prompt)| {
        let (tokens, ending) = answer(engine.generate(request(at, prompt)));
        steps += ending.drafts.map_or(0, |drafts| drafts.steps);
        tokens
    });
    (answers.collect(), steps)
}

const PROMPTS: usize = 8;

/// Returns the history of a subject, as if read from a file.
fn history(subject: &Subject) -> PastAnswers {
    let loaded = Loaded::open(&subject.bundle).unwrap();
    PastAnswers::new(TokenSet::of(loaded.bundle()))
}

#[test]
fn answers_are_the_same_after_a_restart_and_take_fewer_steps() {
    let subject = Subject::tiny_agent(WeightForm::W8A16);
    let (expected, first) = answers(&subject.engine(Speculation::Chain), &subject);
    let mut kept = history(&subject);
    for (prompt, answer) in subject.prompts.iter().zip(&expected) {
        kept.add(prompt, answer);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("history.json");
    kept.write(&file).unwrap();
    let loaded = Loaded::open(&subject.bundle).unwrap();
    let read = PastAnswers::read(&file, TokenSet::of(loaded.bundle())).unwrap();
    let again = subject.engine(Speculation::Chain);
    again.recall(ScopeId::default(), &read);
    let (found, second) = answers(&again, &subject);
    assert_eq!(found, expected);
    println!("{first} steps, {second} after a restart");
    assert!(second < first, "{second} of {first}");
}

#[test]
fn a_full_history_changes_no_answer() {
    let subject = Subject::tiny_agent(WeightForm::W8A16);
    let (expected, _) = answers(&subject.engine(Speculation::Off), &subject);
    let mut full = history(&subject);
    // Twice the capacity of the history: its contents are the answers, with a wrong token now and then.
    let vocab = subject.engine(Speculation::Off).manifest().model.vocab;
    for at in 0..4000_u32 {
        let mut answer = expected[at as usize % expected.len()].clone();
        let wrong = at as usize % answer.len();
        answer[wrong] = (answer[wrong] + 1 + at) % vocab;
        full.add(&subject.prompts[at as usize % PROMPTS], &answer);
    }
    assert!(full.iter().count() < 4000);
    for speculation in [Speculation::Chain, Speculation::Tree] {
        let drafting = subject.engine(speculation);
        drafting.recall(ScopeId::default(), &full);
        assert_eq!(answers(&drafting, &subject).0, expected, "{speculation:?}");
    }
}

#[test]
fn without_drafts_a_history_does_nothing() {
    let subject = Subject::tiny_agent(WeightForm::W8A16);
    let plain = subject.engine(Speculation::Off);
    let (expected, _) = answers(&plain, &subject);
    let mut kept = history(&subject);
    kept.add(&subject.prompts[0], &expected[0]);
    let recalled = subject.engine(Speculation::Off);
    recalled.recall(ScopeId::default(), &kept);
    assert_eq!(answers(&recalled, &subject), (expected, 0));
    assert_eq!(recalled.status().unwrap().drafted_tokens, 0);
}

/// Clients that share prefixes may know each other's prompts. Drafts used to reveal whether another client got an
/// answer that continues a text.
#[test]
fn answers_of_others_are_not_drafted_where_prefixes_are_shared() {
    let subject = Subject::tiny_agent(WeightForm::W8A16);
    let mut policy = shipped::policy("agent-xpu-one-device").unwrap();
    // Drafts come only from earlier answers.
    policy.drafts = DraftPolicy {
        context: false,
        prediction: false,
        grammar: false,
        reuse: false,
        calibration: false,
        history: true,
        // However long rows take.
        fixed_tokens: Some(8),
        ..DraftPolicy::default()
    };
    let (engine, _) = subject.engine_under(policy, Speculation::Chain, None);
    let ask = |scope: u64, prompt: &[u32]| {
        answer(engine.generate(Request {
            scope: ScopeId(scope),
            prefixes: Some(ScopeId(0)),
            tokens_max: 24,
            ..Request::reactive(prompt.to_vec())
        }))
    };
    let (alice, mut mallory) = (1, 100);
    let (mut drafted, mut reused) = ([0; 2], 0);
    for prompt in subject.prompts.iter().take(PROMPTS) {
        // A new client each time, with no answers of its own.
        mallory += 1;
        let (said, _) = ask(alice, prompt);
        // The beginning of Alice's answer, guessed right.
        let guess = [prompt, said.get(..said.len() / 2).unwrap_or_default()].concat();
        for (scope, drafted) in [mallory, alice].into_iter().zip(&mut drafted) {
            let (tokens, ending) = ask(scope, &guess);
            let counts = ending.drafts.unwrap();
            *drafted += counts.drafted_tokens;
            reused += ending.reused_tokens;
            assert!(!tokens.is_empty());
        }
    }
    assert_eq!(drafted[0], 0, "of another's answers");
    assert!(drafted[1] > 0, "of one's own");
    assert!(reused > 0, "prefixes are shared");
}
