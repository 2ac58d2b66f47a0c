//! Tile registers of AMX, which a process must ask its system for.

use std::sync::LazyLock;

/// Whether this process may use tiles of 8-bit integers. The first call asks Linux for them, on behalf of all threads;
/// other systems are not asked.
pub(super) fn is_usable() -> bool {
    static USABLE: LazyLock<bool> = LazyLock::new(|| has_instructions() && is_permitted());
    *USABLE
}

/// Whether the processor has tiles, and their products of 8-bit integers (Intel SDM, `CPUID` leaf 7).
fn has_instructions() -> bool {
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    std::arch::x86_64::__cpuid_count(7, 0).edx & (TILE | INT8) == TILE | INT8
}

/// Asks for the state of tiles (Linux, `Documentation/arch/x86/xstate.rst`).
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "a system call that no crate wraps")]
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers, and changes nothing but what this process may use.
    let status = unsafe {
        libc::syscall(
            libc::SYS_arch_prctl,
            ARCH_REQ_XCOMP_PERM,
            XFEATURE_XTILEDATA,
        )
    };
    status == 0
}

/// No other system is asked.
#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}
