//! Runs the known-answer test of every rung at every place, regardless of remembered verdicts.

use std::time::{Duration, Instant};

use heg_artifacts::manifest::KnownAnswers;

use super::answers::{Asked, ask};
use super::executor::verdicts_name;
use super::loader::Loader;
use super::place::{Place, all_places, place_kernel};
use crate::error::ExecError;
use crate::gpu_examiner::forget;
use crate::ladder::{DescentStep, Rung};
use crate::verdicts::{Verdict, Verdicts};

/// Results of the known-answer tests of a bundle on the devices at hand.
#[derive(Debug)]
pub struct Diagnosis {
    /// The inputs of the tests; `None` if the bundle has no known answers.
    pub asked: Option<KnownAnswers>,
    /// Each place on each rung, in the order of places.
    pub examined: Vec<Examined>,
}

/// One place on one rung.
#[derive(Debug)]
pub struct Examined {
    /// The place where the kernel is used.
    pub place: Place,
    /// Name of the kernel.
    pub kernel: String,
    /// The rung.
    pub rung: Rung,
    /// The rung by name.
    pub step: DescentStep,
    /// The result of its test.
    pub outcome: TestOutcome,
    /// Time of making the form and testing it.
    pub took: Duration,
}

/// The result of testing a kernel on a rung.
#[derive(Debug, Clone, PartialEq)]
pub enum TestOutcome {
    /// The kernel computed its outputs, with this verdict.
    Answered(Verdict),
    /// The bundle has no known answer for this place.
    NotAsked,
    /// Only OpenVINO runs it, and OpenVINO is missing.
    NoPlugin,
    /// The device refused it, with this message.
    Refused(String),
}

impl TestOutcome {
    /// The verdict on the kernel, if it computed its outputs.
    pub fn verdict(&self) -> Option<Verdict> {
        match self {
            Self::Answered(verdict) => Some(*verdict),
            Self::NotAsked | Self::NoPlugin | Self::Refused(_) => None,
        }
    }

    fn of_error(error: ExecError) -> Result<Self, ExecError> {
        if let ExecError::OpenVino { source, .. } = &error
            && let heg_openvino::OpenvinoError::LibraryNotFound { .. } = source
        {
            return Ok(Self::NoPlugin);
        }
        error.refusal().map(Self::Refused).ok_or(error)
    }
}

impl Diagnosis {
    /// Whether a kernel failed its test.
    pub fn found_wrong(&self) -> bool {
        let mut verdicts = self.examined.iter().filter_map(|one| one.outcome.verdict());
        verdicts.any(|verdict| !verdict.is_right())
    }
}

/// Tests every place on every rung of the ladder, calls `each` after each test, and keeps the verdicts if the loader
/// has a cache.
///
/// # Errors
///
/// [`ExecError::Section`] if the bundle is damaged. A device's errors are part of the diagnosis.
pub fn diagnose(loader: &Loader, mut each: impl FnMut(&Examined)) -> Result<Diagnosis, ExecError> {
    let manifest = loader.bundle().manifest();
    let mut diagnosis = Diagnosis {
        asked: manifest.known_answers,
        examined: Vec::new(),
    };
    let mut verdicts = Verdicts::default();
    for place in all_places(manifest)? {
        let kernel = place_kernel(manifest, place)?;
        for rung in loader.ladder().all(kernel) {
            let Some(device) = loader.ladder().device(rung.role) else {
                continue;
            };
            let start = Instant::now();
            let outcome = match loader.form(place, rung) {
                Ok(form) => match ask(loader, place, form)? {
                    Asked::Nothing(_) => TestOutcome::NotAsked,
                    Asked::Answered(_, verdict) => TestOutcome::Answered(verdict),
                    Asked::Failed(message) => TestOutcome::Refused(message),
                },
                Err(error) => TestOutcome::of_error(error)?,
            };
            if let Some(verdict) = outcome.verdict() {
                verdicts.insert(place, rung, verdict);
            }
            let examined = Examined {
                place,
                kernel: kernel.name.clone(),
                rung,
                step: DescentStep::of(device, kernel, rung),
                outcome,
                took: start.elapsed(),
            };
            each(&examined);
            diagnosis.examined.push(examined);
        }
    }
    if let Some(cache) = loader.cache() {
        verdicts.remember(cache, &verdicts_name(loader))?;
    }
    Ok(diagnosis)
}

/// Clears the quarantine of these devices; returns the number of kernels that were in it.
///
/// # Errors
///
/// [`ExecError::Cache`] if the folder cannot be written.
pub fn clear_quarantine(loader: &Loader) -> Result<usize, ExecError> {
    let Some(cache) = loader.cache() else {
        return Ok(0);
    };
    let name = verdicts_name(loader);
    let mut verdicts = Verdicts::recall(cache, &name);
    let cleared = verdicts.clear_quarantine();
    if cleared > 0 {
        verdicts.remember(cache, &name)?;
    }
    Ok(cleared + forget(cache, loader.bundle()))
}
