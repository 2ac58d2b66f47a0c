//! A check that a bundle's text side works at all: one plain message, one short text.

use heg_text::{Conversation, Message};

use crate::error::Confined;
use crate::leash::Wait;
use crate::message::TextToEncode;
use crate::prompts::PromptMaker;
use crate::worker::TextWorker;

/// Makes a prompt of a short text, and of a plain message if there is a template.
///
/// A template may refuse the message, since it may expect another conversation.
///
/// # Errors
/// `Refused`, if the tokenizer refuses the text, or either exceeds a limit; `Lost`.
pub fn probe(worker: &TextWorker, has_template: bool) -> Result<(), Confined> {
    let prompts = PromptMaker::new(worker.clone());
    let make = |text| prompts.tokens(&text, TOKENS_MAX, Wait::default());
    make(TextToEncode::Bare(TEXT.to_owned()))?;
    if !has_template {
        return Ok(());
    }
    let conversation = Conversation {
        messages: vec![Message::new("user", TEXT)],
        add_generation_prompt: true,
        ..Conversation::default()
    };
    match make(TextToEncode::Chat(conversation, PROMPT_BYTES_MAX)) {
        Err(Confined::Refused(error)) if error.is_of_conversation() => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// A text with every small letter, digits, spaces and a line end.
const TEXT: &str = "the quick brown fox jumps over 13 lazy dogs\n";

/// Maximum number of tokens of the probe that are sent back.
const TOKENS_MAX: usize = 1 << 16;

/// Maximum size of the prompt that a template may make of a short message, in bytes. Chosen: the longest known preamble
/// has 10 000.
const PROMPT_BYTES_MAX: usize = 1 << 20;
