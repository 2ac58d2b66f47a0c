//! The rest of the extensions: what nothing here has a use for is refused, and in the log.

use std::ffi::{CStr, c_char};

use crate::abi::core::MutableCommandIdDesc;
use crate::abi::npu::DriverExtension;
use crate::abi::{
    Code, Handle, INVALID_NULL_POINTER, SUCCESS, UNSUPPORTED_FEATURE, answer, given, place,
};
use crate::device::QUEUES;
use crate::exports::extension_address;
use crate::log::note;
use crate::settings::{MachinePart, has};

macro_rules! refused {
    ($($name:ident)*) => { $(
        pub(super) extern "C" fn $name() -> Code {
            note!(concat!("REFUSED ", stringify!($name)));
            UNSUPPORTED_FEATURE
        }
    )* };
}

refused! {
    refused_argument_properties refused_native_binary refused_argument_properties_2 refused_query_create
    refused_query_destroy refused_query_layers refused_query_create_2 refused_native_binary_2 refused_profiling
}

/// No list of options: whether one is known is asked one by one.
pub(super) unsafe extern "C" fn options(
    _: Handle,
    _: u32,
    bytes: *mut usize,
    _: *mut c_char,
) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        *unsafe { place(bytes) }? = 0;
        Ok(())
    })
}

/// A driver with a compiler knows them all.
pub(super) unsafe extern "C" fn is_option(
    _: Handle,
    kind: u32,
    name: *const c_char,
    _: *const c_char,
) -> Code {
    answer(|| {
        if name.is_null() {
            return Err(INVALID_NULL_POINTER);
        }
        // SAFETY: as the module above says of a caller's pointers: text that ends with a zero.
        let name = unsafe { CStr::from_ptr(name) };
        note!("option kind={kind} name={}", name.to_string_lossy());
        match has(MachinePart::Options) {
            true => Ok(()),
            false => Err(UNSUPPORTED_FEATURE),
        }
    })
}

pub(super) extern "C" fn evict(_: Handle) -> Code {
    note!("evict");
    SUCCESS
}

/// `ze_command_queue_workload_type_t`: 1 is the background.
pub(super) extern "C" fn set_workload(queue: Handle, kind: u32) -> Code {
    note!("workload queue={queue:p} kind={kind}");
    answer(|| {
        QUEUES.get(queue)?.set_background(kind == 1);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn set_context(_: Handle, part: *const MutableCommandIdDesc) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers; properties of contexts have their options there.
        note!("context options={:#x}", unsafe { given(part) }?.flags);
        Ok(())
    })
}

pub(super) extern "C" fn release_context(_: Handle) -> Code {
    note!("context-release");
    SUCCESS
}

pub(super) unsafe extern "C" fn driver_extension(_: Handle, part: *mut DriverExtension) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        let part = unsafe { given(part.cast_const()) }?;
        // SAFETY: likewise for the name and the place of the table.
        unsafe { extension_address(part.name, part.address) }
    })
}
