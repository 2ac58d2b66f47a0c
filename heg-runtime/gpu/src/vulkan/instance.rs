//! The loader, an instance, and the devices that it knows.

use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ash::{Entry, vk};

use crate::error::GpuError;
use crate::kept::CacheOwner;

/// A loaded Vulkan library with an instance.
pub(crate) struct Instance {
    /// Unloaded last: the instance calls into it.
    _entry: Entry,
    pub(super) handle: ash::Instance,
    messenger: Option<(ash::ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    complaints: Arc<Complaints>,
}

/// The messages of validation layers.
type Complaints = Mutex<Vec<String>>;

/// A device that the loader lists.
#[derive(Clone)]
pub(crate) struct Candidate {
    pub(super) handle: vk::PhysicalDevice,
    /// Name of the device.
    pub(crate) name: String,
    /// Name and version of its driver, in the driver's words.
    pub(crate) driver: String,
    /// `discrete`, `integrated`, `virtual`, `software` or `other`.
    pub(crate) kind: &'static str,
    /// Version of the interface.
    pub(crate) api: (u32, u32, u32),
    /// The identity of device and driver, the same in every process.
    pub(crate) identity: String,
    /// The owner of its pipeline caches.
    pub(crate) cache_owner: CacheOwner,
    /// The first requirement of programs that the device lacks, if any.
    pub(crate) lacks: Option<&'static str>,
    /// Whether it has the instruction for dot products of bytes.
    pub(crate) has_dots: bool,
    /// Whether the driver offers to import memory of the host, and to which alignment.
    pub(crate) import_alignment: Option<u64>,
    pub(crate) floats: heg_spirv::spirv::Declarations,
    /// Memory that the invocations of a workgroup share at most, in bytes.
    pub(crate) shared_bytes: u32,
    /// Invocations of a workgroup at most.
    pub(crate) invocations: u32,
    /// Time of a tick of its clock, in ns; `None` if it has no clock that commands read.
    pub(super) tick_ns: Option<f32>,
    pub(super) dot_extension: bool,
}

/// The first instance of the process, which is never destroyed: after the last one the loader would unload the drivers,
/// and a thread that has used one runs the driver's destructors when it ends. It serves all who want no validation.
static FIRST: OnceLock<Arc<Instance>> = OnceLock::new();

const VALIDATION: &CStr = c"VK_LAYER_KHRONOS_validation";

impl Instance {
    /// Loads the library of the system, unless it is loaded already.
    pub(crate) fn load(validation: bool) -> Result<Arc<Self>, GpuError> {
        if let Some(first) = FIRST.get().filter(|it| !validation && !it.is_validated()) {
            return Ok(Arc::clone(first));
        }
        // SAFETY: the system's loader is a library without conditions on who loads it.
        let entry = unsafe { Entry::load() }.map_err(|error| GpuError::NoLoader {
            reason: error.to_string(),
        })?;
        let failed = |call| move |code| vulkan_error("the loader", call, code);
        let complaints = Arc::new(Complaints::default());
        let app = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
        // SAFETY: no other call is running on this entry.
        let layers = unsafe { entry.enumerate_instance_layer_properties() }
            .map_err(failed("list of layers"))?;
        let has_layer = layers
            .iter()
            .any(|layer| layer.layer_name_as_c_str() == Ok(VALIDATION));
        let validated = validation && has_layer;
        let (mut names, mut extensions) = (Vec::new(), Vec::new());
        if validated {
            names.push(VALIDATION.as_ptr());
            extensions.push(ash::ext::debug_utils::NAME.as_ptr());
        }
        let info = vk::InstanceCreateInfo::default()
            .application_info(&app)
            .enabled_layer_names(&names)
            .enabled_extension_names(&extensions);
        // SAFETY: everything that `info` points to lives until the call returns.
        let handle = unsafe { entry.create_instance(&info, None) };
        let handle = handle.map_err(|code| match code {
            // A loader without a single driver.
            vk::Result::ERROR_INCOMPATIBLE_DRIVER => GpuError::NoDevice {
                wanted: None,
                found: Vec::new(),
            },
            code => failed("creation of an instance")(code),
        })?;
        let messenger = validated.then(|| listen(&entry, &handle, &complaints));
        let made = Arc::new(Self {
            messenger: messenger
                .transpose()
                .map_err(failed("creation of a messenger"))?,
            _entry: entry,
            handle,
            complaints,
        });
        let _ = FIRST.set(Arc::clone(&made));
        Ok(made)
    }

    /// Whether a validation layer watches.
    pub(crate) fn is_validated(&self) -> bool {
        self.messenger.is_some()
    }

    /// Returns the messages of the validation layer so far.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let said = self.complaints.lock();
        said.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All devices, in the loader's order.
    pub(crate) fn candidates(&self) -> Result<Vec<Candidate>, GpuError> {
        // SAFETY: the instance lives.
        let devices = unsafe { self.handle.enumerate_physical_devices() }
            .map_err(|code| vulkan_error("the loader", "list of devices", code))?;
        Ok(devices.into_iter().map(|it| self.candidate(it)).collect())
    }

    fn candidate(&self, handle: vk::PhysicalDevice) -> Candidate {
        let mut host = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut floats = vk::PhysicalDeviceFloatControlsProperties::default();
        let mut id = vk::PhysicalDeviceIDProperties::default();
        let mut all = vk::PhysicalDeviceProperties2::default()
            .push_next(&mut host)
            .push_next(&mut driver)
            .push_next(&mut floats)
            .push_next(&mut id);
        let mut features = vk::PhysicalDeviceVulkan12Features::default();
        let mut dots = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default();
        // SAFETY: the handle is one of the instance's, and the chained structures live; those that a device does not know
        // stay as they are.
        let extensions = unsafe {
            self.handle
                .get_physical_device_properties2(handle, &mut all);
            let extensions = self.handle.enumerate_device_extension_properties(handle);
            extensions.unwrap_or_default()
        };
        let properties = all.properties;
        let has = |name: &CStr| {
            extensions
                .iter()
                .any(|it| it.extension_name_as_c_str() == Ok(name))
        };
        let version = properties.api_version;
        let dot_extension = has(ash::khr::shader_integer_dot_product::NAME);
        let knows_dots = dot_extension || version >= vk::API_VERSION_1_3;
        let mut wanted = vk::PhysicalDeviceFeatures2::default().push_next(&mut features);
        if knows_dots {
            wanted = wanted.push_next(&mut dots);
        }
        if version >= vk::API_VERSION_1_2 {
            // SAFETY: as above.
            unsafe {
                self.handle
                    .get_physical_device_features2(handle, &mut wanted)
            };
        }
        let driver_name = words(driver.driver_name_as_c_str());
        let driver_info = words(driver.driver_info_as_c_str());
        Candidate {
            handle,
            name: words(properties.device_name_as_c_str()),
            driver: format!("{driver_name} {driver_info}").trim().to_owned(),
            kind: kind(properties.device_type),
            api: numbers(version),
            identity: identity(&id, properties.driver_version),
            cache_owner: CacheOwner {
                vendor: properties.vendor_id,
                device: properties.device_id,
                uuid: properties.pipeline_cache_uuid,
            },
            lacks: self.lacked(handle, version, &features),
            has_dots: knows_dots && dots.shader_integer_dot_product != 0,
            import_alignment: has(ash::ext::external_memory_host::NAME)
                .then_some(host.min_imported_host_pointer_alignment),
            floats: declarations(&floats),
            shared_bytes: properties.limits.max_compute_shared_memory_size,
            invocations: properties.limits.max_compute_work_group_invocations,
            tick_ns: (properties.limits.timestamp_compute_and_graphics != 0)
                .then_some(properties.limits.timestamp_period),
            dot_extension,
        }
    }

    /// The first thing that programs need and a device of this version, with these features, does not have.
    fn lacked(
        &self,
        handle: vk::PhysicalDevice,
        version: u32,
        features: &vk::PhysicalDeviceVulkan12Features<'_>,
    ) -> Option<&'static str> {
        match () {
            () if version < vk::API_VERSION_1_2 => Some("Vulkan 1.2"),
            () if features.buffer_device_address == 0 => Some("buffer addresses"),
            () if features.timeline_semaphore == 0 => Some("timeline semaphores"),
            () if self.compute_family(handle).is_none() => Some("a queue for computing"),
            () => None,
        }
    }

    /// The first family of queues that compute, those that do nothing else first.
    pub(super) fn compute_family(&self, handle: vk::PhysicalDevice) -> Option<u32> {
        // SAFETY: the handle is one of the instance's.
        let families = unsafe {
            self.handle
                .get_physical_device_queue_family_properties(handle)
        };
        let computes = |flags: vk::QueueFlags| flags.contains(vk::QueueFlags::COMPUTE);
        let draws = |flags: vk::QueueFlags| flags.contains(vk::QueueFlags::GRAPHICS);
        let flags: Vec<_> = families.iter().map(|family| family.queue_flags).collect();
        let alone = flags.iter().position(|it| computes(*it) && !draws(*it));
        let any = alone.or_else(|| flags.iter().position(|it| computes(*it)));
        any.and_then(|index| u32::try_from(index).ok())
    }
}

/// A text of a driver; empty where it is none.
fn words(text: Result<&CStr, std::ffi::FromBytesUntilNulError>) -> String {
    text.map_or(String::new(), |text| text.to_string_lossy().into_owned())
}

/// The numbers of a version of Vulkan.
fn numbers(version: u32) -> (u32, u32, u32) {
    (
        vk::api_version_major(version),
        vk::api_version_minor(version),
        vk::api_version_patch(version),
    )
}

fn kind(of: vk::PhysicalDeviceType) -> &'static str {
    match of {
        vk::PhysicalDeviceType::DISCRETE_GPU => "discrete",
        vk::PhysicalDeviceType::INTEGRATED_GPU => "integrated",
        vk::PhysicalDeviceType::VIRTUAL_GPU => "virtual",
        vk::PhysicalDeviceType::CPU => "software",
        _ => "other",
    }
}

/// The device, its driver and the driver's version.
fn identity(id: &vk::PhysicalDeviceIDProperties<'_>, driver_version: u32) -> String {
    let hex = |bytes: [u8; 16]| bytes.map(|byte| format!("{byte:02x}")).concat();
    let (device, driver) = (hex(id.device_uuid), hex(id.driver_uuid));
    format!("{device}-{driver}-{driver_version:x}")
}

/// The rules of arithmetic that modules may declare for a device.
fn declarations(
    floats: &vk::PhysicalDeviceFloatControlsProperties<'_>,
) -> heg_spirv::spirv::Declarations {
    heg_spirv::spirv::Declarations {
        nearest: floats.shader_rounding_mode_rte_float32 != 0,
        denormals: floats.shader_denorm_preserve_float32 != 0,
        special: floats.shader_signed_zero_inf_nan_preserve_float32 != 0,
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: devices hold the instance, so none is left, and nobody else has the messenger.
        unsafe {
            if let Some((functions, messenger)) = &self.messenger {
                functions.destroy_debug_utils_messenger(*messenger, None);
            }
            self.handle.destroy_instance(None);
        }
    }
}

/// Collects what the validation layer says of warnings and errors.
fn listen(
    entry: &Entry,
    instance: &ash::Instance,
    complaints: &Arc<Complaints>,
) -> Result<(ash::ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT), vk::Result> {
    let functions = ash::ext::debug_utils::Instance::new(entry, instance);
    let info = vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(
            vk::DebugUtilsMessageSeverityFlagsEXT::WARNING
                | vk::DebugUtilsMessageSeverityFlagsEXT::ERROR,
        )
        .message_type(vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION)
        .pfn_user_callback(Some(complain))
        .user_data(Arc::as_ptr(complaints).cast_mut().cast());
    // SAFETY: the callback's data are the instance's, which destroys the messenger before it lets go of them.
    let messenger = unsafe { functions.create_debug_utils_messenger(&info, None) }?;
    Ok((functions, messenger))
}

/// # Safety
///
/// Called by the layer alone, with its own message and the pointer that [`listen`] gave it.
unsafe extern "system" fn complain(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _kinds: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    complaints: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: see above.
    let (message, complaints) = unsafe {
        let message = (!data.is_null())
            .then(|| (*data).message_as_c_str())
            .flatten();
        let text = message.map_or(String::new(), |text| text.to_string_lossy().into_owned());
        (text, &*complaints.cast_const().cast::<Complaints>())
    };
    let said = complaints.lock();
    said.unwrap_or_else(PoisonError::into_inner).push(message);
    vk::FALSE
}

/// An error of a call, by the device's name.
pub(super) fn vulkan_error(device: &str, call: &'static str, code: vk::Result) -> GpuError {
    match code {
        vk::Result::ERROR_DEVICE_LOST => GpuError::Lost {
            device: device.to_owned(),
            call,
        },
        _ => GpuError::Vulkan {
            device: device.to_owned(),
            call,
            code: format!("{code:?}"),
        },
    }
}
