//! Differences between operating systems: the identity of files, files mapped side by side, and advice about mapped
//! pages, including locking.
//!
//! Each system's file has the same functions. Advice for which a system has no call is dropped.

#[cfg(not(unix))]
mod other;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub(crate) use other::{
    MappedParts, dont_need, identity, lock, page_bytes, will_need, will_read_in_order,
};
#[cfg(unix)]
pub(crate) use unix::{
    MappedParts, dont_need, identity, lock, page_bytes, will_need, will_read_in_order,
};
