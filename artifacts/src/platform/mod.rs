//! What operating systems do differently: the identity of files, and advice about mapped pages, also to keep them.
//!
//! Each system's file has the same functions. Advice that a system has no call for is not given.

#[cfg(not(unix))]
mod other;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub(crate) use other::{dont_need, identity, lock, will_need, will_read_in_order};
#[cfg(unix)]
pub(crate) use unix::{dont_need, identity, lock, will_need, will_read_in_order};
