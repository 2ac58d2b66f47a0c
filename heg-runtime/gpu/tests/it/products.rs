//! Products of all weights with all activations, of random shapes with tails, and operands from every step that gives
//! some.

use heg_artifacts::manifest::{ElementType, Role};
use heg_artifacts::program::{Activation, Part, Residual, RowForm, Step};
use heg_cpu::Activations;
use heg_gpu::Treatment;

use crate::both::{Builder, Sequence, Subject, check};
use crate::device::{device_of, device_or_skip};
use crate::noise::Noise;

fn subject(
    noise: &mut Noise,
    case: u64,
    element: ElementType,
    activations: Activations,
) -> Subject {
    let width = match element.is_grouped() {
        true => 32 * noise.between(1, 12),
        false => noise.between(1, 300),
    };
    subject_of(noise, case, element, activations, width, None)
}

fn subject_of(
    noise: &mut Noise,
    case: u64,
    element: ElementType,
    activations: Activations,
    width: u32,
    outputs: Option<u32>,
) -> Subject {
    let mut builder = Builder::new(ElementType::Bf16, activations);
    let x = builder.input(Role::Attended, width);
    let other = builder.input(Role::Query, width);
    let operand = builder.scratch(width, RowForm::Operand);
    let step = match case % 4 {
        0 => Step::Copy { x, out: operand },
        1 => Step::Gated {
            gate: x,
            up: other,
            activation: Activation::Silu,
            out: operand,
        },
        2 => {
            let weight = builder.weight(noise, ElementType::F32, &[width], false);
            Step::RmsNorm {
                x,
                weight,
                eps: 1e-5,
                offset: 0.0,
                groups: 1,
                out: operand,
            }
        }
        _ => {
            let weight = builder.weight(noise, ElementType::F32, &[width], false);
            Step::LayerNorm {
                x,
                weight,
                bias: None,
                eps: 1e-5,
                out: operand,
            }
        }
    };
    builder.step(step);
    let mut parts = Vec::new();
    for role in [Role::Hidden, Role::Logits] {
        let outputs = outputs.unwrap_or_else(|| noise.between(1, 200));
        let residual = noise.is().then(|| match role {
            Role::Hidden => builder.input(Role::Hidden, outputs),
            _ => builder.input(Role::Logits, outputs),
        });
        let bias = noise
            .is()
            .then(|| builder.weight(noise, ElementType::F32, &[outputs], false));
        let centred = noise.is();
        parts.push(Part {
            weight: builder.weight(noise, element, &[outputs, width], centred),
            bias,
            residual: residual.map(|to| Residual { to, factor: 0.7 }),
            out: builder.output(role, outputs),
        });
    }
    builder.step(Step::Product { x: operand, parts });
    builder.done()
}

fn check_products(test: &str, elements: &[ElementType], activations: Activations, cases: u64) {
    let Some(device) = device_or_skip(test) else {
        return;
    };
    for element in elements {
        for case in 0..cases {
            let mut noise = Noise::new(1000 + case);
            let subject = subject(&mut noise, case, *element, activations);
            let rows = if case % 3 == 0 {
                1
            } else {
                noise.between(2, 11)
            };
            let sequence = Sequence {
                tokens: rows as usize,
                position: 0,
                follows: None,
            };
            let what = format!(
                "{test} {element:?} {case}: {rows} rows, {:?}",
                subject.program
            );
            check(&device, &subject, &[sequence], &what, case + 7);
        }
    }
}

#[test]
fn bytes_with_8_bit_activations() {
    check_products(
        "bytes_with_8_bit_activations",
        &[ElementType::I8],
        Activations::I8,
        12,
    );
}

#[test]
fn bytes_with_16_bit_activations() {
    check_products(
        "bytes_with_16_bit_activations",
        &[ElementType::I8],
        Activations::I16,
        6,
    );
}

#[test]
fn nibbles_with_integer_activations() {
    let elements = [ElementType::I4, ElementType::U4];
    let test = "nibbles_with_integer_activations";
    check_products(test, &elements, Activations::I8, 6);
    check_products(test, &elements, Activations::I16, 3);
}

#[test]
fn floats_and_integers_with_f32_activations() {
    let elements = [
        ElementType::F32,
        ElementType::F16,
        ElementType::Bf16,
        ElementType::I8,
        ElementType::I4,
        ElementType::U4,
    ];
    check_products(
        "floats_and_integers_with_f32_activations",
        &elements,
        Activations::F32,
        4,
    );
}

/// Products as wide devices divide them: rows of whole groups, up to some slices of them, for a few rows and for tiles.
fn check_wide(test: &str, element: ElementType, activations: Activations, shapes: &[Shape]) {
    let Some(device) = device_of(test, Treatment::Discrete) else {
        return;
    };
    for (case, shape) in (0..).zip(shapes) {
        let mut noise = Noise::new(3000 + case);
        let Shape(rows, groups, outputs) = *shape;
        let width = 32 * groups;
        let subject = subject_of(&mut noise, case, element, activations, width, outputs);
        let sequence = Sequence {
            tokens: rows,
            position: 0,
            follows: None,
        };
        let what = format!("{test} {case}: {rows} rows of {groups} groups");
        check(&device, &subject, &[sequence], &what, case + 7);
    }
}

/// Rows, groups of columns, and outputs where enough are needed for tiles.
#[derive(Clone, Copy)]
struct Shape(usize, u32, Option<u32>);

const SHAPES: [Shape; 11] = [
    Shape(2, 33, None),
    Shape(70, 3, Some(2800)),
    Shape(300, 2, Some(3300)),
    Shape(1, 1, None),
    Shape(33, 2, None),
    Shape(7, 130, None),
    Shape(9, 64, None),
    Shape(3, 5, None),
    Shape(1, 8, None),
    Shape(2, 9, None),
    // A norm whose groups are rounded in two rounds.
    Shape(3, 131, None),
];

#[test]
fn wide_bytes() {
    check_wide("wide_bytes", ElementType::I8, Activations::I8, &SHAPES);
    check_wide(
        "wide_bytes",
        ElementType::I8,
        Activations::I16,
        &SHAPES[..2],
    );
}

#[test]
fn wide_nibbles() {
    let test = "wide_nibbles";
    check_wide(test, ElementType::I4, Activations::I8, &SHAPES[..2]);
    check_wide(test, ElementType::U4, Activations::I8, &SHAPES[..3]);
    check_wide(test, ElementType::U4, Activations::I16, &SHAPES[..2]);
}
