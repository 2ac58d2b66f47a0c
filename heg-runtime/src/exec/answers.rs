//! Known answers: whether a kernel, as it is about to be run, computes what the bundle says it should.
//!
//! Every place is asked what it was asked in f32 when the bundle was made, on each of its forms. A form that answers
//! wrongly is made anew from sections that are hashed again. If that answers rightly, memory was damaged, and the new
//! form stays; if it answers wrongly too, the rung is quarantined, and the next one of the ladder takes its place. A
//! form that does not answer, since its device fails, is passed over by this process, and asked again by the next: an
//! error says nothing of what the form computes, and is never remembered.
//!
//! The inference of the question is also the one in which plugins pack weights, so that it costs little more than
//! the first request would without it.

use std::sync::Arc;

use heg_artifacts::manifest::{KnownAnswers, Role};
use heg_artifacts::{Bundle, judge};

use super::kernels::{Order, Prepared};
use super::loader::{Form, Loader, refusal};
use super::lone::LoneKernel;
use super::place::{Place, place_kernel, place_use};
use crate::error::RuntimeError;
use crate::ladder::{Descent, Reason, Rung, Step};
use crate::verdicts::{Verdict, Verdicts};

/// What came of asking a form.
pub(super) enum Asked {
    /// The bundle has no answer, or the form is too small for the question.
    Nothing(Form),
    /// It answered.
    Answered(Form, Verdict),
    /// Its device failed, in OpenVINO's words: neither right nor wrong.
    Failed(String),
}

/// Asks the forms of a place that have no verdict yet, and replaces the ones that answer wrongly. Says whether any
/// was asked.
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

/// Why a rung that answered wrongly is not used.
pub(super) fn wrong(verdict: Verdict) -> Reason {
    Reason::Wrong {
        worst: verdict.worst,
        tolerance: verdict.tolerance,
    }
}

/// Asks the form made anew from sections that are hashed again.
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

/// Asks one form.
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

/// Gives a kernel the first `rows` rows of the question.
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

/// Judges the outputs by the answer, which has them in port order as f32. What was asked may be the first rows only.
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
