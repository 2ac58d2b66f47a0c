//! Drafts at the end of an answer, of a context, or of a request.

use heg_runtime::engine::{EndTokens, FinishReason, Request, Speculation, Update};
use heg_sched::Class;
use heg_spec::WeightForm;

use super::{Subject, answer, request};

/// Prompts that repeat themselves, so that answers are drafted from the first token on.
fn repeated(subject: &Subject) -> Vec<u32> {
    let prompt = &subject.prompts[0];
    [prompt.as_slice(), prompt].concat()
}

#[test]
fn answers_end_where_they_end_without_drafts() {
    let subject = Subject::tiny_agent(WeightForm::W8A16);
    let plain = subject.engine(Speculation::Off);
    let drafting = subject.engine(Speculation::Tree);
    let context = drafting.manifest().model.context_tokens as usize;
    let prompt = repeated(&subject);
    let long: Vec<u32> = prompt.iter().copied().cycle().take(context - 5).collect();
    for (prompt, tokens_max) in [
        (prompt.as_slice(), 1),
        (&prompt, 2),
        (&prompt, 3),
        (&prompt, 300),
        (&prompt[..1], 20),
        (&long, 1000),
    ] {
        for end_tokens in [EndTokens::End, EndTokens::Ignored] {
            let ask = || Request {
                tokens_max,
                end_tokens,
                ..Request::new(Class::Reactive, prompt.to_vec())
            };
            let (expected, before) = answer(plain.generate(ask()));
            let (found, after) = answer(drafting.generate(ask()));
            let what = format!("{} tokens, at most {tokens_max}", prompt.len());
            assert_eq!(found, expected, "{what}");
            assert_eq!(after.reason, before.reason, "{what}");
            if tokens_max == 1000 && end_tokens == EndTokens::Ignored {
                assert_eq!(after.reason, FinishReason::Length, "{what}");
            }
        }
    }
}

#[test]
fn a_request_may_be_given_up_amid_a_verification() {
    let subject = Subject::tiny_agent(WeightForm::W8A16);
    let drafting = subject.engine(Speculation::Tree);
    let prompt = repeated(&subject);
    let ask = || Request {
        tokens_max: 200,
        end_tokens: EndTokens::Ignored,
        ..Request::new(Class::Reactive, prompt.clone())
    };
    let (expected, _) = answer(drafting.generate(ask()));
    for tokens in 1..20 {
        let mut generation = drafting.generate(ask());
        let mut heard = 0;
        while heard < tokens {
            if let Update::Token { id, .. } = generation.next().unwrap() {
                assert_eq!(id, expected[heard]);
                heard += 1;
            }
        }
    }
    assert_eq!(answer(drafting.generate(ask())).0, expected);
}

/// A request may choose less drafting than the engine does, and nothing that the engine does not do.
#[test]
fn a_request_chooses_how_it_is_drafted() {
    let subject = Subject::tiny_agent(WeightForm::W8A16);
    for (engine, asked, is_drafted) in [
        (Speculation::Off, Speculation::Tree, false),
        (Speculation::Chain, Speculation::Off, false),
        (Speculation::Tree, Speculation::Chain, true),
    ] {
        let engine = subject.engine(engine);
        let (_, ending) = answer(engine.generate(Request {
            speculation: Some(asked),
            ..request(0, &repeated(&subject))
        }));
        assert_eq!(ending.drafts.is_some(), is_drafted);
    }
}
