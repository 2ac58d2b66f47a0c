//! Bundles on their way to devices, and the store where they arrive.
//!
//! A bundle travels as an OCI artifact whose layers, one behind the other, are its file: through any registry, as a layout
//! in a folder, or as the file itself. What moves is what a device lacks: whole parts that it does not have, and of those
//! only the blocks that no other bundle there has. Every block is hashed while it arrives, against values that add up to
//! the ids of sections, which the bundle's manifest names, which a publisher signs ([`heg_trust`]). So a registry, a
//! mirror or a stick is trusted with nothing but availability.
//!
//! Everything waits and nothing is asynchronous: threads ask for ranges and hash what they read. Nothing is fetched,
//! replaced or deleted unasked. The page of this crate is `SHIP.md`.
//!
//! ```no_run
//! use heg_ship::{Amounts, Credentials, DeviceStore, FetchOptions, MachineTrust, ModelName, Pull, PullOutcome, Registry};
//! use heg_ship::{SliceWish, TransferProgress};
//!
//! struct Silent;
//!
//! impl TransferProgress for Silent {
//!     fn planned(&self, _: &Amounts) {}
//!     fn arrived(&self, _bytes: u64) {}
//!     fn say(&self, _text: &str) {}
//! }
//!
//! let store = DeviceStore::open("/var/lib/heg".as_ref())?;
//! let trust = MachineTrust::read(&["/etc/heg/trust.ron".into()], heg_ship::now())?;
//! let name: ModelName = "registry.acme.example/chat:stable".parse()?;
//! let registry = Registry::new(&name, Credentials::default(), &[])?;
//! let pull = Pull {
//!     store: &store,
//!     trust: &trust,
//!     name: &name,
//!     slice: SliceWish::Best(None),
//!     agrees: &|_| false,
//!     examine: &|_| Ok(()),
//!     takes_bad: false,
//!     keep: 1,
//!     options: FetchOptions::default(),
//!     progress: &Silent,
//! };
//! if let PullOutcome::Pulled(pulled) = pull.from_source(&registry, name.tag())? {
//!     let bundle = store.bundle(pulled.held.bundle)?;
//!     println!("{}: {} sections", pulled.model, bundle.manifest().sections.len());
//! }
//! # Ok::<(), heg_ship::ShipError>(())
//! ```

mod artifact;
mod bad;
mod candidate;
mod choice;
mod chosen;
mod counted;
mod error;
mod fetch;
mod name;
mod names;
mod npu;
mod oci;
mod offer;
mod partial;
mod plan;
mod platform;
mod prune;
mod pull;
mod push;
mod registry;
mod source;
mod sources;
mod statement;
mod store;
mod trust;

pub use bad::{BadBundle, BadReason};
pub use candidate::{Candidate, Look};
pub use choice::{SecondBest, SliceWish};
pub use counted::CountedSource;
pub use error::{ShipError, ShipErrorKind};
pub use fetch::{FetchOptions, TransferProgress};
pub use name::ModelName;
pub use names::{Held, NameRecord, SignedChange, SignedRelease};
pub use npu::MachineNpu;
pub use oci::{DOCUMENT_BYTES_MAX, Descriptor, Digest, ImageManifest, Index, Tagged};
pub use plan::Amounts;
pub use prune::Garbage;
pub use pull::{Pull, PullOutcome, Pulled};
pub use push::{Pushed, export_file, export_layout, release_slices};
pub use registry::{Credentials, Registry};
pub use source::{BundleSource, Layout, is_layout};
pub use sources::{Replicas, Sources};
pub use statement::{Statement, now};
pub use store::{DeviceStore, StoreLock};
pub use trust::{Accepted, MachineTrust, TrustState};
