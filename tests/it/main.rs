//! From a model to its answers: compiler, bundle, runtime and text together, a module for each subject.
//!
//! One program has all tests that can share a process. `faults`, which checks the resources of its process, and
//! `serve`, whose servers are signalled and killed, are programs of their own.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod answers;
mod batch;
mod bits;
mod blobs;
mod cuts;
mod deterministic;
mod embed;
mod engine;
mod forms;
mod gguf;
mod gguf_text;
mod golden;
mod gpu;
mod gpu_bits;
mod gpu_caches;
mod gpu_lanes;
mod gpu_mixed;
mod gpu_modules;
mod known_cuts;
mod ladder;
mod lone;
mod npu_forms;
mod pair;
mod pair_gpu;
mod profile;
mod real_lanes;
mod reject_bundle;
mod reject_config;
mod reject_weights;
mod score;
mod scores;
mod speculation;
mod swept_chunk;
mod trained;
mod unfinished;
mod vectors;
mod watched;
