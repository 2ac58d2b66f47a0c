//! The parts that a form is made from.

use std::sync::Arc;

use heg_artifacts::manifest::{Elements, Kernel, KernelUse, ShapeClass, Variant};
use heg_artifacts::{Bundle, SectionId};
use heg_spec::soc::Device;

/// A place, and the parts that its kernel is made from.
pub(crate) struct Parts<'m> {
    pub(crate) bundle: &'m Arc<Bundle>,
    pub(crate) used: &'m KernelUse,
    pub(crate) kernel: &'m Kernel,
    pub(crate) variant: &'m Variant,
    /// Element types at the form's ports.
    pub(crate) elements: Elements,
    /// Shape of the variant, or one with fewer rows.
    pub(crate) shape: ShapeClass,
    pub(crate) device: &'m Device,
    /// Sections of its weights, in the order in which IRs number them.
    pub(crate) weights: Vec<SectionId>,
}
