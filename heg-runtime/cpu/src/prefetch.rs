//! Prefetches of cache lines. They have no observable effect, and the address need not exist.

#![allow(unsafe_code, reason = "an instruction")]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

/// Prefetches a line into all caches.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T) {
    // SAFETY: a prefetch of any address faults nowhere.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches a line into all caches but the first.
#[inline(always)]
pub(crate) fn prefetch_later<T>(at: *const T) {
    // SAFETY: a prefetch of any address faults nowhere.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        _mm_prefetch::<_MM_HINT_T1>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
