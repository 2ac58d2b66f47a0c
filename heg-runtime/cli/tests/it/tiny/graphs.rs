//! The execution graphs of a manifest whose kernels and layers a test has changed.

use std::collections::BTreeMap;

use heg_artifacts::Manifest;
use heg_artifacts::manifest::{
    Crossing, EdgeReach, GraphEdge, GraphNode, KernelId, KernelUse, Role, StageGraph, StageGraphs,
};

/// Returns graphs in which all variants run in both stages.
pub(crate) fn graphs(manifest: &Manifest) -> StageGraphs {
    let mut nodes: Vec<GraphNode> = Vec::new();
    let mut edges: BTreeMap<_, u32> = BTreeMap::new();
    let mut writers: BTreeMap<Role, (u32, usize)> = BTreeMap::new();
    let layers = manifest.layers.iter().enumerate();
    let uses =
        layers.flat_map(|(at, layer)| [&layer.qkv, &layer.mha, &layer.ffn].map(|it| (at, it)));
    let head: (usize, &KernelUse) = (manifest.layers.len(), &manifest.head);
    for (layer, used) in uses.chain([head]) {
        let at = match nodes.iter().position(|node| node.kernel == used.kernel) {
            Some(at) => at,
            None => {
                nodes.push(node(manifest, used.kernel));
                nodes.len() - 1
            }
        };
        nodes[at].places += 1;
        let kernel = &manifest.kernels[used.kernel.0 as usize];
        for port in &kernel.inputs {
            if let Some((from, written)) = writers.get(&port.role) {
                let reach = match *written == layer {
                    true => EdgeReach::Layer,
                    false => EdgeReach::Next,
                };
                *edges
                    .entry((*from, at as u32, port.role, reach))
                    .or_default() += 1;
            }
        }
        writers.extend(
            kernel
                .outputs
                .iter()
                .map(|port| (port.role, (at as u32, layer))),
        );
    }
    let kernel = |node: u32| &manifest.kernels[nodes[node as usize].kernel.0 as usize];
    let edges = edges.into_iter().map(|((from, to, role, reach), places)| {
        let mut inputs = kernel(to).inputs.iter();
        let port = inputs.find(|port| port.role == role).unwrap();
        let variants = [from, to].map(|node| &kernel(node).variants);
        let elements = variants
            .into_iter()
            .flatten()
            .map(|it| it.port_element(role));
        GraphEdge {
            from,
            to,
            role,
            rows: port.rows,
            reach,
            places,
            row_bytes: elements
                .map(|element| (element, element.bytes_of(port.width.into()).unwrap()))
                .collect(),
            crossing: Crossing::between(kernel(from).group, kernel(to).group),
        }
    });
    let edges = edges.collect();
    let graph = StageGraph { nodes, edges };
    StageGraphs {
        prefill: graph.clone(),
        decode: graph,
    }
}

fn node(manifest: &Manifest, kernel: KernelId) -> GraphNode {
    let mut variants: BTreeMap<_, Vec<u32>> = BTreeMap::new();
    let own = &manifest.kernels[kernel.0 as usize].variants;
    for (variant, at) in own.iter().zip(0..) {
        variants.entry(variant.device).or_default().push(at);
    }
    GraphNode {
        kernel,
        places: 0,
        variants,
    }
}
