//! Drafts the likely continuation of an answer, so that a model verifies several tokens in one pass (sd.npu §3.3, §3.4,
//! §4.1).
//!
//! A [`Drafter`] reads the context of one request and looks up where its latest tokens occurred before: in the context
//! itself, in earlier answers ([`History`]), in the answer that the client predicts, or among the tokens that the model
//! found likely in the prompt ([`Likely`]). It drafts the tokens that followed there, with learnt acceptance
//! probabilities ([`Acceptance`]); the scheduler decides how many of them are worth their rows. A
//! [`DraftPolicy`](heg_spec::policy::DraftPolicy) switches each source off. This crate runs no model and chooses no
//! token, so it cannot change an answer.
//!
//! ```
//! use heg_draft::{Acceptance, DraftSources, Drafter, History, Shape};
//!
//! // Token 7 was followed by 1, 2, 3 before.
//! let drafter = Drafter::new(&[7, 1, 2, 3, 9, 7, 1]);
//! let (history, taught) = (History::new(1000), Acceptance::default());
//! let sources = DraftSources { history: &history, taught: &taught, forced: &[] };
//! let draft = drafter.draft(Shape::Chain, 2, &sources);
//! let tokens: Vec<u32> = draft.tokens().iter().map(|drafted| drafted.token).collect();
//! assert_eq!(tokens, [2, 3]);
//! ```

mod acceptance;
mod automaton;
mod calibrated;
mod draft;
mod drafter;
mod edges;
mod guess;
mod history;
mod remainder;
mod states;
mod texts;
mod tree;

pub use acceptance::Acceptance;
pub use automaton::{Automaton, Continuation, Match};
pub use calibrated::Likely;
pub use draft::{Draft, DraftSource, Drafted};
pub use drafter::{DraftSources, Drafter, Shape, Verified};
pub use history::{History, PROMPT_END};
pub use texts::RequestTexts;
