//! Measuring a bundle's kernels on the devices of a SoC.
//!
//! What is measured, how often and what follows from it is `heg_profiler`'s to know; here it finds the kernels
//! ([`BundleSubject`]), made ready by the loader that requests use, and the place where a profile is kept
//! ([`file`]).

pub mod file;
mod neighbour;
mod subject;

pub use subject::{BundleSubject, Extent, identities};
