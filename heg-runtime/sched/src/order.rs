//! The order of a layer's kernels: what the execution graph of a bundle says, as the scheduler needs it.

use super::event::LayerKernel;

/// The kernels of a layer, in the order in which data passes through them, and those that write and read the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerOrder {
    kernels: [LayerKernel; KERNELS],
    /// Number of the kernel that writes rows of the cache, counted from the layer's first.
    writes_cache: u32,
    /// The kernel that reads the rows of all segments up to its own.
    reads_cache: LayerKernel,
}

/// Kernels of a layer.
const KERNELS: usize = 3;

impl LayerOrder {
    /// Returns the order of a layer whose cache has these ends, the writer first. `None` unless it has every kernel once
    /// and writes the cache before it reads it.
    pub fn new(kernels: &[LayerKernel], cache: (LayerKernel, LayerKernel)) -> Option<Self> {
        let kernels: [LayerKernel; KERNELS] = kernels.try_into().ok()?;
        let number = |wanted| kernels.iter().position(|kernel| *kernel == wanted);
        let all = [LayerKernel::Qkv, LayerKernel::Mha, LayerKernel::Ffn];
        let is_whole = all.into_iter().all(|kernel| number(kernel).is_some());
        let (writer, reader) = (number(cache.0)?, number(cache.1)?);
        (is_whole && writer < reader).then_some(Self {
            kernels,
            writes_cache: writer as u32,
            reads_cache: cache.1,
        })
    }

    /// The kernels, in order.
    pub fn kernels(self) -> [LayerKernel; KERNELS] {
        self.kernels
    }

    /// The kernel that a layer begins with.
    pub fn first(self) -> LayerKernel {
        let [first, ..] = self.kernels;
        first
    }

    /// The kernel that a layer ends with.
    pub fn last(self) -> LayerKernel {
        let [.., last] = self.kernels;
        last
    }

    /// The kernels behind the one that writes the cache, in order.
    pub fn behind_cache(self) -> impl Iterator<Item = LayerKernel> {
        let behind = self.writes_cache as usize + 1;
        self.kernels.into_iter().skip(behind)
    }

    /// The kernel that reads the cache.
    pub(crate) fn reads_cache(self) -> LayerKernel {
        self.reads_cache
    }

    /// Number of kernels of some layers.
    pub(crate) fn kernels_of(self, layers: u32) -> u32 {
        KERNELS as u32 * layers
    }

    /// Number of kernels of some layers up to the last layer's writer of the cache.
    pub(crate) fn kernels_to_cache(self, layers: u32) -> u32 {
        let rest = KERNELS as u32 - 1 - self.writes_cache;
        self.kernels_of(layers).saturating_sub(rest)
    }

    /// Number of leading layers whose rows of the cache are written after `done` kernels.
    pub(crate) fn cached_layers(self, done: u32) -> u32 {
        (done + KERNELS as u32 - 1 - self.writes_cache) / KERNELS as u32
    }

    /// Returns the layer and the kernel that follow `done` kernels.
    pub(crate) fn after(self, done: u32) -> (u32, LayerKernel) {
        let [first, second, third] = self.kernels;
        let kernel = match done % KERNELS as u32 {
            0 => first,
            1 => second,
            _ => third,
        };
        (done / KERNELS as u32, kernel)
    }
}

/// The order of models that no bundle describes: those of simulations.
impl Default for LayerOrder {
    fn default() -> Self {
        Self {
            kernels: [LayerKernel::Qkv, LayerKernel::Mha, LayerKernel::Ffn],
            writes_cache: 0,
            reads_cache: LayerKernel::Mha,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LayerKernel::{Ffn, Mha, Qkv};
    use super::*;

    #[test]
    fn an_order_has_every_kernel_once_and_writes_before_it_reads() {
        let new = |kernels: &[LayerKernel]| LayerOrder::new(kernels, (Qkv, Mha));
        assert_eq!(new(&[Qkv, Mha, Ffn]), Some(LayerOrder::default()));
        assert!(new(&[Ffn, Qkv, Mha]).is_some());
        for refused in [&[][..], &[Qkv, Mha], &[Qkv, Mha, Qkv], &[Mha, Qkv, Ffn]] {
            assert_eq!(new(refused), None, "{refused:?}");
        }
    }

    #[test]
    fn kernels_are_numbered_in_the_order_that_was_given() {
        let order = LayerOrder::new(&[Ffn, Qkv, Mha], (Qkv, Mha)).unwrap();
        let passed: Vec<_> = (0..4).map(|done| order.after(done)).collect();
        assert_eq!(passed, [(0, Ffn), (0, Qkv), (0, Mha), (1, Ffn)]);
        assert_eq!((order.first(), order.last()), (Ffn, Mha));
        assert_eq!(order.behind_cache().collect::<Vec<_>>(), [Mha]);
        assert_eq!((order.kernels_of(2), order.kernels_to_cache(2)), (6, 5));
        let cached: Vec<u32> = (0..6).map(|done| order.cached_layers(done)).collect();
        assert_eq!(cached, [0, 0, 1, 1, 1, 2]);
    }
}
