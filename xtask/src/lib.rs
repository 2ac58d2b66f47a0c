//! What the front door (`cargo xtask`) and the laboratory (`heg-lab`) share: where things lie, how other programs are
//! started and errors end, and the steps that both need before a model can run.

pub mod compile;
mod digest;
pub mod fail;
pub mod fetch;
mod pip;
pub mod setup;
pub mod synth;
pub mod venv;
pub mod workspace;
