//! Windows, which cannot copy a process: each piece of work has a process of its own, which loads the tokenizer and
//! the template itself. One is started ahead, so that a request seldom waits for that. A process that compiled a form
//! has a thread for each of its answers; they all belong to one client.
//!
//! ```text
//! server ──▶ prompts: renders and encodes, one prompt after the other
//!        ──▶ form: builds the vocabulary and compiles one form
//!              └──▶ a thread for each answer
//!        ──▶ the next one, loaded and waiting
//! ```

mod frame;
pub(crate) mod limits;
mod process;
mod worker;

pub(crate) use frame::{Collar, Frames};
pub(crate) use process::{Control, Live, this_program};
pub use worker::work;

/// Maximum number of kept forms of all clients: the process of each has a vocabulary of its own.
pub(crate) const FORMS_KEPT: usize = 4;

/// The kinds of work of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Makes prompts.
    Prompts = 1,
    /// Compiles a form, and makes the masks of its answers.
    Form,
}

impl Role {
    fn of(message: &[u8]) -> Option<Self> {
        let all = [Self::Prompts, Self::Form];
        all.into_iter().find(|role| message == [*role as u8])
    }
}
