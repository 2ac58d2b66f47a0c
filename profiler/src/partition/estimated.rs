//! Latencies: the first device's are its compiler's estimates, the second's follow from the SoC file.
//!
//! A compiler takes seconds over a piece, so that it is asked about few of them. What lies between is linear, as between
//! measured pieces.

use heg_spec::pair::Pair;
use heg_spec::{CutProduct, Side};

use super::{
    Company, CutPiece, CutShape, DECODE_ROWS_MAX, MeasuredPair, PairLatencies, PairModel, PairShape,
};
use crate::predict::TableError;

/// The pieces to ask the first device's compiler about: of each product a quarter of its rows, and all, over single tokens
/// and some of the static sizes. The head runs on the last rows of prompts only.
pub fn sparse_shapes(shapes: &[CutShape], pair: &Pair) -> Vec<PairShape> {
    let sizes = &pair.static_tokens;
    let middle = sizes.get(sizes.len() / 2);
    let of_prompts = [sizes.first(), middle, sizes.last()];
    let mut found = Vec::new();
    for shape in shapes {
        let step = shape.row_step(pair.row_step);
        let mut tokens = vec![1, DECODE_ROWS_MAX];
        if shape.product != CutProduct::Head {
            tokens.extend(of_prompts.into_iter().flatten());
        }
        tokens.sort_unstable();
        tokens.dedup();
        let quarter = (shape.rows / 4).next_multiple_of(step).min(shape.rows);
        let mut rows = vec![quarter, shape.rows];
        rows.dedup();
        found.extend(tokens.iter().flat_map(|tokens| {
            rows.iter().map(|rows| PairShape {
                shape: *shape,
                side: Side::First,
                rows: *rows,
                tokens: *tokens,
                company: Company::Alone,
            })
        }));
    }
    found
}

/// Estimated latencies of a pair.
#[derive(Debug, Clone, PartialEq)]
pub struct EstimatedPair {
    estimates: MeasuredPair,
    model: PairModel,
}

impl EstimatedPair {
    /// From what the first device's compiler says of pieces, in µs.
    ///
    /// Error: [`TableError`] for a latency that none is, or sizes that no call has.
    pub fn new(
        estimates: impl IntoIterator<Item = (PairShape, f64)>,
        model: PairModel,
    ) -> Result<Self, TableError> {
        let estimates = MeasuredPair::new(estimates)?;
        Ok(Self { estimates, model })
    }
}

impl PairLatencies for EstimatedPair {
    fn piece_us(&self, side: Side, piece: CutPiece<'_>, company: Company) -> Option<f64> {
        let estimate = match side {
            Side::First => self.estimates.piece_us(side, piece, company),
            Side::Second => None,
        };
        match estimate {
            // The compiler reckons with a memory that is the device's alone.
            Some(us) => Some(us.max(self.model.memory_us(side, piece, company))),
            None => self.model.piece_us(side, piece, company),
        }
    }
}

#[cfg(test)]
mod tests {
    use heg_spec::shipped;

    use super::*;
    use crate::annotation::llama_3b;
    use crate::partition::{partition, products};

    #[test]
    fn a_slower_estimate_leaves_the_first_device_less() {
        let soc = shipped::soc("core-ultra-5-125h").unwrap();
        let manifest = llama_3b::manifest();
        let shapes = products(&manifest.model, &manifest.kernels).unwrap();
        let (model, pair) = (PairModel::of(&soc).unwrap(), soc.pair.unwrap());
        let sparse = sparse_shapes(&shapes, &pair);
        // Four products over 1, 32, 256 and 1024 tokens, the head over 1 and 32.
        assert_eq!(sparse.len(), 2 * (4 * 4 + 2));
        let first_does = |slower: f64| -> Vec<u32> {
            let estimates = sparse.iter().map(|at| {
                let piece = CutPiece {
                    shape: &at.shape,
                    rows: at.rows,
                    tokens: at.tokens,
                };
                let us = model.piece_us(Side::First, piece, Company::Alone).unwrap();
                (*at, slower * us)
            });
            let latencies = EstimatedPair::new(estimates, model.clone()).unwrap();
            let found = partition("x", &pair, &latencies, &shapes, 256).unwrap();
            let of_prompts = found.products.iter().filter_map(|product| {
                let [first, _] = product.prefill(256)?.cut.pieces(product.rows, 256, 256);
                Some(first.iter().map(|(rows, tokens)| rows * tokens).sum())
            });
            of_prompts.collect()
        };
        let (as_modelled, slow) = (first_does(1.0), first_does(2.0));
        assert_eq!((as_modelled.len(), slow.len()), (4, 4));
        let less = as_modelled
            .iter()
            .zip(&slow)
            .all(|(more, less)| more > less);
        assert!(less, "{as_modelled:?}, {slow:?}");
    }
}
