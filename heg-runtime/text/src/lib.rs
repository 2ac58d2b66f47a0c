//! Text on both sides of the model: prompts in, tokens out, text again.
//!
//! A conversation becomes text (`template`), text becomes tokens (`tokenizer`), logits become a token
//! (`sample`), under a restriction if the answer must have a form (`restriction`, `grammar`), tokens become text as
//! they arrive (`stream`), text ends where the caller said (`stop`), and calls of tools are found in it (`tools`). Everything here is pure: no clock, no file, no device, no thread that outlives a call. The bytes of the
//! tokenizer, the template and the date come from the caller, so that a run can be replayed.
//! Behaviour follows Hugging Face `tokenizers` and `transformers`, against which the fixtures were made.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests read fixtures and take times"
    )
)]

mod answer;
mod bpe_file;
mod byte_level;
mod date;
mod error;
mod grammar;
mod logits;
mod python;
mod random;
mod restriction;
mod sample;
mod stop;
mod stream;
mod template;
mod tokenizer;
mod tools;

pub use answer::AnswerText;
pub use date::DateTime;
pub use error::{Result, TextError};
pub use grammar::{Grammar, Grammars};
pub use restriction::{GrammarState, Restriction};
pub use sample::{Choice, Sampler, SamplingParams};
pub use stop::{StopMatcher, StopOutput};
pub use stream::TextStream;
pub use template::{ChatTemplate, Conversation, Message};
pub use tokenizer::{Special, Tokenizer};
pub use tools::{
    ArgumentsKey, Calls, Said, Tool, ToolCall, ToolCallParser, ToolChoice, ToolSyntax,
};
