//! Prefetches of cache lines. They have no observable effect, and the address need not exist.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

/// Prefetches a line into all caches.
#[inline(always)]
pub(super) fn prefetch(at: *const i8) {
    // SAFETY: a prefetch of any address faults nowhere.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(at);
    }
}

/// Prefetches a line into all caches but the first.
#[inline(always)]
pub(super) fn prefetch_later(at: *const i8) {
    // SAFETY: a prefetch of any address faults nowhere.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        _mm_prefetch::<_MM_HINT_T1>(at);
    }
}
