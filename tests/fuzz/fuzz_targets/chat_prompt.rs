//! Untrusted conversations on their way to tokens: the body of a chat request, through the chat template and the
//! tokenizer, and its tools through the compiler of grammars.
//!
//! An accepted conversation keeps to the bounds of its request; any other is refused with an error.

use std::sync::LazyLock;

use heg_server::{Bound, ChatRequest, PromptBounds};
use heg_text::{
    ArgumentsKey, ChatTemplate, Grammars, Special, TextError, Tokenizer, Tool, ToolSyntax,
};

struct TinyAgent {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    grammars: Grammars,
    bounds: PromptBounds,
}

static TINY_AGENT: LazyLock<TinyAgent> = LazyLock::new(|| {
    let json = include_bytes!("../../fixtures/tiny-agent/tokenizer.json");
    let tokenizer = Tokenizer::from_json(json).expect("the fixture is whole");
    let special = include_str!("../../fixtures/tiny-agent/special_tokens_map.json");
    let special = serde_json::from_str(special).expect("the fixture is whole");
    let source = include_str!("../../fixtures/tiny-agent/chat_template.jinja");
    TinyAgent {
        grammars: Grammars::new(&tokenizer, &[EOS]).expect("it is byte-level BPE"),
        template: ChatTemplate::new(source, special).expect("the fixture is whole"),
        bounds: PromptBounds {
            tokens: 64,
            bounded_by: Bound::Context,
            token_bytes: tokenizer.token_bytes_max(),
        },
        tokenizer,
    }
});

pub(crate) fn run(body: &[u8]) {
    let agent = &*TINY_AGENT;
    let Ok(request) = ChatRequest::parse(body, [], &agent.bounds) else {
        return;
    };
    let bytes_max = 64 * agent.bounds.token_bytes;
    match agent
        .template
        .render_within(&request.conversation, bytes_max)
    {
        Ok(text) => {
            assert!(text.len() <= bytes_max);
            let tokens = agent.tokenizer.encode(&text, Special::AsWritten);
            let tokens = tokens.expect("any text has tokens").len();
            assert!(text.len() <= tokens * agent.bounds.token_bytes);
        }
        Err(TextError::TooLong { .. }) => {
            let whole = agent.template.render(&request.conversation);
            assert!(whole.is_ok_and(|text| text.len() > bytes_max));
        }
        Err(_) => {}
    }
    let tooling = &request.tooling;
    let tools: Result<Vec<Tool>, _> = tooling.tools.iter().map(Tool::from_json).collect();
    if let Ok(tools) = tools {
        let syntax = ToolSyntax::Bare(ArgumentsKey::Arguments);
        let _ = agent
            .grammars
            .tool_calls(syntax, &tools, &tooling.choice, tooling.calls);
    }
}

/// The end of an answer in tiny-agent's vocabulary.
const EOS: u32 = 2041;
