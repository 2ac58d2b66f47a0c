//! The heterogeneous execution graph (Agent.xpu §4.2): kernels in the order in which data passes through them, for a
//! prompt and for a decode iteration.
//!
//! A node is a kernel with the number of places that use it; the table of layers beside it says which. An edge is a
//! tensor, likewise with the number of its places, and says how many bytes a row of it has. What the runtime provides
//! itself (positions, rotary rows, the first layer's hidden state) has no edge.

use std::collections::{BTreeMap, BTreeSet};

use heg_spec::{DeviceClass, Group};
use serde::{Deserialize, Serialize};

use super::{ElementType, Kernel, KernelId, Role, Rows};

/// The execution graphs of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageGraphs {
    /// One chunk of a prompt.
    pub prefill: StageGraph,
    /// One decode iteration.
    pub decode: StageGraph,
}

/// The execution graph of one stage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageGraph {
    /// Kernels, each once.
    pub nodes: Vec<GraphNode>,
    /// Tensors that pass from kernel to kernel.
    pub edges: Vec<GraphEdge>,
}

/// A kernel in a stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphNode {
    /// The kernel.
    pub kernel: KernelId,
    /// Number of places that use it: layers, or 1 for the head.
    pub places: u32,
    /// Variants that run it in this stage, by device class: indices into [`Kernel::variants`](super::Kernel::variants),
    /// ascending.
    pub variants: BTreeMap<DeviceClass, Vec<u32>>,
}

/// A tensor that passes between two kernels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphEdge {
    /// Node that writes it: index into [`StageGraph::nodes`].
    pub from: u32,
    /// Node that reads it.
    pub to: u32,
    /// The tensor.
    pub role: Role,
    /// Rows that the reader takes: those of the call, or all that are in the cache.
    pub rows: Rows,
    /// Layer of the reader, seen from the writer.
    pub reach: EdgeReach,
    /// Number of places where it occurs.
    pub places: u32,
    /// Bytes of a row, by the element types that variants of the two kernels have there.
    pub row_bytes: BTreeMap<ElementType, u64>,
    /// Whether the two ends may be on different accelerators.
    pub crossing: Crossing,
}

/// The layer of an edge's reader, seen from its writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EdgeReach {
    /// The layer of its writer.
    Layer,
    /// The next layer, or the head after the last one.
    Next,
}

/// Whether an edge may cross accelerators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Crossing {
    /// Both ends are token-wise, or both sequence-wise.
    Intra,
    /// One end is token-wise, the other sequence-wise.
    Inter,
}

impl Crossing {
    /// Returns the crossing of an edge between kernels of two groups.
    pub fn between(from: Group, to: Group) -> Self {
        match (from == Group::Mha) == (to == Group::Mha) {
            true => Self::Intra,
            false => Self::Inter,
        }
    }
}

impl StageGraph {
    /// Returns the op groups of a layer in the order in which data passes through them; `None` if they have none, since
    /// they read from each other in a circle.
    pub fn layer_order(&self, kernels: &[Kernel]) -> Option<Vec<Group>> {
        let group = |node| self.group(kernels, node);
        let within = self.edges.iter();
        let within = within.filter(|edge| edge.reach == EdgeReach::Layer);
        let within: BTreeSet<(Group, Group)> = within
            .filter_map(|edge| Some((group(edge.from)?, group(edge.to)?)))
            .collect();
        let nodes = (0..).zip(&self.nodes).filter_map(|(at, _)| group(at));
        let mut left: BTreeSet<Group> = nodes.filter(|group| *group != Group::Head).collect();
        let mut order = Vec::with_capacity(left.len());
        while !left.is_empty() {
            let waits = |to: Group| {
                let mut from = within.iter().filter(|(_, reader)| *reader == to);
                from.any(|(writer, _)| left.contains(writer))
            };
            let next = left.iter().copied().find(|group| !waits(*group))?;
            left.remove(&next);
            order.push(next);
        }
        Some(order)
    }

    /// Returns the op groups that write and that read the rows of the KV cache; `None` if none do, or several.
    pub fn cache_ends(&self, kernels: &[Kernel]) -> Option<(Group, Group)> {
        let group = |node| self.group(kernels, node);
        let cached = self.edges.iter().filter(|edge| edge.rows == Rows::Context);
        let mut ends = cached.map(|edge| Some((group(edge.from)?, group(edge.to)?)));
        let first = ends.next()??;
        ends.all(|end| end == Some(first)).then_some(first)
    }

    /// Returns the op group of a node.
    fn group(&self, kernels: &[Kernel], node: u32) -> Option<Group> {
        let node = self.nodes.get(node as usize)?;
        Some(kernels.get(node.kernel.0 as usize)?.group)
    }

    /// Bytes that a token leaves in the KV cache over all layers, for keys and values of an element type; `None` if the
    /// graph does not know the type, or the number does not fit.
    pub fn cache_bytes(&self, element: ElementType) -> Option<u64> {
        let cached = self.edges.iter().filter(|edge| edge.rows == Rows::Context);
        cached
            .map(|edge| {
                edge.row_bytes
                    .get(&element)?
                    .checked_mul(edge.places.into())
            })
            .try_fold(0_u64, |sum, bytes| sum.checked_add(bytes?))
    }

    /// Bytes that a token leaves in the KV cache over all layers, in the widest element types that the graph knows; the
    /// largest number if they do not fit.
    pub fn widest_cache_bytes(&self) -> u64 {
        let cached = self.edges.iter().filter(|edge| edge.rows == Rows::Context);
        let bytes = cached.map(|edge| {
            let row = edge.row_bytes.values().max().copied().unwrap_or(0);
            row.saturating_mul(edge.places.into())
        });
        bytes.fold(0, u64::saturating_add)
    }
}
