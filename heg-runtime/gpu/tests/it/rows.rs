//! Steps on single rows, of random shapes with tails: norms, rotary embedding, gates, sums, conversions, stores to the
//! cache.

use heg_artifacts::manifest::{ElementType, Role, Rows};
use heg_artifacts::program::{Activation, RowForm, Step};
use heg_cpu::Activations;
use heg_gpu::{GpuDevice, Treatment};

use crate::both::{Builder, Sequence, Subject, check};
use crate::device::{device_of, device_or_skip};
use crate::noise::Noise;

fn sequences(noise: &mut Noise) -> Vec<Sequence> {
    let count = noise.between(1, 2);
    let sequence = |_| Sequence {
        tokens: noise.between(1, 9) as usize,
        position: noise.between(0, 200) as usize,
        follows: None,
    };
    (0..count).map(sequence).collect()
}

/// Runs programs of one step between input and output rows.
fn check_step(test: &str, cases: u64, subject: impl Fn(&mut Noise, u64) -> Subject) {
    if let Some(device) = device_or_skip(test) {
        check_step_on(&device, test, cases, subject);
    }
}

fn check_step_on(
    device: &GpuDevice,
    test: &str,
    cases: u64,
    subject: impl Fn(&mut Noise, u64) -> Subject,
) {
    for case in 0..cases {
        let mut noise = Noise::new(case + 1);
        let subject = subject(&mut noise, case);
        let sequences = sequences(&mut noise);
        let what = format!("{test} {case}: {:?}", subject.program);
        check(device, &subject, &sequences, &what, case + 100);
    }
}

/// Plain rows, or rows of the cache in one of its types.
fn target(case: u64) -> (Role, ElementType) {
    match case % 4 {
        0 => (Role::Hidden, ElementType::Bf16),
        1 => (Role::Key, ElementType::Bf16),
        2 => (Role::Key, ElementType::F16),
        _ => (Role::Key, ElementType::F32),
    }
}

/// A norm of rows of `width` columns, in `groups` parts that are normed apart.
fn norm(noise: &mut Noise, case: u64, width: u32, groups: u32) -> Subject {
    let (role, kv) = target(case);
    let mut builder = Builder::new(kv, Activations::I8);
    let x = builder.input(Role::Hidden, width);
    let out = builder.output(role, width);
    let weight = builder.weight(noise, ElementType::F32, &[width / groups], false);
    let (eps, offset) = (1e-6, if noise.is() { 1.0 } else { 0.0 });
    builder.step(Step::RmsNorm {
        x,
        weight,
        eps,
        offset,
        groups,
        out,
    });
    builder.done()
}

#[test]
fn rms_norm() {
    check_step("rms_norm", 12, |noise, case| {
        let groups = noise.between(1, if case % 2 == 0 { 1 } else { 9 });
        // One that is longer than what is loaded at a time.
        let more = if case == 0 { 2100 } else { 0 };
        let width = 2 * groups * noise.between(1, 120) + more;
        norm(noise, case, width, groups)
    });
}

#[test]
fn wide_rms_norm() {
    if let Some(device) = device_of("wide_rms_norm", Treatment::Discrete) {
        // Rows of one, two and three of what a wide device loads at a time, and rows of many parts.
        let shapes = [(2048, 1), (4098, 1), (8194, 1), (4096, 64), (2560, 32)];
        check_step_on(&device, "wide_rms_norm", 5, |noise, case| {
            let (width, groups) = shapes[case as usize];
            norm(noise, case, width, groups)
        });
    }
}

#[test]
fn layer_norm() {
    check_step("layer_norm", 6, |noise, _| {
        let width = noise.between(1, 700);
        let mut builder = Builder::new(ElementType::Bf16, Activations::I8);
        let x = builder.input(Role::Hidden, width);
        let out = builder.output(Role::Hidden, width);
        let weight = builder.weight(noise, ElementType::F32, &[width], false);
        let bias = noise
            .is()
            .then(|| builder.weight(noise, ElementType::F32, &[width], false));
        builder.step(Step::LayerNorm {
            x,
            weight,
            bias,
            eps: 1e-5,
            out,
        });
        builder.done()
    });
}

#[test]
fn rope() {
    check_step("rope", 12, |noise, case| {
        let (role, kv) = target(case);
        let heads = noise.between(1, 5);
        let head = 2 * noise.between(1, 40);
        let rotated = if case % 2 == 0 {
            head
        } else {
            2 * noise.between(1, head / 2)
        };
        let mut builder = Builder::new(kv, Activations::I8);
        let x = builder.input(Role::Hidden, heads * head);
        builder.port(Role::Cos, Rows::Tokens, rotated / 2);
        builder.port(Role::Sin, Rows::Tokens, rotated / 2);
        let out = builder.output(role, heads * head);
        builder.step(Step::Rope {
            x,
            heads,
            rotated,
            out,
        });
        builder.done()
    });
}

/// Each of eight kinds of step four times, in two tests that run side by side.
fn check_elementwise(test: &str, kinds: [u64; 4]) {
    check_step(test, 16, |noise, case| {
        elementwise(noise, kinds[case as usize % 4], case / 4)
    });
}

#[test]
fn copies_and_sums() {
    check_elementwise("copies_and_sums", [0, 1, 2, 3]);
}

#[test]
fn caps_and_gates() {
    check_elementwise("caps_and_gates", [4, 5, 6, 7]);
}

fn elementwise(noise: &mut Noise, kind: u64, round: u64) -> Subject {
    let (role, kv) = match kind {
        0 => target(round),
        _ => (Role::Hidden, ElementType::Bf16),
    };
    let width = 2 * noise.between(1, 300);
    let mut builder = Builder::new(kv, Activations::I8);
    let a = builder.input(Role::Hidden, width);
    let b = builder.input(Role::Attended, width);
    let out = builder.output(role, width);
    let gated = |activation| Step::Gated {
        gate: a,
        up: b,
        activation,
        out,
    };
    builder.step(match kind {
        0 => Step::Copy { x: a, out },
        1 => Step::Scale {
            x: a,
            factor: 0.37,
            out,
        },
        2 => Step::Add {
            a,
            b,
            b_scale: 0.22,
            out,
        },
        3 => Step::SoftCap {
            x: a,
            cap: 0.9,
            out,
        },
        4 => Step::SoftCap {
            x: a,
            cap: 30.0,
            out,
        },
        5 => gated(Activation::Silu),
        6 => gated(Activation::Gelu),
        _ => gated(Activation::GeluTanh),
    });
    builder.done()
}

/// Numbers that are small for a half, smaller than any, large and too large.
#[test]
fn halves_of_every_size() {
    check_step("halves_of_every_size", 4, |_, case| {
        let width = 256;
        let mut builder = Builder::new(ElementType::F16, Activations::I8);
        let x = builder.input(Role::Hidden, width);
        let scaled = builder.scratch(width, RowForm::Plain);
        let out = builder.output(Role::Key, width);
        let factor = [3e-5, 4e-8, 5e4, 1e6][case as usize];
        builder.step(Step::Scale {
            x,
            factor,
            out: scaled,
        });
        builder.step(Step::Copy { x: scaled, out });
        builder.done()
    });
}
