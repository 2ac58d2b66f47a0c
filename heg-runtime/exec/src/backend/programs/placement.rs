//! The threads of a role, and their cores.

use std::num::NonZeroUsize;

use heg_cpu::Placement;
use heg_spec::soc::Programs;

/// Threads of an order and their cores, as the SoC asks for them.
pub(super) fn placement(programs: &Programs) -> Result<Placement, heg_cpu::CpuError> {
    let threads = programs.threads.map(|threads| threads.get() as usize);
    Placement::new(threads.and_then(NonZeroUsize::new), &programs.cores)
}
