//! Text on both sides of the model: prompts in, tokens out, text again.
//!
//! A conversation becomes text (`template`), text becomes tokens (`tokenizer`; `prompt` does both), logits become a token (`sample`), under
//! a restriction if the answer must have a format (`restriction`, `grammar`), tokens become text as they arrive
//! (`stream`), text ends at a stop text (`stop`), and what the model thought (`thoughts`) and tool calls (`tools`) are found
//! in it.
//!
//! Nothing here opens a file or a device. The bytes of the tokenizer, the template and the date come from the caller,
//! so that a run can be replayed. All of it is single-threaded and without a clock, with one exception: each
//! [`Grammar`] has a thread, or a process at the other end of a [`FrameLink`], that computes the token mask of the next
//! step while the model runs, and limits the sampler's wait for it. The thread ends once the grammar is dropped, after
//! its current step. A late mask ends the answer with an error; it never changes which token is chosen.
//!
//! ```
//! use heg_text::{ChatTemplate, Conversation, Message};
//!
//! let source = "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}";
//! let template = ChatTemplate::new(source, Default::default())?;
//! let conversation = Conversation {
//!     messages: vec![Message::new("user", "Hi!")],
//!     ..Conversation::default()
//! };
//! assert_eq!(template.render(&conversation)?, "[user] Hi!\n");
//! # Ok::<(), heg_text::TextError>(())
//! ```
//!
//! Behaviour follows Hugging Face `tokenizers` and `transformers`, against which the fixtures were made.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests read fixtures and take times"
    )
)]

mod answer;
mod byte_level;
mod date;
mod error;
mod grammar;
mod logits;
mod prompt;
mod python;
mod random;
mod restriction;
mod sample;
mod stop;
mod stream;
mod template;
mod thoughts;
mod tokenizer;
mod tokenizer_file;
mod tools;

pub use answer::AnswerText;
pub use date::DateTime;
pub use error::{Result, TextError};
pub use grammar::{
    AnswerForm, COMPILE_STACK_BYTES, CompiledForm, FrameLink, Grammar, Grammars, Silence,
};
pub use logits::{
    LogProb, LogSoftmax, TokenLogProbs, log_probabilities, log_probability, most_likely,
};
pub use restriction::{GrammarState, Restriction};
pub use sample::{Choice, Sampler, SamplingParams};
pub use stop::{StopMatcher, StopOutput};
pub use stream::TextStream;
pub use template::{ChatTemplate, Conversation, Message};
pub use thoughts::{ThoughtOpening, ThoughtParser, ThoughtSplit, ThoughtSyntax};
pub use tokenizer::{Special, Tokenizer};
pub use tools::{
    ArgumentsKey, Calls, Said, Tool, ToolCall, ToolCallParser, ToolChoice, ToolSyntax,
};
