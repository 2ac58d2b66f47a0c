//! SPIR-V of the GPU role, without Vulkan: the committed modules, the check of a module, and the shapes in which a
//! program needs them. The compiler writes these into bundles, `heg verify` checks what bundles carry, and `heg-gpu` runs
//! it.
//!
//! A crate of its own, and no module of `heg-artifacts`: bundles are a format, which knows no device and carries no
//! shaders, while these 300 KB change with every shader. The compiler links no Vulkan by it.
//!
//! 1. [`Shapes`] says which [`Module`]s a kernel's program needs, and with which constants.
//! 2. [`Collection`] gathers them for all kernels of a bundle.
//! 3. [`verify`] checks those of a bundle; [`BundleModules`] takes those that this version of HEG knows.

mod bundle;
mod collection;
mod form;
mod module;
mod shapes;
pub mod spirv;

pub use bundle::{BundleModules, ModuleError, verify};
pub use collection::{BUNDLE_ACTIVATIONS, Collection};
pub use module::{Module, PackedModule, constant};
pub use shapes::{Shapes, StepShape, element_number, is_cache};
