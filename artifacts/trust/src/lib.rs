//! The publishers whose word counts for a bundle.
//!
//! A publisher signs a [`Release`]: this name at this number is these bundles. The owner of a machine says in a
//! [`TrustPolicy`] whose signature counts for which names, and [`judge`] decides. All of it is pure: no network, no
//! files, no clock. The caller brings bytes, the time if it knows one, and what this machine has seen before.
//!
//! Signatures are those of minisign (Ed25519 over BLAKE2b), so that any tool or key service that signs 64 bytes can make
//! them. They cover the bytes of the release, never a parsed form of it.

mod document;
mod error;
mod judge;
mod key;
mod keys;
mod pattern;
mod policy;
mod release;
mod seen;

pub use error::TrustError;
pub use judge::{Claim, Moment, Purpose, Warning, Word, judge};
pub use key::{PublisherKey, ReleaseSignature, SIGNATURE_BYTES_MAX};
pub use keys::{CHANGES_MAX, KEYS_BYTES_MAX, KeyChange, SignedKeys, TurnedKeys, check_changes};
pub use pattern::NamePattern;
pub use policy::{FileRule, OlderRule, Publisher, TrustPolicy, UnsignedRule};
pub use release::{RELEASE_BYTES_MAX, Release, ReleaseSlice};
pub use seen::SeenReleases;
