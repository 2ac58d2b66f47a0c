//! Binding: which device class runs which op group, and through which variants. Pure.
//!
//! Token-wise groups prefer the NPU, attention the iGPU, and both fall to the next class that the SoC has
//! (HeteroLLM §4; DESIGN §3). What a SoC lacks is an error, never a silent change of device.

use heg_artifacts::manifest::{DeviceClass, ElementType, Group, Kernel, Variant};
use heg_spec::soc::{Device, DeviceClass as SpecClass, Soc};

use crate::error::RuntimeError;

/// The device a kernel runs on, and its variants there, static ones in ascending order.
#[derive(Debug, Clone)]
pub(crate) struct Bound<'m> {
    pub(crate) device: Device,
    pub(crate) variants: Vec<&'m Variant>,
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
    let class = manifest_class(device.class);
    let mut variants: Vec<&Variant> = kernel
        .variants
        .iter()
        .filter(|v| v.device == class)
        .collect();
    // The smallest form that admits a call comes first.
    let limit = |size: Option<u32>| size.unwrap_or(u32::MAX);
    variants.sort_by_key(|variant| (limit(variant.shape.chunk()), limit(variant.shape.bucket())));
    if variants.is_empty() {
        return Err(RuntimeError::NoVariant {
            kernel: kernel.name.clone(),
            device: class,
            found: kernel
                .variants
                .iter()
                .map(|variant| variant.device)
                .collect(),
        });
    }
    Ok(Bound {
        device: device.clone(),
        variants,
    })
}

/// Element type of the activations that all kernels share.
pub(crate) fn shared_activations<'m>(
    bound: impl Iterator<Item = (&'m Kernel, &'m Variant)>,
) -> Result<ElementType, RuntimeError> {
    let mut shared = None;
    for (kernel, variant) in bound {
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

fn manifest_class(class: SpecClass) -> DeviceClass {
    match class {
        SpecClass::Cpu => DeviceClass::Cpu,
        SpecClass::Igpu => DeviceClass::Igpu,
        SpecClass::Npu => DeviceClass::Npu,
    }
}
