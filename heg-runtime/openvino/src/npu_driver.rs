//! The NPU's driver, asked through Level Zero for the one fact that OpenVINO keeps to itself: the ELF layout of blobs that
//! it reads. So a bundle can be chosen by it before OpenVINO is loaded, and before a byte of a blob is fetched.
//!
//! Structures and the order of functions are those of Level Zero's headers and of the NPU's graph extension
//! (`ze_graph_ext.h`), whose names they keep without `ze_` and `_t`. The software NPU of the tests has them from there as
//! well, and OpenVINO's plugin runs on it.

use std::ffi::{CStr, c_char, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr;

use libloading::{Library, Symbol};

use crate::level_zero::NpuFiles;
use crate::locate::find_libraries;

/// An NPU, as its driver describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NpuDriver {
    /// PCI's number of the device, e.g. `0x643e`.
    pub device_id: u32,
    /// Newest version of the ELF layout that the driver reads: major, minor, patch. `None` for a driver with a graph
    /// extension before 1.6, which does not say.
    pub elf: Option<[u32; 3]>,
}

impl NpuDriver {
    /// Asks the driver of this machine's first NPU, through the loader that OpenVINO's plugin would take. `None` if the
    /// machine has none, or one that others could change.
    ///
    /// Level Zero and the driver are loaded, and stay so. Nothing is loaded on a machine that has no accelerator, unless
    /// a loader lies beside OpenVINO.
    pub fn ask() -> Option<Self> {
        let openvino = find_libraries().ok();
        let files = NpuFiles::find(openvino.as_deref());
        let is_beside = files.loader.as_deref().and_then(Path::parent) == openvino.as_deref();
        let has_some = files.device.is_some() || (openvino.is_some() && is_beside);
        if !has_some && cfg!(target_os = "linux") {
            return None;
        }
        files.check(openvino.as_deref()).ok()?;
        Self::of(&files)
    }

    /// The same for files that were checked.
    pub(crate) fn of(files: &NpuFiles) -> Option<Self> {
        LevelZero::load(files.loader.as_deref()?)?.first_npu()
    }
}

type Handle = *mut c_void;
type Code = u32;

/// The functions that list what a driver has: `count` items at most are written, and their number.
type List<T> = unsafe extern "C" fn(Handle, *mut u32, *mut T) -> Code;

/// The loader. It is never unloaded: drivers have threads of their own.
struct LevelZero(ManuallyDrop<Library>);

impl LevelZero {
    /// Loads it, and lets it start the drivers of NPUs.
    fn load(loader: &Path) -> Option<Self> {
        // SAFETY: the file is one that nobody but this user and the system's owner can change (`NpuFiles::check`), and
        // which OpenVINO's plugin loads as well; its initialisers are those of Level Zero's loader.
        let library = unsafe { Library::new(loader) }.ok()?;
        let loaded = Self(ManuallyDrop::new(library));
        // SAFETY: the type is that of `zeInit`.
        let init = unsafe { loaded.function::<unsafe extern "C" fn(u32) -> Code>(b"zeInit\0") }?;
        // SAFETY: `zeInit` may be called at any time, by any thread, and again.
        (unsafe { init(INIT_NPUS) } == SUCCESS).then_some(loaded)
    }

    /// # Safety
    ///
    /// `T` is the type of the function with this name.
    unsafe fn function<T>(&self, name: &[u8]) -> Option<Symbol<'_, T>> {
        // SAFETY: the caller promises the type.
        unsafe { self.0.get(name) }.ok()
    }

    fn first_npu(&self) -> Option<NpuDriver> {
        let drivers = self.drivers()?;
        drivers.into_iter().find_map(|driver| {
            let npus = self.devices(driver)?.into_iter();
            let mut npus = npus.filter_map(|device| Some((device, self.npu_id(device)?)));
            let (device, device_id) = npus.next()?;
            let elf = self.elf(driver, device);
            Some(NpuDriver { device_id, elf })
        })
    }

    fn drivers(&self) -> Option<Vec<Handle>> {
        type Get = unsafe extern "C" fn(*mut u32, *mut Handle) -> Code;
        // SAFETY: the type is that of `zeDriverGet`.
        let get = unsafe { self.function::<Get>(b"zeDriverGet\0") }?;
        // SAFETY: the loader was started, and `listed` gives room for as many handles as it says.
        listed(ptr::null_mut(), |count, out| unsafe { get(count, out) })
    }

    fn devices(&self, driver: Handle) -> Option<Vec<Handle>> {
        // SAFETY: the type is that of `zeDeviceGet`.
        let get = unsafe { self.function::<List<Handle>>(b"zeDeviceGet\0") }?;
        // SAFETY: the driver's handle came from the loader, and `listed` gives room for as many handles as it says.
        listed(ptr::null_mut(), |count, out| unsafe {
            get(driver, count, out)
        })
    }

    /// The id of a device that is an NPU.
    fn npu_id(&self, device: Handle) -> Option<u32> {
        type Get = unsafe extern "C" fn(Handle, *mut DeviceProperties) -> Code;
        // SAFETY: the type is that of `zeDeviceGetProperties`.
        let get = unsafe { self.function::<Get>(b"zeDeviceGetProperties\0") }?;
        let mut properties = DeviceProperties::empty();
        // SAFETY: the device's handle came from its driver, and the structure is the one that its first field names.
        let code = unsafe { get(device, &raw mut properties) };
        (code == SUCCESS && properties.kind == DEVICE_NPU).then_some(properties.device)
    }

    fn elf(&self, driver: Handle, device: Handle) -> Option<[u32; 3]> {
        let graph = self.graph_extension(driver)?;
        // SAFETY: the table of a graph extension from 1.6 on has more functions than this, in the order of its header.
        let get = unsafe { *graph.add(DEVICE_PROPERTIES_2) }?;
        let mut properties = GraphProperties::empty();
        // SAFETY: the function at this place of the table has this type; the device's handle came from its driver, and
        // the structure is the one that its first field names.
        let code = unsafe { get(device, &raw mut properties) };
        let is_told = code == SUCCESS && properties.elf != [0; 3];
        is_told.then_some(properties.elf)
    }

    /// The table of the newest graph extension, if it is new enough.
    fn graph_extension(&self, driver: Handle) -> Option<*const Option<GetGraphProperties>> {
        type Find = unsafe extern "C" fn(Handle, *const c_char, *mut *mut c_void) -> Code;
        let name = b"zeDriverGetExtensionProperties\0";
        // SAFETY: the type is that of `zeDriverGetExtensionProperties`.
        let list = unsafe { self.function::<List<Extension>>(name) }?;
        // SAFETY: the driver's handle came from the loader, and `listed` gives room for as many items as it says.
        let extensions = listed(Extension::EMPTY, |count, out| unsafe {
            list(driver, count, out)
        })?;
        let graph = extensions.iter().filter(|it| it.is_graph());
        let newest = graph.max_by_key(|it| it.version)?;
        if newest.version < GRAPH_1_6 {
            return None;
        }
        let name = b"zeDriverGetExtensionFunctionAddress\0";
        // SAFETY: the type is that of `zeDriverGetExtensionFunctionAddress`.
        let find = unsafe { self.function::<Find>(name) }?;
        let mut table = ptr::null_mut();
        // SAFETY: the driver's handle came from the loader; the name ends with a zero (`is_graph`).
        let code = unsafe { find(driver, newest.name.as_ptr(), &raw mut table) };
        let is_there = code == SUCCESS && !table.is_null();
        is_there.then_some(table.cast_const().cast())
    }
}

/// Items that `call` lists: it is asked for their number, then for them.
fn listed<T: Copy>(empty: T, call: impl Fn(*mut u32, *mut T) -> Code) -> Option<Vec<T>> {
    let mut count = 0;
    if call(&raw mut count, ptr::null_mut()) != SUCCESS {
        return None;
    }
    let mut items = vec![empty; count.min(LISTED_MAX) as usize];
    let mut room = count.min(LISTED_MAX);
    if call(&raw mut room, items.as_mut_ptr()) != SUCCESS {
        return None;
    }
    items.truncate(room as usize);
    Some(items)
}

/// The first two fields of every structure.
#[repr(C)]
#[derive(Clone, Copy)]
struct Head {
    stype: u32,
    next: *const c_void,
}

impl Head {
    const fn of(stype: u32) -> Self {
        let next = ptr::null();
        Self { stype, next }
    }
}

/// `device_properties`.
#[repr(C)]
struct DeviceProperties {
    head: Head,
    kind: u32,
    vendor: u32,
    device: u32,
    flags_to_queue_priority: [u32; 3],
    max_mem_alloc_size: u64,
    contexts_to_slices: [u32; 7],
    timer_resolution: u64,
    timestamp_bits: [u32; 2],
    uuid: [u8; 16],
    name: [c_char; 256],
}

impl DeviceProperties {
    const fn empty() -> Self {
        Self {
            head: Head::of(3),
            kind: 0,
            vendor: 0,
            device: 0,
            flags_to_queue_priority: [0; 3],
            max_mem_alloc_size: 0,
            contexts_to_slices: [0; 7],
            timer_resolution: 0,
            timestamp_bits: [0; 2],
            uuid: [0; 16],
            name: [0; 256],
        }
    }
}

/// `driver_extension_properties`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Extension {
    name: [c_char; 256],
    version: u32,
}

impl Extension {
    const EMPTY: Self = Self {
        name: [0; 256],
        version: 0,
    };

    /// Whether it is the graph extension, whose name may end with its version. Its name ends with a zero then.
    fn is_graph(&self) -> bool {
        let bytes = self.name.map(|letter| {
            let [byte] = letter.to_ne_bytes();
            byte
        });
        let name = CStr::from_bytes_until_nul(&bytes).ok();
        name.is_some_and(|name| name.to_bytes().starts_with(b"ZE_extension_graph"))
    }
}

/// `device_graph_properties_2`.
#[repr(C)]
struct GraphProperties {
    head: Head,
    extension: u32,
    compiler: [u16; 2],
    formats: u32,
    opset: u32,
    elf: [u32; 3],
    runtime: [u32; 3],
}

impl GraphProperties {
    const fn empty() -> Self {
        Self {
            head: Head::of(0xf),
            extension: 0,
            compiler: [0; 2],
            formats: 0,
            opset: 0,
            elf: [0; 3],
            runtime: [0; 3],
        }
    }
}

type GetGraphProperties = unsafe extern "C" fn(Handle, *mut GraphProperties) -> Code;

const SUCCESS: Code = 0;

/// `ZE_INIT_FLAG_VPU_ONLY`.
const INIT_NPUS: u32 = 2;

/// `ZE_DEVICE_TYPE_VPU`.
const DEVICE_NPU: u32 = 5;

/// The first version of the graph extension whose table has `pfnDeviceGetGraphProperties2`.
const GRAPH_1_6: u32 = (1 << 16) | 6;

/// The place of `pfnDeviceGetGraphProperties2` in `graph_dditable_ext`.
const DEVICE_PROPERTIES_2: usize = 19;

/// Most drivers, devices or extensions that are looked at. Chosen: Intel's drivers have some ten extensions.
const LISTED_MAX: u32 = 256;

// The sizes are those of the C structures on 64-bit systems.
const _: () = assert!(size_of::<DeviceProperties>() == 368);
const _: () = assert!(size_of::<GraphProperties>() == 56);
const _: () = assert!(size_of::<Extension>() == 260);
