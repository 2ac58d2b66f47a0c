//! Static attention made while requests wait for it: over just the rows of context that they need, where the bundle
//! has larger buckets (Agent.xpu §4.3).
//!
//! It is the bundle's own static form with fewer rows, so that what a device is fast on and exact in stays as it was
//! lowered; the dynamic form would take the NPU's compiler several times as long to run, and its mask is inexact there.
//! When it is made, and when it goes, is decided in `sched`.

use std::sync::Arc;

use heg_artifacts::manifest::{Kernel, ShapeClass};
use heg_spec::Group;

use super::Executor;
use super::answers::{Asked, ask, wrong};
use super::kernels::{Order, Prepared};
use super::loader::Form;
use super::place::{Place, all_places, place_kernel};
use crate::error::RuntimeError;
use crate::ladder::{Rung, Source};
use heg_sched::WarmKernel;

/// Makes attention for one executor, on any thread.
pub(crate) struct Warmer {
    order: Arc<Order>,
    /// Rows that every KV cache has.
    cache_rows: usize,
}

/// A warm kernel made ready, for each attention of the model.
pub(crate) struct WarmForms(Vec<(Place, Form)>);

impl Warmer {
    /// Compiles a kernel, and asks it its known answer.
    ///
    /// # Errors
    ///
    /// Where the bundle has no bucket of that many tokens and as much context, the device refuses the form, or it
    /// answers wrongly.
    pub(crate) fn warm(&self, warm: WarmKernel) -> Result<WarmForms, RuntimeError> {
        let manifest = self.order.loader.bundle().manifest();
        let places = all_places(manifest).into_iter();
        let forms = places
            .filter(|place| place.group == Group::Mha)
            .map(|place| {
                let kernel = place_kernel(manifest, place)?;
                Ok((place, self.form(place, kernel, warm)?))
            })
            .collect::<Result<_, RuntimeError>>()?;
        Ok(WarmForms(forms))
    }

    fn form(&self, place: Place, kernel: &Kernel, warm: WarmKernel) -> Result<Form, RuntimeError> {
        let loader = &*self.order.loader;
        let context = context_of(warm);
        let refused = |message: String| RuntimeError::Refused {
            kernel: kernel.name.clone(),
            message,
        };
        let rung = self
            .nearest(kernel, warm)
            .filter(|_| context as usize <= self.cache_rows)
            .ok_or_else(|| refused(format!("no bucket holds {}", shape_of(warm))))?;
        let form = loader.form_over(place, rung, context)?;
        match ask(loader.bundle(), place, form)? {
            Asked::Answered(_, verdict) if !verdict.is_right() => {
                Err(refused(wrong(verdict).to_string()))
            }
            Asked::Failed(message) => Err(refused(message)),
            Asked::Answered(form, _) | Asked::Nothing(form) => Ok(form),
        }
    }

    /// The bundle's form with the least context that is enough: as it is where that is exact, else its IR.
    fn nearest(&self, kernel: &Kernel, warm: WarmKernel) -> Option<Rung> {
        let context = context_of(warm);
        let bucket = |rung: &Rung| match kernel.variants.get(rung.variant)?.shape {
            ShapeClass::Bucket { tokens, context } => (tokens == warm.tokens).then_some(context),
            _ => None,
        };
        let rungs = self.order.ladder.all(kernel).into_iter();
        rungs
            .filter_map(|rung| Some((rung, bucket(&rung)?)))
            .filter(|(rung, bucket)| {
                *bucket == context || *bucket > context && rung.source == Source::Ir
            })
            .min_by_key(|(_, bucket)| *bucket)
            .map(|(rung, _)| rung)
    }
}

impl Executor {
    /// Makes attention for this executor while it runs.
    pub(crate) fn warmer(&self) -> Warmer {
        Warmer {
            order: Arc::clone(&self.order),
            cache_rows: self.kv.context_tokens + self.kv.padding_rows,
        }
    }

    /// From now on runs calls on a warm kernel where it is the smallest that admits them.
    pub(crate) fn adopt(&mut self, WarmForms(forms): WarmForms) {
        for (place, form) in forms {
            if let Some(prepared) = self.forms.at(place) {
                prepared.adopt(form);
            }
        }
    }

    /// Forgets a warm kernel. What the bundle has of that shape stays.
    pub(crate) fn unload(&mut self, warm: WarmKernel) {
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
    /// Takes in a static form before the first that is larger, unless there is one of its shape.
    fn adopt(&mut self, form: Form) {
        let shapes: Vec<ShapeClass> = self.forms.iter().map(|form| form.shape).collect();
        if let Some(at) = place_of(form.shape, &shapes) {
            self.forms.insert(at, form);
        }
    }
}

/// Where a bucket belongs among shapes of which the first that admits a call is taken; none where it is there.
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
