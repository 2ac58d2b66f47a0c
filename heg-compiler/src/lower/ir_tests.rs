//! The IR of four kernels of the llama fixture, pinned: one for each weight form, shape class and binding.
//!
//! All of a bundle's IRs share one pool of literals; here each has its own, so that one test does not shift
//! the offsets of another.

use heg_artifacts::manifest::{Binding, ElementType, ShapeClass};
use heg_spec::{Group, WeightForm};
use insta::assert_snapshot;

use super::{Literals, Lowering, WeightsFirst, lower};
use crate::fixture::{Described, FAMILIES};
use crate::graph::ParamKind;

fn ir(group: Group, lowering: Lowering) -> String {
    let heg = Described::family("llama").heg();
    let kernel = heg.kernels.iter().find(|kernel| kernel.group == group);
    lower(kernel.unwrap(), lowering, &mut Literals::default())
}

const CPU: Lowering = Lowering {
    shape: ShapeClass::Dynamic,
    binding: Binding::Constant,
    activations: ElementType::F32,
    kv_cache: Some(ElementType::Bf16),
    takes_trees: false,
    weights: WeightForm::W8A16,
    weights_first: WeightsFirst::NONE,
};

const NPU: Lowering = Lowering {
    shape: ShapeClass::Static { tokens: 32 },
    binding: Binding::Input,
    activations: ElementType::F16,
    kv_cache: None,
    takes_trees: false,
    weights: WeightForm::W8A16,
    weights_first: WeightsFirst::NONE,
};

#[test]
fn qkv_with_constants() {
    assert_snapshot!("qkv", ir(Group::Qkv, CPU));
}

#[test]
fn ffn_with_inputs() {
    assert_snapshot!("ffn", ir(Group::Ffn, NPU));
}

#[test]
fn mha_of_any_length() {
    assert_snapshot!("mha", ir(Group::Mha, CPU));
}

#[test]
fn mha_of_a_bucket() {
    let shape = ShapeClass::Bucket {
        tokens: 32,
        context: 512,
    };
    assert_snapshot!("mha_bucket", ir(Group::Mha, Lowering { shape, ..NPU }));
}

#[test]
fn mha_of_a_bucket_with_trees() {
    let lowering = Lowering {
        shape: ShapeClass::Bucket {
            tokens: 32,
            context: 512,
        },
        takes_trees: true,
        ..NPU
    };
    assert_snapshot!("mha_tree", ir(Group::Mha, lowering));
}

/// Positions are compared in i32, because the NPU compiler would round other types to f16: see
/// `attention::mask_of_size`.
#[test]
fn static_attention_compares_i32() {
    for (family, takes_trees) in FAMILIES
        .into_iter()
        .flat_map(|it| [(it, false), (it, true)])
    {
        let heg = Described::family(family).heg();
        for kernel in heg.kernels.iter().filter(|k| k.group == Group::Mha) {
            let shape = ShapeClass::Bucket {
                tokens: 32,
                context: 512,
            };
            let lowering = Lowering {
                shape,
                takes_trees,
                ..NPU
            };
            let ir = lower(kernel, lowering, &mut Literals::default());
            let layers: Vec<&str> = ir.split("<layer ").collect();
            let compared = layers
                .iter()
                .filter(|layer| COMPARISONS.iter().any(|kind| layer.contains(kind)))
                .inspect(|layer| {
                    assert_eq!(layer.matches("I32").count(), 2, "{family}: {layer}");
                });
            assert!(compared.count() > 0, "{family}");
            assert!(!ir.contains("<dim>-1</dim>"), "{family}");
        }
    }
}

const COMPARISONS: [&str; 3] = ["type=\"Less", "type=\"Greater\"", "type=\"Equal\""];

/// Section numbers are consecutive in the order of a place's weights, and every reference has its section.
#[test]
fn references_are_complete() {
    for family in FAMILIES {
        for kernel in Described::family(family).heg().kernels {
            let mut pool = Literals::default();
            let ir = lower(&kernel, CPU, &mut pool);
            let pool = pool.into_bytes().len();
            let references: Vec<&str> = ir
                .split("offset=\"@")
                .skip(1)
                .map(|rest| rest.split('"').next().unwrap())
                .collect();
            let (literals, sections): (Vec<&str>, Vec<&str>) = references
                .into_iter()
                .partition(|text| text.starts_with("c+"));
            for literal in literals {
                let offset: usize = literal["c+".len()..].parse().unwrap();
                assert!(
                    offset < pool && offset.is_multiple_of(8),
                    "{family}: {literal}"
                );
            }
            let expected: usize = kernel
                .params()
                .map(|param| match param.kind {
                    ParamKind::Table => 3,
                    ParamKind::Matrix => 2,
                    ParamKind::Vector => 1,
                })
                .sum();
            let counted: Vec<String> = (0..expected).map(|index| index.to_string()).collect();
            assert_eq!(sections, counted, "{family}: {}", kernel.name);
        }
    }
}

#[test]
fn equal_literals_are_stored_once_and_aligned() {
    let mut pool = Literals::default();
    let offsets = [
        pool.place(&[1, 2, 3, 4]),
        pool.place(&[5; 16]),
        pool.place(&[1, 2, 3, 4]),
        pool.place(&[6]),
    ];
    assert_eq!(offsets, [0, 8, 0, 24]);
    let mut bytes = vec![1, 2, 3, 4, 0, 0, 0, 0];
    bytes.extend([5; 16]);
    bytes.push(6);
    assert_eq!(pool.into_bytes(), bytes);
}
