//! Prepares all places of a model on threads of their own, while the caller reads tokenizer and prompt.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use heg_spec::Group;

use super::duty::Duty;
use super::form::Form;
use super::loader::Loader;
use super::place::{Place, all_places, place_kernel, unknown};
use crate::error::{ExecError, Loss};
use crate::ladder::{Calls, Descent, DeviceFacts, Ladder, Reason, Refused, Rung};
use crate::prepared::Prepared;

/// All places of a model, being prepared.
pub(super) struct Kernels {
    workers: Vec<thread::JoinHandle<Share>>,
    abandoned: Arc<AtomicBool>,
}

/// The places that one worker prepared.
type Share = Result<Vec<(Place, Prepared)>, ExecError>;

/// The executor's requirements on its kernels, shared by the threads that prepare them.
pub(super) struct KernelNeeds {
    pub(super) loader: Arc<Loader>,
    pub(super) duty: Duty,
    /// The ladder, on the devices that have this duty.
    pub(super) ladder: Ladder,
    pub(super) calls: Calls,
    /// Rungs that failed at an earlier start.
    pub(super) quarantined: BTreeMap<Place, Refused>,
}

impl KernelNeeds {
    /// The requirements without the devices that were lost since; `None` if none was.
    ///
    /// # Errors
    ///
    /// [`ExecError::DeviceLost`] if no device is left.
    pub(super) fn without_lost(&self) -> Result<Option<Self>, ExecError> {
        let lost = |device: &DeviceFacts| {
            let is_new = device.missing.is_none();
            self.loader.why_lost(device).filter(|_| is_new)
        };
        let mut devices = self.ladder.devices().iter();
        let Some((device, why)) = devices.find_map(|device| Some((device, lost(device)?))) else {
            return Ok(None);
        };
        if !self.loader.has_left(self.duty) {
            return Err(ExecError::DeviceLost {
                device: device.name.clone(),
                loss: Loss::Failed,
                why,
            });
        }
        Ok(Some(Self {
            loader: Arc::clone(&self.loader),
            duty: self.duty,
            ladder: self.ladder.clone().without(lost),
            calls: self.calls,
            quarantined: self.quarantined.clone(),
        }))
    }
}

impl Prepared {
    /// Prepares rungs of the ladder until every call has one, and continues with the next rung if one is refused.
    pub(super) fn settle(&mut self, needs: &KernelNeeds, place: Place) -> Result<(), ExecError> {
        let loader = &*needs.loader;
        let kernel = place_kernel(loader.bundle().manifest(), place)?;
        let need = needs.calls.of(kernel.group);
        loop {
            let plan = needs.ladder.plan(kernel, need, &self.refused);
            if !plan.complete && needs.duty.is_every_call() {
                return Err(nothing_left(loader, place, &plan.descents));
            }
            let ready = |rung: &Rung| self.forms.iter().any(|form| form.rung == *rung);
            let Some(rung) = plan.rungs.iter().find(|rung| !ready(rung)) else {
                let order = |form: &Form| plan.rungs.iter().position(|rung| *rung == form.rung);
                self.forms.retain(|form| order(form).is_some());
                self.forms.sort_by_key(order);
                self.note_backend();
                if let ([form], None) = (&self.forms[..], &self.partners) {
                    self.partners = loader.partners_form(place, form.rung);
                }
                self.descents = plan.descents;
                return Ok(());
            };
            match loader.form(place, *rung) {
                Ok(form) => self.forms.push(form),
                Err(error) => match error.refusal() {
                    // The error of the last rung is the error of the whole load.
                    Some(message) => {
                        let reason = Reason::Refused(message);
                        self.refused.insert(*rung, reason);
                        let plan = needs.ladder.plan(kernel, need, &self.refused);
                        let stuck = !plan.complete && needs.duty.is_every_call();
                        if stuck && self.refused.len() == 1 {
                            return Err(error);
                        }
                    }
                    None => return Err(error),
                },
            }
        }
    }

    /// Stops using a rung for a reason, and prepares the ones below it.
    pub(super) fn pass_over(
        &mut self,
        needs: &KernelNeeds,
        place: Place,
        rung: Rung,
        reason: Reason,
    ) -> Result<(), ExecError> {
        self.refused.insert(rung, reason);
        self.settle(needs, place)
    }

    /// Stops using rungs whose device was lost meanwhile, by another kernel too, and prepares the ones below them.
    pub(super) fn leave_lost_devices(
        &mut self,
        needs: &KernelNeeds,
        place: Place,
    ) -> Result<(), ExecError> {
        let backends = needs.loader.backends();
        let is_lost = |rung: Rung| backends.iter().any(|backend| backend.is_lost(rung));
        let lost = |forms: &[Form]| {
            let mut rungs = forms.iter().map(|form| form.rung);
            rungs.find(|rung| is_lost(*rung))
        };
        while let Some(rung) = lost(&self.forms) {
            let reason = Reason::Refused("the device was lost".to_owned());
            self.pass_over(needs, place, rung, reason)?;
        }
        Ok(())
    }
}

fn nothing_left(loader: &Loader, place: Place, descents: &[Descent]) -> ExecError {
    let manifest = loader.bundle().manifest();
    let reasons = crate::ladder::summary(descents);
    let kernel = place_kernel(manifest, place).map(|kernel| kernel.name.clone());
    if reasons.is_empty() {
        return ExecError::NoDevice {
            soc: loader.soc().name.clone(),
            group: place.group,
            expected: crate::ladder::preference(place.group).to_vec(),
        };
    }
    ExecError::NoRung {
        kernel: kernel.unwrap_or_default(),
        reasons: reasons.join("; "),
    }
}

/// Prepares one place after the other until none is left, or a thread fails.
fn work(needs: &KernelNeeds, next: &AtomicUsize, abandoned: &AtomicBool) -> Share {
    let places = all_places(needs.loader.bundle().manifest())?;
    let mut ready = Vec::new();
    while let Some(place) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
        if abandoned.load(Ordering::Relaxed) {
            break;
        }
        let prepared = prepare(needs, *place);
        abandoned.fetch_or(prepared.is_err(), Ordering::Relaxed);
        ready.push((*place, prepared?));
    }
    Ok(ready)
}

fn prepare(needs: &KernelNeeds, place: Place) -> Result<Prepared, ExecError> {
    let bundle = needs.loader.bundle();
    if place.group == Group::Head {
        // The embedding is no kernel's weight, unless the head is tied to it: its hash is checked here.
        let manifest = bundle.manifest();
        let embedding = &manifest.embedding;
        let added = [embedding.positions, embedding.token_types];
        for table in added.into_iter().flatten().chain([embedding.table]) {
            let table = manifest.weights.get(table.0 as usize);
            let table = table.ok_or(unknown(place))?;
            bundle.section(table.values).map_err(ExecError::Section)?;
        }
    }
    let refused = needs.quarantined.get(&place).cloned().unwrap_or_default();
    let mut prepared = Prepared::new(refused);
    prepared.settle(needs, place)?;
    Ok(prepared)
}

impl Kernels {
    /// Begins to prepare all places, on `threads` threads.
    pub(super) fn load(needs: Arc<KernelNeeds>, threads: usize) -> Self {
        let abandoned = Arc::new(AtomicBool::new(false));
        let next = Arc::new(AtomicUsize::new(0));
        let workers = (0..threads.max(1))
            .map(|_| {
                let (needs, next, abandoned) = (
                    Arc::clone(&needs),
                    Arc::clone(&next),
                    Arc::clone(&abandoned),
                );
                thread::spawn(move || work(&needs, &next, &abandoned))
            })
            .collect();
        Self { workers, abandoned }
    }

    /// Waits until all places are ready.
    ///
    /// The first request does not begin before that: compiling takes all cores, and an inference that
    /// runs meanwhile, on threads of its own, is six times as slow as after it (1B model, two cores).
    /// The first inference of each kernel packs its weights, which is better left to one kernel at a
    /// time with all threads than to several at once: 1.32 s from start to first token against 1.58 s.
    pub(super) fn join(&mut self) -> Result<BTreeMap<Place, Prepared>, ExecError> {
        let mut ready = BTreeMap::new();
        for worker in self.workers.drain(..) {
            ready.extend(worker.join().map_err(|_| ExecError::LoaderGone)??);
        }
        Ok(ready)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            // Neither the worker's forms nor its error are needed any more.
            let _ = worker.join();
        }
    }
}
