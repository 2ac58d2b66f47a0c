//! Warm-up: compiles static attention while requests wait for it, over just the rows of context that they need, if
//! the bundle has only larger buckets (Agent.xpu §4.3).
//!
//! A warm kernel is the bundle's static form with fewer rows, so it keeps the operators that the device runs fast and
//! exactly. The dynamic form would take several times as long on the NPU, and its mask is inexact there. The
//! scheduler decides when a warm kernel is compiled and when it is dropped.

use std::sync::Arc;

use heg_artifacts::manifest::{Kernel, ShapeClass};
use heg_spec::Group;

use super::answers::{Asked, ask, wrong};
use super::executor::Executor;
use super::form::Form;
use super::kernels::KernelNeeds;
use super::place::{Place, all_places, place_kernel};
use super::prepared::Prepared;
use crate::error::ExecError;
use crate::ladder::{Rung, RungSource};
use heg_sched::WarmKernel;

/// Compiles attention for one executor, on any thread.
pub struct Warmer {
    needs: Arc<KernelNeeds>,
    /// Rows that every KV cache has.
    cache_rows: usize,
}

/// A warm kernel made ready, for each attention of the model.
pub struct WarmForms(Vec<(Place, Form)>);

impl Warmer {
    /// Compiles a kernel and runs its known-answer test.
    ///
    /// # Errors
    ///
    /// [`ExecError::Refused`] if the bundle has no bucket of that many tokens and at least as much context, the
    /// device refuses the form, or the form fails its test.
    pub fn warm(&self, warm: WarmKernel) -> Result<WarmForms, ExecError> {
        let manifest = self.needs.loader.bundle().manifest();
        let places = all_places(manifest)?.into_iter();
        let forms = places
            .filter(|place| place.group == Group::Mha)
            .map(|place| {
                let kernel = place_kernel(manifest, place)?;
                Ok((place, self.form(place, kernel, warm)?))
            })
            .collect::<Result<_, ExecError>>()?;
        Ok(WarmForms(forms))
    }

    fn form(&self, place: Place, kernel: &Kernel, warm: WarmKernel) -> Result<Form, ExecError> {
        let loader = &*self.needs.loader;
        let context = context_of(warm);
        let refused = |message: String| ExecError::Refused {
            kernel: kernel.name.clone(),
            message,
        };
        let rung = self
            .nearest(kernel, warm)
            .filter(|_| context as usize <= self.cache_rows)
            .ok_or_else(|| refused(format!("no bucket holds {}", shape_of(warm))))?;
        let form = loader.form_over(place, rung, context)?;
        match ask(loader, place, form)? {
            Asked::Answered(_, verdict) if !verdict.is_right() => {
                Err(refused(wrong(verdict).to_string()))
            }
            Asked::Failed(message) => Err(refused(message)),
            Asked::Answered(form, _) | Asked::Nothing(form) => Ok(form),
        }
    }

    /// Returns the rung with the least context that is enough: any source of an exact bucket, else the IR of a larger
    /// one.
    fn nearest(&self, kernel: &Kernel, warm: WarmKernel) -> Option<Rung> {
        let context = context_of(warm);
        let bucket = |rung: &Rung| match kernel.variants.get(rung.variant)?.shape {
            ShapeClass::Bucket { tokens, context } => (tokens == warm.tokens).then_some(context),
            _ => None,
        };
        let rungs = self.needs.ladder.all(kernel).into_iter();
        rungs
            .filter_map(|rung| Some((rung, bucket(&rung)?)))
            .filter(|(rung, bucket)| {
                *bucket == context || *bucket > context && rung.source == RungSource::Ir
            })
            .min_by_key(|(_, bucket)| *bucket)
            .map(|(rung, _)| rung)
    }
}

impl Executor {
    /// Returns a warmer for this executor, to be used while the executor runs.
    pub fn warmer(&self) -> Warmer {
        Warmer {
            needs: Arc::clone(&self.needs),
            cache_rows: self.kv_shape().context_tokens + self.kv_shape().padding_rows,
        }
    }

    /// Uses a warm kernel from now on for the calls whose smallest form it is.
    pub fn adopt(&mut self, WarmForms(forms): WarmForms) {
        for (place, form) in forms {
            if let Some(prepared) = self.forms.at(place) {
                prepared.adopt(form);
            }
        }
    }

    /// Drops a warm kernel. The bundle's own form of that shape stays.
    pub fn unload(&mut self, warm: WarmKernel) {
        let shape = shape_of(warm);
        let manifest = self.bundle.manifest();
        for (place, prepared) in self.forms.iter_mut() {
            if let Ok(kernel) = place_kernel(manifest, place) {
                prepared
                    .forms
                    .retain(|form| form.shape != shape || !is_narrowed(form, kernel));
            }
        }
    }
}

impl Prepared {
    /// Inserts a static form before the first larger one, unless there is one of its shape.
    fn adopt(&mut self, form: Form) {
        let shapes: Vec<ShapeClass> = self.forms.iter().map(|form| form.shape).collect();
        if let Some(at) = place_of(form.shape, &shapes) {
            self.forms.insert(at, form);
        }
    }
}

/// Returns the index at which a bucket belongs among shapes, the first of which that admits a call is used; `None` if
/// it is there already.
fn place_of(bucket: ShapeClass, shapes: &[ShapeClass]) -> Option<usize> {
    let size = |shape: &ShapeClass| (shape.chunk(), shape.bucket());
    let larger = |shape: &ShapeClass| shape.bucket().is_none() || size(shape) > size(&bucket);
    let at = shapes.iter().position(larger).unwrap_or(shapes.len());
    (!shapes.contains(&bucket)).then_some(at)
}

/// Whether a form has fewer rows of context than its variant.
fn is_narrowed(form: &Form, kernel: &Kernel) -> bool {
    let variant = kernel.variants.get(form.rung.variant);
    variant.is_some_and(|variant| variant.shape != form.shape)
}

/// Rows of context of a warm kernel: never fewer than its tokens.
fn context_of(warm: WarmKernel) -> u32 {
    warm.context.max(warm.tokens)
}

fn shape_of(warm: WarmKernel) -> ShapeClass {
    ShapeClass::Bucket {
        tokens: warm.tokens,
        context: context_of(warm),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_finds_the_smallest_bucket_that_admits_it() {
        let bucket = |tokens, context| ShapeClass::Bucket { tokens, context };
        let mut shapes = vec![
            bucket(32, 512),
            bucket(256, 512),
            bucket(256, 1024),
            ShapeClass::Dynamic,
        ];
        for new in [bucket(256, 768), bucket(256, 256), bucket(256, 2048)] {
            let at = place_of(new, &shapes).unwrap();
            shapes.insert(at, new);
            assert_eq!(place_of(new, &shapes), None);
        }
        let found = |tokens, context| {
            let mut shapes = shapes.iter();
            shapes.find(|shape| shape.admits(tokens, context)).copied()
        };
        assert_eq!(found(256, 256), Some(bucket(256, 256)));
        assert_eq!(found(256, 700), Some(bucket(256, 768)));
        assert_eq!(found(256, 769), Some(bucket(256, 1024)));
        assert_eq!(found(256, 2000), Some(bucket(256, 2048)));
        assert_eq!(found(20, 300), Some(bucket(32, 512)));
        assert_eq!(found(256, 4000), Some(ShapeClass::Dynamic));
    }
}
