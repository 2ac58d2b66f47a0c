//! Refused execution graphs, one case per rule, and graphs that say the same in another way.

use heg_artifacts::manifest::*;
use heg_artifacts::{Manifest, write_bundle};
use heg_spec::{DeviceClass, Group};

use crate::reject_manifest::check;
use crate::tiny::{self, Plan};

fn nodes(expected: &str, damage: impl FnOnce(&mut Vec<GraphNode>)) {
    check(&format!("`heg.prefill.nodes{expected}"), |manifest| {
        damage(&mut manifest.heg.prefill.nodes);
    });
}

/// Breaks the edges of the other stage.
fn edges(expected: &str, damage: impl FnOnce(&mut Vec<GraphEdge>)) {
    check(&format!("`heg.decode.edges{expected}"), |manifest| {
        damage(&mut manifest.heg.decode.edges);
    });
}

#[test]
fn nodes_are_the_kernels_that_places_use() {
    nodes(
        "[1].kernel` is `4`, expected less than the number of kernels: `4`",
        |nodes| nodes[1].kernel = KernelId(4),
    );
    nodes(
        "[4].kernel` is `0` once more, expected every kernel once",
        |nodes| nodes.push(nodes[0].clone()),
    );
    nodes(
        "` is without kernel `head`, expected a node for each kernel that a place uses",
        |nodes| drop(nodes.pop()),
    );
    let expected = "[2].places` is `9`, expected `2`, the places that use kernel `ffn`";
    nodes(expected, |nodes| nodes[2].places = 9);
    check(
        "`heg.prefill.nodes[4].places` is `1`, expected `0`, the places that use kernel `idle`",
        |manifest| {
            let idle = Kernel {
                name: "idle".to_owned(),
                ..manifest.kernels[3].clone()
            };
            manifest.kernels.push(idle);
            let node = manifest.heg.prefill.nodes[3].clone();
            let kernel = KernelId(4);
            manifest
                .heg
                .prefill
                .nodes
                .push(GraphNode { kernel, ..node });
        },
    );
}

#[test]
fn variants_are_those_of_the_kernel_and_class() {
    let cpu = |nodes: &mut Vec<GraphNode>, own: &[u32]| {
        nodes[0].variants.insert(DeviceClass::Cpu, own.to_vec());
    };
    let expected = "[0].variants` is empty, expected variants of at least one class";
    nodes(expected, |nodes| nodes[0].variants.clear());
    let expected = "[0].variants[Cpu]` is [], expected at least one, strictly ascending";
    nodes(expected, |nodes| cpu(nodes, &[]));
    let expected = "[0].variants[Cpu]` is [0, 0], expected at least one, strictly ascending";
    nodes(expected, |nodes| cpu(nodes, &[0, 0]));
    let expected = "[0].variants[Cpu]` is `1`, expected variants of kernel `qkv` for Cpu";
    nodes(expected, |nodes| cpu(nodes, &[0, 1]));
    let expected = "[0].variants[Cpu]` is `4294967295`, expected variants of kernel `qkv` for Cpu";
    nodes(expected, |nodes| cpu(nodes, &[u32::MAX]));
}

#[test]
fn edges_agree_with_the_ports_of_their_kernels() {
    let expected = "[0].from` is `4`, expected less than the number of nodes: `4`";
    edges(expected, |edges| edges[0].from = 4);
    let expected = "[0].to` is `4294967295`, expected less than the number of nodes: `4`";
    edges(expected, |edges| edges[0].to = u32::MAX);
    edges(
        "[3].role` is Attended from `ffn` to `mha`, expected an output of the one and an input of the other",
        |edges| (edges[3].from, edges[3].to) = (2, 1),
    );
    let expected = "[1].rows` is `Tokens`, expected `Context`, as kernel `mha` reads Key";
    edges(expected, |edges| edges[1].rows = Rows::Tokens);
    let expected = "[0].crossing` is `Intra`, expected `Inter`, by the groups of the two kernels";
    edges(expected, |edges| edges[0].crossing = Crossing::Intra);
    edges(
        "[0].row_bytes` is {F16: 64, F32: 64}, expected {F16: 32, F32: 64}: `16` elements of a variant's type",
        |edges| edges[0].row_bytes.extend([(ElementType::F16, 64)]),
    );
    edges(
        "[0].row_bytes` is {F16: 32}, expected {F16: 32, F32: 64}: `16` elements of a variant's type",
        |edges| {
            edges[0]
                .row_bytes
                .retain(|element, _| *element != ElementType::F32)
        },
    );
}

#[test]
fn edges_are_those_of_the_layers() {
    edges(
        "[7]` is Query from `qkv` to `mha` in its layer once more, expected every edge once",
        |edges| edges.push(edges[0].clone()),
    );
    let expected = "[4].places` is `2`, expected `1`, the places of Hidden from `ffn` to `qkv` in the next layer or the head";
    edges(expected, |edges| edges[4].places = 2);
    edges(
        "` is without Attended from `mha` to `ffn` in its layer, expected every input that a kernel writes",
        |edges| drop(edges.remove(3)),
    );
    edges(
        "` is a circle within a layer, expected an order in which a kernel runs after those that it reads from",
        |edges| {
            edges[4].reach = EdgeReach::Layer;
        },
    );
    edges(
        "[6]` is Hidden from `ffn` to `head` in its layer, expected an edge that a place of the layers has",
        |edges| edges[6].reach = EdgeReach::Layer,
    );
}

/// The order follows from the edges. Data passes through the groups of a layer in one way only, so that is the one order
/// that a graph can say, however its nodes and edges are listed.
#[test]
fn lists_in_another_order_say_the_same() {
    let order = |manifest: &Manifest| {
        let graph = &manifest.heg.prefill;
        (
            graph.layer_order(&manifest.kernels),
            graph.cache_ends(&manifest.kernels),
            graph.cache_bytes(ElementType::F16),
        )
    };
    let folder = tempfile::tempdir().unwrap();
    let (store, mut manifest) = tiny::stored(&Plan::default(), folder.path());
    let expected = order(&manifest);
    let groups = vec![Group::Qkv, Group::Mha, Group::Ffn];
    // Keys and values of two layers, of eight elements of two bytes each.
    let bytes = 2 * 2 * 8 * 2;
    let ends = (Group::Qkv, Group::Mha);
    assert_eq!(expected, (Some(groups), Some(ends), Some(bytes)));
    let graph = &mut manifest.heg.prefill;
    graph.nodes.reverse();
    graph.edges.reverse();
    let last = graph.nodes.len() as u32 - 1;
    for edge in &mut graph.edges {
        (edge.from, edge.to) = (last - edge.from, last - edge.to);
    }
    write_bundle(
        &folder.path().join("bundle.heg"),
        &manifest,
        &store,
        &|_| {},
    )
    .unwrap();
    assert_eq!(order(&manifest), expected);
}
