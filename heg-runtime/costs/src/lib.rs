//! Costs for the scheduler from a bundle's annotations for one machine.
//!
//! The scheduler asks for the cost of a call and never sees a manifest; engine and simulator give it these costs. They
//! are a separate crate so that `heg-sched` depends on neither bundles nor profiles, and so on no files.

mod annotated;

pub use annotated::{AnnotatedCosts, first_kernels};
