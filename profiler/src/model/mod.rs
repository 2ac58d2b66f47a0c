//! The pure model of DESIGN §5: anchors in, predictions out.
//!
//! Every function here is a formula over checked numbers, without clock, device or file. Deliberately not here:
//! measuring anchors, reading them from a vendor's blob, and the stepped latency of static NPU kernels (DESIGN §4.4),
//! which needs a table over shapes and not a roofline.

mod anchor;
mod roofline;

pub use anchor::{
    AnchorSource, DevicePeaks, RawAnchor, RawAnchors, RawDevicePeaks, RooflineAnchor,
    RooflineAnchors,
};
pub use roofline::Roofline;
