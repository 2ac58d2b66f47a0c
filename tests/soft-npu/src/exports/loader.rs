//! The loader's own functions, and the start of the driver.

use std::ffi::c_void;

use super::DRIVER;
use crate::abi::core::ComponentVersion;
use crate::abi::{Code, Handle, Outcome, UNKNOWN, answer, list, place, put, version};
use crate::device::{COMMAND_LISTS, FENCES, QUEUES};
use crate::fault::{FaultPoint, fails};
use crate::graph::GRAPHS;
use crate::log::note;
use crate::memory;
use crate::settings::{MachinePart, has, settings};

#[unsafe(no_mangle)]
unsafe extern "C" fn zelGetLoaderVersion(out: *mut ComponentVersion) -> Code {
    answer(|| {
        // SAFETY: as the module says of a caller's pointers.
        describe(unsafe { place(out) }?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn zelLoaderGetVersions(count: *mut usize, out: *mut ComponentVersion) -> Code {
    answer(|| {
        // SAFETY: as the module says of a caller's pointers.
        let count = unsafe { place(count) }?;
        // SAFETY: likewise; there is room for `count` versions.
        if let Some(out) = unsafe { out.as_mut() }.filter(|_| *count > 0) {
            describe(out);
        }
        *count = 1;
        Ok(())
    })
}

fn describe(out: &mut ComponentVersion) {
    put(&mut out.name, "loader");
    out.spec = version(1, 17);
    out.lib = settings().loader;
}

#[unsafe(no_mangle)]
extern "C" fn zelSetDriverTeardown() -> Code {
    note_held("teardown");
    0
}

/// Writes down what callers still hold.
pub(super) fn note_held(when: &str) {
    let held = memory::held();
    note!(
        "{when} own={} imported={} graphs={} queues={} lists={} fences={} own_peak={} imported_peak={}",
        held.own,
        held.imported,
        GRAPHS.count(),
        QUEUES.count(),
        COMMAND_LISTS.count(),
        FENCES.count(),
        held.own_bytes_peak,
        held.imported_bytes_peak
    );
}

#[unsafe(no_mangle)]
extern "C" fn zeInit(flags: u32) -> Code {
    note!("init flags={flags}");
    answer(|| match fails(FaultPoint::Init) {
        true => Err(UNKNOWN),
        false => Ok(()),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn zeInitDrivers(count: *mut u32, out: *mut Handle, _: *const c_void) -> Code {
    note!("init-drivers");
    answer(|| {
        if fails(FaultPoint::Init) {
            return Err(UNKNOWN);
        }
        // SAFETY: as the module says of a caller's pointers.
        unsafe { drivers(count, out) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn zeDriverGet(count: *mut u32, out: *mut Handle) -> Code {
    note!("driver-get");
    // SAFETY: as the module says of a caller's pointers.
    answer(|| unsafe { drivers(count, out) })
}

/// # Safety
///
/// As [`list`] asks.
unsafe fn drivers(count: *mut u32, out: *mut Handle) -> Outcome {
    let found = usize::from(has(MachinePart::Device));
    // SAFETY: the caller promises as much.
    unsafe { list(count, out, found, |_, out| *out = DRIVER) }
}
