//! Weights in a bundle's forms: channel-wise int8, group-wise 4-bit integers, or floats.
//!
//! Converts tensors of `heg-ingest` to bytes; the model file and its quantisation plan choose the form of each tensor, and
//! the bundle writer decides where the bytes go. The bytes are the same on any machine and for any number of threads.
//!
//! Products with stored weights are here, too, for known answers ([`linear`]): the same sums everywhere.

mod element;
mod error;
mod floats;
mod form;
mod linear;
mod stored;
mod stream;
mod w4a16;
mod w8a16;

#[cfg(test)]
mod linear_tests;
#[cfg(test)]
mod packed_tests;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod w4a16_tests;

pub use self::error::QuantError;
pub use self::floats::{f16_bytes, f32_bytes};
pub use self::form::Form;
pub use self::linear::{ValueRows, linear};
pub use self::stored::{Bytes, MappedWeight, StoredAffine, StoredWeight};
#[cfg(test)]
pub(crate) use self::stream::encode_in_blocks;
pub use self::stream::{Encoded, encode, source_hash};
pub use self::w8a16::{AffineRow, quantise_rows};
