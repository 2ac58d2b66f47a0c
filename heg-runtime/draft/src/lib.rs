//! Tokens that an answer may go on with, so that a model verifies several in one pass (sd.npu §3.3, §3.4, §4.1).
//!
//! A [`Drafter`] reads the context of one request and finds where its latest tokens occurred before: in the context
//! itself, in earlier answers ([`History`]), in what the client predicts, or in what the model found likely in the prompt
//! ([`Likely`]). What came there is drafted, with how likely it is, which is learnt ([`Acceptance`]); what of it pays for
//! its rows is the scheduler's to say. A [`DraftPolicy`](heg_spec::policy::DraftPolicy) switches each of it off. Nothing
//! here runs a model or chooses a token, so nothing here can change an answer.

mod acceptance;
mod automaton;
mod calibrated;
mod draft;
mod drafter;
mod edges;
mod guess;
mod history;
mod reuse;
mod tree;

pub use acceptance::Acceptance;
pub use automaton::{Automaton, Continuation, Match};
pub use calibrated::Likely;
pub use draft::{Draft, Drafted, Source};
pub use drafter::{Beside, Drafter, Shape, Verified};
pub use history::{History, PROMPT_END};
