//! Predicts how long a HEG kernel takes on a device and how much of the memory bandwidth it uses.
//!
//! Here lives the pure model of DESIGN §5 (Agent.xpu, Appendix A): two anchors and the peaks of a device
//! give a [`Roofline`], which answers for any work and traffic. No clock, no device, no file. `MODEL.md`
//! has the formulas on one page, with their validity range and a worked example.
//!
//! Deliberately not here: measuring kernels on a device, reading a vendor compiler's own estimates, and
//! turning samples into anchors. They need devices or foreign bytes and sit behind other features, so
//! that the runtime can import this much and nothing else.

#![deny(missing_docs)]

pub mod annotation;
mod error;
mod model;

pub use error::{Ceiling, Error};
pub use model::{
    Anchor, AnchorSource, Anchors, DevicePeaks, RawAnchor, RawAnchors, RawDevicePeaks, Roofline,
};
