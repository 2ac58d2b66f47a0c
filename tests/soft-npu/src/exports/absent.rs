//! Names that the plugin looks up and that no NPU has. A call is refused, and in the log.

use crate::abi::{Code, UNSUPPORTED_FEATURE};
use crate::log::note;

macro_rules! absent {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> Code {
            note!(concat!("ABSENT ", stringify!($name)));
            UNSUPPORTED_FEATURE
        }
    )* };
}

absent! {
    zeCommandListAppendImageCopy zeCommandListAppendImageCopyFromMemory zeCommandListAppendImageCopyToMemory
    zeCommandListAppendLaunchKernel zeCommandListAppendMemoryFill zeCommandListCreateImmediate
    zeCommandListHostSynchronize zeDeviceGetCacheProperties zeDeviceGetComputeProperties zeDeviceGetImageProperties
    zeDeviceGetMemoryAccessProperties zeDeviceGetMemoryProperties zeDeviceGetModuleProperties
    zeDeviceGetRuntimeRequirements zeDeviceGetRuntimeRequirementsKey zeDeviceGetSubDevices
    zeDeviceValidateRuntimeRequirements zeEventQueryKernelTimestamp zeImageCreate zeImageDestroy zeKernelCreate
    zeKernelDestroy zeKernelSetArgumentValue zeKernelSetGroupSize zeMemAllocDevice zeMemAllocShared
    zeMemGetAddressRange zeModuleBuildLogDestroy zeModuleBuildLogGetString zeModuleCreate zeModuleDestroy
    zeModuleGetKernelNames zeModuleGetNativeBinary
}
