//! All places of a model made ready, on threads of their own, while the caller reads tokenizer and prompt.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use heg_artifacts::SectionId;
use heg_artifacts::manifest::{Binding, ElementType, Group, Manifest};
use heg_spec::Soc;

use super::loader::{Form, Loader};
use super::place::{Place, all_places, place_kernel, place_use, unknown, use_sections};
use crate::bind::{Bound, bind, shared_activations};
use crate::error::RuntimeError;

/// Compiled forms of the kernel at one place, static ones in ascending order of tokens.
pub(super) struct Prepared {
    pub(super) forms: Vec<Form>,
    /// Sections that nobody reads any more once the plugin has packed them in its own layout, which it does
    /// in the first inference. Empty once they were given back.
    pub(super) packed: Vec<SectionId>,
}

/// All places of a model, being prepared.
pub(super) struct Kernels {
    workers: Vec<thread::JoinHandle<Share>>,
    abandoned: Arc<AtomicBool>,
}

/// The places that one worker prepared.
type Share = Result<Vec<(Place, Prepared)>, RuntimeError>;

/// What all kernels agree on.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadPlan {
    pub(super) activations: ElementType,
    /// Largest number of tokens a call can have.
    pub(super) chunk_max: usize,
}

impl LoadPlan {
    /// Checks that every kernel has a device and a variant, and that their activations agree.
    pub(super) fn new(manifest: &Manifest, soc: &Soc) -> Result<Self, RuntimeError> {
        let bound: Vec<Bound<'_>> = manifest
            .kernels
            .iter()
            .map(|kernel| bind(soc, kernel))
            .collect::<Result<_, RuntimeError>>()?;
        let activations = shared_activations(&bound)?;
        // The largest chunk that every token-wise kernel takes.
        let chunk_max = bound
            .iter()
            .filter(|bound| bound.kernel.group != Group::Mha)
            .map(Bound::chunk_max)
            .min()
            .unwrap_or(usize::MAX);
        Ok(Self {
            activations,
            chunk_max,
        })
    }
}

/// Prepares one place after the other until there are no more, or somebody fails.
fn work(loader: &Loader, next: &AtomicUsize, abandoned: &AtomicBool) -> Share {
    let places = all_places(loader.bundle().manifest());
    let mut ready = Vec::new();
    while let Some(place) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
        if abandoned.load(Ordering::Relaxed) {
            break;
        }
        let prepared = prepare(loader, *place);
        abandoned.fetch_or(prepared.is_err(), Ordering::Relaxed);
        ready.push((*place, prepared?));
    }
    Ok(ready)
}

fn prepare(loader: &Loader, place: Place) -> Result<Prepared, RuntimeError> {
    let manifest = loader.bundle().manifest();
    let kernel = place_kernel(manifest, place)?;
    let bound = bind(loader.soc(), kernel)?;
    if place.group == Group::Head {
        // The embedding is no kernel's weight, unless the head is tied to it: its hash is checked here.
        let table = manifest.embedding.table.0 as usize;
        let table = manifest.weights.get(table).ok_or(unknown(place))?;
        loader
            .bundle()
            .section(table.values)
            .map_err(RuntimeError::Section)?;
    }
    let constant = bound
        .variants()
        .all(|variant| variant.binding == Binding::Constant);
    let forms = bound
        .rungs
        .iter()
        .map(|rung| loader.form(place, *rung))
        .collect::<Result<_, RuntimeError>>()?;
    let packed = if constant {
        use_sections(manifest, place_use(manifest, place)?)
    } else {
        Vec::new()
    };
    Ok(Prepared { forms, packed })
}

impl Kernels {
    /// Begins to prepare all places, on `threads` threads.
    pub(super) fn load(loader: Arc<Loader>, threads: usize) -> Self {
        let abandoned = Arc::new(AtomicBool::new(false));
        let next = Arc::new(AtomicUsize::new(0));
        let workers = (0..threads.max(1))
            .map(|_| {
                let (loader, next, abandoned) = (
                    Arc::clone(&loader),
                    Arc::clone(&next),
                    Arc::clone(&abandoned),
                );
                thread::spawn(move || work(&loader, &next, &abandoned))
            })
            .collect();
        Self { workers, abandoned }
    }

    /// Waits until all places are ready.
    ///
    /// The first request does not begin before: compiling takes all cores, and an inference that runs
    /// meanwhile, on threads of its own, is six times as slow as after (1B model, two cores). The first
    /// inference of each kernel packs its weights, which is better left to one kernel at a time with all
    /// threads than to several at once: 1.32 s from start to first token against 1.58 s.
    pub(super) fn join(&mut self) -> Result<BTreeMap<Place, Prepared>, RuntimeError> {
        let mut ready = BTreeMap::new();
        for worker in self.workers.drain(..) {
            ready.extend(worker.join().map_err(|_| RuntimeError::LoaderGone)??);
        }
        Ok(ready)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            // Nobody wants what it prepared, nor why it could not.
            let _ = worker.join();
        }
    }
}
