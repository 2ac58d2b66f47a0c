//! Every operator builder on OpenVINO's CPU device against a plain reference (style §10.4, §10.8).
//!
//! An operator is lowered as a kernel of its own ([`bench`]), in all forms of a variant: dynamic and static, weights as
//! constants and as inputs, f32 and f16 activations. References are naive loops in double precision. Reported as
//! skipped if OpenVINO is not installed; with `HEG_REQUIRE_OPENVINO` set, that fails.

mod attention;
mod bench;
mod elementwise;
mod linear;
mod norms;
mod rope;
mod stored;
