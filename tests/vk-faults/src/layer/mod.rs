//! The layer: its functions in place of the driver's. All `unsafe` code of the crate is in this folder.
//!
//! Vulkan's loader asks a layer for functions by name. An instance and a device are made by the layer below, which the
//! loader names in the structures that they are made from; each is known by the first word of its handle, which its queues
//! and physical devices have too.

#![allow(unsafe_code, reason = "the interface of Vulkan's loader")]

mod book;
mod damage;
mod device;
mod link;

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::mem::transmute;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ash::vk::{self, Handle};

use crate::install::{PLAN, RECORD};
use crate::plan::{PretendedKind, VkPlan};
use crate::record::VkEntry;
use book::Book;
use device::LayerDevice;
use link::{DeviceLink, InstanceLink, Missing, Negotiation, link_in};

/// An instance, and the functions of the layer below. These are asked for while the instance is made: later the loader gives
/// those of the first layer.
#[derive(Clone, Copy)]
struct LayerInstance {
    handle: vk::Instance,
    below: vk::PFN_vkGetInstanceProcAddr,
    destroy: Option<vk::PFN_vkDestroyInstance>,
    properties: Option<vk::PFN_vkGetPhysicalDeviceProperties2>,
}

/// Instances and devices by their keys.
static INSTANCES: Mutex<BTreeMap<usize, LayerInstance>> = Mutex::new(BTreeMap::new());
static DEVICES: Mutex<BTreeMap<usize, Arc<LayerDevice>>> = Mutex::new(BTreeMap::new());

/// The version of the interface between loader and layer.
const VERSION: u32 = 2;

/// The loader's first call.
///
/// # Safety
///
/// Called by Vulkan's loader alone, with a structure of its own.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name that the loader looks for")]
unsafe extern "system" fn vkNegotiateLoaderLayerInterfaceVersion(
    asked: *mut Negotiation,
) -> vk::Result {
    // SAFETY: the loader's structure, for the time of the call.
    let Some(asked) = (unsafe { asked.as_mut() }) else {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    };
    if asked.version < VERSION {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    }
    asked.version = VERSION;
    asked.get_instance_proc_addr = Some(get_instance_proc_addr);
    asked.get_device_proc_addr = Some(get_device_proc_addr);
    asked.get_physical_device_proc_addr = None;
    vk::Result::SUCCESS
}

/// A function as the loader passes it on, after its signature was compared with Vulkan's.
macro_rules! function {
    ($own:expr, $type:ty) => {
        // SAFETY: both are pointers to functions, and whoever calls it does so by the signature of its name.
        Some(unsafe { std::mem::transmute::<$type, unsafe extern "system" fn()>($own as $type) })
    };
}
use function;

/// # Safety
///
/// As Vulkan's function of this name; the instance is alive.
unsafe extern "system" fn get_instance_proc_addr(
    instance: vk::Instance,
    name: *const c_char,
) -> Missing {
    // SAFETY: a name of Vulkan's, for the time of the call.
    let text = unsafe { CStr::from_ptr(name) };
    let own = match text.to_bytes() {
        b"vkGetInstanceProcAddr" => {
            function!(get_instance_proc_addr, vk::PFN_vkGetInstanceProcAddr)
        }
        b"vkCreateInstance" => function!(create_instance, vk::PFN_vkCreateInstance),
        b"vkDestroyInstance" => function!(destroy_instance, vk::PFN_vkDestroyInstance),
        b"vkCreateDevice" => function!(create_device, vk::PFN_vkCreateDevice),
        b"vkGetDeviceProcAddr" => function!(get_device_proc_addr, vk::PFN_vkGetDeviceProcAddr),
        b"vkGetPhysicalDeviceProperties2" | b"vkGetPhysicalDeviceProperties2KHR" => {
            function!(properties, vk::PFN_vkGetPhysicalDeviceProperties2)
        }
        name => device::own_function(name),
    };
    if own.is_some() || instance.is_null() {
        return own;
    }
    // SAFETY: the instance is alive, and its layer below knows it.
    let below = instance_of(unsafe { key(instance) })?;
    // SAFETY: as above.
    unsafe { (below.below)(instance, name) }
}

/// # Safety
///
/// As Vulkan's function of this name; the device is alive.
unsafe extern "system" fn get_device_proc_addr(device: vk::Device, name: *const c_char) -> Missing {
    // SAFETY: a name of Vulkan's, for the time of the call; the device is alive.
    let (text, key) = unsafe { (CStr::from_ptr(name), key(device)) };
    if text == c"vkGetDeviceProcAddr" {
        return function!(get_device_proc_addr, vk::PFN_vkGetDeviceProcAddr);
    }
    device::own_function(text.to_bytes()).or_else(|| {
        let below = device_of(key)?;
        // SAFETY: the device is alive, and its layer below knows it.
        unsafe { (below.below)(device, name) }
    })
}

/// # Safety
///
/// As Vulkan's function of this name, called by the loader.
unsafe extern "system" fn create_instance(
    info: *const vk::InstanceCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    instance: *mut vk::Instance,
) -> vk::Result {
    let kind = vk::StructureType::LOADER_INSTANCE_CREATE_INFO;
    // SAFETY: the loader's structures, which layers may write the layer below to; the function of this name has this type.
    unsafe {
        let Some(item) = link_in::<InstanceLink>((*info).p_next, kind) else {
            return vk::Result::ERROR_INITIALIZATION_FAILED;
        };
        let below = (*(*item).link).get_instance_proc_addr;
        (*item).link = (*(*item).link).below;
        let Some(create) = below(vk::Instance::null(), c"vkCreateInstance".as_ptr()) else {
            return vk::Result::ERROR_INITIALIZATION_FAILED;
        };
        let create = transmute::<unsafe extern "system" fn(), vk::PFN_vkCreateInstance>(create);
        let made = create(info, allocator, instance);
        if made == vk::Result::SUCCESS {
            let handle = *instance;
            let destroy = below(handle, c"vkDestroyInstance".as_ptr());
            let properties = below(handle, c"vkGetPhysicalDeviceProperties2".as_ptr());
            let own = LayerInstance {
                handle,
                below,
                destroy: destroy.map(|it| transmute::<_, vk::PFN_vkDestroyInstance>(it)),
                properties: properties
                    .map(|it| transmute::<_, vk::PFN_vkGetPhysicalDeviceProperties2>(it)),
            };
            locked(&INSTANCES).insert(key(handle), own);
            if let Some(record) = std::env::var_os(RECORD) {
                VkEntry::Instance.append(Path::new(&record));
            }
        }
        made
    }
}

/// # Safety
///
/// As Vulkan's function of this name.
unsafe extern "system" fn destroy_instance(
    instance: vk::Instance,
    allocator: *const vk::AllocationCallbacks<'_>,
) {
    // SAFETY: the instance is alive until the layer below destroys it.
    unsafe {
        let known = locked(&INSTANCES).remove(&key(instance));
        if let Some(destroy) = known.and_then(|known| known.destroy) {
            destroy(instance, allocator);
        }
    }
}

/// # Safety
///
/// As Vulkan's function of this name, called by the loader.
unsafe extern "system" fn create_device(
    physical: vk::PhysicalDevice,
    info: *const vk::DeviceCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    device: *mut vk::Device,
) -> vk::Result {
    let failed = vk::Result::ERROR_INITIALIZATION_FAILED;
    let kind = vk::StructureType::LOADER_DEVICE_CREATE_INFO;
    let Some(plan) = plan() else {
        return failed;
    };
    // SAFETY: as in `create_instance`; the physical device is one of a live instance.
    unsafe {
        let (Some(item), Some(instance)) = (
            link_in::<DeviceLink>((*info).p_next, kind),
            instance_of(key(physical)),
        ) else {
            return failed;
        };
        let DeviceLink {
            below,
            get_instance_proc_addr,
            get_device_proc_addr,
        } = *(*item).link;
        (*item).link = below;
        let Some(create) = get_instance_proc_addr(instance.handle, c"vkCreateDevice".as_ptr())
        else {
            return failed;
        };
        let create = transmute::<unsafe extern "system" fn(), vk::PFN_vkCreateDevice>(create);
        let made = create(physical, info, allocator, device);
        if made == vk::Result::SUCCESS {
            let record = std::env::var_os(RECORD).map(PathBuf::from);
            let book = Book::new(plan, record);
            let own = LayerDevice::new(*device, get_device_proc_addr, book);
            locked(&DEVICES).insert(key(*device), Arc::new(own));
        }
        made
    }
}

/// # Safety
///
/// As `vkGetPhysicalDeviceProperties2`.
unsafe extern "system" fn properties(
    physical: vk::PhysicalDevice,
    properties: *mut vk::PhysicalDeviceProperties2<'_>,
) {
    // SAFETY: the physical device is one of a live instance, and the structure is the caller's.
    unsafe {
        let instance = instance_of(key(physical));
        if let Some(below) = instance.and_then(|instance| instance.properties) {
            below(physical, properties);
        }
        let (Some(plan), Some(said)) = (plan(), properties.as_mut()) else {
            return;
        };
        let said = &mut said.properties;
        said.device_type = match plan.kind {
            Some(PretendedKind::Integrated) => vk::PhysicalDeviceType::INTEGRATED_GPU,
            Some(PretendedKind::Discrete) => vk::PhysicalDeviceType::DISCRETE_GPU,
            None => said.device_type,
        };
        said.driver_version = plan.driver_version.unwrap_or(said.driver_version);
    }
}

/// The plan that the environment names. Without one, nothing happens; one that cannot be read is said, and is none.
fn plan() -> Option<VkPlan> {
    let Some(path) = std::env::var_os(PLAN) else {
        return Some(VkPlan::default());
    };
    let text = std::fs::read_to_string(&path).map_err(|error| error.to_string());
    let plan = text.and_then(|text| text.parse().map_err(|error| format!("{error}")));
    plan.inspect_err(|error| eprintln!("heg-vk-faults: {}: {error}", path.display()))
        .ok()
}

/// The loader's own key of an object.
///
/// # Safety
///
/// The handle is one of a live instance, physical device, device or queue.
unsafe fn key(handle: impl Handle) -> usize {
    // SAFETY: handles of these kinds point to structures that begin with a pointer of the loader's.
    unsafe { *(handle.as_raw() as *const usize) }
}

fn instance_of(key: usize) -> Option<LayerInstance> {
    locked(&INSTANCES).get(&key).copied()
}

fn device_of(key: usize) -> Option<Arc<LayerDevice>> {
    locked(&DEVICES).get(&key).cloned()
}

/// The value that a panicking thread left is whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
