//! The declarative inputs of HEG, as checked types.
//!
//! * [`Architecture`]: one model family as operators with symbolic dimensions (`architectures/*.ron`).
//! * [`ModelSpec`]: what to build a bundle from, and how (`models/*.ron`).
//! * [`Fusion`]: which operators become one kernel (`fusions/*.ron`).
//! * [`Soc`]: the devices of a machine (`socs/*.ron`).
//! * [`Policy`]: the constants and switches of a scheduler (`policies/*.ron`).
//!
//! The words that all of HEG shares are types of this crate too: [`DeviceClass`], [`Group`], [`WeightForm`], [`Isa`],
//! [`Cut`], the only source of seeded numbers, [`Seeded`], and the error of broken invariants, [`Bug`].
//!
//! A file refers to another kind by name; the shipped ones are in [`shipped`]. Every mistake is reported with
//! file, line and column, what was expected, and the nearest valid name. No file here is ever written.
//!
//! ```
//! use heg_spec::{Soc, Source, shipped};
//!
//! assert!(shipped::policy("agent-xpu")?.prefill.preempt);
//! let text = "(name: \"mine\", devices: [(class: Cpu, programms: (activations: I8))])";
//! let error = Soc::parse(Source { file: "mine.ron", text }).unwrap_err().to_string();
//! assert!(error.contains("mine.ron:1") && error.contains("`programs`"), "{error}");
//! # Ok::<(), heg_spec::SpecError>(())
//! ```

pub mod architecture;
mod bug;
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
mod weight_name;

pub use architecture::Architecture;
pub use bug::Bug;
pub use cut::{Cut, CutMisfit, CutProduct, DEVICE_STEP, Side, matrix_outputs};
pub use error::{Problem, SpecError, nearest};
pub use fusion::Fusion;
pub use isa::{Isa, UnknownIsa};
pub use model::ModelSpec;
pub use policy::Policy;
pub use seeded::Seeded;
pub use soc::{Activations, Soc};
pub use source::Source;
pub use vocabulary::{
    DeviceClass, Group, GroupColumns, KvForm, NpuPlatform, Pooling, ScoreForm, Sight,
    UnknownGroupColumns, UnknownNpuPlatform, VectorLength, WeightForm,
};
pub use weight_name::{NamePart, WeightName};
