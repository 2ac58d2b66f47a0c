//! A row's result does not depend on the rows beside it: the same bits alone and among others, for any number of
//! threads, instruction set and width of activations. Kernels as the compiler lowers them, over random weights.

use crate::layer::{Layer, Sequences, Sizes};
use heg_artifacts::manifest::ElementType;
use heg_cpu::{Activations, CpuDevice, CpuDeviceOptions, Isa};
use std::num::NonZeroUsize;

/// Sizes that fit no kernel's tile, and those of models.
const SIZES: [Sizes; 3] = [
    Sizes {
        hidden: 72,
        heads: 6,
        kv_heads: 2,
        head_dim: 12,
        ffn: 200,
    },
    Sizes {
        hidden: 128,
        heads: 4,
        kv_heads: 4,
        head_dim: 32,
        ffn: 352,
    },
    Sizes {
        hidden: 576,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        ffn: 1536,
    },
];

/// Tokens of each sequence: for small layers, and for large ones, which take the portable form long.
const TOKENS: [&[usize]; 2] = [&[37, 5, 70], &[17, 2]];

/// Chunk sizes of prompts; the last one repeats.
const CUTS: [&[usize]; 4] = [&[1], &[7], &[32, 1, 3], &[200]];

fn device(isa: Isa, threads: usize) -> CpuDevice {
    let threads = NonZeroUsize::new(threads).unwrap();
    CpuDevice::new(CpuDeviceOptions { isa, threads }).unwrap()
}

fn check(weights: ElementType, activations: Activations, kv: ElementType) {
    for (seed, mut sizes) in (1..).zip(SIZES) {
        if weights.is_grouped() && !sizes.hidden.is_multiple_of(32) {
            // Widths of whole groups.
            sizes = Sizes {
                hidden: 96,
                head_dim: 16,
                ffn: 224,
                ..sizes
            };
        }
        let layer = Layer::random(sizes, weights, activations, kv, seed);
        let tokens = TOKENS[usize::from(sizes.hidden > 100)];
        let run = |isa, threads, cut: &[usize], together| {
            let mut sequences = Sequences::new(&layer, tokens, seed);
            sequences.run(&mut device(isa, threads), &layer, cut, together);
            sequences
        };
        let expected = run(Isa::Portable, 1, &[1], false);
        let vectors = Isa::ALL.into_iter().filter(|isa| *isa != Isa::Portable);
        for isa in vectors.filter(|isa| isa.is_available()) {
            for threads in [1, 3] {
                for (cut, together) in CUTS.iter().flat_map(|cut| [(cut, false), (cut, true)]) {
                    let found = run(isa, threads, cut, together);
                    assert!(
                        found == expected,
                        "{sizes:?}, {isa}, {threads} threads, cut {cut:?}, together: {together}"
                    );
                }
            }
        }
    }
}

#[test]
fn integers_and_8_bit_activations() {
    check(ElementType::I8, Activations::I8, ElementType::Bf16);
}

#[test]
fn integers_and_16_bit_activations() {
    check(ElementType::I8, Activations::I16, ElementType::Bf16);
}

#[test]
fn integers_and_f32_activations() {
    check(ElementType::I8, Activations::F32, ElementType::F32);
}

#[test]
fn caches_of_integers() {
    check(ElementType::I8, Activations::I8, ElementType::I8);
    check(ElementType::I8, Activations::F32, ElementType::I8);
}

#[test]
fn nibbles_in_groups() {
    for weights in [ElementType::I4, ElementType::U4] {
        check(weights, Activations::I8, ElementType::Bf16);
        check(weights, Activations::I16, ElementType::Bf16);
        check(weights, Activations::F32, ElementType::F32);
    }
}

#[test]
fn floats() {
    check(ElementType::F32, Activations::I8, ElementType::F32);
    check(ElementType::F16, Activations::I8, ElementType::F32);
    check(ElementType::Bf16, Activations::I8, ElementType::F32);
}
