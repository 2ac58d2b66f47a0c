//! The driver: its versions and extensions.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use crate::abi::core::{DRIVER_UUID, DriverProperties, ExtensionProperties};
use crate::abi::{
    Code, Handle, INVALID_NULL_POINTER, Outcome, UNSUPPORTED_FEATURE, answer, list, place, put,
    version,
};
use crate::extensions;
use crate::log::note;
use crate::settings::{MachinePart, has, settings};

#[unsafe(no_mangle)]
unsafe extern "C" fn zeDriverGetApiVersion(_: Handle, out: *mut u32) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        *unsafe { place(out) }? = version(1, 13);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn zeDriverGetProperties(_: Handle, out: *mut DriverProperties) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        let out = unsafe { place(out) }?;
        out.uuid = DRIVER_UUID;
        out.version = DRIVER_VERSION;
        Ok(())
    })
}

/// An extension: its name, version and table, and the part of the machine that it belongs to.
struct Extension {
    name: &'static str,
    version: u32,
    /// Null for one without functions of its own.
    table: *const c_void,
    part: MachinePart,
}

/// The extensions of this machine (driver, `level_zero_driver/source/driver_handle.cpp`, `getSupportedExtensions`). The
/// one of drivers is of later versions, whose headers the plugin has.
fn present() -> Vec<Extension> {
    let extension = |name, version, table, part| Extension {
        name,
        version,
        table,
        part,
    };
    let (first, null) = (version(1, 0), ptr::null());
    let all = [
        extension(
            "ZE_extension_graph",
            settings().graph,
            extensions::graph(),
            MachinePart::Graph,
        ),
        extension(
            "ZE_extension_profiling_data",
            first,
            extensions::profiling(),
            MachinePart::Profiling,
        ),
        extension(
            "ZE_extension_command_queue_npu",
            version(1, 1),
            extensions::queue(),
            MachinePart::Queue,
        ),
        extension(
            "ZE_extension_context_npu",
            first,
            extensions::context(),
            MachinePart::Context,
        ),
        extension(
            "ZE_extension_driver_npu",
            first,
            extensions::driver(),
            MachinePart::Driver,
        ),
        extension(
            "ZE_experimental_mutable_command_list",
            version(1, 1),
            null,
            MachinePart::Mutable,
        ),
        extension(
            "ZE_extension_external_memmap_sysmem",
            first,
            null,
            MachinePart::PageImport,
        ),
    ];
    all.into_iter()
        .filter(|extension| has(extension.part))
        .collect()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn zeDriverGetExtensionProperties(
    _: Handle,
    count: *mut u32,
    out: *mut ExtensionProperties,
) -> Code {
    let all = present();
    let fill = |index: usize, out: &mut ExtensionProperties| {
        if let Some(extension) = all.get(index) {
            put(&mut out.name, extension.name);
            out.version = extension.version;
        }
    };
    // SAFETY: as the module above says of a caller's pointers.
    answer(|| unsafe { list(count, out, all.len(), fill) })
}

/// Gives the table of an extension.
///
/// # Safety
///
/// `name` is null or text that ends with a zero, and `out` as for [`place`].
pub(crate) unsafe fn extension_address(name: *const c_char, out: *mut *mut c_void) -> Outcome {
    if name.is_null() {
        return Err(INVALID_NULL_POINTER);
    }
    // SAFETY: the caller promises as much.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let mut all = present().into_iter();
    let found = all.find(|extension| extension.name == name && !extension.table.is_null());
    note!("extension {name} found={}", found.is_some());
    let found = found.ok_or(UNSUPPORTED_FEATURE)?;
    // SAFETY: the caller promises as much.
    *unsafe { place(out) }? = found.table.cast_mut();
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn zeDriverGetExtensionFunctionAddress(
    _: Handle,
    name: *const c_char,
    out: *mut *mut c_void,
) -> Code {
    // SAFETY: as the module above says of a caller's pointers.
    answer(|| unsafe { extension_address(name, out) })
}

/// Chosen, and later than all that the plugin has exceptions for.
const DRIVER_VERSION: u32 = 1_780_000_000;
