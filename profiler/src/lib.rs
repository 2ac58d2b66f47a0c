//! Predicts the latency of a HEG kernel on a device and its share of the memory bandwidth.
//!
//! `model` is the pure model of DESIGN §5 (Agent.xpu, Appendix A): two anchors and the peaks of a device give a
//! [`Roofline`], which predicts any work and traffic. `MODEL.md` has the formulas on one page, with their validity
//! range and a worked example. [`annotation`] is the document of a bundle's known kernel speeds, with the cost of any
//! call and the prefill chunk that follow from it.
//!
//! [`measure`] turns runs on a device into a [`measure::Profile`], and [`predict`] turns that into latencies of calls
//! that were not measured. Behind the feature `vendor`: the vendor compiler's own estimate of a kernel, read from the
//! blob.
//!
//! No clock, device or file here: whatever runs is behind [`measure::Subject`].

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
