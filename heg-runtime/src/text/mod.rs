//! Text on both sides of the model: prompts in, tokens out, text again.
//!
//! A conversation becomes text (`template`), text becomes tokens (`tokenizer`), logits become a token
//! (`sample`), tokens become text as they arrive (`stream`), and text ends where the caller said
//! (`stop`). Everything here is pure: no clock, no file, no thread, no device. The bytes of the
//! tokenizer, the template and the date come from the caller, so that a run can be replayed.
//! Behaviour follows Hugging Face `tokenizers` and `transformers`, against which the fixtures were made.

mod answer;
mod bpe_file;
mod byte_level;
mod date;
mod error;
mod logits;
mod python;
mod random;
mod sample;
mod stop;
mod stream;
mod template;
mod tokenizer;

pub use answer::AnswerText;
pub use date::DateTime;
pub use error::{Result, TextError};
pub use sample::{Sampler, SamplingParams};
pub use stop::{Emit, StopMatcher};
pub use stream::TextStream;
pub use template::{ChatTemplate, Conversation, Message};
pub use tokenizer::{Special, Tokenizer};
