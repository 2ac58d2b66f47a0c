//! Known-answer tests: check that a kernel, in the form that is about to run, computes what the bundle expects.
//!
//! Each form of every place runs on the inputs for which the bundle holds the outputs in f32. A form that fails runs
//! again; if it passes then, the device computed wrongly once, and the form stays. If it fails again it is made anew from
//! sections that are hashed once more. If the new form passes, memory was damaged, and the new form
//! stays; if it fails too, its rung is quarantined, and the next one of the ladder takes over. A form whose device
//! returns an error is passed over by this process and tested again by the next one: an error does not show that the
//! form computes wrongly, so it is never remembered.
//!
//! A plugin packs weights in its first inference, and the test is that inference, so it costs little more than the
//! first request would without it.

use std::collections::BTreeMap;
use std::sync::Arc;

use heg_artifacts::manifest::{KnownAnswers, Role};
use heg_artifacts::{Bundle, SectionId, judge};
use heg_spec::bug;

use super::form::Form;
use super::kernels::KernelNeeds;
use super::loader::Loader;
use super::lone::LoneKernel;
use super::place::{Place, place_kernel, place_use};
use crate::error::ExecError;
use crate::ladder::{Descent, DescentStep, Reason, Refused, Rung};
use crate::prepared::Prepared;
use crate::verdicts::{Verdict, Verdicts};

/// Outcome of a form's known-answer test.
pub(super) enum Asked {
    /// The bundle has no known answer for it, or the form is too small for the test.
    Nothing(Form),
    /// The form computed its outputs; the verdict is their difference from the known answer.
    Answered(Form, Verdict),
    /// The device failed, with OpenVINO's message: the form neither passed nor failed.
    Failed(String),
}

/// Tests the forms of a place that have no verdict yet, and replaces those that fail.
pub(super) fn examine(
    needs: &KernelNeeds,
    place: Place,
    prepared: &mut Prepared,
    verdicts: &mut Verdicts,
) -> Result<(), ExecError> {
    let loader = &*needs.loader;
    let mut settled = Vec::new();
    let mut mended = Vec::new();
    let unknown = |forms: &[Form], verdicts: &Verdicts, settled: &[Rung]| {
        let known = |rung| verdicts.get(place, rung).is_some() || settled.contains(&rung);
        forms.iter().position(|form| !known(form.rung))
    };
    while let Some(at) = unknown(&prepared.forms, verdicts, &settled) {
        let form = prepared.forms.swap_remove(at);
        let rung = form.rung;
        let verdict = match ask(loader, place, form)? {
            Asked::Nothing(form) => {
                settled.push(rung);
                prepared.forms.push(form);
                continue;
            }
            Asked::Failed(message) => {
                prepared.pass_over(needs, place, rung, Reason::Refused(message))?;
                continue;
            }
            Asked::Answered(form, verdict) if verdict.is_right() => {
                verdicts.insert(place, rung, verdict);
                prepared.forms.push(form);
                continue;
            }
            Asked::Answered(form, verdict) => {
                if let Asked::Answered(form, second) = ask(loader, place, form)?
                    && second.is_right()
                {
                    let (worst, tolerance) = (verdict.worst, verdict.tolerance);
                    mended.push((rung, Reason::Passed { worst, tolerance }));
                    settled.push(rung);
                    prepared.forms.push(form);
                    continue;
                }
                verdict
            }
        };
        match again(loader, place, rung)? {
            Asked::Answered(form, second) if second.is_right() => {
                let (worst, tolerance) = (verdict.worst, verdict.tolerance);
                mended.push((rung, Reason::Damaged { worst, tolerance }));
                settled.push(rung);
                prepared.forms.push(form);
            }
            // It is not known whether the form computes wrongly or its bytes were damaged.
            Asked::Failed(_) | Asked::Nothing(_) => {
                prepared.pass_over(needs, place, rung, wrong(verdict))?;
            }
            Asked::Answered(..) => {
                verdicts.insert(place, rung, verdict);
                prepared.pass_over(needs, place, rung, wrong(verdict))?;
            }
        }
    }
    prepared.settle(needs, place)?;
    for (rung, reason) in mended {
        prepared.descents.push(repair(loader, place, rung, reason)?);
    }
    Ok(())
}

/// Returns the rungs that failed their known-answer test, by place.
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

/// Returns the reason for passing over a rung that failed its test.
pub(super) fn wrong(verdict: Verdict) -> Reason {
    Reason::Wrong {
        worst: verdict.worst,
        tolerance: verdict.tolerance,
    }
}

/// Makes a form, for calls of exactly `rows` rows if that is given, and runs its known-answer test.
///
/// # Errors
///
/// [`ExecError::Refused`] if the device fails, or answers wrongly.
pub(super) fn tested(
    loader: &Loader,
    place: Place,
    rung: Rung,
    rows: Option<u32>,
) -> Result<Form, ExecError> {
    let form = match rows {
        None => loader.form(place, rung)?,
        Some(rows) => loader.form_of_rows(place, rung, rows)?,
    };
    let refused = |message: String| {
        let kernel = place_kernel(loader.bundle().manifest(), place);
        ExecError::Refused {
            kernel: kernel.map_or_else(|_| String::new(), |kernel| kernel.name.clone()),
            message,
        }
    };
    match ask(loader, place, form)? {
        Asked::Answered(_, verdict) if !verdict.is_right() => {
            Err(refused(wrong(verdict).to_string()))
        }
        Asked::Failed(message) => Err(refused(message)),
        Asked::Answered(form, _) | Asked::Nothing(form) => Ok(form),
    }
}

/// Tests the form again, made from sections that are hashed once more.
fn again(loader: &Loader, place: Place, rung: Rung) -> Result<Asked, ExecError> {
    match loader.form_from_copy(place, rung) {
        Ok(form) => ask(loader, place, form),
        Err(error) => Ok(Asked::Failed(error.refusal().ok_or(error)?)),
    }
}

/// The descent of a form that stays on its rung.
fn repair(loader: &Loader, place: Place, rung: Rung, reason: Reason) -> Result<Descent, ExecError> {
    let kernel = place_kernel(loader.bundle().manifest(), place)?;
    let device = loader
        .ladder()
        .device(rung.role)
        .ok_or_else(|| bug!("a form runs in a role that the machine does not have"))?;
    let step = DescentStep::of(device, kernel, rung);
    Ok(Descent {
        kernel: kernel.name.clone(),
        from: step.clone(),
        to: Some(step),
        reason,
    })
}

/// Runs the known-answer test of one form.
pub(super) fn ask(loader: &Loader, place: Place, form: Form) -> Result<Asked, ExecError> {
    let Some(asked) = Question::of(loader, place, &form)? else {
        return Ok(Asked::Nothing(form));
    };
    let answered = || {
        let mut known = KnownAnswer::new(loader, place, form, asked)?;
        let verdict = known.ask()?;
        Ok(Asked::Answered(known.lone.into_form(), verdict))
    };
    answered().or_else(|error: ExecError| Ok(Asked::Failed(error.refusal().ok_or(error)?)))
}

/// A question to a form.
#[derive(Debug, Clone, Copy)]
struct Question {
    asked: KnownAnswers,
    answer: SectionId,
    rows: usize,
    context: usize,
    tolerance: f32,
}

impl Question {
    /// The question for a form; `None` if the bundle has none for it, or the form is too small.
    fn of(loader: &Loader, place: Place, form: &Form) -> Result<Option<Self>, ExecError> {
        let manifest = loader.bundle().manifest();
        let answer = place_use(manifest, place)?.answer;
        let (Some(asked), Some(answer)) = (manifest.known_answers, answer) else {
            return Ok(None);
        };
        // Each row depends only on the rows before it, so a small form is tested on the first rows.
        let rows = form.rows(asked.rows as usize).min(asked.rows as usize);
        let context = asked.position() as usize + rows;
        let variant = place_kernel(manifest, place)?
            .variants
            .get(form.rung.variant);
        Ok(form.shape.admits(rows, context).then_some(Self {
            asked,
            answer,
            rows,
            context,
            tolerance: variant.map_or(0.0, |variant| variant.tolerance),
        }))
    }
}

/// A kernel that is ready to be asked for its known answer, as often as wanted.
pub(super) struct KnownAnswer {
    lone: LoneKernel,
    asked: Question,
    bundle: Arc<Bundle>,
}

impl KnownAnswer {
    /// A form that is made for this alone; `None` if there is no question for it.
    ///
    /// # Errors
    ///
    /// Those of a device that refuses it.
    pub(super) fn of_rung(
        loader: &Loader,
        place: Place,
        rung: Rung,
    ) -> Result<Option<Self>, ExecError> {
        let form = loader.form(place, rung)?;
        let asked = Question::of(loader, place, &form)?;
        asked
            .map(|asked| Self::new(loader, place, form, asked))
            .transpose()
    }

    fn new(loader: &Loader, place: Place, form: Form, asked: Question) -> Result<Self, ExecError> {
        let mut lone = LoneKernel::over(loader, place, form)?;
        put(&mut lone, &asked.asked, asked.rows, asked.context)?;
        Ok(Self {
            lone,
            asked,
            bundle: Arc::clone(loader.bundle()),
        })
    }

    /// Runs the kernel.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub(super) fn ask(&mut self) -> Result<Verdict, ExecError> {
        let answer = self.bundle.section(self.asked.answer);
        let answer = answer.map_err(ExecError::Section)?;
        self.lone.infer()?;
        let Question {
            asked, tolerance, ..
        } = self.asked;
        compare(answer, &self.lone, &asked, tolerance)
    }
}

/// Gives a kernel the first `rows` rows of the test's inputs.
fn put(
    lone: &mut LoneKernel,
    asked: &KnownAnswers,
    rows: usize,
    context: usize,
) -> Result<(), ExecError> {
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
) -> Result<Verdict, ExecError> {
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
        let found = lone.get(port.role)?;
        let found = found.ok_or_else(|| bug!("a kernel does not have its own output"))?;
        let rows = expected.get(..found.len()).unwrap_or(expected);
        let judged = judge(rows, &found, tolerance);
        let worst = judged.worst.map_or(0.0, |worst| worst.share);
        verdict.worst = verdict.worst.max(worst);
        verdict.rms = verdict.rms.max(judged.rms_share);
    }
    Ok(verdict)
}
