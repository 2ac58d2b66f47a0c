//! Histories of earlier answers: full, switched off, and kept over a restart.

use heg_runtime::Loaded;
use heg_runtime::engine::{Engine, ScopeId, Speculation};
use heg_runtime::history::{PastAnswers, TokenSet};
use heg_spec::WeightForm;

use super::{Subject, answer, request};

/// The answers to the first prompts, and the decode steps that they took.
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

/// The history of a subject, as a file of it would be read.
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
    // Twice what it keeps: what stands in it is what the answers say, with a wrong token now and then.
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
