//! Checks of kernels: their ports against their group, their parameters and variants.
//!
//! | group | inputs | if it likes | outputs |
//! |---|---|---|---|
//! | `Qkv` | hidden | cos and sin, position | query, key, value |
//! | `Mha` | query, key, value | position | attended |
//! | `Ffn` | attended, hidden | | hidden |
//! | `Head` | hidden | | logits, or vector if the model gives vectors or scores |
//!
//! Each role comes at most once on a side and is as wide as the model says (DESIGN section 3).

use std::collections::BTreeSet;

use super::model::Widths;
use super::{
    check_equal, check_groups, check_name, check_nonzero, check_plain, check_rank, check_shape,
};
use crate::error::Error;
use crate::manifest::{
    Blob, Compatibility, ElementType, Kernel, Parameter, Port, Role, Rows, ShapeClass, Variant,
};
use heg_spec::{DeviceClass, Group};

/// The ports of a group on one side.
struct Side {
    name: &'static str,
    required: &'static [Role],
    optional: &'static [Role],
}

pub(super) fn check_kernels(kernels: &[Kernel], widths: &Widths, head: Role) -> Result<(), Error> {
    let mut names = BTreeSet::new();
    for (index, kernel) in kernels.iter().enumerate() {
        let Kernel {
            name,
            group,
            ops,
            inputs,
            outputs,
            parameters,
            work: _,
            variants,
        } = kernel;
        let field = format!("kernels[{index}]");
        check_name(|| format!("{field}.name"), name)?;
        for op in ops {
            check_plain(|| format!("{field}.ops"), op)?;
        }
        if !names.insert(name) {
            return Err(Error::invalid(
                format!("{field}.name"),
                format!("`{name}` once more"),
                "unique names",
            ));
        }
        let (input, output) = sides(*group, head);
        check_ports(&field, inputs, &input, widths)?;
        check_ports(&field, outputs, &output, widths)?;
        check_rotary(&field, kernel)?;
        check_parameters(&field, parameters)?;
        check_variants(&field, *group, variants)?;
    }
    Ok(())
}

/// Width of a kernel's rotary inputs, if it has any.
pub(super) fn rotary_width(kernel: &Kernel) -> Option<u32> {
    kernel
        .inputs
        .iter()
        .find(|port| port.role == Role::Cos)
        .map(|port| port.width)
}

fn sides(group: Group, head: Role) -> (Side, Side) {
    use Role::{Attended, Cos, Hidden, Key, Logits, Position, Query, Sin, Value, Vector};
    let (required, optional, outputs): (&[Role], &[Role], &[Role]) = match group {
        Group::Qkv => (&[Hidden], &[Cos, Sin, Position], &[Query, Key, Value]),
        Group::Mha => (&[Query, Key, Value], &[Position], &[Attended]),
        Group::Ffn => (&[Attended, Hidden], &[], &[Hidden]),
        Group::Head if head == Vector => (&[Hidden], &[], &[Vector]),
        Group::Head => (&[Hidden], &[], &[Logits]),
    };
    (
        Side {
            name: "inputs",
            required,
            optional,
        },
        Side {
            name: "outputs",
            required: outputs,
            optional: &[],
        },
    )
}

fn check_ports(kernel: &str, ports: &[Port], side: &Side, widths: &Widths) -> Result<(), Error> {
    let field = || format!("{kernel}.{}", side.name);
    for (index, port) in ports.iter().enumerate() {
        let Port { role, rows, width } = port;
        let port = || format!("{}[{index}]", field());
        if !side.required.contains(role) && !side.optional.contains(role) {
            let roles = [side.required, side.optional].concat();
            let expected = format!("one of {roles:?}");
            return Err(Error::invalid(
                format!("{}.role", port()),
                format!("{role:?}"),
                expected,
            ));
        }
        if ports
            .iter()
            .take(index)
            .any(|earlier| earlier.role == *role)
        {
            return Err(Error::invalid(
                format!("{}.role", port()),
                format!("{role:?} once more"),
                "every role once",
            ));
        }
        check_rows(|| format!("{}.rows", port()), *role, *rows, side)?;
        match widths.of(*role) {
            Some(expected) => check_equal(
                || format!("{}.width", port()),
                *width,
                expected,
                "as `model` says",
            )?,
            None => check_nonzero(|| format!("{}.width", port()), (*width).into())?,
        }
    }
    match side
        .required
        .iter()
        .find(|role| !ports.iter().any(|port| port.role == **role))
    {
        None => Ok(()),
        Some(missing) => Err(Error::invalid(
            field(),
            format!("without {missing:?}"),
            format!("{:?}", side.required),
        )),
    }
}

/// Checks that the cache has the rows of the context, and everything else, new keys and values included, those of a
/// call.
fn check_rows(
    field: impl FnOnce() -> String,
    role: Role,
    rows: Rows,
    side: &Side,
) -> Result<(), Error> {
    let is_input = side.name == "inputs";
    let expected: &[Rows] = match role {
        Role::Position => &[Rows::One],
        Role::Key | Role::Value if is_input => &[Rows::Context],
        Role::Hidden
        | Role::Cos
        | Role::Sin
        | Role::Query
        | Role::Key
        | Role::Value
        | Role::Attended
        | Role::Logits
        | Role::Vector => &[Rows::Tokens, Rows::One],
    };
    if expected.contains(&rows) {
        return Ok(());
    }
    Err(Error::invalid(
        field(),
        format!("{rows:?}"),
        format!("one of {expected:?} for {role:?}"),
    ))
}

/// Checks that cosines and sines come together and with one width.
fn check_rotary(field: &str, kernel: &Kernel) -> Result<(), Error> {
    let sines = kernel
        .inputs
        .iter()
        .find(|port| port.role == Role::Sin)
        .map(|port| port.width);
    let cosines = rotary_width(kernel);
    if sines == cosines {
        return Ok(());
    }
    let text =
        |width: Option<u32>| width.map_or("none".to_owned(), |width| format!("`{width}` wide"));
    let found = format!("with cosines {} and sines {}", text(cosines), text(sines));
    Err(Error::invalid(
        format!("{field}.inputs"),
        found,
        "both of one width, or neither",
    ))
}

fn check_parameters(field: &str, parameters: &[Parameter]) -> Result<(), Error> {
    let mut names = BTreeSet::new();
    for (index, parameter) in parameters.iter().enumerate() {
        let Parameter {
            name,
            element,
            shape,
            group_columns,
            centred,
        } = parameter;
        let field = || format!("{field}.parameters[{index}]");
        check_name(|| format!("{}.name", field()), name)?;
        if !names.insert(name) {
            return Err(Error::invalid(
                format!("{}.name", field()),
                format!("`{name}` once more"),
                "unique names",
            ));
        }
        check_shape(|| format!("{}.shape", field()), shape)?;
        check_rank(|| format!("{}.shape", field()), *element, shape)?;
        let of = |name: &str| format!("{}.{name}", field());
        check_groups(of, *element, shape, *group_columns)?;
        if element.is_grouped() {
            let why = format!("as {element:?} says");
            let expected = *element == ElementType::U4;
            check_equal(|| of("centred"), *centred, expected, &why)?;
        }
    }
    Ok(())
}

fn check_variants(field: &str, group: Group, variants: &[Variant]) -> Result<(), Error> {
    if variants.is_empty() {
        return Err(Error::invalid(
            format!("{field}.variants"),
            "empty",
            "at least one variant",
        ));
    }
    let mut kinds = BTreeSet::new();
    for (index, variant) in variants.iter().enumerate() {
        let Variant {
            device,
            shape,
            binding,
            activations,
            kv_cache,
            takes_trees,
            ir: _,
            program,
            tolerance,
            blobs,
        } = variant;
        let field = || format!("{field}.variants[{index}]");
        check_activations(|| format!("{}.activations", field()), *activations)?;
        match kv_cache {
            None | Some(ElementType::Bf16) => {}
            Some(ElementType::I8) if program.is_some() => {}
            Some(element) => {
                return Err(Error::invalid(
                    format!("{}.kv_cache", field()),
                    format!("{element:?}"),
                    "`Bf16`, `I8` beside a program, or nothing",
                ));
            }
        }
        check_shape_class(field, group, *shape)?;
        if *takes_trees && shape.bucket().is_none() {
            return Err(Error::invalid(
                format!("{}.takes_trees", field()),
                format!("trees in {shape:?}"),
                "trees in a `Bucket` only",
            ));
        }
        if program.is_some() && (*device, *shape) != (DeviceClass::Cpu, ShapeClass::Dynamic) {
            return Err(Error::invalid(
                format!("{}.program", field()),
                format!("a program for {device:?}, {shape:?}"),
                "`None`, or a dynamic variant for the CPU",
            ));
        }
        if !tolerance.is_finite() || *tolerance <= 0.0 {
            return Err(Error::invalid(
                format!("{}.tolerance", field()),
                format!("`{tolerance}`"),
                "a finite share above `0`",
            ));
        }
        check_blobs(field, blobs)?;
        if !kinds.insert((device, shape, binding, activations)) {
            let found = format!("{device:?}, {shape:?}, {binding:?}, {activations:?} once more");
            return Err(Error::invalid(field(), found, "variants that differ"));
        }
    }
    Ok(())
}

/// Checks that only kernels that depend on the context have buckets, and that a bucket holds at least the chunk.
fn check_shape_class(
    field: impl Fn() -> String,
    group: Group,
    shape: ShapeClass,
) -> Result<(), Error> {
    match shape {
        ShapeClass::Dynamic => Ok(()),
        ShapeClass::Static { tokens } => {
            check_nonzero(|| format!("{}.shape.tokens", field()), tokens.into())
        }
        ShapeClass::Bucket { tokens, context } => {
            check_nonzero(|| format!("{}.shape.tokens", field()), tokens.into())?;
            if group != Group::Mha {
                let found = format!("a bucket for a kernel of group {group:?}");
                let expected = "buckets for attention only";
                return Err(Error::invalid(
                    format!("{}.shape", field()),
                    found,
                    expected,
                ));
            }
            if context >= tokens {
                return Ok(());
            }
            Err(Error::invalid(
                format!("{}.shape.context", field()),
                format!("`{context}`"),
                format!("at least the chunk, `{tokens}`"),
            ))
        }
    }
}

/// Fails for element types that no device has for activations.
pub(super) fn check_activations(
    field: impl FnOnce() -> String,
    found: ElementType,
) -> Result<(), Error> {
    if matches!(found, ElementType::F16 | ElementType::F32) {
        return Ok(());
    }
    let found = format!("{found:?}");
    Err(Error::invalid(field(), found, "`F16` or `F32`"))
}

pub(super) fn check_blobs(field: impl Fn() -> String, blobs: &[Blob]) -> Result<(), Error> {
    let mut platforms = BTreeSet::new();
    for (index, blob) in blobs.iter().enumerate() {
        let Compatibility {
            compiler,
            elf,
            tiles: _,
            stepping,
            text,
        } = &blob.compatibility;
        for said in [compiler, elf, text].into_iter().chain(stepping) {
            check_plain(|| format!("{}.blobs[{index}].compatibility", field()), said)?;
        }
        let Blob {
            platform,
            compatibility: _,
            section: _,
        } = blob;
        if !platforms.insert(platform) {
            return Err(Error::invalid(
                format!("{}.blobs[{index}].platform", field()),
                format!("`{platform}` once more"),
                "one blob for a platform",
            ));
        }
    }
    Ok(())
}
