//! Damage: what a submission wrote, changed before anybody reads it.

use std::collections::BTreeMap;
use std::ptr;

use ash::vk;

use super::book::Allocation;

/// The memories of a device before a submission.
pub(super) struct Before(BTreeMap<vk::DeviceMemory, Vec<u32>>);

/// The bits that are flipped in a written word. Chosen: the largest bit of a mantissa, so that a float stays one and is wrong
/// by a quarter or more.
const CHANGE: u32 = 0x0040_0000;

impl Before {
    /// Notes what is in all memories that the host reaches, but for pages of the host.
    ///
    /// # Safety
    ///
    /// The device of these calls is alive, the memories are its own, and it does not write to them now.
    pub(super) unsafe fn note(
        calls: &ash::DeviceFnV1_0,
        device: vk::Device,
        memories: &BTreeMap<vk::DeviceMemory, Allocation>,
    ) -> Self {
        let mut noted = BTreeMap::new();
        for (memory, allocation) in memories.iter().filter(|(_, it)| !it.is_imported) {
            let note = |words: &mut [u32]| {
                noted.insert(*memory, words.to_vec());
            };
            // SAFETY: the caller's.
            unsafe { with_words(calls, device, *memory, *allocation, note) };
        }
        Self(noted)
    }

    /// Changes every word that is not what it was.
    ///
    /// # Safety
    ///
    /// As [`note`](Self::note).
    pub(super) unsafe fn damage(
        &self,
        calls: &ash::DeviceFnV1_0,
        device: vk::Device,
        memories: &BTreeMap<vk::DeviceMemory, Allocation>,
    ) {
        for (memory, before) in &self.0 {
            let Some(allocation) = memories.get(memory) else {
                continue;
            };
            let damage = |words: &mut [u32]| {
                let written = words.iter_mut().zip(before);
                for (word, _) in written.filter(|(word, before)| word != before) {
                    *word ^= CHANGE;
                }
            };
            // SAFETY: the caller's.
            unsafe { with_words(calls, device, *memory, *allocation, damage) };
        }
    }
}

/// Has a closure work on the words of a memory, where the host reaches it.
///
/// # Safety
///
/// As [`Before::note`].
unsafe fn with_words(
    calls: &ash::DeviceFnV1_0,
    device: vk::Device,
    memory: vk::DeviceMemory,
    allocation: Allocation,
    work: impl FnOnce(&mut [u32]),
) {
    let count = (allocation.bytes / 4) as usize;
    let words = |start: *mut u32| {
        // SAFETY: a mapped memory has all its bytes from its start on, and nobody else uses them now: the process that
        // mapped it is in this call, and the device is idle.
        unsafe { std::slice::from_raw_parts_mut(start, count) }
    };
    if let Some(mapped) = allocation.mapped {
        work(words(ptr::with_exposed_provenance_mut(mapped)));
        return;
    }
    let mut start = ptr::null_mut();
    let none = vk::MemoryMapFlags::empty();
    // SAFETY: the memory is the device's and not mapped; it is unmapped behind the last use of its address.
    unsafe {
        let mapped = (calls.map_memory)(device, memory, 0, vk::WHOLE_SIZE, none, &mut start);
        if mapped == vk::Result::SUCCESS && !start.is_null() {
            work(words(start.cast()));
            (calls.unmap_memory)(device, memory);
        }
    }
}
