//! Instantiates the operators of an architecture file for one layer, or for the head.

use std::collections::BTreeMap;

use heg_artifacts::manifest::Rows;
use heg_spec::architecture::{HeadRows, LAYER_INPUT, Op as SpecOp, Operator};
use heg_spec::expr::Expr;
use heg_spec::fusion::GraphAnchor;
use heg_spec::{Architecture, Sight, WeightName};
use petgraph::graph::{DiGraph, NodeIndex};

use super::OpGraph;
use super::dims::{Dims, SpecScope};
use super::op::{Activation, Attention, Op, OpNode, Param, ParamKind, WeightSource};
use crate::error::CompileError;
use heg_ingest::ConfigJson;

/// The graph of layer `layer`.
pub(crate) fn build_layer(
    architecture: &Architecture,
    config: &ConfigJson,
    dims: &Dims,
    layer: u32,
) -> Result<OpGraph, CompileError> {
    let scope = SpecScope::new(architecture, config, Some(layer));
    Builder::new(architecture, scope, dims, layer).build(&architecture.layer, dims.hidden)
}

/// The graph from the last layer's output to the rows that the head gives.
pub(crate) fn build_head(
    architecture: &Architecture,
    config: &ConfigJson,
    dims: &Dims,
) -> Result<OpGraph, CompileError> {
    let scope = SpecScope::new(architecture, config, None);
    let width = match architecture.gives {
        HeadRows::Logits => dims.vocab,
        HeadRows::Vectors => dims.hidden,
        HeadRows::Scores => 1,
    };
    Builder::new(architecture, scope, dims, dims.layers).build(&architecture.head, width)
}

struct Builder<'a> {
    architecture: &'a Architecture,
    scope: SpecScope<'a>,
    dims: &'a Dims,
    layer: u32,
    ops: DiGraph<OpNode, usize>,
    /// Wires by name. An operator without effect here has its input's node.
    wires: BTreeMap<String, NodeIndex>,
    anchors: BTreeMap<GraphAnchor, NodeIndex>,
}

impl<'a> Builder<'a> {
    fn new(
        architecture: &'a Architecture,
        scope: SpecScope<'a>,
        dims: &'a Dims,
        layer: u32,
    ) -> Self {
        let mut ops = DiGraph::new();
        let input = ops.add_node(OpNode {
            name: LAYER_INPUT.to_owned(),
            op: Op::Input,
            rows: Rows::Tokens,
            width: dims.hidden,
        });
        Self {
            architecture,
            scope,
            dims,
            layer,
            ops,
            wires: BTreeMap::from([(LAYER_INPUT.to_owned(), input)]),
            anchors: BTreeMap::from([(GraphAnchor::Input, input)]),
        }
    }

    fn build(mut self, operators: &[Operator], out_width: u32) -> Result<OpGraph, CompileError> {
        let mut last = self.wires[LAYER_INPUT];
        for Operator(name, op) in operators {
            last = self.operator(name, op)?;
            self.wires.insert(name.clone(), last);
        }
        let found = self.ops[last].width;
        if found != out_width {
            return Err(self.width_error(&self.ops[last].name, out_width, found));
        }
        self.anchors.insert(GraphAnchor::Output, last);
        Ok(OpGraph {
            ops: self.ops,
            anchors: self.anchors,
        })
    }

    /// Adds one operator and returns its output; for an operator that is switched off, its input.
    fn operator(&mut self, name: &str, op: &SpecOp) -> Result<NodeIndex, CompileError> {
        let inputs = self.inputs(name, op)?;
        let input = inputs[0];
        let width = self.ops[input].width;
        let (op, out_width) = match op {
            SpecOp::RmsNorm {
                weight,
                eps,
                offset,
                groups,
                ..
            } => {
                let groups = self.groups(name, groups.as_ref(), width)?;
                let op = Op::RmsNorm {
                    weight: self.vector(name, "weight", weight, width / groups)?,
                    eps: self.scope.positive(eps)? as f32,
                    offset: offset.as_ref().map_or(Ok(0.0), |o| self.scope.number(o))?,
                    groups,
                };
                (op, width)
            }
            SpecOp::LayerNorm {
                weight, bias, eps, ..
            } => {
                let op = Op::LayerNorm {
                    weight: self.vector(name, "weight", weight, width)?,
                    bias: bias
                        .as_ref()
                        .map(|b| self.vector(name, "bias", b, width))
                        .transpose()?,
                    eps: self.scope.positive(eps)? as f32,
                };
                (op, width)
            }
            SpecOp::Linear { out, .. } => {
                let out = self.scope.count(out)?;
                (self.linear(name, op, width, out)?, out)
            }
            SpecOp::Rope {
                heads, table, when, ..
            } => {
                if !self.scope.truth(when.as_ref(), true)? {
                    return Ok(input);
                }
                (self.rope(name, heads, table, width)?, width)
            }
            SpecOp::Attention { .. } => return self.attention(name, &inputs, op),
            SpecOp::Activated { activation, .. } => {
                (Op::Activated(self.activation(activation)?), width)
            }
            SpecOp::Gated { activation, .. } => {
                self.same_width(name, &inputs)?;
                (Op::Gated(self.activation(activation)?), width)
            }
            SpecOp::Add { b_scale, .. } => {
                self.same_width(name, &inputs)?;
                let b_scale = b_scale.as_ref().map_or(Ok(1.0), |s| self.scope.number(s))?;
                (Op::Add { b_scale }, width)
            }
            SpecOp::Scale { factor, .. } => match self.scope.number_or_none(factor)? {
                None | Some(1.0) => return Ok(input),
                Some(factor) => (Op::Scale { factor }, width),
            },
            SpecOp::SoftCap { cap, .. } => match self.scope.positive_or_none(cap)? {
                None => return Ok(input),
                Some(cap) => (Op::SoftCap { cap: cap as f32 }, width),
            },
        };
        Ok(self.push(name, op, out_width, &inputs))
    }

    fn push(&mut self, name: &str, op: Op, width: u32, inputs: &[NodeIndex]) -> NodeIndex {
        let node = self.ops.add_node(OpNode {
            name: name.to_owned(),
            op,
            rows: Rows::Tokens,
            width,
        });
        for (operand, input) in inputs.iter().enumerate() {
            self.ops.add_edge(*input, node, operand);
        }
        node
    }

    fn inputs(&self, name: &str, op: &SpecOp) -> Result<Vec<NodeIndex>, CompileError> {
        let find = |wire: &str| {
            self.wires
                .get(wire)
                .copied()
                .ok_or_else(|| CompileError::Wire {
                    architecture: self.architecture.name.clone(),
                    operator: name.to_owned(),
                    wire: wire.to_owned(),
                })
        };
        op.inputs().into_iter().map(find).collect()
    }

    /// Number of groups of a norm, which divides the width; one if it is not given.
    fn groups(&self, name: &str, groups: Option<&Expr>, width: u32) -> Result<u32, CompileError> {
        let groups = groups.map_or(Ok(1), |groups| self.scope.count(groups))?;
        match width.is_multiple_of(groups) {
            true => Ok(groups),
            false => {
                let nearest = (width / groups).max(1) * groups;
                Err(self.width_error(name, nearest, width))
            }
        }
    }

    fn linear(&self, name: &str, op: &SpecOp, width: u32, out: u32) -> Result<Op, CompileError> {
        let SpecOp::Linear {
            weight,
            first_row,
            bias,
            bias_when,
            tied_when,
            ..
        } = op
        else {
            return Err(self.width_error(name, out, width));
        };
        let tied = self.scope.truth(tied_when.as_ref(), false)?;
        let pattern = if tied {
            &self.architecture.embedding.weight
        } else {
            weight
        };
        let first_row = first_row.as_ref().map(|r| self.scope.row(r)).transpose()?;
        let bias = match bias {
            Some(bias) if self.scope.truth(bias_when.as_ref(), true)? => {
                Some(self.vector(name, "bias", bias, out)?)
            }
            _ => None,
        };
        let weight = Param {
            slot: format!("{name}.weight"),
            source: WeightSource {
                name: self.scope.weight_name(pattern)?,
                first_row,
            },
            kind: match self.layer == self.dims.layers {
                true => ParamKind::Table,
                false => ParamKind::Matrix,
            },
            shape: vec![out, width],
        };
        Ok(Op::Linear { weight, bias })
    }

    fn rope(&self, name: &str, heads: &Expr, table: &Expr, width: u32) -> Result<Op, CompileError> {
        let heads = self.scope.count(heads)?;
        if width != heads * self.dims.head_dim {
            return Err(self.width_error(name, heads * self.dims.head_dim, width));
        }
        let table = self.scope.text(table)?;
        let rope = self
            .architecture
            .rope
            .get(&table)
            .ok_or_else(|| CompileError::Wire {
                architecture: self.architecture.name.clone(),
                operator: name.to_owned(),
                wire: table.clone(),
            })?;
        let rotated = self.scope.count(&rope.dim)?;
        if !rotated.is_multiple_of(2) || rotated > self.dims.head_dim {
            return Err(CompileError::Dimension {
                name: "rope.dim",
                expected: format!(
                    "an even number up to the head dimension {}",
                    self.dims.head_dim
                ),
                found: rotated.to_string(),
            });
        }
        Ok(Op::Rope {
            heads,
            rotated,
            table,
        })
    }

    fn attention(
        &mut self,
        name: &str,
        inputs: &[NodeIndex],
        op: &SpecOp,
    ) -> Result<NodeIndex, CompileError> {
        let SpecOp::Attention {
            scale,
            window,
            softcap,
            sight,
            ..
        } = op
        else {
            return Ok(inputs[0]);
        };
        let Dims {
            heads,
            kv_heads,
            head_dim,
            ..
        } = *self.dims;
        let expected = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim];
        for (input, expected) in inputs.iter().zip(expected) {
            let found = self.ops[*input].width;
            if found != expected {
                return Err(self.width_error(name, expected, found));
            }
        }
        let attention = Attention {
            heads,
            kv_heads,
            head_dim,
            scale: self.scope.number(scale)?,
            window: window
                .as_ref()
                .map_or(Ok(None), |w| self.scope.count_or_none(w))?,
            softcap: softcap
                .as_ref()
                .map_or(Ok(None), |s| self.scope.positive_or_none(s))?
                .map(|cap| cap as f32),
            sight: *sight,
        };
        if *sight == Sight::Whole {
            self.check_whole(name, attention.window)?;
        }
        let node = self.push(name, Op::Attention(attention), heads * head_dim, inputs);
        for (anchor, input) in [GraphAnchor::Query, GraphAnchor::Key, GraphAnchor::Value]
            .iter()
            .zip(inputs)
        {
            self.anchors.insert(*anchor, *input);
        }
        self.anchors.insert(GraphAnchor::Attended, node);
        Ok(node)
    }

    /// Checks that a text may be seen as a whole: there is no window, and the model gives no tokens one after the other.
    fn check_whole(&self, name: &str, window: Option<u32>) -> Result<(), CompileError> {
        let expected = match (window, self.architecture.gives) {
            (Some(_), _) => "no window, as all tokens see the whole text",
            (None, HeadRows::Logits) => {
                "`gives: Vectors` or `gives: Scores`, as all tokens see the whole text"
            }
            (None, HeadRows::Vectors | HeadRows::Scores) => return Ok(()),
        };
        Err(CompileError::Sight {
            architecture: self.architecture.name.clone(),
            operator: name.to_owned(),
            expected,
        })
    }

    fn activation(&self, expr: &Expr) -> Result<Activation, CompileError> {
        let name = self.scope.text(expr)?;
        match name.as_str() {
            "silu" | "swish" => Ok(Activation::Silu),
            "gelu" => Ok(Activation::Gelu),
            "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Ok(Activation::GeluTanh),
            _ => Err(CompileError::Value {
                architecture: self.architecture.name.clone(),
                expression: expr.text().to_owned(),
                expected: "one of 'silu', 'gelu', 'gelu_pytorch_tanh'",
                found: format!("'{name}'"),
            }),
        }
    }

    fn vector(
        &self,
        op: &str,
        part: &str,
        pattern: &WeightName,
        width: u32,
    ) -> Result<Param, CompileError> {
        Ok(Param {
            slot: format!("{op}.{part}"),
            source: WeightSource {
                name: self.scope.weight_name(pattern)?,
                first_row: None,
            },
            kind: ParamKind::Vector,
            shape: vec![width],
        })
    }

    fn same_width(&self, name: &str, inputs: &[NodeIndex]) -> Result<(), CompileError> {
        let (a, b) = (self.ops[inputs[0]].width, self.ops[inputs[1]].width);
        if a == b {
            Ok(())
        } else {
            Err(self.width_error(name, a, b))
        }
    }

    fn width_error(&self, operator: &str, expected: u32, found: u32) -> CompileError {
        CompileError::Width {
            architecture: self.architecture.name.clone(),
            operator: operator.to_owned(),
            expected,
            found,
        }
    }
}
