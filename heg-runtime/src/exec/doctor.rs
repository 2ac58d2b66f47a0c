//! Runs the known-answer test of every rung at every place, whatever earlier runs remembered.

use heg_artifacts::manifest::KnownAnswers;

use super::answers::{Asked, ask};
use super::loader::{Loader, refusal};
use super::place::{Place, all_places, place_kernel};
use super::verdicts_name;
use crate::error::RuntimeError;
use crate::ladder::{Rung, Step};
use crate::verdicts::{Verdict, Verdicts};

/// Results of the known-answer tests of a bundle on the devices at hand.
#[derive(Debug)]
pub struct Diagnosis {
    /// The inputs of the tests; none if the bundle has no known answers.
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
    pub step: Step,
    /// How it went.
    pub outcome: TestOutcome,
}

/// How the test of a kernel on a rung went.
#[derive(Debug, Clone, PartialEq)]
pub enum TestOutcome {
    /// It answered.
    Answered(Verdict),
    /// The bundle has no question for this place.
    NotAsked,
    /// Only OpenVINO runs it, and there is none.
    NoPlugin,
    /// The device refused it, in these words.
    Refused(String),
}

impl TestOutcome {
    /// How the kernel answered, if it did.
    pub fn verdict(&self) -> Option<Verdict> {
        match self {
            Self::Answered(verdict) => Some(*verdict),
            Self::NotAsked | Self::NoPlugin | Self::Refused(_) => None,
        }
    }

    fn of_error(error: RuntimeError) -> Result<Self, RuntimeError> {
        if let RuntimeError::OpenVino { source, .. } = &error
            && let heg_openvino::Error::LibraryNotFound { .. } = source
        {
            return Ok(Self::NoPlugin);
        }
        refusal(&error).map(Self::Refused).ok_or(error)
    }
}

impl Diagnosis {
    /// Whether a kernel failed its test.
    pub fn found_wrong(&self) -> bool {
        let mut verdicts = self.examined.iter().filter_map(|one| one.outcome.verdict());
        verdicts.any(|verdict| !verdict.is_right())
    }
}

/// Tests every place on every rung of the ladder, calls `each` after each of them, and keeps the verdicts if the loader
/// has a cache.
///
/// # Errors
///
/// [`RuntimeError::Section`] if the bundle is damaged. A device's errors are part of the diagnosis.
pub fn diagnose(
    loader: &Loader,
    mut each: impl FnMut(&Examined),
) -> Result<Diagnosis, RuntimeError> {
    let manifest = loader.bundle().manifest();
    let mut diagnosis = Diagnosis {
        asked: manifest.known_answers,
        examined: Vec::new(),
    };
    let mut verdicts = Verdicts::default();
    for place in all_places(manifest) {
        let kernel = place_kernel(manifest, place)?;
        for rung in loader.ladder().all(kernel) {
            let Some(device) = loader.ladder().device(rung.role) else {
                continue;
            };
            let outcome = match loader.form(place, rung) {
                Ok(form) => match ask(loader.bundle(), place, form)? {
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
                step: Step::of(device, kernel, rung),
                outcome,
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

/// Clears the quarantine of these devices; returns how many kernels were in it.
///
/// # Errors
///
/// [`RuntimeError::Cache`] where the folder cannot be written.
pub fn clear_quarantine(loader: &Loader) -> Result<usize, RuntimeError> {
    let Some(cache) = loader.cache() else {
        return Ok(0);
    };
    let name = verdicts_name(loader);
    let mut verdicts = Verdicts::recall(cache, &name);
    let cleared = verdicts.clear_quarantine();
    if cleared > 0 {
        verdicts.remember(cache, &name)?;
    }
    Ok(cleared)
}
