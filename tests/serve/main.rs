//! Tests of the server with a trained model, over real sockets: answers, streams, limits, garbage, its page, shutdown.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod agents;
mod answers;
mod bounds;
mod cases;
mod client;
mod clients;
mod confined;
mod drafts;
mod embeddings;
mod host;
mod kept;
mod killed;
mod limits;
mod loads;
mod log_probs;
mod loop_time;
mod messages;
mod models;
mod page;
mod refusals;
mod rerank;
mod responses;
mod sampling;
mod sending;
mod shutdown;
mod strangers;
mod thoughts;
