//! Untrusted forms, chat templates and tokenizers, in processes that can be killed.
//!
//! Schema compilers, template engines and tokenizers are third-party code that does not bound the memory, the time or
//! the stack for an input. So they run in a *worker*: this program once more, as a process of one thread, which loads
//! the tokenizer and the template of a bundle and is then copied (`fork`) for each piece of work. A copy starts in a
//! fraction of a millisecond with everything loaded, sets limits on itself (`limits`), and is killed by the system if
//! it reaches one. Its parent (`keeper`) kills it as soon as the other end of its socket is closed: when a sender is
//! gone, at a deadline, when an answer is over.
//!
//! ```text
//! server ──▶ worker: tokenizer, template
//!              ├──▶ prompts: renders and encodes, one prompt after the other (`prompt_child`)
//!              └──▶ forms: the vocabulary as a trie, made at the first form
//!                     └──▶ form: compiles one form, and is kept for the next answer of the same (`form_child`)
//!                            └──▶ answer: masks of one answer
//! ```
//!
//! Windows cannot copy a process, so there each piece of work has a process that loads everything itself
//! (`platform/windows`), with a limit on memory only: time is limited by whoever waits.
//!
//! On the server's side, [`TextWorker`] starts the worker, [`PromptMaker`] and [`Forms`] give it work, and a [`Leash`]
//! ends the work from another thread. Any failure of a worker's process is only an error of the request for which it
//! worked.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests read fixtures and take times"
    )
)]

mod assets;
mod error;
mod form_child;
mod forms;
mod leash;
mod message;
mod platform;
mod probe;
mod prompt_child;
mod prompts;
mod worker;

pub use assets::WorkerAssets;
pub use error::Confined;
pub use form_child::FORM_HEAP_BYTES;
pub use forms::{Forms, HeldForm};
pub use leash::{Leash, Wait};
pub use message::TextToEncode;
pub use platform::work;
pub use probe::probe;
pub use prompts::PromptMaker;
pub use worker::{TextWorker, WorkerProgram};
