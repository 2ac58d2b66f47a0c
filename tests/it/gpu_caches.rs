//! Keys and values of a request that passes between CPU and GPU: where both work on the same memory nothing is copied, and
//! elsewhere the rows that changed. The device is the one that `HEG_VK_DRIVER` names, or the first that is there.

use heg_gpu::{CacheMemory, GpuDevice, GpuOptions};
use heg_runtime::exec::MovedCaches;
use heg_sched::Logits;

use crate::gpu_bits::{Both, On};
use crate::gpu_lanes::gpu_or_skip;

/// Whether host and device work on the same memory.
fn is_unified() -> bool {
    let device = GpuDevice::open(&GpuOptions::from_environment()).unwrap();
    device.cache_memory() != CacheMemory::Copied
}

#[test]
fn a_request_that_moves_at_every_kernel_copies_nothing_where_memory_is_unified() {
    let test = "a_request_that_moves_at_every_kernel_copies_nothing_where_memory_is_unified";
    if !gpu_or_skip(test) {
        return;
    }
    let mut both = Both::new("tiny-agent");
    let host = both.cache();
    let expected = both.answer_over(host, &|_| On::Cpu);
    assert_eq!(both.gpu.moved_caches(), Some(MovedCaches::default()));
    let kernels = both.launches(Logits::LastRows).count();
    let mut check = |name: String, on: &dyn Fn(usize) -> On| {
        // For fewer rows than the answer has: it is made for 256 of them.
        let cache = both.gpu.kv_room().reserve(1).unwrap();
        assert!(both.answer_over(cache, on) == expected, "{name}");
    };
    for cut in 0..=kernels {
        for [before, behind] in [[On::Cpu, On::Gpu], [On::Gpu, On::Cpu]] {
            let on = |index: usize| if index < cut { before } else { behind };
            check(format!("{before:?} up to {cut} of {kernels}"), &on);
        }
    }
    for every in [1, 2, 3] {
        let on = |index: usize| match (index / every).is_multiple_of(2) {
            true => On::Gpu,
            false => On::Cpu,
        };
        check(format!("every {every} kernels"), &on);
    }
    let moved = both.gpu.moved_caches().unwrap();
    match is_unified() {
        true => assert_eq!(moved, MovedCaches::default()),
        false => assert!(moved.to_device_bytes > 0 && moved.to_host_bytes > 0),
    }
}

/// A cache in memory of the host is copied on any device.
#[test]
fn rows_that_changed_are_copied_and_no_others() {
    if !gpu_or_skip("rows_that_changed_are_copied_and_no_others") {
        return;
    }
    let mut both = Both::new("tiny-agent");
    let token_bytes = both.gpu.kv_shape().token_bytes() as u64;
    let mut cache = both.cache();
    let mut moved = |both: &mut Both, tokens: &[u32], on: On| {
        let before = both.gpu.moved_caches().unwrap();
        both.pass(&mut cache, tokens, &|_| on);
        let after = both.gpu.moved_caches().unwrap();
        let rows = |before: u64, after: u64| {
            assert!((after - before).is_multiple_of(token_bytes));
            (after - before) / token_bytes
        };
        [
            rows(before.to_device_bytes, after.to_device_bytes),
            rows(before.to_host_bytes, after.to_host_bytes),
        ]
    };
    let prompt: Vec<u32> = (5..25).collect();
    assert_eq!(moved(&mut both, &prompt, On::Cpu), [0, 0]);
    assert_eq!(moved(&mut both, &[7], On::Gpu), [20, 1]);
    assert_eq!(moved(&mut both, &[8], On::Gpu), [0, 1]);
    for token in 30..33 {
        assert_eq!(moved(&mut both, &[token], On::Cpu), [0, 0]);
    }
    assert_eq!(moved(&mut both, &[9], On::Gpu), [3, 1]);
    assert_eq!(moved(&mut both, &[10, 11, 12], On::Gpu), [0, 3]);
    assert_eq!(moved(&mut both, &[13, 14], On::Cpu), [0, 0]);
    assert_eq!(moved(&mut both, &[15], On::Gpu), [2, 1]);
}
