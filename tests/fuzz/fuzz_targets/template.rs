//! Untrusted chat templates, rendered for a conversation with every possible part.
//!
//! A template is refused with an error, or gives a text within its maximum size. Templates whose values grow without
//! a bound are skipped here: in the product, the process that renders templates bounds memory and stack.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use heg_text::{ChatTemplate, Conversation, DateTime, Message, TextError};

static CONVERSATION: LazyLock<Conversation> = LazyLock::new(|| {
    // Panics within the engine are errors of the template, and are caught.
    std::panic::set_hook(Box::new(|_| ()));
    let object = |text: &str| serde_json::from_str(text).expect("JSON");
    let call = r#"{"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
        "function": {"name": "call", "arguments": {"who": "Ana", "at": [1, 2.5, null]}}}]}"#;
    let tool = r#"{"type": "function", "function": {"name": "call", "description": "Calls.",
        "parameters": {"type": "object", "properties": {"who": {"type": "string"}}}}}"#;
    Conversation {
        messages: vec![
            Message::new("system", "Be kind."),
            Message::new("user", "Call Ana <|eot_id|> \"now\"\n{{ x }}"),
            serde_json::from_str(call).expect("a message"),
            Message::new("tool", "\u{e9}\u{1f600}"),
        ],
        tools: vec![object(tool)],
        add_generation_prompt: true,
        now: Some(DateTime::from_unix_seconds(1_800_000_000)),
        variables: serde_json::from_str(r#"{"enable_thinking": true}"#).expect("JSON"),
    }
});

pub(crate) fn run(input: &[u8]) {
    let Ok(source) = std::str::from_utf8(input) else {
        return;
    };
    if source.len() > SOURCE_BYTES_MAX || grows(source) {
        return;
    }
    let conversation = &*CONVERSATION;
    let special = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
    let Ok(template) = ChatTemplate::new(source, special) else {
        return;
    };
    match template.render_within(conversation, TEXT_BYTES_MAX) {
        Ok(text) => {
            assert!(text.len() <= TEXT_BYTES_MAX);
            assert_eq!(template.render(conversation).as_ref(), Ok(&text));
        }
        Err(TextError::TooLong { bytes_max }) => assert_eq!(bytes_max, TEXT_BYTES_MAX),
        Err(error) => assert!(
            error.to_string().len() < 2000,
            "a message of bounded length"
        ),
    }
}

/// Returns whether a value of a template may grow: one that is set in loops, multiplied, or filtered repeatedly.
fn grows(source: &str) -> bool {
    let count = |part: char| source.matches(part).count();
    let digits =
        |part: &str| part.chars().all(|c| c.is_ascii_digit() || c == '_') && part.len() > 3;
    let mut words = source.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let growing = ["set", "macro", "call", "block", "recursive", "loop"];
    source.contains('*')
        || count('|') + count('~') + count('+') + count('.') > 12
        || words.any(|word| {
            growing.contains(&word)
                || digits(word)
                || word.contains('e') && digits(&word.replace('e', "0"))
        })
}

/// Maximum size of a template, in bytes. Chosen: longer than every construct of a template.
const SOURCE_BYTES_MAX: usize = 1024;

/// Maximum size of a rendered text, in bytes. Chosen: a prompt of some thousand tokens.
const TEXT_BYTES_MAX: usize = 1 << 14;
