//! The cost of a prompt and of a token, product by product, in each of the paper's ways.

use super::machine::{Machine, ModelShapes, Spent};
use anyhow::Result;
use heg_profiler::partition::CutShape;
use heg_spec::policy::Synchronisation;
use heg_spec::{Cut, CutProduct, Side};

/// A way to run a model on two devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Everything on the second device: PPL-OpenCL, the base of the paper's engine.
    Second,
    /// Each product on the device that is faster at it (Hetero-layer).
    Layer,
    /// Each product cut as the solver chooses (Hetero-tensor).
    Tensor,
    /// Products on the first device, padded to one static size.
    Padding,
    /// Products on the first device: a static size, and the margin padded to another.
    Pipe,
    /// Products on the first device, in kernels that are compiled when the prompt arrives.
    OnlinePrepare,
}

/// The cost of a prompt until its first token.
pub(super) fn prefill(
    machine: &Machine,
    model: ModelShapes,
    tokens: u32,
    (way, sync): (Way, Synchronisation),
) -> Result<Spent> {
    let mut all = Spent::default();
    let layers = f64::from(model.dimensions.layers);
    for shape in model.products(machine.weight_bytes) {
        if shape.product == CutProduct::Head {
            // Only the last token's logits are needed.
            let cut = decode_cut(machine, &shape, way)?;
            all.add(machine.spent(&shape, 1, &cut, (sync, true)), 1.0);
            continue;
        }
        let cut = prefill_cut(machine, &shape, tokens, way)?;
        all.add(machine.spent(&shape, tokens, &cut, (sync, false)), layers);
    }
    all.add(machine.between(model, tokens, tokens), layers);
    if way == Way::OnlinePrepare {
        all.latency_us += preparation_us(tokens)?;
    }
    Ok(all)
}

/// The cost of a token over `context` tokens.
pub(super) fn decode(
    machine: &Machine,
    model: ModelShapes,
    context: u32,
    (way, sync): (Way, Synchronisation),
) -> Result<Spent> {
    let mut all = Spent::default();
    let layers = f64::from(model.dimensions.layers);
    for shape in model.products(machine.weight_bytes) {
        let cut = decode_cut(machine, &shape, way)?;
        let times = if shape.product == CutProduct::Head {
            1.0
        } else {
            layers
        };
        all.add(machine.spent(&shape, 1, &cut, (sync, true)), times);
    }
    all.add(machine.between(model, 1, context), layers);
    Ok(all)
}

/// The cut of a product during prefill.
pub(super) fn prefill_cut(
    machine: &Machine,
    shape: &CutShape,
    tokens: u32,
    way: Way,
) -> Result<Cut> {
    let sizes = &machine.pair.static_tokens;
    Ok(match way {
        Way::Second => Cut::Whole(Side::Second),
        Way::Layer => {
            let sync = Synchronisation::Fast;
            let us = |side| {
                machine
                    .spent(shape, tokens, &Cut::Whole(side), (sync, false))
                    .latency_us
            };
            let faster = us(Side::First) < us(Side::Second);
            Cut::Whole(if faster { Side::First } else { Side::Second })
        }
        Way::Tensor => machine.best(shape, tokens, machine.rules(false, sizes))?,
        Way::Padding => Cut::Whole(Side::First),
        Way::OnlinePrepare => Cut::Tokens {
            sizes: vec![tokens],
        },
        Way::Pipe => pipe(tokens, sizes),
    })
}

/// A cut of the largest full static size, with the margin padded to the smallest size that has room for it.
fn pipe(tokens: u32, sizes: &[u32]) -> Cut {
    let full = sizes.iter().rev().find(|size| **size < tokens);
    let margin = |full| sizes.iter().find(|size| **size >= tokens - full);
    match full.and_then(|full| Some(vec![*full, *margin(*full)?])) {
        Some(pieces) if !sizes.contains(&tokens) => Cut::Tokens { sizes: pieces },
        _ => Cut::Whole(Side::First),
    }
}

/// The cut of a product during decoding.
pub(super) fn decode_cut(machine: &Machine, shape: &CutShape, way: Way) -> Result<Cut> {
    match way {
        Way::Tensor => machine.best(shape, 1, machine.rules(true, &[1])),
        // The NPU is not faster at one token (HeteroLLM 5.3).
        _ => Ok(Cut::Whole(Side::Second)),
    }
}

/// Time to compile kernels for a prompt of an odd length, interpolated between the paper's two figures (5.2.2).
fn preparation_us(tokens: u32) -> Result<f64> {
    let [(few, few_us), (many, many_us)] = *super::figures::figures()?.preparation_us;
    let share = (f64::from(tokens) - few) / (many - few);
    Ok(few_us + share * (many_us - few_us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_has_a_full_size_and_a_margin() {
        let sizes = [32, 64, 128, 256, 512, 1024];
        let pieces = |tokens| match pipe(tokens, &sizes) {
            Cut::Tokens { sizes } => sizes,
            _ => Vec::new(),
        };
        assert_eq!(pieces(525), [512, 32]);
        assert_eq!(pieces(600), [512, 128]);
        assert_eq!((pieces(512), pieces(20)), (Vec::new(), Vec::new()));
    }

    #[test]
    fn preparation_is_the_papers_where_it_has_figures() {
        assert_eq!(preparation_us(135).unwrap(), 408_400.0);
        assert_eq!(preparation_us(1000).unwrap(), 2_050_000.0);
    }
}
