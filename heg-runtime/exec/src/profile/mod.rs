//! Measuring a bundle's kernels on the devices of a SoC.
//!
//! `heg_profiler` decides what is measured, how often, and what follows from it. This module gives it the kernels
//! ([`BundleSubject`]), and products on two devices that share them ([`BundlePair`]), prepared by the loader that requests use, and the file of a profile ([`mod@file`]).

pub mod file;
mod neighbour;
mod pieces;
mod subject;

pub use pieces::BundlePair;
pub use subject::{BundleSubject, Extent, identities};
