//! The compiler's commands: `compile`, `fetch` and `synth`. The program `hegc` is a command line around them, and
//! `cargo xtask` runs the same code as `compile-model`, `fetch-model` and `synth-model`.

pub mod compile;
pub mod digest;
pub mod fail;
pub mod fetch;
pub mod lock;
pub mod output;
pub mod pip;
pub mod synth;
pub mod terminal;

/// Name of the subcommand that makes prompts in a process of its own.
pub const TEXT_WORKER: &str = "text-worker";
