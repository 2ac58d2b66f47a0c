//! Checks of the GPU's part: names, lengths and shapes. The words of modules are checked by those who run or verify them
//! (`heg-spirv`).

use super::sections::Lengths;
use super::{check_name, check_nonzero};
use crate::error::Error;
use crate::manifest::{GPU_BYTES_MAX, GpuModule, GpuPart};
use crate::references::Reference;

/// Most shapes of a module, and most constants of a shape. Chosen: a model whose layers differ has some dozen shapes, and
/// modules have fewer than 20 constants.
const SHAPES_MAX: usize = 1024;
const CONSTANTS_MAX: usize = 32;

pub(super) fn check_gpu(gpu: Option<&GpuPart>, lengths: &Lengths) -> Result<(), Error> {
    let Some(GpuPart { modules }) = gpu else {
        return Ok(());
    };
    let mut before: Option<&str> = None;
    let mut bytes: u64 = 0;
    for (index, module) in modules.iter().enumerate() {
        let GpuModule {
            name,
            section,
            shapes,
        } = module;
        let field = |name: &str| format!("gpu.modules[{index}].{name}");
        check_name(|| field("name"), name)?;
        if before.is_some_and(|before| before >= name.as_str()) {
            let found = format!("`{name}`");
            return Err(Error::invalid(field("name"), found, "ascending names"));
        }
        before = Some(name);
        let reference = Reference::GpuModule(index);
        let found = lengths.of(reference, *section)?;
        check_nonzero(|| format!("bytes of {reference}"), found)?;
        bytes = bytes.saturating_add(found);
        if bytes > GPU_BYTES_MAX {
            let found = format!("`{bytes}` bytes with those before it");
            let expected = format!("at most `{GPU_BYTES_MAX}`");
            return Err(Error::invalid(reference.to_string(), found, expected));
        }
        check_shapes(&field("shapes"), shapes)?;
    }
    Ok(())
}

fn check_shapes(field: &str, shapes: &[std::collections::BTreeMap<u32, u32>]) -> Result<(), Error> {
    if shapes.is_empty() || shapes.len() > SHAPES_MAX {
        let found = format!("`{}` shapes", shapes.len());
        let expected = format!("`1` to `{SHAPES_MAX}`");
        return Err(Error::invalid(field, found, expected));
    }
    for (index, shape) in shapes.iter().enumerate() {
        if shape.len() > CONSTANTS_MAX {
            let found = format!("`{}` constants", shape.len());
            let expected = format!("at most `{CONSTANTS_MAX}`");
            return Err(Error::invalid(format!("{field}[{index}]"), found, expected));
        }
    }
    let mut pairs = shapes.iter().zip(shapes.iter().skip(1));
    match pairs.all(|(one, next)| one < next) {
        true => Ok(()),
        false => Err(Error::invalid(
            field,
            "not ascending",
            "each shape once, ascending",
        )),
    }
}
