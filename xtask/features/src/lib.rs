//! No code: this crate enables, for all programs, the dependency features that some of them need. Cargo compiles a
//! crate once for each set of features, along with everything that depends on it; without this crate, `cargo xtask`,
//! `heg` and the tests would each recompile most of their dependencies. `cargo xtask tidy` finds features that are
//! missing here.
