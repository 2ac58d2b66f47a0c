//! Compute pipelines: modules that a driver has compiled.

use std::sync::Arc;

use ash::vk;

use super::device::Device;
use super::pipeline_cache::PipelineCache;
use crate::error::GpuError;

/// A compiled module.
pub(crate) struct Pipeline {
    pub(super) device: Arc<Device>,
    pub(super) handle: vk::Pipeline,
}

impl Pipeline {
    /// Compiles a module that [`check`](heg_spirv::spirv::check) passes.
    pub(crate) fn new(
        device: &Arc<Device>,
        words: &[u32],
        cache: &PipelineCache,
    ) -> Result<Arc<Self>, GpuError> {
        let info = vk::ShaderModuleCreateInfo::default().code(words);
        // SAFETY: the words are sound SPIR-V, of capabilities that the device has; the module is destroyed behind the one
        // call that reads it, and the device outlives the pipeline. The cache is of the same device, and synchronised by it.
        let made = unsafe {
            let module = device.handle.create_shader_module(&info, None);
            let module = module.map_err(|code| device.failed("creation of a module", code))?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(c"main");
            let info = [vk::ComputePipelineCreateInfo::default()
                .stage(stage)
                .layout(device.layout)];
            let made = device
                .handle
                .create_compute_pipelines(cache.handle, &info, None);
            device.handle.destroy_shader_module(module, None);
            made
        };
        let failed = |code| device.failed("creation of a pipeline", code);
        let handles = made.map_err(|(_, code)| failed(code))?;
        let handle = handles.first().copied();
        Ok(Arc::new(Self {
            device: Arc::clone(device),
            handle: handle.ok_or_else(|| failed(vk::Result::ERROR_UNKNOWN))?,
        }))
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if self.device.is_stuck() {
            return;
        }
        // SAFETY: recordings hold their pipelines, so no command uses it any more.
        unsafe { self.device.handle.destroy_pipeline(self.handle, None) };
    }
}
