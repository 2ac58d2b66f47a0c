//! The heterogeneous execution graph: kernels, and their places in the model (Agent.xpu §4.2).
//!
//! A kernel is stored once however often it is used; [`Heg::layers`] is the table of weights beside it. The places of
//! the model form a petgraph: prefill walks it once per chunk, decode once per token. Its edges carry a tensor, its
//! elements per token, and whether it crosses from a token-wise to a sequence-wise kernel, which is where two
//! accelerators meet. A bundle holds them as graphs of its two stages (`stages.rs`), from which the runtime takes its order.

mod body;
mod stages;
#[cfg(test)]
mod tests;
mod verify;

use std::fmt;

use heg_artifacts::manifest::{Crossing, Role};
use heg_spec::Group;
use heg_spec::architecture::HeadRows;
use petgraph::graph::{DiGraph, NodeIndex};

use body::Instance;
pub use body::{BodyOp, KernelBody, Operand, Use};
pub(crate) use stages::stage_graphs;
pub(crate) use verify::{verify, verify_fused};

use crate::error::CompileError;
use crate::fuse::FusedOps;
use crate::graph::OpGraph;

/// The HEG of a model.
#[derive(Debug, Clone)]
pub struct Heg {
    /// Distinct kernels, in order of first use.
    pub kernels: Vec<KernelBody>,
    /// Per layer: `qkv`, `mha`, `ffn`.
    pub layers: Vec<[Use; 3]>,
    /// The head.
    pub head: Use,
    /// Places in execution order: node = (layer, kernel).
    pub places: DiGraph<LayerPlace, Flow>,
}

/// A kernel's place in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerPlace {
    /// The layer; `None` for the head.
    pub layer: Option<u32>,
    /// Index into [`Heg::kernels`].
    pub kernel: usize,
}

/// A tensor passed between two places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// The tensor's role.
    pub role: Role,
    /// Elements per token.
    pub width: u32,
    /// Whether the ends may be on different accelerators.
    pub crossing: Crossing,
}

impl Heg {
    /// Builds the HEG from the fused graphs of all layers and of the head, and the rows that the head gives.
    pub fn build(
        layers: &[(OpGraph, Vec<FusedOps>)],
        head: (&OpGraph, &[FusedOps], HeadRows),
    ) -> Result<Self, CompileError> {
        let mut kernels = Vec::new();
        let mut uses = Vec::with_capacity(layers.len());
        for (graph, fused) in layers {
            let mut instances = instances(graph, fused, head.2)?;
            let mut of =
                |group| Ok::<_, CompileError>(intern(&mut kernels, take(&mut instances, group)?));
            uses.push([of(Group::Qkv)?, of(Group::Mha)?, of(Group::Ffn)?]);
        }
        let mut head = instances(head.0, head.1, head.2)?;
        let head = intern(&mut kernels, take(&mut head, Group::Head)?);
        let places = connect(&kernels, &uses, &head);
        Ok(Self {
            kernels,
            layers: uses,
            head,
            places,
        })
    }
}

fn instances(
    graph: &OpGraph,
    fused: &[FusedOps],
    gives: HeadRows,
) -> Result<Vec<Instance>, CompileError> {
    let instance = |ops| Instance::new(graph, ops, gives);
    fused.iter().map(instance).collect()
}

/// Removes and returns the instance of a group.
fn take(instances: &mut Vec<Instance>, group: Group) -> Result<Instance, CompileError> {
    let position = instances
        .iter()
        .position(|instance| instance.body.group == group)
        .ok_or_else(|| CompileError::Fusion {
            operator: format!("{group:?}"),
            message: "the fusion plan gives no such kernel",
        })?;
    Ok(instances.swap_remove(position))
}

/// The use of an instance's kernel; the kernel is added if no earlier one is equal.
fn intern(kernels: &mut Vec<KernelBody>, instance: Instance) -> Use {
    let group = instance.body.group;
    let mut body = instance.body;
    let same_group = kernels.iter().filter(|known| known.group == group).count();
    let known = kernels.iter().position(|known| {
        body.name.clone_from(&known.name);
        *known == body
    });
    let kernel = known.unwrap_or_else(|| {
        body.name = match same_group {
            0 => group.name().to_owned(),
            others => format!("{}.{others}", group.name()),
        };
        kernels.push(body);
        kernels.len() - 1
    });
    Use {
        kernel,
        weights: instance.weights,
        rope: instance.rope,
    }
}

fn connect(kernels: &[KernelBody], layers: &[[Use; 3]], head: &Use) -> DiGraph<LayerPlace, Flow> {
    let mut places: DiGraph<LayerPlace, Flow> = DiGraph::new();
    // The latest place with each role as an output; before the first layer, the hidden state comes from the embedding.
    let mut givers: Vec<(Role, NodeIndex)> = Vec::new();
    let in_layers = layers.iter().enumerate().flat_map(|(layer, uses)| {
        uses.iter()
            .map(move |place| (Some(layer as u32), place.kernel))
    });
    for (layer, kernel) in in_layers.chain([(None, head.kernel)]) {
        let node = places.add_node(LayerPlace { layer, kernel });
        for port in &kernels[kernel].inputs {
            let Some((_, giver)) = givers.iter().find(|(role, _)| *role == port.role) else {
                continue;
            };
            let from = kernels[places[*giver].kernel].group;
            let crossing = Crossing::between(from, kernels[kernel].group);
            places.add_edge(
                *giver,
                node,
                Flow {
                    role: port.role,
                    width: port.width,
                    crossing,
                },
            );
        }
        for port in &kernels[kernel].outputs {
            givers.retain(|(role, _)| *role != port.role);
            givers.push((port.role, node));
        }
    }
    places
}

impl fmt::Display for Heg {
    /// Writes stable text, for people and snapshots.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, kernel) in self.kernels.iter().enumerate() {
            let uses = self
                .places
                .node_weights()
                .filter(|place| place.kernel == index)
                .count();
            writeln!(f, "{} × {uses}", kernel.name)?;
            for port in &kernel.inputs {
                writeln!(f, "  in  {:?}[{:?}, {}]", port.role, port.rows, port.width)?;
            }
            for op in &kernel.ops {
                writeln!(f, "  {} = {}{:?}", op.name, op.op.kind(), op.operands)?;
            }
            for (port, result) in kernel.outputs.iter().zip(&kernel.results) {
                writeln!(
                    f,
                    "  out {:?}[{:?}, {}] = {result:?}",
                    port.role, port.rows, port.width
                )?;
            }
        }
        for edge in self.places.raw_edges() {
            let name = |node: NodeIndex| {
                let place = self.places[node];
                let kernel = &self.kernels[place.kernel].name;
                place
                    .layer
                    .map_or_else(|| kernel.clone(), |layer| format!("layer.{layer}/{kernel}"))
            };
            let Flow {
                role,
                width,
                crossing,
            } = edge.weight;
            writeln!(
                f,
                "{} -> {}: {role:?} × {width} ({crossing:?})",
                name(edge.source()),
                name(edge.target())
            )?;
        }
        Ok(())
    }
}
