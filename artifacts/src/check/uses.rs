//! Checks of the per-layer table: which kernel runs where, with which weights.
//!
//! A use names a kernel of the group that its place requires, exactly the weights that the kernel's parameters
//! describe, in their order, and a rotary table if and only if the kernel takes one.

use super::check_equal;
use super::kernels::rotary_width;
use crate::error::Error;
use crate::manifest::{Kernel, KernelUse, Layer, Manifest, Parameter, RopeId, WeightId};
use heg_spec::{Group, GroupColumns};

pub(super) fn check_layers(layers: &[Layer], manifest: &Manifest) -> Result<(), Error> {
    if layers.is_empty() {
        return Err(Error::invalid("layers", "empty", "at least one layer"));
    }
    for (index, layer) in layers.iter().enumerate() {
        let Layer { qkv, mha, ffn } = layer;
        check_use(&format!("layers[{index}].qkv"), qkv, Group::Qkv, manifest)?;
        check_use(&format!("layers[{index}].mha"), mha, Group::Mha, manifest)?;
        check_use(&format!("layers[{index}].ffn"), ffn, Group::Ffn, manifest)?;
    }
    Ok(())
}

pub(super) fn check_head(head: &KernelUse, manifest: &Manifest) -> Result<(), Error> {
    check_use("head", head, Group::Head, manifest)
}

fn check_use(
    field: &str,
    place: &KernelUse,
    group: Group,
    manifest: &Manifest,
) -> Result<(), Error> {
    let KernelUse {
        kernel: id,
        weights,
        rope,
        answer: _,
    } = place;
    let kernel = look_up(
        &manifest.kernels,
        id.0,
        || format!("{field}.kernel"),
        "kernels",
    )?;
    if kernel.group != group {
        let found = format!("`{}`, of group {:?}", kernel.name, kernel.group);
        return Err(Error::invalid(
            format!("{field}.kernel"),
            found,
            format!("a kernel of group {group:?}"),
        ));
    }
    let count = kernel.parameters.len();
    let why = format!("the parameters of kernel `{}`", kernel.name);
    check_equal(
        || format!("{field}.weights.len()"),
        weights.len(),
        count,
        &why,
    )?;
    for (index, (weight, parameter)) in weights.iter().zip(&kernel.parameters).enumerate() {
        check_weight(
            || format!("{field}.weights[{index}]"),
            *weight,
            kernel,
            parameter,
            manifest,
        )?;
    }
    check_rope(field, *rope, kernel, manifest)
}

fn check_weight(
    field: impl Fn() -> String,
    id: WeightId,
    kernel: &Kernel,
    parameter: &Parameter,
    manifest: &Manifest,
) -> Result<(), Error> {
    let weight = look_up(&manifest.weights, id.0, &field, "weights")?;
    let centred = weight.centres.is_some();
    let Parameter {
        name,
        element,
        shape,
        group_columns,
        centred: expected,
    } = parameter;
    let is_alike = weight.element == *element && weight.shape == *shape;
    if is_alike && weight.group_columns == *group_columns && centred == *expected {
        return Ok(());
    }
    let with = |group: Option<GroupColumns>, centred| {
        let groups = group.map_or(String::new(), |group| format!(" in groups of {group}"));
        groups + if centred { " with centres" } else { "" }
    };
    let found = format!(
        "weight `{}`, {:?} of {:?}{}",
        weight.name,
        weight.shape,
        weight.element,
        with(weight.group_columns, centred)
    );
    let expected = format!(
        "{shape:?} of {element:?}{}, parameter `{name}` of kernel `{}`",
        with(*group_columns, *expected),
        kernel.name
    );
    Err(Error::invalid(field(), found, expected))
}

fn check_rope(
    field: &str,
    rope: Option<RopeId>,
    kernel: &Kernel,
    manifest: &Manifest,
) -> Result<(), Error> {
    let field = || format!("{field}.rope");
    match (rope, rotary_width(kernel)) {
        (None, None) => Ok(()),
        (Some(id), Some(width)) => {
            let table = look_up(&manifest.rope, id.0, field, "rope tables")?;
            let why = format!("the width of the rotary inputs of kernel `{}`", kernel.name);
            check_equal(|| format!("rope[{}].width", id.0), table.width, width, &why)
        }
        (None, Some(_)) => {
            let expected = format!("a rotary table, which kernel `{}` takes", kernel.name);
            Err(Error::invalid(field(), "`None`", expected))
        }
        (Some(id), None) => {
            let expected = format!("`None`: kernel `{}` has no rotary inputs", kernel.name);
            Err(Error::invalid(field(), format!("`{}`", id.0), expected))
        }
    }
}

/// The element at an index that comes from a file.
fn look_up<'a, T>(
    list: &'a [T],
    position: u32,
    field: impl Fn() -> String,
    what: &str,
) -> Result<&'a T, Error> {
    usize::try_from(position)
        .ok()
        .and_then(|position| list.get(position))
        .ok_or_else(|| {
            let expected = format!("less than the number of {what}: `{}`", list.len());
            Error::invalid(field(), format!("`{position}`"), expected)
        })
}
