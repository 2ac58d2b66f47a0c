//! The operator graph of one decoder layer, or of the head.
//!
//! An architecture file is instantiated here for one config and one layer: expressions become numbers, weight patterns
//! become names, operators without effect in this layer (no rotary, no cap) disappear, and widths are inferred and
//! checked. Edges carry the operand's index.

mod build;
mod dims;
mod dump;
mod op;
#[cfg(test)]
mod tests;
mod verify;
mod work;

use std::collections::BTreeMap;

use heg_spec::fusion::GraphAnchor;
use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;

pub(crate) use build::{build_head, build_layer};
pub use dims::{Dims, SpecScope};
pub use op::{Activation, Attention, Op, OpNode, Param, ParamKind, WeightSource};
pub(crate) use verify::{arity, check_shapes, verify};
pub(crate) use work::op_work;

/// Operators of a layer or of the head, with the anchors where fusion may cut.
#[derive(Debug, Clone)]
pub struct OpGraph {
    ops: DiGraph<OpNode, usize>,
    anchors: BTreeMap<GraphAnchor, NodeIndex>,
}

/// An operator of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(NodeIndex);

impl OpGraph {
    /// The operator behind an id of this graph.
    pub fn op(&self, id: OpId) -> &OpNode {
        &self.ops[id.0]
    }

    /// All operators in the order of the architecture file, which is a topological order.
    pub fn ops(&self) -> impl Iterator<Item = OpId> {
        self.ops.node_indices().map(OpId)
    }

    /// Operands of an operator, in order.
    pub fn operands(&self, id: OpId) -> Vec<OpId> {
        let mut edges: Vec<_> = self
            .ops
            .edges_directed(id.0, Direction::Incoming)
            .map(|edge| (*edge.weight(), OpId(edge.source())))
            .collect();
        edges.sort_unstable();
        edges.into_iter().map(|(_, source)| source).collect()
    }

    /// The operator whose output an anchor names; `None` if the graph has no such point.
    pub fn anchor(&self, anchor: GraphAnchor) -> Option<OpId> {
        self.anchors.get(&anchor).copied().map(OpId)
    }
}
