//! The server with a trained model, over real sockets: answers, streams, limits, garbage, its page, shutdown.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod answers;
mod bounds;
mod client;
mod clients;
mod drafts;
mod host;
mod killed;
mod limits;
mod log_probs;
mod page;
mod refusals;
mod sampling;
mod shutdown;
mod strangers;
