//! How fast attention is on one thread of this machine: printed, not judged.

use super::{AttentionCall, AttentionScratch, KvElement, WorkItem, WorkItems, attend};
use crate::Isa;
use crate::lanes::{Kernel, LANES, Lanes, run};
use heg_artifacts::program::Attention;
use std::hint::black_box;
use std::time::Instant;

/// Threads that work is cut for, though one does it all.
const THREADS: usize = 2;

/// Bytes of the caches that calls go around, so that a call finds its context in memory as it does after other layers.
const CACHES_BYTES: usize = 512 << 20;

/// Query heads, key/value heads and head dimensions of real models.
const HEADS: [(u32, u32, u32); 5] = [
    (32, 8, 64),
    (9, 3, 64),
    (32, 8, 128),
    (4, 1, 256),
    (32, 32, 80),
];

/// Tokens of a call, and tokens that its last one sees.
const LENGTHS: [(usize, usize); 7] = [
    (256, 256),
    (256, 1024),
    (256, 2048),
    (1, 512),
    (1, 2048),
    (1, 8192),
    (8, 2048),
];

/// Multiply-adds of registers, as many as an attention could do at best.
struct Peak {
    steps: usize,
}

/// Sums that a step adds to: enough for their latency. Chosen.
const SUMS: usize = 12;

impl Kernel for Peak {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) -> f32 {
        // SAFETY: nothing is read or written.
        unsafe {
            let (a, b) = (L::splat(black_box(0.5)), L::splat(black_box(1.0)));
            let mut sums = [L::splat(0.0); SUMS];
            for _ in 0..self.steps {
                for sum in &mut sums {
                    *sum = sum.mul_add(a, b);
                }
            }
            let mut total = sums[0];
            for sum in &sums[1..] {
                total = total.add(*sum);
            }
            total.sum()
        }
    }
}

/// The best of several times that `work` takes, in seconds: others may use the machine too.
fn best_seconds(times: usize, mut work: impl FnMut(usize)) -> f64 {
    let seconds = (0..times).map(|time| {
        let start = Instant::now();
        work(time);
        start.elapsed().as_secs_f64()
    });
    seconds.fold(f64::MAX, f64::min)
}

/// Multiply-adds in f32 that a thread does in a second, times two.
fn peak_flops(isa: Isa) -> f64 {
    let steps = 100_000;
    let seconds = best_seconds(50, |_| {
        // SAFETY: the instruction set is available.
        black_box(unsafe { run(isa, Peak { steps }) });
    });
    (steps * SUMS * 2 * LANES) as f64 / seconds
}

/// Bytes that a thread reads in a second.
fn read_bytes(memory: &[u64]) -> f64 {
    let piece = memory.len() / 100;
    let seconds = best_seconds(100, |time| {
        let words = &memory[time * piece..][..piece];
        black_box(
            words
                .iter()
                .fold(0, |sum: u64, word| sum.wrapping_add(*word)),
        );
    });
    size_of_val(&memory[..piece]) as f64 / seconds
}

/// Best seconds of a call over contexts that follow each other in `memory`.
fn call_seconds(isa: Isa, call: &AttentionCall, seen: usize, memory: &[u64]) -> f64 {
    let context_bytes = seen * call.kv_stride_bytes;
    let contexts = size_of_val(memory) / (2 * context_bytes);
    let mut scratch = AttentionScratch::new([&call.attributes]);
    let items = WorkItems::of(call, THREADS);
    best_seconds(if call.rows > 8 { 12 } else { 60 }, |time| {
        let start = time % contexts * 2 * context_bytes;
        let keys = memory.as_ptr().cast::<u8>().wrapping_add(start);
        let values = keys.wrapping_add(context_bytes);
        let call = AttentionCall {
            keys,
            values,
            ..*call
        };
        for WorkItem { kv_heads, rows } in (0..items.len()).map(|index| items.get(index)) {
            // SAFETY: the instruction set is available, and memory has the rows of all contexts.
            unsafe { attend(isa, &call, kv_heads, rows, &mut scratch) };
        }
    })
}

#[test]
#[ignore = "prints rates of this machine"]
fn attention_rates() {
    // Both halves of a word are bf16 and the whole is an f32 near 1.
    let memory = vec![0x3F80_3F80_3F80_3F80u64; CACHES_BYTES / 8];
    println!("reads {:.1} GB/s", read_bytes(&memory) / 1e9);
    for isa in [Isa::Avx512Vnni, Isa::Avx2] {
        if !isa.is_available() {
            continue;
        }
        let peak = peak_flops(isa);
        println!("{isa}: {:.0} GFLOP/s", peak / 1e9);
        for (heads, kv_heads, head_dim) in HEADS {
            for (rows, seen) in LENGTHS {
                for element in [KvElement::F32, KvElement::Bf16] {
                    let width = (heads * head_dim) as usize;
                    let query = vec![0.1f32; rows * width];
                    let mut out = vec![0.0f32; rows * width];
                    let call = AttentionCall {
                        attributes: Attention {
                            heads,
                            kv_heads,
                            head_dim,
                            scale: 0.1,
                            window: None,
                            softcap: None,
                        },
                        query: query.as_ptr(),
                        query_stride: width,
                        out: out.as_mut_ptr(),
                        out_stride: width,
                        rows,
                        position: seen - rows,
                        keys: std::ptr::null(),
                        values: std::ptr::null(),
                        kv_stride_bytes: (kv_heads * head_dim) as usize * element.bytes(),
                        element,
                    };
                    let seconds = call_seconds(isa, &call, seen, &memory);
                    let products: usize = (seen - rows + 1..=seen).sum::<usize>() * width * 4;
                    println!(
                        "{heads:2}/{kv_heads:2} x {head_dim:3} {element:4?} rows {rows:3} of {seen:4}: {:7.3} ms, {:4.1}% of peak, {:5.1} GB/s",
                        seconds * 1e3,
                        products as f64 / seconds / peak * 100.0,
                        (2 * seen * call.kv_stride_bytes) as f64 / seconds / 1e9,
                    );
                }
            }
        }
    }
}
