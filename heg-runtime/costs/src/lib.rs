//! Costs for the scheduler from a bundle's annotations for one machine.
//!
//! The scheduler asks what a call takes and never sees a manifest; engine and simulator give it these costs. They stand
//! in a crate of their own so that `heg-sched` needs neither bundles nor profiles, and so no files.
#![deny(missing_docs)]

mod annotated;

pub use annotated::{AnnotatedCosts, first_kernels};
