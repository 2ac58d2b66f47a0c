//! Fusion: cuts an operator graph into op groups (Agent.xpu §4.2) according to a declarative plan.
//!
//! A kernel is the backward slice from its output anchors to its input anchors. Before: operators of a layer. After:
//! one [`FusedOps`] per kernel of the plan, together holding every operator. An operator that two slices need (a norm
//! that both projections and feed-forward read) is computed in both; an operator in no slice, or a slice that runs past
//! its inputs, is an error.

use std::collections::BTreeSet;

use heg_spec::Group;
use heg_spec::fusion::{Fusion, GraphAnchor, KernelPlan};

use crate::error::CompileError;
use crate::graph::{Op, OpGraph, OpId};

/// The operators of one kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FusedOps {
    /// The op group.
    pub group: Group,
    /// The inputs of the slice: operators outside of it, in plan order.
    pub inputs: Vec<OpId>,
    /// The operators, in execution order.
    pub ops: Vec<OpId>,
    /// The operators whose results leave the kernel, in plan order.
    pub outputs: Vec<OpId>,
}

/// Cuts a layer's graph into `qkv`, `mha` and `ffn`.
pub fn fuse_layer(graph: &OpGraph, plan: &Fusion) -> Result<Vec<FusedOps>, CompileError> {
    let kernels = plan
        .kernels
        .iter()
        .filter(|kernel| kernel.group != Group::Head);
    fuse(graph, kernels)
}

/// Makes the head's graph one kernel.
pub fn fuse_head(graph: &OpGraph, plan: &Fusion) -> Result<Vec<FusedOps>, CompileError> {
    let kernels = plan
        .kernels
        .iter()
        .filter(|kernel| kernel.group == Group::Head);
    fuse(graph, kernels)
}

fn fuse<'a>(
    graph: &OpGraph,
    kernels: impl Iterator<Item = &'a KernelPlan>,
) -> Result<Vec<FusedOps>, CompileError> {
    let fused: Vec<FusedOps> = kernels
        .map(|kernel| slice(graph, kernel))
        .collect::<Result<_, _>>()?;
    let held: BTreeSet<OpId> = fused
        .iter()
        .flat_map(|kernel| kernel.ops.iter().copied())
        .collect();
    match graph
        .ops()
        .find(|id| !held.contains(id) && graph.op(*id).op != Op::Input)
    {
        None => Ok(fused),
        Some(left_over) => Err(CompileError::Fusion {
            operator: graph.op(left_over).name.clone(),
            message: "no kernel of the fusion plan needs it",
        }),
    }
}

fn slice(graph: &OpGraph, kernel: &KernelPlan) -> Result<FusedOps, CompileError> {
    let resolve = |anchor: &GraphAnchor| {
        graph.anchor(*anchor).ok_or_else(|| CompileError::Fusion {
            operator: format!("{anchor:?}"),
            message: "the graph has no such anchor",
        })
    };
    let inputs: Vec<OpId> = kernel
        .inputs
        .iter()
        .map(resolve)
        .collect::<Result<_, _>>()?;
    let outputs: Vec<OpId> = kernel
        .outputs
        .iter()
        .map(resolve)
        .collect::<Result<_, _>>()?;
    let mut held = BTreeSet::new();
    let mut pending = outputs.clone();
    while let Some(id) = pending.pop() {
        if inputs.contains(&id) || !held.insert(id) {
            continue;
        }
        if graph.op(id).op == Op::Input {
            return Err(CompileError::Fusion {
                operator: format!("{:?}", kernel.group),
                message: "its operators reach past the inputs that the plan gives it",
            });
        }
        pending.extend(graph.operands(id));
    }
    Ok(FusedOps {
        group: kernel.group,
        inputs,
        // Identifiers ascend in execution order.
        ops: held.into_iter().collect(),
        outputs,
    })
}

#[cfg(test)]
mod tests;
