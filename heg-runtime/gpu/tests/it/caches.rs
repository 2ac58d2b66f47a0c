//! Caches of sequences on a device, each in a memory of its own, for a layer in the middle of three.

use heg_artifacts::manifest::{ElementType, Kernel, Role};
use heg_gpu::{GpuCache, GpuDevice};
use heg_spirv::is_cache;

use crate::both::POSITIONS;

pub(crate) const LAYERS: u32 = 3;
/// The layer of all calls.
pub(crate) const LAYER: u32 = 1;

/// A cache for each sequence, with rows before the first that are a sequence's: as many as there are sequences before.
pub(crate) struct Caches {
    pub(crate) of_sequences: Vec<GpuCache>,
    row_bytes: u64,
}

/// Bytes of a row of keys of a kernel, or of values.
pub(crate) fn cache_row_bytes(kernel: &Kernel, kv: ElementType) -> u64 {
    let mut ports = kernel.inputs.iter().chain(&kernel.outputs);
    let cached = ports.find(|port| is_cache(port.role));
    cached.map_or(0, |port| u64::from(port.width) * kv.bytes())
}

impl Caches {
    pub(crate) fn new(device: &GpuDevice, sequences: usize, row_bytes: u64) -> Self {
        let rows = |index: usize| (POSITIONS + index) as u32;
        let cache = |index| GpuCache::new(device, LAYERS, rows(index), row_bytes).unwrap();
        Self {
            of_sequences: (0..sequences).map(cache).collect(),
            row_bytes,
        }
    }

    pub(crate) fn first_row(&self, index: usize) -> u32 {
        index as u32
    }

    /// Start of a half of the layer, behind the rows before the sequence's.
    fn start(&self, index: usize, role: Role) -> u64 {
        let half = u64::from(2 * LAYER) + u64::from(role == Role::Value);
        let before = u64::from(self.first_row(index)) * self.row_bytes;
        half * self.of_sequences[index].half_bytes + before
    }

    /// Writes keys or values: those of all positions of a sequence behind those of the one before.
    pub(crate) fn write(&self, role: Role, bytes: &[u8]) {
        let of_sequence = POSITIONS * self.row_bytes as usize;
        for (index, bytes) in bytes.chunks(of_sequence.max(1)).enumerate() {
            let region = &self.of_sequences[index].region;
            region.write(self.start(index, role), bytes).unwrap();
        }
    }

    /// Reads what [`write`](Self::write) wrote.
    pub(crate) fn read(&self, role: Role, bytes: &mut [u8]) {
        let of_sequence = POSITIONS * self.row_bytes as usize;
        for (index, bytes) in bytes.chunks_mut(of_sequence.max(1)).enumerate() {
            let region = &self.of_sequences[index].region;
            region.read(self.start(index, role), bytes).unwrap();
        }
    }
}
