//! The HEG bundle: one file that holds everything a compiled model needs.
//!
//! The compiler puts bytes into a [`Store`], describes them in a [`Manifest`] and calls [`write_bundle`];
//! the runtime opens the file as a [`Bundle`], which maps it and hands out sections by [`SectionId`].
//! No other crate knows an offset. The byte table is in `FORMAT.md`.
//!
//! Checks come at three prices, chosen by the caller: [`Bundle::open`] costs O(manifest), [`Bundle::section`] hashes a
//! section on its first use, [`Bundle::verify`] hashes everything. Nothing here panics on foreign bytes, and no file or
//! mapping is trusted before it was checked.
//!
//! ```
//! use heg_artifacts::Bundle;
//! use std::thread::available_parallelism;
//!
//! let bundle = Bundle::open(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/v1/tiny.heg"))?;
//! bundle.verify(available_parallelism()?)?;
//! for section in &bundle.manifest().sections {
//!     assert_eq!(bundle.section(section.id)?.len() as u64, section.bytes);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod answer;
mod blocks;
mod check;
mod computation;
mod content_id;
mod document;
mod elf_version;
mod error;
mod head;
pub mod layout;
pub mod manifest;
mod mapping;
mod parts;
pub mod plain;
mod platform;
pub mod program;
mod question;
mod reader;
mod recipe;
mod references;
mod shared;
mod sink;
mod slice;
mod store;
mod verify;
mod view;
mod writer;

pub use answer::{AnswerMatch, Difference, judge};
pub use blocks::{BLOCK_BYTES, BlockValue, SectionBlocks, list_bytes, list_ranges};
pub use computation::computation_id;
pub use content_id::SectionId;
pub use elf_version::{ElfVersion, ElfVersionError};
pub use error::{BundlePart, Error};
pub use head::{BundleHead, HEAD_BYTES_MAX};
pub use manifest::{MANIFEST_REVISION, Manifest, Section};
pub use mapping::{FileIdentity, Mapping, maps_parts};
pub use parts::{FilePart, HEAD_PART, PART_BYTES_MAX, PARTS_MAX, PartId};
pub use reader::Bundle;
pub use recipe::{RecipeKey, StoreKey};
pub use references::{Reference, references};
pub use shared::SharedPlace;
pub use sink::SectionSink;
pub use slice::{npu_needs, platforms, slice, with_state, without_answers};
pub use store::{Store, StoreSharing, check_object};
pub use view::{VIEW_BYTES_MAX, View, ViewPart};
pub use writer::{Written, write_amended, write_bundle};
