//! Attention of single tokens over full caches: keys and values in bf16 and in 8 bits, in turns, by shape, context and
//! instruction set. Caches of several layers are read one after the other, so that none is still in the processor's.
//!
//! `cargo bench -p heg-cpu --bench attention`, or with a part of a name behind it: `-- "SmolLM2, 1 sequence"`.
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

#[allow(unsafe_code, reason = "rows that kernels work on")]
#[allow(dead_code, reason = "attention alone is measured here")]
#[path = "../tests/layer/mod.rs"]
mod layer;

use std::num::NonZeroUsize;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use heg_artifacts::manifest::ElementType;
use heg_cpu::{Activations, CpuDevice, CpuDeviceOptions, Isa};
use layer::{Cached, Layer, Sizes};

/// Models by name: those that the forms are judged by.
const MODELS: [(&str, Sizes); 2] = [
    (
        "SmolLM2",
        Sizes {
            hidden: 576,
            heads: 9,
            kv_heads: 3,
            head_dim: 64,
            ffn: 1536,
        },
    ),
    (
        "Llama 1B",
        Sizes {
            hidden: 2048,
            heads: 32,
            kv_heads: 8,
            head_dim: 64,
            ffn: 8192,
        },
    ),
];

/// Sequences, and the rows of each one's cache.
const CONTEXTS: [(usize, usize); 6] = [
    (1, 512),
    (1, 2048),
    (1, 8192),
    (1, 32_768),
    (8, 512),
    (8, 4096),
];

/// Bytes of the caches in bf16 that take turns, at least: more than a processor's own.
const TURN_BYTES: usize = 192 << 20;

/// Number of rounds; the fastest counts.
const ROUNDS: usize = 9;

fn main() {
    let wanted = std::env::args().skip(1).find(|it| !it.starts_with('-'));
    let wanted = wanted.unwrap_or_default();
    let threads = available_parallelism().unwrap_or(NonZeroUsize::MIN);
    println!("{:42} {:>9} {:>9} {:>6}", "", "bf16 µs", "i8 µs", "ratio");
    for (model, sizes) in MODELS {
        let layers = [ElementType::Bf16, ElementType::I8]
            .map(|kv| Layer::random(sizes, ElementType::I8, Activations::I8, kv, 1));
        for (sequences, rows) in CONTEXTS {
            let names = Isa::ALL.map(|isa| {
                let plural = if sequences == 1 { "" } else { "s" };
                let context = format!("{sequences} sequence{plural} of {rows}");
                (isa, format!("{model}, {context}, {}", isa.name()))
            });
            let vectors = names.into_iter().filter(|(isa, name)| {
                *isa != Isa::Portable && isa.is_available() && name.contains(&wanted)
            });
            let vectors: Vec<_> = vectors.collect();
            if vectors.is_empty() {
                continue;
            }
            let row_bytes = 4 * sizes.kv_heads * sizes.head_dim;
            let turns = TURN_BYTES.div_ceil(sequences * rows * row_bytes).max(2);
            let mut caches = layers
                .each_ref()
                .map(|layer| Cached::new(layer, turns, sequences, rows));
            for (isa, name) in vectors {
                let mut device = CpuDevice::new(CpuDeviceOptions { isa, threads }).unwrap();
                let mut best = [Duration::MAX; 2];
                for _ in 0..ROUNDS {
                    for (best, (layer, caches)) in
                        best.iter_mut().zip(layers.iter().zip(&mut caches))
                    {
                        let start = Instant::now();
                        caches.attend(&mut device, layer);
                        *best = start.elapsed().min(*best);
                    }
                }
                let [bf16, i8] = best.map(|best| best.as_secs_f64() * 1e6 / turns as f64);
                println!("{name:42} {bf16:9.1} {i8:9.1} {:6.2}", bf16 / i8);
            }
        }
    }
}
