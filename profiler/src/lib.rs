//! Predicts how long a HEG kernel takes on a device and how much of the memory bandwidth it uses.
//!
//! `model` is the pure model of DESIGN §5 (Agent.xpu, Appendix A): two anchors and the peaks of a device give
//! a [`Roofline`], which answers for any work and traffic. `MODEL.md` has the formulas on one page, with their
//! validity range and a worked example. [`annotation`] is the document in which a bundle keeps what is known of
//! its kernels, and what follows from it: the cost of any call, and the chunk to prefill with.
//!
//! Both know no clock, device or file. Behind the feature `vendor`: what a vendor's compiler itself expects of a
//! kernel, read from the blob.
//!
//! Deliberately not here: measuring kernels on a device, and turning samples into anchors. What needs devices or
//! foreign bytes sits behind features, so that the runtime can import the model and nothing else.

#![deny(missing_docs)]

pub mod annotation;
mod error;
mod model;
#[cfg(feature = "vendor")]
pub mod vendor;

pub use error::{Ceiling, Error};
pub use model::{
    Anchor, AnchorSource, Anchors, DevicePeaks, RawAnchor, RawAnchors, RawDevicePeaks, Roofline,
};
