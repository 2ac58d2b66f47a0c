//! Requests for cache lines ahead of their use. They read nothing that a program could observe, and an address need not
//! exist.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

/// Asks for a line in all caches.
#[inline(always)]
pub(super) fn prefetch(at: *const i8) {
    // SAFETY: a prefetch of any address faults nowhere.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(at);
    }
}

/// Asks for a line in all caches but the first.
#[inline(always)]
pub(super) fn prefetch_later(at: *const i8) {
    // SAFETY: as above.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        _mm_prefetch::<_MM_HINT_T1>(at);
    }
}
