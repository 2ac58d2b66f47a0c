//! The cache of compiled pipelines: a driver makes them again from it without compiling.

use std::sync::Arc;

use ash::vk;

use super::device::Device;
use crate::error::GpuError;

/// A driver's memory of compiled pipelines.
pub(crate) struct PipelineCache {
    device: Arc<Device>,
    pub(super) handle: vk::PipelineCache,
}

impl PipelineCache {
    /// Makes one of bytes that the same driver gave, after their header was compared; of none, it is empty.
    pub(crate) fn new(device: &Arc<Device>, data: &[u8]) -> Result<Self, GpuError> {
        let info = vk::PipelineCacheCreateInfo::default().initial_data(data);
        // SAFETY: the device lives, and the data until the call returns.
        let handle = unsafe { device.handle.create_pipeline_cache(&info, None) };
        Ok(Self {
            device: Arc::clone(device),
            handle: handle.map_err(|code| device.failed("creation of a pipeline cache", code))?,
        })
    }

    /// Takes what another one has.
    pub(crate) fn take(&mut self, other: &Self) -> Result<(), GpuError> {
        let device = &self.device;
        // SAFETY: both are of this device, as there is one in each `Pipelines`, and nobody else uses the one that is
        // borrowed for itself alone.
        let merged = unsafe {
            let handle = &device.handle;
            handle.merge_pipeline_caches(self.handle, &[other.handle])
        };
        merged.map_err(|code| device.failed("merging of pipeline caches", code))
    }

    /// Returns its bytes, for a later process.
    pub(crate) fn data(&self) -> Result<Vec<u8>, GpuError> {
        // SAFETY: the cache is the device's.
        let data = unsafe { self.device.handle.get_pipeline_cache_data(self.handle) };
        data.map_err(|code| self.device.failed("reading of a pipeline cache", code))
    }
}

impl Drop for PipelineCache {
    fn drop(&mut self) {
        if self.device.is_stuck() {
            return;
        }
        // SAFETY: pipelines do not need the cache that they were made with.
        unsafe {
            self.device.handle.destroy_pipeline_cache(self.handle, None);
        }
    }
}
