//! A kernel's body: its operators, independent of the layer that they came from.
//!
//! Two layers share a kernel exactly when their bodies are equal. A body therefore names no weight of the checkpoint
//! and no rotary table; these belong to a layer's *use* of the kernel ([`Use`]).

use std::collections::BTreeMap;

use heg_artifacts::manifest::{Port, Role, Rows, Term, Work};
use heg_spec::Group;
use heg_spec::architecture::HeadRows;
use heg_spec::fusion::GraphAnchor;

use crate::error::CompileError;
use crate::fuse::FusedOps;
use crate::graph::{Op, OpGraph, OpId, Param, WeightSource, op_work};

/// The computation of a kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelBody {
    /// Name, unique in the HEG.
    pub name: String,
    /// The op group.
    pub group: Group,
    /// Activation inputs.
    pub inputs: Vec<Port>,
    /// Operators in execution order.
    pub ops: Vec<BodyOp>,
    /// Outputs.
    pub outputs: Vec<Port>,
    /// The operand behind each output.
    pub results: Vec<Operand>,
}

/// An operator of a body.
#[derive(Debug, Clone, PartialEq)]
pub struct BodyOp {
    /// Name of its output in the architecture file.
    pub name: String,
    /// The operator; weight sources and rotary tables are blank.
    pub op: Op,
    /// Its operands.
    pub operands: Vec<Operand>,
}

/// The source of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operand {
    /// An activation input of the kernel.
    Input(usize),
    /// An earlier operator of the kernel.
    Op(usize),
}

/// A kernel at one place of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// Index of the kernel.
    pub kernel: usize,
    /// Its weights, in parameter order.
    pub weights: Vec<Param>,
    /// Rotary table by name.
    pub rope: Option<String>,
}

/// Body, weights and rotary table of one fused group.
pub(super) struct Instance {
    pub(super) body: KernelBody,
    pub(super) weights: Vec<Param>,
    pub(super) rope: Option<String>,
}

impl Instance {
    pub(super) fn new(
        graph: &OpGraph,
        fused: &FusedOps,
        gives: HeadRows,
    ) -> Result<Self, CompileError> {
        let group = fused.group;
        let mut inputs: Vec<Port> = fused
            .inputs
            .iter()
            .map(|id| port(graph, *id, input_role(graph, *id), group))
            .collect();
        let places = BodyPlaces::of(graph, fused);
        let mut ops = Vec::with_capacity(fused.ops.len());
        let mut weights = Vec::new();
        let mut rope = None;
        for id in &fused.ops {
            let node = graph.op(*id);
            let operands = graph
                .operands(*id)
                .into_iter()
                .map(|id| places.find(id))
                .collect::<Result<_, _>>()?;
            weights.extend(node.op.params().into_iter().cloned());
            add_ports(&mut inputs, &node.op);
            if let Op::Rope { table, .. } = &node.op {
                if rope.as_ref().is_some_and(|known| known != table) {
                    return Err(CompileError::Fusion {
                        operator: node.name.clone(),
                        message: "a kernel takes one rotary table, and this operator needs a second",
                    });
                }
                rope = Some(table.clone());
            }
            ops.push(BodyOp {
                name: node.name.clone(),
                op: anonymous(&node.op),
                operands,
            });
        }
        let results = fused
            .outputs
            .iter()
            .map(|id| places.find(*id))
            .collect::<Result<_, _>>()?;
        let outputs = output_roles(group, gives)
            .iter()
            .zip(&fused.outputs)
            .map(|(role, id)| Port {
                role: *role,
                rows: Rows::Tokens,
                width: graph.op(*id).width,
            })
            .collect();
        let body = KernelBody {
            name: String::new(),
            group,
            inputs,
            ops,
            outputs,
            results,
        };
        Ok(Self {
            body,
            weights,
            rope,
        })
    }
}

/// The place of each operator of a group, and of each of its inputs, in the group's body.
struct BodyPlaces<'g> {
    graph: &'g OpGraph,
    operands: BTreeMap<OpId, Operand>,
}

impl<'g> BodyPlaces<'g> {
    fn of(graph: &'g OpGraph, fused: &FusedOps) -> Self {
        let inputs = fused.inputs.iter().enumerate();
        let inputs = inputs.map(|(index, id)| (*id, Operand::Input(index)));
        let ops = fused.ops.iter().enumerate();
        let ops = ops.map(|(index, id)| (*id, Operand::Op(index)));
        Self {
            graph,
            operands: inputs.chain(ops).collect(),
        }
    }

    fn find(&self, id: OpId) -> Result<Operand, CompileError> {
        let found = self.operands.get(&id).copied();
        found.ok_or_else(|| CompileError::Fusion {
            operator: self.graph.op(id).name.clone(),
            message: "a kernel reads it and does not hold it",
        })
    }
}

impl KernelBody {
    /// Weights in order, with blank sources.
    pub fn params(&self) -> impl Iterator<Item = &Param> {
        self.ops.iter().flat_map(|op| op.op.params())
    }

    /// FLOP and bytes of one call, given the bytes of all weights and of one activation element.
    pub(crate) fn work(&self, weight_bytes: u64, element_bytes: u64) -> Work {
        let mut flops: BTreeMap<(u8, u8), u64> = BTreeMap::new();
        for op in &self.ops {
            let in_width = op
                .operands
                .first()
                .map_or(0, |operand| self.width(*operand));
            let node = crate::graph::OpNode {
                name: String::new(),
                op: op.op.clone(),
                rows: Rows::Tokens,
                width: self.op_width(op),
            };
            for term in op_work(&node, in_width) {
                *flops.entry((term.tokens, term.context)).or_default() += term.factor;
            }
        }
        let mut bytes = BTreeMap::from([((0, 0), weight_bytes)]);
        for port in self.inputs.iter().chain(&self.outputs) {
            let exponents = match port.rows {
                Rows::Tokens => (1, 0),
                Rows::Context => (0, 1),
                Rows::One => (0, 0),
            };
            *bytes.entry(exponents).or_default() += u64::from(port.width) * element_bytes;
        }
        Work {
            flops: terms(flops),
            bytes: terms(bytes),
        }
    }

    /// Width of an operand's rows.
    pub(crate) fn width(&self, operand: Operand) -> u32 {
        match operand {
            Operand::Input(index) => self.inputs.get(index).map_or(0, |port| port.width),
            Operand::Op(index) => self.ops.get(index).map_or(0, |op| self.op_width(op)),
        }
    }

    /// Width of an operator's rows: a linear operator's own, an attention's H·d, otherwise its operand's.
    pub(crate) fn op_width(&self, op: &BodyOp) -> u32 {
        match &op.op {
            Op::Linear { weight, .. } => weight.shape[0],
            Op::Attention(a) => a.heads * a.head_dim,
            Op::Input
            | Op::RmsNorm { .. }
            | Op::LayerNorm { .. }
            | Op::Rope { .. }
            | Op::Activated(_)
            | Op::Gated(_)
            | Op::Add { .. }
            | Op::Scale { .. }
            | Op::SoftCap { .. } => op
                .operands
                .first()
                .map_or(0, |operand| self.width(*operand)),
        }
    }
}

fn terms(polynomial: BTreeMap<(u8, u8), u64>) -> Vec<Term> {
    polynomial
        .into_iter()
        .filter(|(_, factor)| *factor > 0)
        .map(|((tokens, context), factor)| Term {
            factor,
            tokens,
            context,
        })
        .collect()
}

/// The operator without the attributes that differ from layer to layer.
fn anonymous(op: &Op) -> Op {
    let mut op = op.clone();
    let blank = |param: &mut Param| {
        param.source = WeightSource {
            name: String::new(),
            first_row: None,
        };
    };
    match &mut op {
        Op::RmsNorm { weight, .. } => blank(weight),
        Op::LayerNorm { weight, bias, .. } | Op::Linear { weight, bias } => {
            blank(weight);
            bias.iter_mut().for_each(blank);
        }
        Op::Rope { table, .. } => table.clear(),
        Op::Input
        | Op::Attention(_)
        | Op::Activated(_)
        | Op::Gated(_)
        | Op::Add { .. }
        | Op::Scale { .. }
        | Op::SoftCap { .. } => {}
    }
    op
}

/// Adds the inputs that an operator needs besides its operands.
fn add_ports(inputs: &mut Vec<Port>, op: &Op) {
    let wanted: &[(Role, Rows, u32)] = match op {
        Op::Rope { rotated, .. } => &[
            (Role::Cos, Rows::Tokens, rotated / 2),
            (Role::Sin, Rows::Tokens, rotated / 2),
        ],
        Op::Attention(_) => &[(Role::Position, Rows::One, 1)],
        Op::Input
        | Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::Linear { .. }
        | Op::Activated(_)
        | Op::Gated(_)
        | Op::Add { .. }
        | Op::Scale { .. }
        | Op::SoftCap { .. } => &[],
    };
    for (role, rows, width) in wanted {
        if !inputs.iter().any(|port| port.role == *role) {
            inputs.push(Port {
                role: *role,
                rows: *rows,
                width: *width,
            });
        }
    }
}

fn port(graph: &OpGraph, id: OpId, role: Role, group: Group) -> Port {
    // The attention reads the cache, not only the new rows.
    let cached = group == Group::Mha && matches!(role, Role::Key | Role::Value);
    Port {
        role,
        rows: if cached { Rows::Context } else { Rows::Tokens },
        width: graph.op(id).width,
    }
}

fn input_role(graph: &OpGraph, id: OpId) -> Role {
    let named = [
        (GraphAnchor::Query, Role::Query),
        (GraphAnchor::Key, Role::Key),
        (GraphAnchor::Value, Role::Value),
        (GraphAnchor::Attended, Role::Attended),
    ];
    named
        .into_iter()
        .find(|(anchor, _)| graph.anchor(*anchor) == Some(id))
        .map_or(Role::Hidden, |(_, role)| role)
}

fn output_roles(group: Group, gives: HeadRows) -> &'static [Role] {
    match group {
        Group::Qkv => &[Role::Query, Role::Key, Role::Value],
        Group::Mha => &[Role::Attended],
        Group::Ffn => &[Role::Hidden],
        Group::Head => match gives {
            HeadRows::Logits => &[Role::Logits],
            HeadRows::Vectors | HeadRows::Scores => &[Role::Vector],
        },
    }
}
