//! Reads arbitrary text as a JSON schema, as the arguments of a tool, and as a regular expression.
//!
//! An accepted form must allow a token at each step, or report that it cannot go on; a complete answer must parse.
//! libFuzzer's own limits bound the compiler's time and memory.

use std::sync::{Arc, LazyLock};

use heg_text::{
    ArgumentsKey, Calls, Grammar, GrammarState, Grammars, Restriction, Said, TextStream, Tokenizer,
    Tool, ToolCallParser, ToolChoice, ToolSyntax,
};
use serde_json::Value;

static TINY_AGENT: LazyLock<(Arc<Tokenizer>, Grammars)> = LazyLock::new(|| {
    let json = include_bytes!("../../fixtures/tiny-agent/tokenizer.json");
    let tokenizer = Tokenizer::from_json(json).expect("the fixture is whole");
    let grammars = Grammars::new(&tokenizer, &[EOS]).expect("it is byte-level BPE");
    (Arc::new(tokenizer), grammars)
});

pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let (_, grammars) = &*TINY_AGENT;
    if let Ok(grammar) = grammars.regex(text) {
        babble(grammar, input);
    }
    let Ok(schema) = serde_json::from_str::<Value>(text) else {
        return;
    };
    if let Ok(grammar) = grammars.json_schema(&schema)
        && let Some(answer) = babble(grammar, input)
    {
        serde_json::from_str::<serde::de::IgnoredAny>(&answer).expect("an instance is JSON");
    }
    let tool = Tool {
        name: "f".to_owned(),
        parameters: Some(schema),
    };
    let syntax = ToolSyntax::Bare(ArgumentsKey::Arguments);
    let grammar = grammars.tool_calls(syntax, &[tool], &ToolChoice::Required, Calls::One);
    if let Ok(Some(grammar)) = grammar
        && let Some(answer) = babble(grammar, input)
    {
        let mut parser = ToolCallParser::new(syntax);
        let said = [parser.push(&answer), parser.finish()].concat();
        assert!(matches!(said.as_slice(), [Said::Call(_)]), "{answer}");
    }
}

/// Returns an answer of tokens that the input chooses; `None` if it does not end soon.
fn babble(mut grammar: Grammar, input: &[u8]) -> Option<String> {
    let mut stream = TextStream::new(Arc::clone(&TINY_AGENT.0));
    let mut text = String::new();
    let choices = input.iter().copied().chain(std::iter::repeat(0));
    for choice in choices.take(TOKENS_MAX) {
        let mut logits = [0.0; 2048];
        grammar.restrict(&mut logits).ok()?;
        let allowed = |&token: &u32| logits[token as usize] == 0.0;
        let count = (0..2048).filter(allowed).count();
        let token = (0..2048)
            .filter(allowed)
            .nth(usize::from(choice) % count.max(1));
        let token = token.expect("a token is allowed");
        let answer = grammar.chosen(token).ok()?;
        text.extend(stream.push(token).expect("byte-level"));
        if token == EOS || answer == GrammarState::Complete {
            text.extend(stream.finish().expect("byte-level"));
            return Some(text);
        }
    }
    None
}

/// The end of an answer in tiny-agent's vocabulary.
const EOS: u32 = 2041;

const TOKENS_MAX: usize = 100;
