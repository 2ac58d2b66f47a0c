//! FLOP and byte counts per operator, as polynomials over c (tokens) and n (visible context).

use heg_artifacts::manifest::Term;

use super::op::{Op, OpNode};

/// Floating-point operations of one operator; a multiply-add counts two, any other element-wise step one.
///
/// The constants of norms, rotary embedding and activations follow from their definitions; transcendental
/// functions count as one.
pub(crate) fn op_work(node: &OpNode, in_width: u32) -> Vec<Term> {
    let width = u64::from(node.width);
    let per_token = |factor: u64| {
        vec![Term {
            factor,
            tokens: 1,
            context: 0,
        }]
    };
    match &node.op {
        Op::Input => Vec::new(),
        Op::RmsNorm { .. } => per_token(4 * width),
        Op::LayerNorm { .. } => per_token(7 * width),
        Op::Linear { bias, .. } => {
            let bias = if bias.is_some() { width } else { 0 };
            per_token(2 * u64::from(in_width) * width + bias)
        }
        Op::Rope { heads, rotated, .. } => per_token(3 * u64::from(*heads) * u64::from(*rotated)),
        Op::Attention(a) => {
            // Scores and weighted sum are 2·d each per (query head, token, visible token); the softmax is 4.
            let heads = u64::from(a.heads);
            let soft = 4 + if a.softcap.is_some() { 3 } else { 0 };
            vec![Term {
                factor: heads * (4 * u64::from(a.head_dim) + soft),
                tokens: 1,
                context: 1,
            }]
        }
        Op::Activated(_) => per_token(2 * width),
        Op::Gated(_) => per_token(3 * width),
        Op::Add { b_scale } => per_token(if *b_scale == 1.0 { width } else { 2 * width }),
        Op::Scale { .. } => per_token(width),
        Op::SoftCap { .. } => per_token(3 * width),
    }
}
