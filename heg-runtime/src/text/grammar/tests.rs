//! Forms on tiny-agent's vocabulary.

use super::super::random::Xoshiro256;
use super::super::tokenizer::tests::tiny_agent;
use super::super::tools::ArgumentsKey;
use super::super::{Sampler, SamplingParams};
use super::*;

const EOS: u32 = 2041;

fn grammars() -> Grammars {
    Grammars::new(&tiny_agent(), &[EOS]).unwrap()
}

/// Whether a text is an answer of this form, and whether it may only end after it.
fn accepts(mut grammar: Grammar, text: &str) -> Option<Answer> {
    let tokenizer = tiny_agent();
    let mut answer = Answer::Open;
    let mut logits = vec![0.0; 2048];
    for token in tokenizer
        .encode(text, super::super::Special::AsWritten)
        .unwrap()
    {
        logits.fill(0.0);
        grammar.restrict(&mut logits).ok()?;
        if logits[token as usize] != 0.0 {
            return None;
        }
        answer = grammar.chosen(token).unwrap();
    }
    logits.fill(0.0);
    grammar.restrict(&mut logits).ok()?;
    (logits[EOS as usize] == 0.0).then_some(answer)
}

#[test]
fn smoke() {
    let g = grammars();
    let schema = json!({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false});
    assert_eq!(
        accepts(g.json_schema(&schema).unwrap(), r#"{"a": 1}"#),
        Some(Answer::Complete)
    );
    assert_eq!(
        accepts(g.json_schema(&schema).unwrap(), r#"{"a":"1"}"#),
        None
    );
    assert_eq!(accepts(g.json_schema(&schema).unwrap(), r#"{"a":1"#), None);
    assert_eq!(
        accepts(g.json_object().unwrap(), r#"{"a":{"b":[1,null]}}"#),
        Some(Answer::Complete)
    );
    assert_eq!(
        accepts(g.regex("[a-c]+").unwrap(), "abc"),
        Some(Answer::Open)
    );
}
