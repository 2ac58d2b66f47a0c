//! Weights are touched when the first request comes, by a thread of its own that is ahead of the kernels.
//!
//! The system maps a page of a file when somebody touches it, and a processor prefetches nothing that is not mapped: a first
//! pass over weights would wait for both. While pages of kept state are read, or another kernel runs, a processor has time
//! for it. An engine without requests touches nothing.

use std::hint::black_box;
use std::sync::{Arc, Weak};
use std::thread;

use heg_artifacts::manifest::{KernelUse, Manifest};
use heg_artifacts::{Bundle, SectionId};
use heg_exec::Loader;
use heg_sched::Lane;

/// Weights that nobody has touched yet; `None` from the first request on, or if no CPU reads them.
pub(super) struct Untouched(Option<Arc<Bundle>>);

impl Untouched {
    /// The weights of a loader's bundle, if programs of ours read them on the CPU.
    pub(super) fn new(loader: &Loader) -> Self {
        let on_cpu = loader.lanes().dynamic == Lane::Cpu && loader.activations().is_ok();
        Self(on_cpu.then(|| Arc::clone(loader.bundle())))
    }

    /// Begins to touch them. Returns at once, and does nothing from the second time on.
    pub(super) fn touch(&mut self) {
        if let Some(bundle) = self.0.take() {
            let bundle = Arc::downgrade(&bundle);
            // Without the thread, the first pass waits.
            let _ = thread::Builder::new()
                .name("touching".to_owned())
                .spawn(move || touch_all(&bundle));
        }
    }
}

/// Touches weights until all are, or nobody else has the bundle.
fn touch_all(bundle: &Weak<Bundle>) {
    let Some(sections) = bundle
        .upgrade()
        .map(|bundle| in_use_order(bundle.manifest()))
    else {
        return;
    };
    let mut left = BYTES_MAX;
    for section in sections {
        let Some(bundle) = bundle.upgrade() else {
            return;
        };
        let bytes = bundle.section_unverified(section).unwrap_or_default();
        for byte in bytes.iter().step_by(STEP_BYTES) {
            black_box(*byte);
        }
        left = left.saturating_sub(bytes.len() as u64);
        if left == 0 {
            return;
        }
    }
}

/// The values of all weights that kernels read whole, in the order in which a pass reads them.
fn in_use_order(manifest: &Manifest) -> Vec<SectionId> {
    let layers = manifest.layers.iter();
    let places = layers.flat_map(|layer| [&layer.qkv, &layer.mha, &layer.ffn]);
    let places: Vec<&KernelUse> = places.chain([&manifest.head]).collect();
    let weights = places.into_iter().flat_map(|place| &place.weights);
    let weights = weights.filter_map(|id| manifest.weights.get(id.0 as usize));
    weights.map(|weight| weight.values).collect()
}

/// Distance of touches. Chosen: what Linux maps at once around a page that is in memory.
const STEP_BYTES: usize = 64 << 10;

/// Most bytes that are touched. Chosen: a pass over more takes so long that nobody notices what is saved, and a machine may
/// not have the memory.
const BYTES_MAX: u64 = 4 << 30;
