//! A step allocates nothing once a device has seen its largest order.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

#[allow(unsafe_code, reason = "rows that kernels work on")]
mod layer;

use std::alloc::{GlobalAlloc, Layout, System};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

use heg_artifacts::manifest::ElementType;
use heg_cpu::{Activations, CpuDevice, CpuDeviceOptions, Isa};
use layer::{AT_WORK, Layer, Sequences, Sizes};

/// The system's allocator, counting allocations of any thread while a device is at work.
struct Counting;

static COUNT: AtomicUsize = AtomicUsize::new(0);

#[allow(unsafe_code, reason = "an allocator passes calls on")]
// SAFETY: all calls are passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(
            usize::from(AT_WORK.load(Ordering::SeqCst)),
            Ordering::SeqCst,
        );
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`, which is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: `address` came from the system's allocator with this layout, by the contract of `GlobalAlloc`.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SIZES: Sizes = Sizes {
    hidden: 128,
    heads: 4,
    kv_heads: 2,
    head_dim: 32,
    ffn: 352,
};

#[test]
fn no_step_allocates() {
    let layer = Layer::random(
        SIZES,
        ElementType::I8,
        Activations::I8,
        ElementType::Bf16,
        1,
    );
    for threads in [1, 2, 3] {
        let mut device = CpuDevice::new(CpuDeviceOptions {
            isa: Isa::best(),
            threads: NonZeroUsize::new(threads).unwrap(),
        })
        .unwrap();
        // Prompts in chunks, then single tokens; each alone and side by side.
        let mut all = |rounds: usize| {
            for _ in 0..rounds {
                for (cut, together) in [(32, false), (32, true), (1, false), (1, true)] {
                    let mut sequences = Sequences::new(&layer, &[40, 35, 33], 2);
                    sequences.run(&mut device, &layer, &[cut], together);
                }
            }
        };
        // On a busy machine threads start late, and the first piece of each allocates.
        let settles = (0..100).any(|_| {
            let before = COUNT.load(Ordering::SeqCst);
            all(3);
            COUNT.load(Ordering::SeqCst) == before
        });
        assert!(
            COUNT.load(Ordering::SeqCst) > 0,
            "the first orders make room"
        );
        assert!(settles, "{threads} threads");
    }
}
