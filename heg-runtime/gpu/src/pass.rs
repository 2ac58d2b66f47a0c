//! A pass: launches that are submitted in groups, with the copies between host and device that they need.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use heg_spirv::Module;

use crate::device::GpuDevice;
use crate::error::GpuError;
use crate::order::GpuOrder;
use crate::region::GpuRegion;
use crate::vulkan::{Copies, Device, Recording, Towards, submit};

/// Copies of a pass, one pass after the other. Memory that the host reaches is written and read at once.
pub struct GpuCopies {
    device: Arc<Device>,
    brought: Copies,
    taken: Copies,
}

/// Bytes that a pass brings to the host.
pub struct GpuTaken {
    region: GpuRegion,
    first: u64,
    bytes: usize,
    /// Offset of the bytes in staging memory; `None` if the host reaches the region.
    staged: Option<u64>,
}

/// Bytes that are brought by a copy of their own, since staging memory would be as large. Chosen.
const ALONE_BYTES: usize = 32 << 20;

impl GpuCopies {
    /// Nothing to copy.
    ///
    /// # Errors
    ///
    /// Error of the driver.
    pub fn new(device: &GpuDevice) -> Result<Self, GpuError> {
        let arithmetic = device.probe().arithmetic;
        let small = device.pipelines.of(Module::Copy, &[], arithmetic)?;
        let device = device.device();
        Ok(Self {
            device: Arc::clone(device),
            brought: Copies::new(device, Towards::Device, Arc::clone(&small))?,
            taken: Copies::new(device, Towards::Host, small)?,
        })
    }

    /// Brings bytes to the device before the first launch. No work that uses them may be under way.
    ///
    /// # Errors
    ///
    /// [`GpuError::Range`] where the region is smaller, and what the driver says.
    pub fn bring(&mut self, to: &GpuRegion, first: u64, bytes: &[u8]) -> Result<(), GpuError> {
        if to.memory().is_mapped() || bytes.len() > ALONE_BYTES {
            return to.write(first, bytes);
        }
        let at = to.part_of_any_start(first, bytes.len())?;
        self.brought.bring(&to.memory(), at, bytes)
    }

    /// Takes bytes to the host behind the last launch.
    ///
    /// # Errors
    ///
    /// [`GpuError::Range`] where the region is smaller.
    pub fn take(
        &mut self,
        from: &GpuRegion,
        first: u64,
        bytes: usize,
    ) -> Result<GpuTaken, GpuError> {
        let at = from.part_of_any_start(first, bytes)?;
        let memory = from.memory();
        let staged = match memory.is_mapped() {
            true => None,
            false => Some(self.taken.take(&memory, at, bytes)?),
        };
        Ok(GpuTaken {
            region: from.clone(),
            first,
            bytes,
            staged,
        })
    }

    /// Reads what a pass took, once it is finished and before anything else is listed. The buffer is made larger where it
    /// is too small, and is worth keeping.
    ///
    /// # Errors
    ///
    /// Error of the driver.
    pub fn read<'a>(
        &self,
        taken: &GpuTaken,
        buffer: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], GpuError> {
        if buffer.len() < taken.bytes {
            buffer.resize(taken.bytes, 0);
        }
        let bytes = buffer.get_mut(..taken.bytes).unwrap_or_default();
        match taken.staged {
            Some(staged) => self.taken.read(staged, bytes)?,
            None => taken.region.read(taken.first, bytes)?,
        }
        Ok(bytes)
    }

    /// Forgets what was listed.
    pub fn clear(&mut self) {
        self.brought.clear();
        self.taken.clear();
    }
}

/// Launches under way. Dropped in the middle, it waits for them, since the host may write what they read.
pub struct GpuPass<'a> {
    copies: &'a mut GpuCopies,
    pending: VecDeque<u64>,
    patience: Duration,
    cancel: Option<&'a AtomicBool>,
    has_begun: bool,
}

/// Submissions before the first of them is done. Chosen: the device goes on while the host asks whether to, and a lane
/// gives way behind two of them.
const AHEAD: usize = 2;

impl<'a> GpuPass<'a> {
    /// A pass with no launch yet. `cancel` ends a wait for the device, which is lost then.
    pub fn new(
        copies: &'a mut GpuCopies,
        patience: Duration,
        cancel: Option<&'a AtomicBool>,
    ) -> Self {
        Self {
            copies,
            pending: VecDeque::with_capacity(AHEAD),
            patience,
            cancel,
            has_begun: false,
        }
    }

    /// Copies, to list more.
    pub fn copies(&mut self) -> &mut GpuCopies {
        self.copies
    }

    /// Waits until another submission may follow.
    ///
    /// # Errors
    ///
    /// [`GpuError::Lost`] and [`GpuError::Late`], after which nothing of the device can be used.
    pub fn wait_for_turn(&mut self) -> Result<(), GpuError> {
        while self.pending.len() >= AHEAD {
            let Some(value) = self.pending.pop_front() else {
                break;
            };
            self.wait(value)?;
        }
        Ok(())
    }

    /// Submits orders of the copies' device in one go; `is_last` says that the copies to the host follow.
    ///
    /// # Errors
    ///
    /// As [`wait_for_turn`](Self::wait_for_turn), and what else the driver says.
    pub fn submit(&mut self, orders: &[&GpuOrder], is_last: bool) -> Result<(), GpuError> {
        self.wait_for_turn()?;
        let own = |order: &&&GpuOrder| Arc::ptr_eq(order.device(), &self.copies.device);
        let recordings: Vec<&Recording> = orders
            .iter()
            .filter(own)
            .flat_map(|order| order.recordings())
            .collect();
        let GpuCopies {
            device,
            brought,
            taken,
        } = &mut *self.copies;
        let brought = (!self.has_begun).then_some(brought);
        let value = submit(device, &recordings, brought, is_last.then_some(taken))?;
        self.has_begun = true;
        self.pending.push_back(value);
        Ok(())
    }

    /// Waits for all.
    ///
    /// # Errors
    ///
    /// As [`wait_for_turn`](Self::wait_for_turn).
    pub fn finish(mut self) -> Result<(), GpuError> {
        match self.pending.pop_back() {
            Some(value) => self.wait(value),
            None => Ok(()),
        }
    }

    fn wait(&self, value: u64) -> Result<(), GpuError> {
        let device = &self.copies.device;
        match self.cancel {
            Some(cancel) => device.wait_unless(value, self.patience, cancel),
            None => device.wait(value, self.patience),
        }
    }
}

impl Drop for GpuPass<'_> {
    fn drop(&mut self) {
        if let Some(value) = self.pending.pop_back() {
            // A device that does not end is lost, which the next call says.
            let _ = self.wait(value);
        }
    }
}
