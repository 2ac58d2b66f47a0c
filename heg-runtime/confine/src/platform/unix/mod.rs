//! Unix: the worker is copied for each piece of work, which talks over a socket and sets limits on itself.

mod fork;
mod frame;
mod keeper;
pub(crate) mod limits;
mod worker;

pub(crate) use frame::{Collar, Frames};
pub use worker::work;
pub(crate) use worker::{Control, Live, this_program};

/// Maximum number of kept forms of all clients.
pub(crate) const FORMS_KEPT: usize = 32;
