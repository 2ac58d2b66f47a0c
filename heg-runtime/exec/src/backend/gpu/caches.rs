//! Caches on a lane's device. One in memory that both work on is the device's as it is. Of any other the device has a copy:
//! its first rows are the host's but for those that were written since, and these are brought before they are read.

use heg_gpu::{GpuCache, GpuDevice, GpuError};

use crate::mem::{KvCache, KvStamp};

/// The copies of caches that a device has.
#[derive(Default)]
pub(super) struct Copies {
    copies: Vec<CopiedCache>,
    layers: usize,
    /// Rows that one batch needed at most.
    batch_rows: usize,
    /// Batches so far.
    batches: u64,
}

/// A device's copy of a cache.
pub(super) struct CopiedCache {
    stamp: KvStamp,
    pub(super) memory: GpuCache,
    /// By layer: leading rows that are the host's.
    same: Vec<usize>,
    /// The last batch that used it.
    batch: u64,
}

/// Rows are allocated in multiples of this, and twice as many for a sequence that has outgrown its copy. Chosen: a sequence
/// that grows by a token mostly keeps its memory.
const STEP: usize = 256;

impl Copies {
    /// An empty list for caches of a model with `layers` layers.
    pub(super) fn new(layers: usize) -> Self {
        Self {
            layers,
            ..Self::default()
        }
    }

    /// Finds or makes a copy of as many rows as are asked for of each cache of a batch, and returns their indices. Those that
    /// no batch has used for long go where all together would have more rows than two batches.
    pub(super) fn place(
        &mut self,
        device: &GpuDevice,
        asked: &[(&KvCache, usize)],
    ) -> Result<Vec<usize>, GpuError> {
        self.batches += 1;
        let batch = self.batches;
        let rows = asked.iter().map(|(_, rows)| rows.next_multiple_of(STEP));
        self.batch_rows = self.batch_rows.max(rows.sum());
        for (cache, rows) in asked {
            let stamp = cache.stamp();
            let own = |copy: &&mut CopiedCache| copy.stamp.cache == stamp.cache;
            if let Some(copy) = self.copies.iter_mut().find(own) {
                copy.batch = batch;
                if copy.memory.rows as usize >= *rows {
                    copy.look_at(cache);
                }
            }
        }
        self.drop_unused(batch);
        let mut found = Vec::with_capacity(asked.len());
        for (cache, rows) in asked {
            let stamp = cache.stamp();
            let own = |copy: &CopiedCache| copy.stamp.cache == stamp.cache;
            let index = self.copies.iter().position(own);
            let known = index.and_then(|index| self.copies.get(index));
            let known = known.map(|copy| copy.memory.rows as usize);
            match (index, known) {
                (Some(index), Some(has)) if has >= *rows => found.push(index),
                (index, known) => {
                    let rows = rows.max(&(2 * known.unwrap_or(0))).next_multiple_of(STEP);
                    let copy = CopiedCache {
                        stamp,
                        memory: self.memory(device, cache, rows)?,
                        same: vec![0; self.layers],
                        batch,
                    };
                    match index.and_then(|index| self.copies.get_mut(index)) {
                        Some(outgrown) => *outgrown = copy,
                        None => self.copies.push(copy),
                    }
                    found.push(index.unwrap_or(self.copies.len() - 1));
                }
            }
        }
        Ok(found)
    }

    fn memory(
        &self,
        device: &GpuDevice,
        cache: &KvCache,
        rows: usize,
    ) -> Result<GpuCache, GpuError> {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let row_bytes = cache.row_bytes() as u64;
        GpuCache::new(device, number(self.layers), number(rows), row_bytes)
    }

    /// Drops the copies that were used longest ago, as long as there are more rows than two batches need.
    fn drop_unused(&mut self, batch: u64) {
        let rows = |copies: &[CopiedCache]| -> usize {
            copies.iter().map(|copy| copy.memory.rows as usize).sum()
        };
        while rows(&self.copies) > 2 * self.batch_rows {
            let others = self.copies.iter().enumerate();
            let others = others.filter(|(_, copy)| copy.batch != batch);
            let oldest = others.min_by_key(|(_, copy)| copy.batch);
            let Some((oldest, _)) = oldest else { return };
            self.copies.swap_remove(oldest);
        }
    }

    /// A copy.
    pub(super) fn get(&mut self, index: usize) -> Option<&mut CopiedCache> {
        self.copies.get_mut(index)
    }

    /// Drops all copies.
    pub(super) fn clear(&mut self) {
        self.copies.clear();
    }
}

impl CopiedCache {
    /// Finds out which of its rows are the host's.
    fn look_at(&mut self, cache: &KvCache) {
        if let Some(first) = cache.changed_since(self.stamp) {
            for same in &mut self.same {
                *same = (*same).min(first);
            }
        }
        self.stamp = cache.stamp();
    }

    /// Leading rows of a layer that are the host's.
    pub(super) fn same(&self, layer: usize) -> usize {
        self.same.get(layer).copied().unwrap_or(0)
    }

    /// Notes that the host has the first rows of a layer as the device has them.
    pub(super) fn note_same(&mut self, layer: usize, rows: usize) {
        if let Some(same) = self.same.get_mut(layer) {
            *same = rows;
        }
    }

    /// Notes that what was written to a cache until now are the device's rows.
    pub(super) fn note_stamp(&mut self, cache: &KvCache) {
        self.stamp = cache.stamp();
    }
}

#[cfg(test)]
mod tests {
    use heg_gpu::{GpuOptions, Treatment};
    use heg_openvino::TensorType;

    use super::*;
    use crate::mem::{Half, KvShape};

    fn cache() -> KvCache {
        let shape = KvShape {
            layers: 2,
            width: 8,
            context_tokens: 1024,
            padding_rows: 0,
            element: TensorType::Bf16,
        };
        KvCache::reserve(shape).unwrap()
    }

    /// `None` where there is no device; the tests in `tests` say so.
    fn device() -> Option<GpuDevice> {
        let options = GpuOptions {
            treatment: Treatment::Discrete,
            ..GpuOptions::from_environment()
        };
        GpuDevice::open(&options).ok()
    }

    #[test]
    fn rows_are_the_hosts_until_they_are_written() {
        let Some(device) = device() else { return };
        let (first, second) = (cache(), cache());
        let mut copies = Copies::new(2);
        let place = |copies: &mut Copies, asked: &[(&KvCache, usize)]| {
            copies.place(&device, asked).unwrap()
        };
        assert_eq!(place(&mut copies, &[(&first, 3), (&second, 1)]), [0, 1]);
        copies.get(0).unwrap().note_same(0, 7);
        copies.get(0).unwrap().note_same(1, 3);
        let same = |copies: &mut Copies| [0, 1].map(|layer| copies.get(0).unwrap().same(layer));
        assert_eq!(place(&mut copies, &[(&first, 4)]), [0]);
        assert_eq!(same(&mut copies), [7, 3]);
        // A reader changes nothing, and a writer what is behind its first row.
        first.read_by_program(0, Half::Keys, 0, 4).unwrap();
        assert_eq!(place(&mut copies, &[(&first, 4)]), [0]);
        assert_eq!(same(&mut copies), [7, 3]);
        first.for_program(0, Half::Keys, 5, 1).unwrap();
        assert_eq!(place(&mut copies, &[(&first, 4)]), [0]);
        assert_eq!(same(&mut copies), [5, 3]);
        first.write_row(1, Half::Values, 0, &[1; 16]).unwrap();
        assert_eq!(place(&mut copies, &[(&first, 4)]), [0]);
        assert_eq!(same(&mut copies), [0, 0]);
    }

    #[test]
    fn copies_grow_and_those_that_nobody_uses_go() {
        let Some(device) = device() else { return };
        let caches = [(); 4].map(|()| cache());
        let mut copies = Copies::new(2);
        let rows = |copies: &Copies| -> Vec<u32> {
            let copies = copies.copies.iter();
            copies.map(|copy| copy.memory.rows).collect()
        };
        for cache in &caches[..3] {
            copies.place(&device, &[(cache, 3)]).unwrap();
        }
        // Two batches of one: the first has gone when the third came, or rather the one that was used longest ago.
        assert_eq!(rows(&copies), [256; 3]);
        copies.place(&device, &[(&caches[2], 257)]).unwrap();
        assert_eq!(rows(&copies), [256, 256, 512]);
        copies.place(&device, &[(&caches[2], 900)]).unwrap();
        assert_eq!(rows(&copies).iter().sum::<u32>(), 256 + 256 + 1024);
        let both = [(&caches[0], 1000), (&caches[3], 1000)];
        copies.place(&device, &both).unwrap();
        assert!(rows(&copies).iter().sum::<u32>() <= 4 * 1024);
    }
}
