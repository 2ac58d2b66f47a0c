//! Predicts how long a HEG kernel takes on a device and how much of the memory bandwidth it uses.
//!
//! `model` is the pure model of DESIGN §5 (Agent.xpu, Appendix A): two anchors and the peaks of a device give
//! a [`Roofline`], which answers for any work and traffic. `MODEL.md` has the formulas on one page, with their
//! validity range and a worked example. [`annotation`] is the document in which a bundle keeps what is known of
//! its kernels, and what follows from it: the cost of any call, and the chunk to prefill with.
//!
//! [`measure`] turns runs on a device into a [`measure::Profile`], and [`predict`] that into latencies of calls
//! that were not measured. Behind the feature `vendor`: what a vendor's compiler itself expects of a kernel,
//! read from the blob.
//!
//! No clock, device or file here: what runs is behind [`measure::Subject`].

#![deny(missing_docs)]

pub mod annotation;
mod error;
pub mod measure;
mod model;
pub mod partition;
pub mod predict;
#[cfg(feature = "vendor")]
pub mod vendor;

pub use error::{Ceiling, RooflineError};
pub use model::{
    AnchorSource, DevicePeaks, RawAnchor, RawAnchors, RawDevicePeaks, Roofline, RooflineAnchor,
    RooflineAnchors,
};
