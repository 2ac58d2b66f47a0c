//! Binding: which device class runs which op group, and through which variants. Pure.
//!
//! Token-wise groups prefer the NPU, attention the iGPU, and both fall to the next class that the SoC has
//! (HeteroLLM §4; DESIGN §3). What a SoC lacks is an error, never a silent change of device.

use heg_artifacts::manifest::{DeviceClass, ElementType, Group, Kernel, Variant};
use heg_spec::soc::{Device, DeviceClass as SpecClass, Soc};

use crate::error::RuntimeError;

/// A way to run a kernel: one of its variants on the device that plays a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rung {
    /// Role in the SoC; the variant may be of another class, where a device runs what was meant for another.
    pub role: DeviceClass,
    /// Index into [`Kernel::variants`].
    pub variant: usize,
}

/// A kernel with its rungs on a device, the smallest form first.
#[derive(Debug, Clone)]
pub(crate) struct Bound<'m> {
    pub(crate) kernel: &'m Kernel,
    pub(crate) rungs: Vec<Rung>,
}

impl<'m> Bound<'m> {
    /// Variants in the order of the rungs.
    pub(crate) fn variants(&self) -> impl Iterator<Item = &'m Variant> {
        let variants = &self.kernel.variants;
        self.rungs
            .iter()
            .filter_map(|rung| variants.get(rung.variant))
    }

    /// Largest number of tokens that a form admits.
    pub(crate) fn chunk_max(&self) -> usize {
        let chunk = |variant: &Variant| {
            let chunk = variant.shape.chunk();
            chunk.map_or(usize::MAX, |tokens| tokens as usize)
        };
        self.variants().map(chunk).max().unwrap_or(0)
    }
}

/// Binds a kernel on a SoC.
pub(crate) fn bind<'m>(soc: &Soc, kernel: &'m Kernel) -> Result<Bound<'m>, RuntimeError> {
    let preferred = preference(kernel.group);
    let device = preferred
        .iter()
        .find_map(|class| {
            soc.devices
                .iter()
                .find(|device| manifest_class(device.class) == *class)
        })
        .ok_or_else(|| RuntimeError::NoDevice {
            soc: soc.name.clone(),
            group: kernel.group,
            expected: preferred.to_vec(),
        })?;
    let role = manifest_class(device.class);
    let mut rungs: Vec<Rung> = (0..)
        .zip(&kernel.variants)
        .filter(|(_, variant)| variant.device == role)
        .map(|(variant, _)| Rung { role, variant })
        .collect();
    // The smallest form that admits a call comes first.
    let limit = |size: Option<u32>| size.unwrap_or(u32::MAX);
    rungs.sort_by_key(|rung| {
        let shape = kernel.variants[rung.variant].shape;
        (limit(shape.chunk()), limit(shape.bucket()))
    });
    if rungs.is_empty() {
        return Err(RuntimeError::NoVariant {
            kernel: kernel.name.clone(),
            device: role,
            found: kernel
                .variants
                .iter()
                .map(|variant| variant.device)
                .collect(),
        });
    }
    Ok(Bound { kernel, rungs })
}

/// The device that plays a role.
pub(crate) fn device_of(soc: &Soc, role: DeviceClass) -> Option<&Device> {
    soc.devices
        .iter()
        .find(|device| manifest_class(device.class) == role)
}

/// Element type of the activations that all kernels share.
pub(crate) fn shared_activations(bound: &[Bound<'_>]) -> Result<ElementType, RuntimeError> {
    let mut shared = None;
    let variants = bound
        .iter()
        .flat_map(|bound| bound.variants().map(|variant| (bound.kernel, variant)));
    for (kernel, variant) in variants {
        let expected = *shared.get_or_insert(variant.activations);
        if variant.activations != expected {
            return Err(RuntimeError::MixedActivations {
                kernel: kernel.name.clone(),
                expected,
                found: variant.activations,
            });
        }
    }
    Ok(shared.unwrap_or(ElementType::F32))
}

/// Device classes for a group, best first.
fn preference(group: Group) -> &'static [DeviceClass] {
    match group {
        Group::Qkv | Group::Ffn | Group::Head => {
            &[DeviceClass::Npu, DeviceClass::Igpu, DeviceClass::Cpu]
        }
        Group::Mha => &[DeviceClass::Igpu, DeviceClass::Cpu],
    }
}

pub(crate) fn manifest_class(class: SpecClass) -> DeviceClass {
    match class {
        SpecClass::Cpu => DeviceClass::Cpu,
        SpecClass::Igpu => DeviceClass::Igpu,
        SpecClass::Npu => DeviceClass::Npu,
    }
}
