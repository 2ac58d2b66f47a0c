//! One builder per operator of the graph.
//!
//! Rows are [tokens, width]; heads appear only inside a builder. `attention` has a file of its own. Each builder is
//! tested against a plain reference on OpenVINO's CPU device in `ops_tests`.

use heg_artifacts::manifest::{Binding, ElementType};

use super::OperandOrder;
use super::weights::Weight;
use super::xml::{Dim, Element, Ir, LiteralShape, Wire};
use crate::graph::Activation;

/// `x / rms(x) · (offset + w)`, over each of `groups` equal parts of the row.
///
/// Squares and means are computed in f32: a squared f16 overflows from 256 on.
pub(super) fn rms_norm(
    ir: &mut Ir<'_>,
    x: &Wire,
    weight: &Weight,
    eps: f32,
    offset: f32,
    groups: u32,
) -> Wire {
    let parts = into_groups(ir, x, groups);
    let wide = ir.convert(&parts, ElementType::F32);
    let two = ir.float(2.0);
    let square = ir.op(
        "Power",
        "opset1",
        "auto_broadcast=\"numpy\"",
        &[&wide, &two],
        wide.element,
        wide.shape.clone(),
    );
    let mean = ir.mean(&square);
    let eps = ir.float(eps);
    let mean = ir.add(&mean, &eps);
    let root = ir.unary("Sqrt", "opset1", "", &mean);
    let one = ir.float(1.0);
    let inverse = ir.divide(&one, &root);
    let normed = ir.multiply(&wide, &inverse);
    let mut factor = weight.values.clone();
    if offset != 0.0 {
        let offset = ir.float(offset);
        factor = ir.add(&factor, &offset);
    }
    let scaled = ir.multiply(&normed, &factor);
    let narrow = ir.convert(&scaled, x.element);
    if groups == 1 {
        return narrow;
    }
    ir.reshape(&narrow, &[Dim::Dynamic, x.shape[1]])
}

/// `(x − mean) / deviation · w + b`, in f32.
pub(super) fn layer_norm(
    ir: &mut Ir<'_>,
    x: &Wire,
    weight: &Weight,
    bias: Option<&Weight>,
    eps: f32,
) -> Wire {
    let wide = ir.convert(x, ElementType::F32);
    let axis = ir.integers(&[-1], LiteralShape::List);
    let data = format!("eps=\"{eps:e}\" normalize_variance=\"true\" eps_mode=\"INSIDE_SQRT\"");
    let normed = ir.op(
        "MVN",
        "opset6",
        &data,
        &[&wide, &axis],
        wide.element,
        wide.shape.clone(),
    );
    let mut y = ir.multiply(&normed, &weight.values);
    if let Some(bias) = bias {
        y = ir.add(&y, &bias.values);
    }
    ir.convert(&y, x.element)
}

/// `x · Wᵀ + b`.
///
/// int8 rows: as constants, `W ∘ s` before the product, the pattern that plugins keep compressed; as inputs, `∘ s`
/// after the product, which is equivalent and fast with the NPU compiler (DESIGN §4.2). A row's centre is a term of all
/// its weights, so that its part of the product is the sum of x times the centre.
///
/// 4-bit integers: `W ∘ s` before the product in either binding, since scales differ within a row; the centres of
/// groups make a separate product with the sums of x over each group.
pub(super) fn linear(
    ir: &mut Ir<'_>,
    x: &Wire,
    (weight, bias): (&Weight, Option<&Weight>),
    order: OperandOrder,
) -> Wire {
    let element = float_element(x);
    let mut y = match (&weight.affine, weight.binding) {
        // Stored narrower than it is multiplied: plugins may keep it so. Marking a conversion that does nothing would
        // make them keep f16 beside activations that they widen.
        (None, _)
            if weight.values.element == Element::Typed(ElementType::F16)
                && element == ElementType::F32 =>
        {
            let matrix = ir.decompress(&weight.values, element);
            matrix_product(ir, x, &matrix, order)
        }
        (None, _) => {
            let matrix = ir.convert(&weight.values, element);
            matrix_product(ir, x, &matrix, order)
        }
        (Some(affine), _) if weight.values.shape.len() == 3 => {
            let wide = match weight.binding {
                Binding::Constant => ElementType::F32,
                Binding::Input => element,
            };
            let matrix = ir.convert(&weight.values, wide);
            let scales = ir.convert(&affine.scales, wide);
            let matrix = ir.multiply(&matrix, &scales);
            let matrix = ir.reshape(&matrix, &[Dim::Dynamic, x.shape[1]]);
            let matrix = ir.convert(&matrix, element);
            let product = matrix_product(ir, x, &matrix, order);
            with_group_centres(ir, product, x, affine.centres.as_ref())
        }
        (Some(affine), Binding::Constant) => {
            let matrix = ir.convert(&weight.values, ElementType::F32);
            let matrix = ir.multiply(&matrix, &affine.scales);
            let matrix = ir.convert(&matrix, element);
            let product = matrix_product(ir, x, &matrix, order);
            with_centres(ir, product, x, affine.centres.as_ref())
        }
        (Some(affine), Binding::Input) => {
            let matrix = ir.convert(&weight.values, element);
            let product = matrix_product(ir, x, &matrix, order);
            let scales = ir.convert(&affine.scales, element);
            let scaled = ir.multiply(&product, &scales);
            with_centres(ir, scaled, x, affine.centres.as_ref())
        }
    };
    if let Some(bias) = bias {
        let bias = ir.convert(&bias.values, element);
        y = ir.add(&y, &bias);
    }
    y
}

/// `x · Wᵀ`, with either operand first.
fn matrix_product(ir: &mut Ir<'_>, x: &Wire, matrix: &Wire, order: OperandOrder) -> Wire {
    match order {
        OperandOrder::ActivationsFirst => ir.matmul(x, matrix, true),
        OperandOrder::WeightsFirst => {
            let transposed = ir.matmul(matrix, x, true);
            ir.transpose(&transposed, &[1, 0])
        }
    }
}

/// Adds the centres of a matrix's rows, if it has any, to its product with x.
fn with_centres(ir: &mut Ir<'_>, product: Wire, x: &Wire, centres: Option<&Wire>) -> Wire {
    let Some(centres) = centres else {
        return product;
    };
    let centres = ir.convert(centres, float_element(x));
    let sum = ir.sum(x);
    let term = ir.multiply(&sum, &centres);
    ir.add(&product, &term)
}

/// Like [`with_centres`], for groups of columns.
fn with_group_centres(ir: &mut Ir<'_>, product: Wire, x: &Wire, centres: Option<&Wire>) -> Wire {
    let Some(centres) = centres else {
        return product;
    };
    let groups = fixed(centres.shape[1]);
    let parts = into_groups(ir, x, groups);
    let sums = ir.sum(&parts);
    let sums = ir.reshape(&sums, &[Dim::Dynamic, Dim::Fixed(groups)]);
    let centres = ir.convert(centres, float_element(x));
    let term = ir.matmul(&sums, &centres, true);
    ir.add(&product, &term)
}

/// Rotates pairs (i, i + rotated/2) of each head's first `rotated` dimensions (the rotate-half form).
pub(super) fn rope(
    ir: &mut Ir<'_>,
    x: &Wire,
    cos: &Wire,
    sin: &Wire,
    heads: u32,
    rotated: u32,
) -> Wire {
    if x.shape[0] != Dim::Dynamic {
        return rope_of_chunk(ir, x, [cos, sin], heads, rotated);
    }
    let element = float_element(x);
    let head_dim = fixed(x.shape[1]) / heads;
    let parts = into_groups(ir, x, heads);
    // One row of factors per token, shared by all heads.
    let mut factors = |table: &Wire| {
        let table = if heads == 1 {
            table.clone()
        } else {
            ir.unsqueeze(table, 1)
        };
        ir.convert(&table, element)
    };
    let (cos, sin) = (factors(cos), factors(sin));
    let half = rotated / 2;
    let mut sizes = vec![half, half];
    if rotated < head_dim {
        sizes.push(head_dim - rotated);
    }
    let pieces = ir.split(&parts, &sizes);
    let (first, second) = (&pieces[0], &pieces[1]);
    let (a, b) = (ir.multiply(first, &cos), ir.multiply(second, &sin));
    let rotated_first = ir.subtract(&a, &b);
    let (a, b) = (ir.multiply(second, &cos), ir.multiply(first, &sin));
    let rotated_second = ir.add(&a, &b);
    let mut joined = vec![&rotated_first, &rotated_second];
    joined.extend(pieces.get(2));
    let y = ir.concat(&joined, head_dim);
    if heads == 1 {
        return y;
    }
    ir.reshape(&y, &[Dim::Dynamic, x.shape[1]])
}

/// The rotation of a fixed number of tokens, as `x · cos + (−second, first) · sin` over [1, 1, tokens, rotated] for
/// each head: operators, operands and layout that the NPU compiler recognises as its own rotary operator. All heads at
/// once would need transpositions, which it refuses for some small shapes.
fn rope_of_chunk(ir: &mut Ir<'_>, x: &Wire, tables: [&Wire; 2], heads: u32, rotated: u32) -> Wire {
    let (tokens, width) = (x.shape[0], fixed(x.shape[1]));
    let (element, head_dim) = (float_element(x), width / heads);
    let [cos, sin] = tables.map(|table| {
        let half = ir.convert(table, element);
        let whole = ir.concat(&[&half, &half], rotated);
        let whole = ir.unsqueeze(&whole, 0);
        ir.unsqueeze(&whole, 0)
    });
    let mut sizes = vec![rotated];
    if rotated < head_dim {
        sizes.push(head_dim - rotated);
    }
    let mut pieces = ir.split(x, &sizes.repeat(heads as usize));
    for part in pieces.iter_mut().step_by(sizes.len()) {
        let [one, size] = [1, rotated].map(Dim::Fixed);
        let turning = ir.reshape(part, &[one, one, tokens, size]);
        let halves = ir.split(&turning, &[rotated / 2, rotated / 2]);
        let negated = ir.times(&halves[1], -1.0);
        let swapped = ir.concat(&[&negated, &halves[0]], rotated);
        let (a, b) = (ir.multiply(&turning, &cos), ir.multiply(&swapped, &sin));
        let turned = ir.add(&a, &b);
        *part = ir.reshape(&turned, &[tokens, size]);
    }
    let pieces: Vec<&Wire> = pieces.iter().collect();
    ir.concat(&pieces, width)
}

/// `activation(gate) · up`.
pub(super) fn gated(ir: &mut Ir<'_>, gate: &Wire, up: &Wire, activation: Activation) -> Wire {
    let activated = activated(ir, gate, activation);
    ir.multiply(&activated, up)
}

/// `activation(x)`.
pub(super) fn activated(ir: &mut Ir<'_>, x: &Wire, activation: Activation) -> Wire {
    match activation {
        Activation::Silu => ir.unary("Swish", "opset4", "", x),
        Activation::Gelu => ir.unary("Gelu", "opset7", "approximation_mode=\"ERF\"", x),
        Activation::GeluTanh => ir.unary("Gelu", "opset7", "approximation_mode=\"TANH\"", x),
    }
}

/// `cap · tanh(x / cap)`.
pub(super) fn soft_cap(ir: &mut Ir<'_>, x: &Wire, cap: f32) -> Wire {
    let small = ir.times(x, 1.0 / cap);
    let bent = ir.unary("Tanh", "opset1", "", &small);
    ir.times(&bent, cap)
}

/// `x` rounded to the eight significant bits of bf16, to nearest, ties to even (Veltkamp's splitting). The CPU plugin
/// (2026.4) converts f32 by way of f16 and truncates the rest, which makes keys and values 0.14% smaller on average.
pub(super) fn rounded_to_bf16(ir: &mut Ir<'_>, x: &Wire) -> Wire {
    let large = ir.times(x, 65537.0);
    let rest = ir.subtract(&large, x);
    ir.subtract(&large, &rest)
}

/// Reshapes [tokens, width] to [tokens, groups, width / groups]; one group stays as it is.
fn into_groups(ir: &mut Ir<'_>, x: &Wire, groups: u32) -> Wire {
    let part = Dim::Fixed(fixed(x.shape[1]) / groups);
    if groups == 1 {
        x.clone()
    } else {
        ir.reshape(x, &[Dim::Dynamic, Dim::Fixed(groups), part])
    }
}

fn float_element(x: &Wire) -> ElementType {
    match x.element {
        Element::Typed(ElementType::F16) => ElementType::F16,
        _ => ElementType::F32,
    }
}

/// The size of a width, which is always known; only row counts are dynamic.
fn fixed(dim: Dim) -> u32 {
    match dim {
        Dim::Fixed(size) => size,
        Dim::Dynamic => 0,
    }
}
