//! The HEG of several families, pinned; sharing of kernels; and counts of work checked by hand.

use heg_artifacts::manifest::{Crossing, Role};
use heg_spec::Group;
use insta::assert_snapshot;
use petgraph::graph::NodeIndex;

use super::Heg;
use crate::fixture::{Described, FAMILIES, path};

macro_rules! pinned {
    ($($family:ident),+) => {
        $(#[test]
        fn $family() {
            let name = stringify!($family);
            assert_snapshot!(name, Described::family(name).heg().to_string());
        })+
    };
}

// Equal layers; two windows; two rotary tables; layers with and without rotation.
pinned!(llama, gemma2, gemma3, smollm3);

#[test]
fn equal_layers_share_their_kernels() {
    let model = Described::read(&path("tiny-agent/config.json"));
    let heg = model.heg();
    let names: Vec<&str> = heg
        .kernels
        .iter()
        .map(|kernel| kernel.name.as_str())
        .collect();
    assert_eq!(names, ["qkv", "mha", "ffn", "head"]);
    assert_eq!(heg.layers.len(), 6);
    for (layer, uses) in heg.layers.iter().enumerate() {
        assert_eq!(uses.each_ref().map(|place| place.kernel), [0, 1, 2]);
        let own = format!("model.layers.{layer}.");
        let weights = || uses.iter().flat_map(|place| &place.weights);
        assert_eq!(weights().count(), 9);
        assert!(weights().all(|weight| weight.source.name.starts_with(&own)));
    }
    assert_eq!(heg.head.kernel, 3);
    assert_eq!(heg.places.node_count(), 6 * 3 + 1);
}

/// A place's weights fit its kernel, whatever layer the kernel came from.
#[test]
fn every_place_fits_its_kernel() {
    for family in FAMILIES {
        let heg = Described::family(family).heg();
        for place in heg.layers.iter().flatten().chain([&heg.head]) {
            let kernel = &heg.kernels[place.kernel];
            let shapes = |params: &mut dyn Iterator<Item = &crate::graph::Param>| -> Vec<_> {
                params
                    .map(|param| (param.slot.clone(), param.kind, param.shape.clone()))
                    .collect()
            };
            assert_eq!(
                shapes(&mut kernel.params()),
                shapes(&mut place.weights.iter()),
                "{family}"
            );
            assert!(kernel.params().all(|param| param.source.name.is_empty()));
            let rotates = kernel.inputs.iter().any(|port| port.role == Role::Cos);
            assert_eq!(place.rope.is_some(), rotates, "{family}: {}", kernel.name);
        }
    }
}

#[test]
fn edges_cross_where_attention_begins_and_ends() {
    for family in FAMILIES {
        let heg = Described::family(family).heg();
        let group = |node: NodeIndex| heg.kernels[heg.places[node].kernel].group;
        for edge in heg.places.raw_edges() {
            let crosses =
                (group(edge.source()) == Group::Mha) != (group(edge.target()) == Group::Mha);
            assert_eq!(edge.weight.crossing == Crossing::Inter, crosses, "{family}");
        }
        let layers = heg.layers.len();
        let inter = heg
            .places
            .edge_weights()
            .filter(|flow| flow.crossing == Crossing::Inter);
        // Queries, keys, values in; attention output out.
        assert_eq!(inter.count(), 4 * layers, "{family}");
    }
}

/// Llama 3.2 1B.
fn llama_1b() -> Heg {
    Described::parse(
        r#"{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256,
            "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "tie_word_embeddings": true}"#,
    )
    .heg()
}

#[test]
fn floating_point_operations_of_llama_1b() {
    let heg = llama_1b();
    let flops =
        |kernel: usize, tokens, context| heg.kernels[kernel].work(0, 2).flops(tokens, context);
    let (d, q, kv, ffn, vocab) = (2048.0, 2048.0, 512.0, 8192.0, 128_256.0);
    let norm = 4.0 * d;
    // Two for each parameter of a product; three for each rotated element.
    let qkv = norm + 2.0 * d * (q + 2.0 * kv) + 3.0 * (q + kv);
    assert_eq!(qkv, 12_598_784.0);
    assert_eq!(flops(0, 1, 1), qkv);
    assert_eq!(flops(0, 256, 4096), 256.0 * qkv);
    // 4 · 64 of products and 4 of softmax, for each of 32 heads and each pair of tokens.
    assert_eq!(flops(1, 1, 1), 32.0 * 260.0);
    assert_eq!(flops(1, 256, 2048), 256.0 * 2048.0 * 8320.0);
    // Output projection, two residuals, a norm, three products, three for each gated element.
    let rest = 2.0 * q * d + 2.0 * d + norm + 3.0 * 2.0 * d * ffn + 3.0 * ffn;
    assert_eq!(rest, 109_088_768.0);
    assert_eq!(flops(2, 1, 1), rest);
    let head = norm + 2.0 * d * vocab;
    assert_eq!(flops(3, 1, 1), head);
    // 1.236 · 10⁹ parameters, two operations each, and 1.4 % for all else at an empty context.
    let token = 16.0 * (qkv + rest) + head;
    let parameters = 1_235_814_400.0;
    assert!(
        (1.0..1.002).contains(&(token / (2.0 * parameters))),
        "{token}"
    );
}

#[test]
fn bytes_of_llama_1b() {
    let heg = llama_1b();
    let weights = |kernel: usize| -> u64 {
        let elements = heg.kernels[kernel].params().map(|param| {
            param
                .shape
                .iter()
                .map(|dim| u64::from(*dim))
                .product::<u64>()
        });
        elements.sum()
    };
    let bytes = |kernel: usize, tokens, context| {
        let weight_bytes = 2 * weights(kernel);
        heg.kernels[kernel]
            .work(weight_bytes, 2)
            .bytes(tokens, context)
            - weight_bytes as f64
    };
    assert_eq!(weights(0), 2048 + 2048 * (2048 + 1024));
    assert_eq!(weights(1), 0);
    assert_eq!(weights(2), 2048 + 2048 * 2048 + 3 * 2048 * 8192);
    assert_eq!(weights(3), 2048 + 2048 * 128_256);
    // Hidden in; queries, keys, values out; 32 cosines and as many sines.
    assert_eq!(bytes(0, 1, 7), 2.0 * (2048.0 + 3072.0 + 64.0));
    // Queries in and attended rows out, the cache read once, one position.
    assert_eq!(bytes(1, 1, 1000), 2.0 * (4096.0 + 1000.0 * 1024.0 + 1.0));
    // Attended and residual in, residual out.
    assert_eq!(bytes(2, 3, 7), 3.0 * 2.0 * 3.0 * 2048.0);
    assert_eq!(bytes(3, 1, 7), 2.0 * (2048.0 + 128_256.0));
}
