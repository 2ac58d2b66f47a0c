//! The structures that Vulkan's loader and its layers hand to each other (`vk_layer.h`), which `ash` does not have.

use std::ffi::c_void;

use ash::vk;

/// A function that the loader may have or not.
pub(super) type Missing = Option<unsafe extern "system" fn()>;

/// The loader's question for a layer's functions.
#[repr(C)]
pub(super) struct Negotiation {
    kind: i32,
    next: *mut c_void,
    pub(super) version: u32,
    pub(super) get_instance_proc_addr: Option<vk::PFN_vkGetInstanceProcAddr>,
    pub(super) get_device_proc_addr: Option<vk::PFN_vkGetDeviceProcAddr>,
    pub(super) get_physical_device_proc_addr: Missing,
}

/// The layer below, for an instance.
#[repr(C)]
pub(super) struct InstanceLink {
    pub(super) below: *mut InstanceLink,
    pub(super) get_instance_proc_addr: vk::PFN_vkGetInstanceProcAddr,
    get_physical_device_proc_addr: Missing,
}

/// The layer below, for a device.
#[repr(C)]
pub(super) struct DeviceLink {
    pub(super) below: *mut DeviceLink,
    pub(super) get_instance_proc_addr: vk::PFN_vkGetInstanceProcAddr,
    pub(super) get_device_proc_addr: vk::PFN_vkGetDeviceProcAddr,
}

/// The loader's item in a chain of structures.
#[repr(C)]
pub(super) struct LinkItem<Link> {
    kind: vk::StructureType,
    next: *const c_void,
    function: i32,
    pub(super) link: *mut Link,
}

/// The function of an item that has a link.
const LINK: i32 = 0;

/// The loader's item with a link in the chain of a structure.
///
/// # Safety
///
/// The chain is one that Vulkan's loader gave, and `Link` is the link of items of this kind.
pub(super) unsafe fn link_in<Link>(
    chain: *const c_void,
    kind: vk::StructureType,
) -> Option<*mut LinkItem<Link>> {
    let mut at = chain.cast::<vk::BaseInStructure<'_>>();
    // SAFETY: every structure of a chain begins with its kind and a pointer to the next; items of the loader's kind have the
    // form of `LinkItem`, whatever their function.
    unsafe {
        while !at.is_null() {
            let item = at.cast_mut().cast::<LinkItem<Link>>();
            if (*at).s_type == kind && (*item).function == LINK && !(*item).link.is_null() {
                return Some(item);
            }
            at = (*at).p_next;
        }
    }
    None
}
