//! The variants of a kernel by their sizes and by who runs them.

use heg_artifacts::manifest::{Kernel, ShapeClass, Variant};
use heg_spec::DeviceClass;

use super::Need;
use super::device::DeviceFacts;

/// Returns the variants that calls up to `need` may use: none that is larger than the smallest one that admits all.
pub(super) fn needed<'m>(
    variants: &[(usize, &'m Variant)],
    need: Need,
) -> Vec<(usize, &'m Variant)> {
    let shapes = variants.iter().map(|(_, variant)| variant.shape);
    let enough = |sizes: &mut dyn Iterator<Item = usize>, size| {
        sizes
            .filter(|limit| *limit >= size)
            .min()
            .unwrap_or(usize::MAX)
    };
    let chunk = enough(
        &mut shapes.clone().map(|shape| limit(shape.chunk())),
        need.tokens,
    );
    let bucket = enough(&mut shapes.map(|shape| limit(shape.bucket())), need.context);
    let fits =
        |variant: &Variant| size(variant.shape).0 <= chunk && size(variant.shape).1 <= bucket;
    let needed = variants.iter().filter(|(_, variant)| fits(variant));
    needed.copied().collect()
}

/// Limits of tokens and of context.
pub(super) fn size(shape: ShapeClass) -> (usize, usize) {
    (limit(shape.chunk()), limit(shape.bucket()))
}

fn limit(size: Option<u32>) -> usize {
    size.map_or(usize::MAX, |size| size as usize)
}

/// The CPU's variants that have programs, which a GPU may run in any role.
pub(super) fn with_programs(kernel: &Kernel) -> impl Iterator<Item = (usize, &Variant)> {
    let variants = of_class(kernel, DeviceClass::Cpu);
    variants.filter(|(_, variant)| variant.program.is_some())
}

/// Variants that a GPU runs in the role of a device that has variants of its own.
pub(super) fn programs_of_gpu<'m>(
    kernel: &'m Kernel,
    device: &DeviceFacts,
) -> impl Iterator<Item = (usize, &'m Variant)> {
    let has_gpu = device.has_gpu_first();
    with_programs(kernel).filter(move |_| has_gpu)
}

/// Variants of a class.
pub(super) fn of_class(
    kernel: &Kernel,
    class: DeviceClass,
) -> impl Iterator<Item = (usize, &Variant)> {
    let variants = kernel.variants.iter().enumerate();
    variants.filter(move |(_, variant)| variant.device == class)
}
