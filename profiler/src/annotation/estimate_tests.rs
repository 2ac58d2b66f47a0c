//! Estimates checked by hand on the papers' machine, and over arbitrary calls and work.

use heg_artifacts::manifest::{Binding, ShapeClass, Term};
use heg_spec::DeviceClass;
use heg_spec::shipped;
use proptest::prelude::*;

use super::super::document::SocAnnotation;
use super::super::llama_3b;
use super::super::{SweepLimits, annotate, of_data_sheet};
use super::*;

/// The papers' machine, with tables for its NPU.
fn papers_machine() -> SocAnnotation {
    let soc = shipped::soc("core-ultra-5-125h").unwrap();
    let manifest = llama_3b::manifest();
    let vendor = llama_3b::vendor_tables(&[(3720, 1.0)]);
    let annotations = annotate(&manifest, &[soc], &vendor, SweepLimits::default());
    annotations.unwrap().socs.remove(0)
}

fn call(tokens: u32, context: u32, batch: u32) -> KernelCall {
    KernelCall {
        tokens,
        context,
        batch,
    }
}

/// The estimate for a kernel of the 3B model, by its shape class, on the papers' machine.
fn of(kernel: usize, class: DeviceClass, shape: ShapeClass, call: KernelCall) -> Estimate {
    let manifest = llama_3b::manifest();
    let kernel = &manifest.kernels[kernel];
    let of_shape = |variant: &&Variant| variant.device == class && variant.shape == shape;
    let variant = kernel.variants.iter().find(of_shape).unwrap();
    let soc = papers_machine();
    estimate(soc.device(class).unwrap(), kernel, variant, call, 0).unwrap()
}

const QKV: usize = 0;
const MHA: usize = 1;
const FFN: usize = 2;
const CHUNK: ShapeClass = ShapeClass::Static { tokens: 256 };
const BUCKET: ShapeClass = ShapeClass::Bucket {
    tokens: 256,
    context: 2048,
};

#[test]
fn a_static_variant_costs_its_chunk() {
    let npu = |tokens, batch| of(FFN, DeviceClass::Npu, CHUNK, call(tokens, tokens, batch));
    for (tokens, batch, runs) in [(1, 1, 1), (256, 1, 1), (257, 1, 2), (1, 32, 1), (100, 6, 3)] {
        let found = npu(tokens, batch);
        assert_eq!(found.runs, runs, "{tokens} tokens of {batch}");
        assert_eq!(found.latency_us, 15_700.0 * runs as f64);
        assert_eq!(found.source, AnchorSource::Vendor);
    }
}

#[test]
fn a_run_has_the_work_of_its_padded_shape() {
    let manifest = llama_3b::manifest();
    let work = |kernel: usize, shape, call| {
        let kernel = &manifest.kernels[kernel];
        let of_shape = |variant: &&Variant| variant.shape == shape;
        let variant = kernel.variants.iter().find(of_shape).unwrap();
        let found = run_work(kernel, variant, call);
        let expected = |tokens, context| {
            (
                kernel.work.flops(tokens, context),
                kernel.work.bytes(tokens, context),
            )
        };
        move |tokens, context| assert_eq!((found.flops, found.bytes), expected(tokens, context))
    };
    work(FFN, CHUNK, call(100, 2048, 1))(256, 0);
    work(FFN, CHUNK, call(300, 2048, 2))(256, 0);
    work(FFN, ShapeClass::Dynamic, call(100, 2048, 3))(300, 0);
    work(MHA, BUCKET, call(100, 1000, 3))(256, 2048);
    work(MHA, ShapeClass::Dynamic, call(100, 1000, 3))(100, 1000);
}

#[test]
fn attention_runs_for_each_sequence_and_bucket() {
    let runs = |tokens, context, batch| {
        of(MHA, DeviceClass::Npu, BUCKET, call(tokens, context, batch)).runs
    };
    assert_eq!(runs(1, 1, 1), 1);
    assert_eq!(runs(256, 2048, 3), 3);
    assert_eq!(runs(300, 2048, 3), 6);
    assert_eq!(runs(300, 2049, 3), 12);
    let dynamic = |batch| {
        let call = call(1, 1000, batch);
        of(MHA, DeviceClass::Igpu, ShapeClass::Dynamic, call)
    };
    assert_eq!(dynamic(4).runs, 4);
    assert_eq!(dynamic(4).latency_us, 4.0 * dynamic(1).latency_us);
}

#[test]
fn a_dynamic_variant_follows_its_roofline() {
    let decode = of(FFN, DeviceClass::Igpu, ShapeClass::Dynamic, call(1, 1, 1));
    // 84.9 MB of weights and 18 kB of activations at 63% of 89.6 GB/s, and the launch.
    assert!((decode.latency_us - 1580.1).abs() < 0.5, "{decode:?}");
    assert_eq!(decode.bandwidth_utilisation, Some(0.63));
    assert_eq!(decode.energy_uj, Some(decode.latency_us * 25.0));
    let prefill = of(
        FFN,
        DeviceClass::Igpu,
        ShapeClass::Dynamic,
        call(256, 256, 1),
    );
    // 2 · 84.9e6 · 256 FLOP at 2.6 TFLOP/s, and the launch.
    assert!((prefill.latency_us - 16_811.0).abs() < 5.0, "{prefill:?}");
    assert_eq!(prefill.energy_uj, Some(prefill.latency_us * 31.0));
    let share = prefill.bandwidth_utilisation.unwrap();
    assert!((share - 0.0598).abs() < 0.001, "{prefill:?}");
    // The rows of a batch count as rows.
    let batch = of(FFN, DeviceClass::Igpu, ShapeClass::Dynamic, call(1, 1, 256));
    assert_eq!(batch.latency_us, prefill.latency_us);
}

#[test]
fn utilisation_of_a_vendor_table_is_bytes_by_latency() {
    let found = of(FFN, DeviceClass::Npu, CHUNK, call(256, 256, 1));
    let bytes = 84_934_656.0 + 2.0 * 3.0 * 3072.0 * 256.0;
    let expected = bytes / 15_700e-6 / 89.6e9;
    let share = found.bandwidth_utilisation.unwrap();
    assert!((share - expected).abs() < 1e-12, "{share} {expected}");
}

#[test]
fn footprint_is_weights_activations_and_cache() {
    // int8 rows with f32 scales, three hidden rows of f16 each.
    let weights = 84_934_656 + 4 * (3072 + 8192 + 8192 + 3072);
    let ffn = of(FFN, DeviceClass::Igpu, ShapeClass::Dynamic, call(10, 10, 1));
    assert_eq!(ffn.footprint_bytes, weights + 10 * 3 * 3072 * 2);
    let padded = of(FFN, DeviceClass::Npu, CHUNK, call(10, 10, 1));
    assert_eq!(padded.footprint_bytes, weights + 256 * 3 * 3072 * 2);
    // Queries and outputs, keys and values of all rows, and one position for each sequence.
    let mha = of(
        MHA,
        DeviceClass::Igpu,
        ShapeClass::Dynamic,
        call(1, 1000, 4),
    );
    let expected = 4 * (2 * 3072 * 2 + 1000 * 2 * 1024 * 2 + 8);
    assert_eq!(mha.footprint_bytes, expected);
    // Rotary factors are f32.
    let qkv = of(QKV, DeviceClass::Igpu, ShapeClass::Dynamic, call(2, 2, 1));
    let weights = 5120 * 3072 + 4 * 5120;
    assert_eq!(
        qkv.footprint_bytes,
        weights + 2 * ((3072 + 5120) * 2 + 128 * 4)
    );
    let manifest = llama_3b::manifest();
    let kernel = &manifest.kernels[MHA];
    let with_blob = footprint_bytes(kernel, &kernel.variants[0], call(1, 1000, 4), 77);
    assert_eq!(with_blob, expected + 77);
}

#[test]
fn what_is_unknown_is_not_made_up() {
    let manifest = llama_3b::manifest();
    let kernel = &manifest.kernels[FFN];
    let estimates = |name: &str, class| {
        let soc = of_data_sheet(&shipped::soc(name).unwrap()).unwrap();
        let found = soc.device(class).cloned().unwrap();
        estimate(&found, kernel, &kernel.variants[0], call(1, 1, 1), 0)
    };
    assert_eq!(estimates("host-cpu", DeviceClass::Cpu), None);
    let of_sheet = estimates("core-ultra-7-258v", DeviceClass::Igpu).unwrap();
    assert_eq!(of_sheet.source, AnchorSource::Spec);
    assert_eq!(of_sheet.energy_uj, None);
}

/// Any variant of the 3B model, its device on the papers' machine, and possibly absurd work.
fn subjects() -> impl Strategy<Value = (DeviceAnnotation, Kernel, Variant)> {
    let terms = || {
        let term = (any::<u64>(), 0..4_u8, 0..4_u8).prop_map(|(factor, tokens, context)| Term {
            factor,
            tokens,
            context,
        });
        proptest::collection::vec(term, 0..4)
    };
    let absurd = proptest::option::weighted(0.3, (terms(), terms()));
    let soc = papers_machine();
    (0..4_usize, any::<prop::sample::Index>(), absurd).prop_map(move |(kernel, variant, absurd)| {
        let mut kernel = llama_3b::manifest().kernels.swap_remove(kernel);
        kernel.variants.retain(|v| v.device != DeviceClass::Cpu);
        if let Some((flops, bytes)) = absurd {
            kernel.work = Work { flops, bytes };
        }
        let variant = variant.get(&kernel.variants).clone();
        (soc.device(variant.device).unwrap().clone(), kernel, variant)
    })
}

fn calls() -> impl Strategy<Value = KernelCall> {
    let sizes = || prop_oneof![0..5000_u32, any::<u32>()];
    (sizes(), sizes(), 0..100_u32).prop_map(|(tokens, context, batch)| call(tokens, context, batch))
}

fn known(
    (device, kernel, variant): &(DeviceAnnotation, Kernel, Variant),
    call: KernelCall,
) -> Estimate {
    estimate(device, kernel, variant, call, 0).expect("all of its variants are known")
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn estimates_are_finite_and_in_range(subject in subjects(), call in calls()) {
        let found = known(&subject, call);
        prop_assert!(found.latency_us.is_finite() && found.latency_us > 0.0, "{found:?}");
        prop_assert!(found.energy_uj.is_some_and(|energy| energy.is_finite() && energy > 0.0));
        let share = found.bandwidth_utilisation.unwrap();
        prop_assert!((0.0..=1.0).contains(&share), "{found:?}");
        prop_assert!(found.runs >= 1);
    }

    #[test]
    fn a_larger_call_never_costs_less(
        subject in subjects(),
        call in calls(),
        (tokens, context, batch) in (0..3000_u32, 0..3000_u32, 0..9_u32),
    ) {
        let larger = KernelCall {
            tokens: call.tokens.saturating_add(tokens),
            context: call.context.saturating_add(context),
            batch: call.batch.saturating_add(batch),
        };
        let (small, large) = (known(&subject, call), known(&subject, larger));
        prop_assert!(small.latency_us <= large.latency_us, "{small:?} {large:?}");
        prop_assert!(small.footprint_bytes <= large.footprint_bytes);
        prop_assert!(small.runs <= large.runs);
    }
}

#[test]
fn exponents_without_bound_stay_finite() {
    let mut kernel = llama_3b::manifest().kernels.swap_remove(FFN);
    let steep = |factor| Term {
        factor,
        tokens: 255,
        context: 255,
    };
    kernel.work.flops = vec![steep(0), steep(u64::MAX)];
    kernel.work.bytes = vec![steep(0)];
    let soc = papers_machine();
    let device = soc.device(DeviceClass::Igpu).unwrap();
    let (shape, binding) = (ShapeClass::Dynamic, Binding::Constant);
    assert!(device.variant("ffn", shape, binding).is_none());
    let call = call(u32::MAX, u32::MAX, u32::MAX);
    let found = estimate(device, &kernel, &kernel.variants[1], call, u64::MAX).unwrap();
    assert!(found.latency_us.is_finite());
    assert_eq!(found.footprint_bytes, u64::MAX);
}
