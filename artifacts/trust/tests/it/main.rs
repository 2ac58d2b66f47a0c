//! Tests of trust from outside: committed signatures of the real minisign, and that program itself where it is.
//!
//! `testdata` holds a release with signatures of three keys, `a` and `b` public and `c` a stranger's, made by minisign
//! 0.11; the secret keys were thrown away.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod claims;
mod documents;
mod program;
mod rotation;
