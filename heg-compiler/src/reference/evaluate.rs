//! Computes a kernel's outputs from its inputs and weights, operator by operator.

use heg_artifacts::Error;
use heg_artifacts::manifest::Role;

use super::attention::{Cache, attention};
use super::elementwise::{activated, add, gated, layer_norm, map, rms_norm, rope};
use crate::graph::Op;
use crate::heg::{KernelBody, Operand};
use heg_quant::{MappedWeight, ValueRows, linear};

/// Computes the outputs of `body`, in port order. `inputs` are those of its ports, `weights` those of its parameters.
///
/// Errors: [`Error::Corrupt`] if a weight's bytes do not match its name.
pub(crate) fn evaluate(
    body: &KernelBody,
    inputs: &[ValueRows],
    weights: &[MappedWeight],
) -> Result<Vec<ValueRows>, Error> {
    let input = |role| {
        let at = body.inputs.iter().position(|port| port.role == role);
        at.and_then(|at| inputs.get(at))
    };
    let mut weights = weights.iter();
    let mut results: Vec<ValueRows> = Vec::with_capacity(body.ops.len());
    for op in &body.ops {
        let params: Vec<&MappedWeight> = weights.by_ref().take(op.op.params().len()).collect();
        let operands: Vec<&ValueRows> = op
            .operands
            .iter()
            .map(|operand| operand_of(*operand, inputs, &results))
            .collect();
        results.push(apply(&op.op, &operands, &params, &input)?);
    }
    let outputs = body.results.iter();
    Ok(outputs
        .map(|operand| operand_of(*operand, inputs, &results).clone())
        .collect())
}

fn operand_of<'t>(
    operand: Operand,
    inputs: &'t [ValueRows],
    results: &'t [ValueRows],
) -> &'t ValueRows {
    match operand {
        Operand::Input(index) => &inputs[index],
        Operand::Op(index) => &results[index],
    }
}

fn apply<'t>(
    op: &Op,
    operands: &[&ValueRows],
    params: &[&MappedWeight],
    input: &impl Fn(Role) -> Option<&'t ValueRows>,
) -> Result<ValueRows, Error> {
    let x = operands[0];
    Ok(match op {
        // The residual stream is an operand of others, never an operator of a kernel.
        Op::Input => x.clone(),
        Op::RmsNorm {
            eps,
            offset,
            groups,
            ..
        } => rms_norm(x, &params[0].values().floats()?, *eps, *offset, *groups),
        Op::LayerNorm { eps, .. } => {
            let bias = params
                .get(1)
                .map(|bias| bias.values().floats())
                .transpose()?;
            layer_norm(x, &params[0].values().floats()?, bias.as_deref(), *eps)
        }
        Op::Linear { .. } => linear(x, params[0], params.get(1).copied())?,
        Op::Rope { heads, rotated, .. } => match (input(Role::Cos), input(Role::Sin)) {
            (Some(cos), Some(sin)) => rope(x, cos, sin, *heads as usize, *rotated as usize),
            _ => x.clone(),
        },
        Op::Attention(a) => {
            let position = input(Role::Position).and_then(|position| position.values.first());
            let cache = Cache {
                keys: operands[1],
                values: operands[2],
                position: position.copied().unwrap_or_default() as usize,
            };
            attention(x, &cache, a)
        }
        Op::Activated(activation) => map(x, |x| activated(*activation, x)),
        Op::Gated(activation) => gated(x, operands[1], *activation),
        Op::Add { b_scale } => add(x, operands[1], *b_scale),
        Op::Scale { factor } => map(x, |x| f64::from(*factor) * x),
        Op::SoftCap { cap } => {
            let cap = f64::from(*cap);
            map(x, |x| cap * libm::tanh(x / cap))
        }
    })
}
