//! Prepares all places of a model on threads of their own, while the caller reads tokenizer and prompt.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use heg_artifacts::manifest::Binding;
use heg_artifacts::{Bundle, SectionId};
use heg_spec::Group;

use super::duty::Duty;
use super::form::{Form, Runner};
use super::loader::{Loader, refusal};
use super::place::{Place, all_places, place_kernel, place_use, unknown, use_sections};
use crate::error::RuntimeError;
use crate::ladder::{Calls, Descent, Ladder, Reason, Refused, Rung};

/// The forms of one place.
pub(super) struct Prepared {
    /// Forms that are ready; the first that admits a call runs it.
    pub(super) forms: Vec<Form>,
    /// Sections that are not read any more once the plugin has packed them into its own layout, in the first inference.
    /// Empty once their pages were given back.
    pub(super) packed: Vec<SectionId>,
    /// Steps down the ladder that were taken.
    pub(super) descents: Vec<Descent>,
    /// Rungs that cannot be used here.
    pub(super) refused: Refused,
}

/// All places of a model, being prepared.
pub(super) struct Kernels {
    workers: Vec<thread::JoinHandle<Share>>,
    abandoned: Arc<AtomicBool>,
}

/// The places that one worker prepared.
type Share = Result<Vec<(Place, Prepared)>, RuntimeError>;

/// What the threads that prepare kernels share.
pub(super) struct Order {
    pub(super) loader: Arc<Loader>,
    pub(super) duty: Duty,
    /// The ladder, on the devices that have this duty.
    pub(super) ladder: Ladder,
    pub(super) calls: Calls,
    /// Rungs that failed at an earlier start.
    pub(super) quarantined: BTreeMap<Place, Refused>,
}

impl Prepared {
    fn new(refused: Refused) -> Self {
        Self {
            forms: Vec::new(),
            packed: Vec::new(),
            descents: Vec::new(),
            refused,
        }
    }

    /// Prepares rungs of the ladder, going down where one is refused, until every call has one.
    pub(super) fn settle(&mut self, order: &Order, place: Place) -> Result<(), RuntimeError> {
        let loader = &*order.loader;
        let kernel = place_kernel(loader.bundle().manifest(), place)?;
        let need = order.calls.of(kernel.group);
        loop {
            let plan = order.ladder.plan(kernel, need, &self.refused);
            if !plan.complete && order.duty.is_every_call() {
                return Err(nothing_left(loader, place, &plan.descents));
            }
            let ready = |rung: &Rung| self.forms.iter().any(|form| form.rung == *rung);
            let Some(rung) = plan.rungs.iter().find(|rung| !ready(rung)) else {
                let order = |form: &Form| plan.rungs.iter().position(|rung| *rung == form.rung);
                self.forms.retain(|form| order(form).is_some());
                self.forms.sort_by_key(order);
                self.descents = plan.descents;
                return self.list_packed(loader, place);
            };
            match loader.form(place, *rung) {
                Ok(form) => self.forms.push(form),
                Err(error) => match refusal(&error) {
                    // The last rung's error is the load's.
                    Some(message) => {
                        let reason = Reason::Refused(message);
                        self.refused.insert(*rung, reason);
                        let plan = order.ladder.plan(kernel, need, &self.refused);
                        let stuck = !plan.complete && order.duty.is_every_call();
                        if stuck && self.refused.len() == 1 {
                            return Err(error);
                        }
                    }
                    None => return Err(error),
                },
            }
        }
    }

    /// Most rows that a call may have.
    pub(super) fn tokens_max(&self) -> usize {
        let mut chunks = self.forms.iter().map(|form| form.shape.chunk());
        let most = chunks.try_fold(1, |most, chunk| Some(chunk?.max(most)));
        most.map_or(usize::MAX, |most| most as usize)
    }

    /// Stops using a rung for a reason, and prepares the ones below it.
    pub(super) fn pass_over(
        &mut self,
        order: &Order,
        place: Place,
        rung: Rung,
        reason: Reason,
    ) -> Result<(), RuntimeError> {
        self.refused.insert(rung, reason);
        self.settle(order, place)
    }

    /// Gives the pages of packed weights back to the system. Call it after an inference.
    pub(super) fn give_back(&mut self, bundle: &Bundle) -> Result<(), RuntimeError> {
        for id in std::mem::take(&mut self.packed) {
            let range = bundle.section_range(id).map_err(RuntimeError::Section)?;
            bundle
                .mapping()
                .give_back(range)
                .map_err(RuntimeError::Section)?;
        }
        Ok(())
    }

    /// Lists the sections to give back: those of places where every form has its own copy of the weights.
    fn list_packed(&mut self, loader: &Loader, place: Place) -> Result<(), RuntimeError> {
        let manifest = loader.bundle().manifest();
        let kernel = place_kernel(manifest, place)?;
        let constant = |form: &Form| {
            let variant = kernel.variants.get(form.rung.variant);
            let is_constant = variant.is_some_and(|variant| variant.binding == Binding::Constant);
            is_constant && matches!(form.runner, Runner::Plugin(_))
        };
        self.packed = if self.forms.iter().all(constant) {
            use_sections(manifest, place_use(manifest, place)?)
        } else {
            Vec::new()
        };
        Ok(())
    }
}

fn nothing_left(loader: &Loader, place: Place, descents: &[Descent]) -> RuntimeError {
    let manifest = loader.bundle().manifest();
    let reasons = crate::ladder::summary(descents);
    let kernel = place_kernel(manifest, place).map(|kernel| kernel.name.clone());
    if reasons.is_empty() {
        return RuntimeError::NoDevice {
            soc: loader.soc().name.clone(),
            group: place.group,
            expected: crate::ladder::preference(place.group).to_vec(),
        };
    }
    RuntimeError::NoRung {
        kernel: kernel.unwrap_or_default(),
        reasons: reasons.join("; "),
    }
}

/// Prepares one place after the other until none is left, or a thread fails.
fn work(order: &Order, next: &AtomicUsize, abandoned: &AtomicBool) -> Share {
    let places = all_places(order.loader.bundle().manifest());
    let mut ready = Vec::new();
    while let Some(place) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
        if abandoned.load(Ordering::Relaxed) {
            break;
        }
        let prepared = prepare(order, *place);
        abandoned.fetch_or(prepared.is_err(), Ordering::Relaxed);
        ready.push((*place, prepared?));
    }
    Ok(ready)
}

fn prepare(order: &Order, place: Place) -> Result<Prepared, RuntimeError> {
    let bundle = order.loader.bundle();
    if place.group == Group::Head {
        // The embedding is no kernel's weight, unless the head is tied to it: its hash is checked here.
        let manifest = bundle.manifest();
        let table = manifest.embedding.table.0 as usize;
        let table = manifest.weights.get(table).ok_or(unknown(place))?;
        bundle
            .section(table.values)
            .map_err(RuntimeError::Section)?;
    }
    let refused = order.quarantined.get(&place).cloned().unwrap_or_default();
    let mut prepared = Prepared::new(refused);
    prepared.settle(order, place)?;
    Ok(prepared)
}

impl Kernels {
    /// Begins to prepare all places, on `threads` threads.
    pub(super) fn load(order: Arc<Order>, threads: usize) -> Self {
        let abandoned = Arc::new(AtomicBool::new(false));
        let next = Arc::new(AtomicUsize::new(0));
        let workers = (0..threads.max(1))
            .map(|_| {
                let (order, next, abandoned) = (
                    Arc::clone(&order),
                    Arc::clone(&next),
                    Arc::clone(&abandoned),
                );
                thread::spawn(move || work(&order, &next, &abandoned))
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
