//! Reads arbitrary text as an annotation document: a bundle has one, and a device a side file. An accepted document can
//! be written and read again, merged with itself without a change, and gives finite estimates.

use heg_artifacts::SectionId;
use heg_artifacts::manifest::{ElementType, Kernel, Port, Role, Rows, Term, Variant, Work};
use heg_profiler::annotation::{
    Annotations, DeviceAnnotation, KernelCall, VariantAnnotation, estimate,
};
use heg_spec::{DeviceClass, Group};

pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let Ok(mut annotations) = Annotations::parse(text) else {
        return;
    };
    let Ok(written) = annotations.to_text() else {
        panic!("what was read cannot be written");
    };
    assert_eq!(Annotations::parse(&written).as_ref(), Ok(&annotations));
    for device in annotations.socs.iter().flat_map(|soc| &soc.devices) {
        for entry in &device.variants {
            check_estimates(device, entry);
        }
    }
    annotations.overlay(annotations.clone());
    let overlaid = annotations.to_text();
    assert!(overlaid.is_ok_and(|text| Annotations::parse(&text).is_ok()));
}

fn check_estimates(device: &DeviceAnnotation, entry: &VariantAnnotation) {
    let kernel = kernel(entry);
    for (tokens, context, batch) in [
        (0, 0, 0),
        (1, 1, 1),
        (300, 5000, 7),
        (u32::MAX, u32::MAX, 9),
    ] {
        let call = KernelCall {
            tokens,
            context,
            batch,
        };
        let Some(found) = estimate(device, &kernel, &kernel.variants[0], call, 1) else {
            panic!("the variant has an entry");
        };
        assert!(
            found.latency_us.is_finite() && found.latency_us > 0.0,
            "{found:?}"
        );
        let share = found.bandwidth_utilisation.unwrap_or_default();
        assert!((0.0..=1.0).contains(&share), "{found:?}");
        assert!(found.energy_uj.is_none_or(f64::is_finite), "{found:?}");
    }
}

/// Returns an attention kernel with one variant, that of the entry.
fn kernel(entry: &VariantAnnotation) -> Kernel {
    let term = |factor, tokens, context| Term {
        factor,
        tokens,
        context,
    };
    Kernel {
        name: entry.kernel.clone(),
        group: Group::Mha,
        ops: Vec::new(),
        inputs: vec![Port {
            role: Role::Key,
            rows: Rows::Context,
            width: 1024,
        }],
        outputs: Vec::new(),
        parameters: Vec::new(),
        work: Work {
            flops: vec![term(12_384, 1, 1)],
            bytes: vec![term(12_288, 1, 0), term(4096, 0, 1)],
        },
        variants: vec![Variant {
            device: DeviceClass::Npu,
            shape: entry.shape,
            binding: entry.binding,
            activations: ElementType::F16,
            kv_cache: None,
            takes_trees: false,
            ir: SectionId::of(b""),
            program: None,
            tolerance: 0.05,
            blobs: Vec::new(),
        }],
    }
}
