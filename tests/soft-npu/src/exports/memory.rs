//! Memory (driver, `level_zero_driver/api/ze_memory.cpp`).

use std::ffi::c_void;
use std::ptr;

use super::DEVICE;
use crate::abi::core::{
    AllocationProperties, HOST_MEM_WRITE_COMBINED, HostMemDesc, STYPE_IMPORT_FD,
    STYPE_MEMMAP_SYSMEM, SystemMemory,
};
use crate::abi::{
    Code, Handle, Outcome, SUCCESS, UNSUPPORTED_FEATURE, answer, as_structure, given, place,
};
use crate::log::{self, note};
use crate::memory;
use crate::pages::{PAGE_BYTES, file_of};

/// Allocates memory, or imports the caller's pages: only the first structure of the chain counts.
#[unsafe(no_mangle)]
unsafe extern "C" fn zeMemAllocHost(
    _: Handle,
    desc: *const HostMemDesc,
    bytes: usize,
    alignment: usize,
    out: *mut *mut c_void,
) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        let (desc, out) = unsafe { (given(desc)?, place(out)?) };
        let is_write_combined = desc.flags & HOST_MEM_WRITE_COMBINED != 0;
        // SAFETY: likewise; the first of a chain is null or a structure that begins with a head.
        match unsafe { desc.head.next.as_ref() } {
            Some(next) if next.stype == STYPE_MEMMAP_SYSMEM => {
                // SAFETY: this is the structure of that type.
                let pages: &SystemMemory = unsafe { as_structure(next) };
                import(pages, is_write_combined)?;
                *out = pages.start;
            }
            // Memory of other devices, by a file descriptor: there are none.
            Some(next) if next.stype == STYPE_IMPORT_FD => return Err(UNSUPPORTED_FEATURE),
            _ => {
                let start = memory::allocate(bytes, alignment)
                    .inspect_err(|code| note!("allocate size={bytes} code={code:#x}"))?;
                note!("allocate start={start:#x} size={bytes} wc={is_write_combined} code=0x0");
                *out = ptr::with_exposed_provenance_mut(start);
            }
        }
        Ok(())
    })
}

fn import(pages: &SystemMemory, is_write_combined: bool) -> Outcome {
    let start = pages.start.expose_provenance();
    let bytes = usize::try_from(pages.size).unwrap_or(usize::MAX);
    let outcome = memory::import(start, bytes, is_write_combined);
    if log::is_kept() {
        note!(
            "import start={start:#x} size={bytes} wc={is_write_combined} of={} code={:#x}",
            file_of(start),
            outcome.err().unwrap_or(SUCCESS)
        );
    }
    outcome
}

#[unsafe(no_mangle)]
extern "C" fn zeMemFree(_: Handle, address: *mut c_void) -> Code {
    answer(|| {
        let region = memory::forget(address.addr())?;
        note!(
            "free start={:#x} size={} kind={}",
            region.start,
            region.bytes,
            region.kind_name()
        );
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn zeMemGetAllocProperties(
    _: Handle,
    address: *const c_void,
    out: *mut AllocationProperties,
    device: *mut Handle,
) -> Code {
    answer(|| {
        let region = memory::region_of(address.addr())?;
        // SAFETY: as the module above says of a caller's pointers.
        let out = unsafe { place(out) }?;
        out.kind = HOST_MEMORY;
        out.id = region.id;
        out.page_size = PAGE_BYTES as u64;
        // SAFETY: likewise; the handle of the device need not be asked for.
        if let Some(device) = unsafe { device.as_mut() } {
            *device = DEVICE;
        }
        Ok(())
    })
}

/// `ZE_MEMORY_TYPE_HOST`.
const HOST_MEMORY: u32 = 1;
