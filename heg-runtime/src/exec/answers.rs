//! Known-answer tests: whether a kernel, as it is about to be run, computes what the bundle says it should.
//!
//! Each form of every place runs on the inputs for which the bundle holds the outputs in f32. A form that fails is
//! made again from sections that are hashed once more. If the new form passes, memory was damaged, and the new form
//! stays; if it fails too, its rung is quarantined, and the next one of the ladder takes over. A form whose device
//! returns an error is passed over by this process and tested again by the next one: an error says nothing of what the
//! form computes, so it is never remembered.
//!
//! Plugins pack weights in the first inference, and the test is that inference, so it costs little more than the first
//! request would without it.

use std::collections::BTreeMap;
use std::sync::Arc;

use heg_artifacts::manifest::{KnownAnswers, Role};
use heg_artifacts::{Bundle, judge};

use super::form::Form;
use super::kernels::{Order, Prepared};
use super::loader::{Loader, refusal};
use super::lone::LoneKernel;
use super::place::{Place, place_kernel, place_use};
use crate::error::RuntimeError;
use crate::ladder::{Descent, Reason, Refused, Rung, Step};
use crate::verdicts::{Verdict, Verdicts};

/// Outcome of a form's known-answer test.
pub(super) enum Asked {
    /// The bundle has no known answer for it, or the form is too small for the test.
    Nothing(Form),
    /// The form computed something, and how close it is.
    Answered(Form, Verdict),
    /// The device failed, with OpenVINO's message: neither passed nor failed.
    Failed(String),
}

/// Tests the forms of a place that have no verdict yet, and replaces those that fail. Returns whether any was tested.
pub(super) fn examine(
    order: &Order,
    place: Place,
    prepared: &mut Prepared,
    verdicts: &mut Verdicts,
) -> Result<bool, RuntimeError> {
    let loader = &*order.loader;
    let mut asked = false;
    let mut settled = Vec::new();
    let mut damaged = Vec::new();
    let unknown = |forms: &[Form], verdicts: &Verdicts, settled: &[Rung]| {
        let known = |rung| verdicts.get(place, rung).is_some() || settled.contains(&rung);
        forms.iter().position(|form| !known(form.rung))
    };
    while let Some(at) = unknown(&prepared.forms, verdicts, &settled) {
        let form = prepared.forms.swap_remove(at);
        let rung = form.rung;
        let verdict = match ask(loader.bundle(), place, form)? {
            Asked::Nothing(form) => {
                settled.push(rung);
                prepared.forms.push(form);
                continue;
            }
            Asked::Failed(message) => {
                prepared.pass_over(order, place, rung, Reason::Refused(message))?;
                continue;
            }
            Asked::Answered(form, verdict) if verdict.is_right() => {
                asked = true;
                verdicts.insert(place, rung, verdict);
                prepared.forms.push(form);
                continue;
            }
            Asked::Answered(_, verdict) => verdict,
        };
        asked = true;
        match again(loader, place, rung)? {
            Asked::Answered(form, second) if second.is_right() => {
                damaged.push((rung, verdict));
                settled.push(rung);
                prepared.forms.push(form);
            }
            // Whether it computes something else or its bytes were damaged is not known.
            Asked::Failed(_) | Asked::Nothing(_) => {
                prepared.pass_over(order, place, rung, wrong(verdict))?;
            }
            Asked::Answered(..) => {
                verdicts.insert(place, rung, verdict);
                prepared.pass_over(order, place, rung, wrong(verdict))?;
            }
        }
    }
    prepared.settle(order, place)?;
    for (rung, verdict) in damaged {
        prepared
            .descents
            .push(repair(loader, place, rung, verdict)?);
    }
    Ok(asked)
}

/// Rungs that failed their known-answer test, by place.
pub(super) fn quarantined(verdicts: &Verdicts) -> BTreeMap<Place, Refused> {
    let mut quarantined: BTreeMap<Place, Refused> = BTreeMap::new();
    for (place, rung, verdict) in verdicts.iter() {
        if !verdict.is_right() {
            let refused = quarantined.entry(place).or_default();
            refused.insert(rung, wrong(verdict));
        }
    }
    quarantined
}

/// The reason for passing over a rung that failed its test.
pub(super) fn wrong(verdict: Verdict) -> Reason {
    Reason::Wrong {
        worst: verdict.worst,
        tolerance: verdict.tolerance,
    }
}

/// Tests the form again, made from sections that are hashed once more.
fn again(loader: &Loader, place: Place, rung: Rung) -> Result<Asked, RuntimeError> {
    match loader.form_from_copy(place, rung) {
        Ok(form) => ask(loader.bundle(), place, form),
        Err(error) => Ok(Asked::Failed(refusal(&error).ok_or(error)?)),
    }
}

fn repair(
    loader: &Loader,
    place: Place,
    rung: Rung,
    verdict: Verdict,
) -> Result<Descent, RuntimeError> {
    let kernel = place_kernel(loader.bundle().manifest(), place)?;
    let device = loader
        .ladder()
        .device(rung.role)
        .ok_or(RuntimeError::LoaderGone)?;
    let step = Step::of(device, kernel, rung);
    Ok(Descent {
        kernel: kernel.name.clone(),
        from: step.clone(),
        to: Some(step),
        reason: Reason::Damaged {
            worst: verdict.worst,
            tolerance: verdict.tolerance,
        },
    })
}

/// Runs the known-answer test of one form.
pub(super) fn ask(bundle: &Arc<Bundle>, place: Place, form: Form) -> Result<Asked, RuntimeError> {
    let manifest = bundle.manifest();
    let answer = place_use(manifest, place)?.answer;
    let (Some(asked), Some(answer)) = (manifest.known_answers, answer) else {
        return Ok(Asked::Nothing(form));
    };
    // Each row depends on the rows before it only, so a small form is asked the first rows.
    let rows = form.rows(asked.rows as usize).min(asked.rows as usize);
    let context = asked.position() as usize + rows;
    if !form.shape.admits(rows, context) {
        return Ok(Asked::Nothing(form));
    }
    let kernel = place_kernel(manifest, place)?;
    let variant = kernel.variants.get(form.rung.variant);
    let tolerance = variant.map_or(0.0, |variant| variant.tolerance);
    let answer = bundle.section(answer).map_err(RuntimeError::Section)?;
    let answered = || {
        let mut lone = LoneKernel::over(bundle, place, form)?;
        put(&mut lone, &asked, rows, context)?;
        lone.infer()?;
        let verdict = compare(answer, &lone, &asked, tolerance)?;
        Ok(Asked::Answered(lone.into_form(), verdict))
    };
    answered().or_else(|error| Ok(Asked::Failed(refusal(&error).ok_or(error)?)))
}

/// Gives a kernel the first `rows` rows of the test's inputs.
fn put(
    lone: &mut LoneKernel,
    asked: &KnownAnswers,
    rows: usize,
    context: usize,
) -> Result<(), RuntimeError> {
    lone.size(rows, context)?;
    lone.set_position(asked.position() as usize)?;
    let ports: Vec<_> = lone.inputs().cloned().collect();
    for port in ports {
        if !matches!(port.role, Role::Position | Role::Cos | Role::Sin) {
            let values = asked.values(&port);
            let count = lone.rows_of(port.rows) * port.width as usize;
            lone.set(port.role, &values[..count.min(values.len())])?;
        }
    }
    Ok(())
}

/// Compares the outputs with the known answer, which holds them in port order as f32. The test may have had only the
/// first rows.
fn compare(
    answer: &[u8],
    lone: &LoneKernel,
    asked: &KnownAnswers,
    tolerance: f32,
) -> Result<Verdict, RuntimeError> {
    let (words, _) = answer.as_chunks::<4>();
    let answer: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
    let mut rest = answer.as_slice();
    let mut verdict = Verdict {
        worst: 0.0,
        rms: 0.0,
        tolerance,
    };
    for port in lone.outputs() {
        let count = asked.rows_of(port.rows) as usize * port.width as usize;
        let (expected, behind) = rest.split_at_checked(count).unwrap_or((rest, &[]));
        rest = behind;
        let found = lone.get(port.role)?.unwrap_or_default();
        let rows = expected.get(..found.len()).unwrap_or(expected);
        let judged = judge(rows, &found, tolerance);
        let worst = judged.worst.map_or(0.0, |worst| worst.share);
        verdict.worst = verdict.worst.max(worst);
        verdict.rms = verdict.rms.max(judged.rms_share);
    }
    Ok(verdict)
}
