//! Code shared by the front door (`cargo xtask`) and the laboratory (`heg-lab`): paths, starting other programs,
//! handling errors, what a release is made of, jobs of a compile farm, and the steps that both need before a model can
//! run. Compiling, fetching and synthesising models are in `hegc`.

pub mod dist;
pub mod farm;
pub mod laboratory;
pub mod npm;
pub mod setup;
pub mod venv;
pub mod wine;
pub mod workspace;

pub use hegc::{compile, fail, fetch, synth};
