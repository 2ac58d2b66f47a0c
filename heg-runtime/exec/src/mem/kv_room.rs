//! The room of KV caches: how many rows the cache of a request has, and where they are.
//!
//! In host memory every cache has address space for the longest context, and takes pages as they are written. Memory that
//! a device knows is taken whole, and at once. There a cache has rows for what its request may need (a GPU's in steps of
//! 256), and moves into a larger one when more is needed. One that rests between the calls of its flow goes to host memory,
//! if there it takes far less than it holds of the device's.

use std::sync::Arc;

use heg_artifacts::manifest::{Manifest, ShapeClass};
use heg_spec::Group;

use super::home::MemoryHome;
use super::kv::KvCache;
use super::kv_shape::KvShape;
use crate::error::ExecError;

/// Makes the KV caches of a model.
#[derive(Clone)]
pub struct KvRoom {
    /// Shape of a cache for the longest context.
    shape: KvShape,
    home: MemoryHome,
    /// Rows of context of static attention, in ascending order, for each number of tokens that it takes.
    buckets: Arc<[Vec<usize>]>,
}

impl KvRoom {
    /// The room of a model's caches of this shape.
    pub(crate) fn new(manifest: &Manifest, shape: KvShape, home: MemoryHome) -> Self {
        let mut by_tokens = std::collections::BTreeMap::<u32, Vec<usize>>::new();
        let kernels = manifest.kernels.iter();
        let attention = kernels.filter(|kernel| kernel.group == Group::Mha);
        for variant in attention.flat_map(|kernel| &kernel.variants) {
            if let ShapeClass::Bucket { tokens, context } = variant.shape {
                by_tokens.entry(tokens).or_default().push(context as usize);
            }
        }
        for buckets in by_tokens.values_mut() {
            buckets.sort_unstable();
        }
        Self {
            shape,
            home,
            buckets: by_tokens.into_values().collect(),
        }
    }

    /// The same room, for caches of another shape.
    #[must_use]
    pub fn with_shape(self, shape: KvShape) -> Self {
        Self { shape, ..self }
    }

    /// Shape of a cache for the longest context.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Makes an empty cache for `tokens` tokens.
    ///
    /// # Errors
    ///
    /// [`ExecError::Reserve`] if there is not enough memory.
    pub fn reserve(&self, tokens: usize) -> Result<KvCache, ExecError> {
        if self.home.is_host() {
            return KvCache::reserve(self.shape);
        }
        KvCache::at(self.shape_for(tokens), &self.home)
    }

    /// Whether kernels can run on a cache as it is, up to `tokens` tokens.
    pub fn holds(&self, cache: &KvCache, tokens: usize) -> bool {
        let is_there = self.home.is_host() || cache.is_known();
        is_there && cache.context_tokens() >= tokens.min(self.shape.context_tokens)
    }

    /// Makes a cache for `tokens` tokens with the first `kept` tokens of another.
    ///
    /// # Errors
    ///
    /// The errors of [`reserve`](Self::reserve).
    pub fn moved(&self, cache: &KvCache, kept: usize, tokens: usize) -> Result<KvCache, ExecError> {
        let mut other = self.reserve(tokens)?;
        copy(cache, &other, kept)?;
        other.advance(kept);
        Ok(other)
    }

    /// Returns a cache with `tokens` tokens as it is to wait for the next call of its flow.
    pub fn at_rest(&self, cache: KvCache, tokens: usize) -> KvCache {
        if cache.resident_bytes(tokens) <= 2 * self.shape.resident_bytes(tokens) {
            return cache;
        }
        let copied = || {
            let host = KvCache::reserve(self.shape)?;
            copy(&cache, &host, tokens)?;
            Ok::<_, ExecError>(host)
        };
        // Without memory for it the cache waits where it is.
        copied().unwrap_or(cache)
    }

    /// The smallest shape that every kernel can run on for up to `tokens` tokens: static attention reads all rows of its
    /// bucket.
    fn shape_for(&self, tokens: usize) -> KvShape {
        let tokens = tokens.next_multiple_of(self.home.cache_rows_step());
        let longest = self.shape.context_tokens;
        let least = |buckets: &Vec<usize>| {
            let mut buckets = buckets.iter();
            buckets.find(|context| **context >= tokens).copied()
        };
        let rows = self.buckets.iter().filter_map(least).max();
        KvShape {
            context_tokens: rows.unwrap_or(0).max(tokens).min(longest),
            ..self.shape
        }
    }
}

/// Copies the keys and values of the first `tokens` tokens to another cache of the same model.
fn copy(from: &KvCache, to: &KvCache, tokens: usize) -> Result<(), ExecError> {
    let mut rows = vec![0; tokens * from.row_bytes()];
    for (layer, half) in from.halves() {
        from.read_rows(layer, half, 0, &mut rows)?;
        to.write_row(layer, half, 0, &rows)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use heg_openvino::TensorType;

    use super::*;

    #[test]
    fn a_cache_has_the_rows_of_the_bucket_that_its_tokens_reach() {
        let shape = KvShape {
            layers: 2,
            width: 4,
            context_tokens: 4000,
            padding_rows: 32,
            element: TensorType::F16,
        };
        let room = KvRoom {
            shape,
            home: MemoryHome::default(),
            buckets: Arc::from([vec![256, 512, 1024], vec![512, 2048]]),
        };
        for (tokens, rows) in [
            (1, 512),
            (512, 512),
            (513, 2048),
            (2049, 2049),
            (9000, 4000),
        ] {
            assert_eq!(room.shape_for(tokens).context_tokens, rows, "{tokens}");
        }
    }

    #[test]
    fn rows_move_where_a_cache_has_no_room_for_more() {
        let shape = |context_tokens| KvShape {
            layers: 2,
            width: 4,
            context_tokens,
            padding_rows: 0,
            element: TensorType::F32,
        };
        let room = KvRoom {
            shape: shape(20),
            home: MemoryHome::default(),
            buckets: Arc::from([]),
        };
        let small = KvCache::reserve(shape(5)).unwrap();
        let rows: Vec<u8> = (0..5 * shape(5).token_bytes()).map(|at| at as u8).collect();
        small.restore(5, 5, &mut rows.as_slice()).unwrap();
        assert!(room.holds(&small, 5) && !room.holds(&small, 6));
        let large = room.moved(&small, 5, 12).unwrap();
        assert_eq!((large.context_tokens(), large.tokens()), (20, 5));
        assert!(room.holds(&large, 20) && room.holds(&large, 9000));
        let mut moved = Vec::new();
        large.save(5, &mut moved).unwrap();
        assert_eq!(moved, rows);
    }
}
