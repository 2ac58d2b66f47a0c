//! The declarative inputs of HEG, as checked types.
//!
//! * [`Architecture`]: one model family as operators with symbolic dimensions (`architectures/*.ron`).
//! * [`ModelSpec`]: what to build a bundle from, and how (`models/*.ron`).
//! * [`Fusion`]: which operators become one kernel (`fusions/*.ron`).
//! * [`Soc`]: the devices of a machine (`socs/*.ron`).
//! * [`Policy`]: the constants and switches of a scheduler (`policies/*.ron`).
//!
//! The words that all of HEG shares are types of this crate as well: [`DeviceClass`], [`Group`], [`WeightForm`],
//! [`Isa`], [`Cut`] and the one source of seeded numbers, [`Seeded`].
//!
//! A file refers to another kind by name; the shipped ones are in [`shipped`]. Every mistake is reported with
//! file, line and column, what was expected, and the nearest valid name. No file here is ever written.
#![deny(missing_docs)]

pub mod architecture;
mod cut;
mod error;
pub mod expr;
pub mod fusion;
mod isa;
pub mod model;
mod outline;
pub mod pair;
pub mod policy;
mod seeded;
pub mod shipped;
pub mod soc;
mod source;
mod vocabulary;

pub use architecture::Architecture;
pub use cut::{Cut, CutMisfit, CutProduct, Side};
pub use error::{Problem, SpecError, nearest};
pub use fusion::Fusion;
pub use isa::{Isa, UnknownIsa};
pub use model::ModelSpec;
pub use policy::Policy;
pub use seeded::Seeded;
pub use soc::{Activations, Soc};
pub use source::Source;
pub use vocabulary::{
    DeviceClass, Group, GroupColumns, NpuPlatform, UnknownGroupColumns, UnknownNpuPlatform,
    WeightForm,
};
