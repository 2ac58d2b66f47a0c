//! The HEG as a bundle holds it: places with the same kernel are one node, flows between the same kernels one edge.

use std::collections::BTreeMap;

use heg_artifacts::manifest::{
    EdgeReach, GraphEdge, GraphNode, Kernel, KernelId, Role, StageGraph, StageGraphs, Variant,
};
use petgraph::visit::EdgeRef;

use super::{Flow, Heg};
use crate::error::CompileError;

/// Returns the graphs of a bundle whose kernels, in the order of the HEG, are `kernels`. `decodes` says which variants
/// run a decode iteration; all of them run prompts. Heads have `head_dim` elements.
pub(crate) fn stage_graphs(
    heg: &Heg,
    (kernels, head_dim): (&[Kernel], u32),
    decodes: impl Fn(&Variant) -> bool,
) -> Result<StageGraphs, CompileError> {
    Ok(StageGraphs {
        prefill: stage_graph(heg, (kernels, head_dim), |_| true)?,
        decode: stage_graph(heg, (kernels, head_dim), decodes)?,
    })
}

fn stage_graph(
    heg: &Heg,
    (kernels, head_dim): (&[Kernel], u32),
    runs: impl Fn(&Variant) -> bool,
) -> Result<StageGraph, CompileError> {
    let nodes: Vec<GraphNode> = kernels
        .iter()
        .enumerate()
        .map(|(index, kernel)| node(heg, index, kernel, &runs))
        .collect();
    let mut edges: BTreeMap<(usize, usize, Role, EdgeReach), (Flow, u32)> = BTreeMap::new();
    for edge in heg.places.edge_references() {
        let (from, to) = (heg.places[edge.source()], heg.places[edge.target()]);
        let reach = match from.layer == to.layer {
            true => EdgeReach::Layer,
            false => EdgeReach::Next,
        };
        let key = (from.kernel, to.kernel, edge.weight().role, reach);
        edges.entry(key).or_insert((*edge.weight(), 0)).1 += 1;
    }
    let edges = edges
        .into_iter()
        .map(|((from, to, role, reach), (flow, places))| {
            let port = kernels[to].inputs.iter().find(|port| port.role == role);
            let port = port.ok_or(CompileError::Fusion {
                operator: kernels[to].name.clone(),
                message: "the HEG has a flow that the kernel does not read",
            })?;
            let ends = [from, to].into_iter().flat_map(|at| {
                let own = nodes[at].variants.values().flatten();
                own.map(move |index| &kernels[at].variants[*index as usize])
            });
            let row_bytes = ends.map(|variant| {
                let bytes = variant.elements().row_bytes(role, flow.width, head_dim);
                (variant.port_element(role), bytes.unwrap_or(u64::MAX))
            });
            Ok(GraphEdge {
                from: from as u32,
                to: to as u32,
                role,
                rows: port.rows,
                reach,
                places,
                row_bytes: row_bytes.collect(),
                crossing: flow.crossing,
            })
        });
    let edges = edges.collect::<Result<_, CompileError>>()?;
    Ok(StageGraph { nodes, edges })
}

fn node(heg: &Heg, index: usize, kernel: &Kernel, runs: impl Fn(&Variant) -> bool) -> GraphNode {
    let places = heg.places.node_weights();
    let mut variants: BTreeMap<_, Vec<u32>> = BTreeMap::new();
    for (variant, at) in kernel.variants.iter().zip(0..) {
        if runs(variant) {
            variants.entry(variant.device).or_default().push(at);
        }
    }
    GraphNode {
        kernel: KernelId(index as u32),
        places: places.filter(|place| place.kernel == index).count() as u32,
        variants,
    }
}
