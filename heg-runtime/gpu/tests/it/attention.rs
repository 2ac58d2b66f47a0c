//! Attention: windows, soft caps, several sequences of a call, trees, all types of the cache.

use heg_artifacts::manifest::{ElementType, Role, Rows};
use heg_artifacts::program::{Attention, Step};
use heg_cpu::Activations;
use heg_gpu::{GpuOptions, Treatment};
use heg_spec::Sight;

use crate::both::{Builder, Sequence, Subject, check};
use crate::device::device_of;
use crate::noise::Noise;

fn subject(noise: &mut Noise, kv: ElementType) -> Subject {
    let kv_heads = noise.between(1, 3);
    let heads = kv_heads * noise.between(1, 3);
    let head_dim = match noise.is() {
        true => 8 * noise.between(1, 17),
        false => 2 * noise.between(1, 50),
    };
    let mut builder = Builder::new(kv, Activations::I8);
    builder.port(Role::Query, Rows::Tokens, heads * head_dim);
    builder.port(Role::Key, Rows::Context, kv_heads * head_dim);
    builder.port(Role::Value, Rows::Context, kv_heads * head_dim);
    builder.port(Role::Position, Rows::One, 1);
    let out = builder.output(Role::Attended, heads * head_dim);
    builder.step(Step::Attention {
        attributes: Attention {
            heads,
            kv_heads,
            head_dim,
            scale: 0.13,
            window: noise.is().then(|| noise.between(1, 90)),
            softcap: noise.is().then_some(20.0),
            sight: Sight::Causal,
        },
        out,
    });
    builder.done()
}

/// Each token follows any earlier one.
fn tree(noise: &mut Noise, tokens: usize) -> Vec<u16> {
    (1..tokens)
        .map(|token| noise.between(0, token as u32 - 1) as u16)
        .collect()
}

fn check_cases(test: &str, cases: u64, sequences: impl Fn(&mut Noise) -> Vec<Sequence>) {
    let treatments = [
        GpuOptions::from_environment().treatment,
        Treatment::Discrete,
    ];
    let Some(devices) = treatments
        .map(|treatment| device_of(test, treatment))
        .into_iter()
        .collect::<Option<Vec<_>>>()
    else {
        return;
    };
    // Half of them have each treatment with each element type.
    let cases = match std::env::var_os("HEG_FULL") {
        Some(_) => cases,
        None => cases / 2,
    };
    for case in 0..cases {
        let device = &devices[(case / 3 % 2) as usize];
        let mut noise = Noise::new(case + 31);
        let kv = [ElementType::Bf16, ElementType::F32, ElementType::F16][(case % 3) as usize];
        let subject = subject(&mut noise, kv);
        let sequences = sequences(&mut noise);
        let what = format!("{test} {case}: {sequences:?}, {:?}", subject.program.steps);
        check(device, &subject, &sequences, &what, case + 3);
    }
}

#[test]
fn one_and_several_sequences() {
    check_cases("one_and_several_sequences", 12, |noise| {
        let count = noise.between(1, 3);
        let sequence = |_| Sequence {
            tokens: noise.between(1, 70) as usize,
            position: noise.between(0, 560) as usize,
            follows: None,
        };
        (0..count).map(sequence).collect()
    });
}

#[test]
fn rows_that_see_the_same_cache_share_it() {
    check_cases("rows_that_see_the_same_cache_share_it", 12, |noise| {
        let before = Sequence {
            tokens: noise.between(1, 6) as usize,
            position: noise.between(0, 60) as usize,
            follows: None,
        };
        let chunk = Sequence {
            tokens: noise.between(32, 40) as usize,
            position: noise.between(0, 590) as usize,
            follows: None,
        };
        vec![before, chunk]
    });
}

#[test]
fn trees() {
    check_cases("trees", 12, |noise| {
        let tokens = noise.between(2, 24) as usize;
        let position = noise.between(0, 600) as usize;
        let chain = Sequence {
            tokens: 2,
            position: 5,
            follows: None,
        };
        let tree = Sequence {
            tokens,
            position,
            follows: Some(tree(noise, tokens)),
        };
        vec![chain, tree]
    });
}
