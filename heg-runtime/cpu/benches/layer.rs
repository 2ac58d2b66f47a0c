//! One layer of the 1B shape on all cores: steps of decoding and chunks of a prompt, by weight form and instruction set.
//!
//! Rates are of weights, each read once in a step: beside them stands the rate at which the same bytes are merely summed,
//! which is the limit of a step of one token.
//!
//! `cargo bench -p heg-cpu`, or with a part of a name behind it: `cargo bench -p heg-cpu -- "W8A16/1 token"`.
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

#[allow(unsafe_code, reason = "rows that kernels work on")]
#[path = "../tests/layer/mod.rs"]
mod layer;

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::thread::{available_parallelism, scope};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use heg_artifacts::manifest::ElementType;
use heg_cpu::{Activations, CpuDevice, CpuDeviceOptions, Isa};
use layer::{Layer, Sequences, Sizes};

/// Llama 3.2 1B.
const SIZES: Sizes = Sizes {
    hidden: 2048,
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
    ffn: 8192,
};

/// Elements of the weights of a layer.
const ELEMENTS: usize = {
    let query = SIZES.heads * SIZES.head_dim;
    let key = SIZES.kv_heads * SIZES.head_dim;
    SIZES.hidden * (2 * query + 2 * key + 3 * SIZES.ffn)
};

/// Sequences and the tokens of each in one step.
const STEPS: [(&str, usize, usize); 4] = [
    ("1 token", 1, 1),
    ("8 requests", 8, 1),
    ("32 tokens", 1, 32),
    ("256 tokens", 1, 256),
];

fn layers(criterion: &mut Criterion) {
    let threads = available_parallelism().unwrap_or(NonZeroUsize::MIN);
    for (form, weights, activations, bytes) in [
        ("W8A16", ElementType::I8, Activations::I8, ELEMENTS),
        ("f16", ElementType::F16, Activations::F32, 2 * ELEMENTS),
    ] {
        let layer = Layer::random(SIZES, weights, activations, ElementType::Bf16, 1);
        let mut group = criterion.benchmark_group(form);
        group.throughput(Throughput::Bytes(bytes as u64));
        let memory = vec![1_u64; bytes / 8];
        group.bench_function("limit: weights summed", |bencher| {
            bencher.iter(|| sum(black_box(&memory), threads));
        });
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let mut device = CpuDevice::new(CpuDeviceOptions { isa, threads }).unwrap();
            for (step, sequences, tokens) in STEPS {
                let fresh = || Sequences::new(&layer, &vec![tokens; sequences], 2);
                group.bench_function(format!("{step}, {}", isa.name()), |bencher| {
                    let run = |mut of: Sequences| of.run(&mut device, &layer, &[tokens], true);
                    bencher.iter_batched(fresh, run, BatchSize::LargeInput);
                });
            }
        }
    }
}

/// Reads all of `memory` on as many threads as the device has.
fn sum(memory: &[u64], threads: NonZeroUsize) -> u64 {
    let part = memory.len().div_ceil(threads.get());
    scope(|scope| {
        let parts = memory.chunks(part);
        let sums: Vec<_> = parts
            .map(|part| scope.spawn(|| part.iter().sum::<u64>()))
            .collect();
        sums.into_iter().map(|sum| sum.join().unwrap_or(0)).sum()
    })
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = layers
}
criterion_main!(benches);
