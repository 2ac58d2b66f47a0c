//! The revision of the arithmetic of programs.

/// Revision of the arithmetic of programs: programs of one revision give the same bits on every machine, with every
/// build. It is raised with each change of a bit; a test pins the bits of a model (`tests/it/bits/baked.rs`). Keys and
/// values that were baked into bundles with another revision are not used.
pub const ARITHMETIC_REVISION: u32 = 2;
