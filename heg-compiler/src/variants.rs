//! The variants of each kernel, and the lowering of each.
//!
//! CPU and iGPU each have one dynamic variant with constant weights; the NPU has static ones with weights as inputs.

use heg_artifacts::manifest::{Binding, ElementType, ShapeClass};
use heg_spec::{DeviceClass, Group, KvForm, Sight, WeightForm};

use crate::lower::{Lowering, WeightsFirst};
use crate::plan::Plan;

/// A variant to lower: its IR depends on nothing but this and the kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct VariantPlan {
    /// Its device class.
    pub(crate) device: DeviceClass,
    /// Shape class, binding and element types.
    pub(crate) lowering: Lowering,
    /// Element type of keys and values, if it is another than the activations'. The program alone has them in
    /// [`ElementType::I8`]; its IR has bf16 then.
    pub(crate) kv_cache: Option<ElementType>,
    /// Largest difference from the known answers, as a share of the largest expected value.
    pub(crate) tolerance: f32,
}

/// The variants of a kernel of `group`, in the order in which a bundle lists them.
pub(crate) fn variants(plan: &Plan, group: Group) -> Vec<VariantPlan> {
    let form = plan.weights;
    let kinds = match plan.sight() {
        Sight::Causal => variant_kinds(group, &plan.chunk_tokens, &plan.mha_context_tokens),
        Sight::Whole => vec![PROGRAMS],
    };
    kinds
        .into_iter()
        .map(|(device, shape, binding)| {
            let activations = activations(device, form);
            let narrow = narrow_cache(device, form).then_some(plan.kv);
            VariantPlan {
                device,
                kv_cache: narrow.map(|kv| match kv {
                    KvForm::Bf16 => ElementType::Bf16,
                    KvForm::I8 => ElementType::I8,
                }),
                lowering: Lowering {
                    shape,
                    binding,
                    activations,
                    kv_cache: narrow.map(|_| ElementType::Bf16),
                    takes_trees: takes_trees(shape),
                    weights: form,
                    weights_first: WeightsFirst::NONE,
                },
                tolerance: tolerance(activations, form),
            }
        })
        .collect()
}

/// The variant with a CPU program, the only one of texts whose tokens see all of their text: in static shapes padding
/// would be seen too, and plugins are given padding with dynamic ones.
const PROGRAMS: (DeviceClass, ShapeClass, Binding) =
    (DeviceClass::Cpu, ShapeClass::Dynamic, Binding::Constant);

/// Variants of a kernel: dynamic ones for CPU and iGPU, static ones for the NPU. Attention is static in the rows of the
/// cache as well, with a variant for every bucket that holds the chunk.
fn variant_kinds(
    group: Group,
    chunks: &[u32],
    buckets: &[u32],
) -> Vec<(DeviceClass, ShapeClass, Binding)> {
    let mut kinds = vec![
        PROGRAMS,
        (DeviceClass::Igpu, ShapeClass::Dynamic, Binding::Constant),
    ];
    for tokens in chunks.iter().copied() {
        let shapes: Vec<ShapeClass> = match group {
            // The head never gets more rows, and the NPU compiler takes minutes over large heads.
            Group::Head if tokens > HEAD_ROWS_MAX.max(chunks[0]) => Vec::new(),
            Group::Qkv | Group::Ffn | Group::Head => vec![ShapeClass::Static { tokens }],
            Group::Mha => {
                let holding = buckets.iter().filter(|context| **context >= tokens);
                holding
                    .map(|context| ShapeClass::Bucket {
                        tokens,
                        context: *context,
                    })
                    .collect()
            }
        };
        let fixed = |shape| (DeviceClass::Npu, shape, Binding::Input);
        kinds.extend(shapes.into_iter().map(fixed));
    }
    kinds
}

/// Whether drafts that are trees are verified in a form. It costs a product of [c, c] by [c, n] for a mask that all heads
/// share, so longer chunks, which no draft fills, go without.
fn takes_trees(shape: ShapeClass) -> bool {
    shape.bucket().is_some() && shape.chunk().is_some_and(|tokens| tokens <= TREE_ROWS_MAX)
}

/// Rows of the longest tree that CPU programs take.
const TREE_ROWS_MAX: u32 = 64;

/// Rows of the largest static head: the head runs on the last row of each sequence only, and 32 is the largest
/// decode batch (Agent.xpu §4.1).
const HEAD_ROWS_MAX: u32 = 32;

/// Whether a variant runs decode iterations: a dynamic one does, and a static one up to the smallest chunk that holds the
/// largest batch.
pub(crate) fn decodes(shape: ShapeClass, chunks: &[u32]) -> bool {
    let enough = chunks.iter().copied().find(|chunk| *chunk >= HEAD_ROWS_MAX);
    let most = enough.or(chunks.last().copied());
    shape.chunk() <= most
}

/// Accelerators compute in f16 unless the model is kept in f32; the CPU always in f32 (DESIGN §4.6).
pub(crate) fn activations(device: DeviceClass, form: WeightForm) -> ElementType {
    match (device, form) {
        (DeviceClass::Cpu, _) | (_, WeightForm::F32) => ElementType::F32,
        (DeviceClass::Igpu | DeviceClass::Npu, _) => ElementType::F16,
    }
}

/// Whether keys and values are narrower than f32 on the CPU: where weights are integers. In bf16 attention reads half as
/// much as in f32, and f16 would have to be converted by extra code first. Calls for single tokens of 8 sequences over 1024
/// rows take 2.1 ms instead of 3.6 ms, over 2048 rows 4.0 ms instead of 11.2 ms (32/8 heads of 64, two cores that multiply
/// bf16).
fn narrow_cache(device: DeviceClass, form: WeightForm) -> bool {
    device == DeviceClass::Cpu && form.is_integer()
}

/// Largest difference between a variant's outputs and the known answers. The errors of integer products in plugins
/// (which round activations to int8 themselves) are far above those of rounding to f16, and far below those of a broken
/// kernel.
fn tolerance(activations: ElementType, form: WeightForm) -> f32 {
    match (form, activations) {
        (WeightForm::W4A16 { .. }, _) => 8e-2,
        (WeightForm::W8A16, _) => 5e-2,
        (WeightForm::F16, _) | (WeightForm::F32, ElementType::F16) => 1e-2,
        (WeightForm::F32, _) => 1e-4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_iterations_run_on_chunks_up_to_one_that_holds_the_largest_batch() {
        let of = |chunks: &'static [u32]| {
            let decoding =
                move |tokens: &u32| decodes(ShapeClass::Static { tokens: *tokens }, chunks);
            let chunks = chunks.iter().copied();
            chunks.filter(decoding).collect::<Vec<_>>()
        };
        assert_eq!(of(&[16, 64, 256]), [16, 64]);
        assert_eq!(of(&[32, 64]), [32]);
        assert_eq!(of(&[8, 16]), [8, 16]);
        assert!(decodes(ShapeClass::Dynamic, &[]));
    }

    #[test]
    fn static_attention_is_made_for_buckets_that_hold_the_chunk() {
        let kinds = variant_kinds(Group::Mha, &[32, 512, 1024], &[512, 600]);
        let shapes: Vec<ShapeClass> = kinds
            .into_iter()
            .filter(|(device, ..)| *device == DeviceClass::Npu)
            .map(|(_, shape, _)| shape)
            .collect();
        let bucket = |tokens, context| ShapeClass::Bucket { tokens, context };
        let expected = [
            bucket(32, 512),
            bucket(32, 600),
            bucket(512, 512),
            bucket(512, 600),
        ];
        assert_eq!(shapes, expected);
    }
}
