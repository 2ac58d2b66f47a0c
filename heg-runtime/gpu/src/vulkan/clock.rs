//! The device's own clock, read at the beginning and at the end of commands: what it was busy for, apart from the way there
//! and back.

use std::sync::Arc;
use std::time::Duration;

use ash::vk;

use super::device::Device;

/// Two readings of the device's clock.
pub(super) struct Clock {
    device: Arc<Device>,
    readings: vk::QueryPool,
    tick_ns: f32,
}

impl Clock {
    /// A clock; `None` if the device has none that commands read.
    pub(super) fn new(device: &Arc<Device>) -> Result<Option<Self>, vk::Result> {
        let Some(tick_ns) = device.candidate.tick_ns else {
            return Ok(None);
        };
        let info = vk::QueryPoolCreateInfo::default()
            .query_type(vk::QueryType::TIMESTAMP)
            .query_count(2);
        // SAFETY: the device lives.
        let readings = unsafe { device.handle.create_query_pool(&info, None) }?;
        Ok(Some(Self {
            device: Arc::clone(device),
            readings,
            tick_ns,
        }))
    }

    /// Records the first reading.
    ///
    /// # Safety
    ///
    /// The commands are being recorded, on the clock's device.
    pub(super) unsafe fn begin(&self, commands: vk::CommandBuffer) {
        let stage = vk::PipelineStageFlags::TOP_OF_PIPE;
        // SAFETY: the caller's; the pool has two queries.
        unsafe {
            let calls = &self.device.handle;
            calls.cmd_reset_query_pool(commands, self.readings, 0, 2);
            calls.cmd_write_timestamp(commands, stage, self.readings, 0);
        }
    }

    /// Records the second reading, behind all dispatches.
    ///
    /// # Safety
    ///
    /// As [`begin`](Self::begin), which was called before.
    pub(super) unsafe fn end(&self, commands: vk::CommandBuffer) {
        let stage = vk::PipelineStageFlags::COMPUTE_SHADER;
        // SAFETY: the caller's.
        unsafe {
            let calls = &self.device.handle;
            calls.cmd_write_timestamp(commands, stage, self.readings, 1);
        }
    }

    /// The time between the readings of commands that are done; `None` if the driver lacks it.
    pub(super) fn between(&self) -> Option<Duration> {
        let mut ticks = [0_u64; 2];
        let flags = vk::QueryResultFlags::TYPE_64;
        // SAFETY: the pool has two queries, whose results have room.
        let read = unsafe {
            let calls = &self.device.handle;
            calls.get_query_pool_results(self.readings, 0, &mut ticks, flags)
        };
        read.ok()?;
        let [begin, end] = ticks;
        // A clock that wrapped in between tells nothing.
        let ticks = end.checked_sub(begin)?;
        Some(Duration::from_nanos(
            (ticks as f64 * f64::from(self.tick_ns)) as u64,
        ))
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        if !self.device.is_stuck() {
            // SAFETY: the commands that use it are done, or the device is lost.
            unsafe { self.device.handle.destroy_query_pool(self.readings, None) };
        }
    }
}
