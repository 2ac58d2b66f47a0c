//! The partition of a whole model: every product, for every class of c.

use heg_spec::pair::Pair;
use heg_spec::policy::Synchronisation;
use heg_spec::{CutProduct, Side};

use super::{
    ClassCut, Company, CutPiece, CutRules, CutShape, PairLatencies, PartitionError,
    ProductPartition, SocPartition, solve,
};

/// Largest number of rows that a decode iteration verifies, of which each has a class of its own up to 4, and then each
/// power of two.
pub const DECODE_ROWS_MAX: u32 = 32;

/// Rules by which cuts of a pair are chosen: for a prompt, or where `decode` is set for the rows of an iteration, which have a
/// static size of their own in `static_tokens`.
pub fn rules<'r>(
    pair: &Pair,
    synchronisation: Synchronisation,
    decode: bool,
    static_tokens: &'r [u32],
) -> CutRules<'r> {
    let costs = pair.costs(synchronisation);
    let sync_us = match decode {
        true => costs.decode_us,
        false => costs.prefill_us,
    };
    CutRules {
        static_tokens,
        row_step: pair.row_step,
        home: Side::Second,
        hand_over_us: sync_us + costs.copy_us,
    }
}

/// The partition of a model on a machine: for prompts, a class for each multiple of the smallest static size up to
/// `chunk_tokens`, but for the head, which runs on
/// last rows only; for decoding, one for each number of rows that iterations have.
///
/// Within a class every number of tokens has the cut of the largest. Errors: those of [`solve`].
pub fn partition(
    soc: &str,
    pair: &Pair,
    latencies: &impl PairLatencies,
    shapes: &[CutShape],
    chunk_tokens: u32,
) -> Result<SocPartition, PartitionError> {
    let step = pair.static_tokens.first().copied().unwrap_or(1).max(1);
    let prefill: Vec<u32> = (1..=chunk_tokens.div_ceil(step))
        .map(|steps| steps.saturating_mul(step))
        .collect();
    let decode: Vec<u32> = [1, 2, 3]
        .into_iter()
        .chain((2..=DECODE_ROWS_MAX.ilog2()).map(|power| 1 << power))
        .collect();
    let fast = Synchronisation::Fast;
    let mut products = Vec::new();
    for shape in shapes {
        // Of a prompt only the last token's logits are wanted, or a few: those are classes of decoding.
        let of_prompts = match shape.product {
            CutProduct::Head => &[][..],
            _ => &prefill,
        };
        let prefill = of_prompts.iter().map(|tokens| {
            class(
                latencies,
                shape,
                *tokens,
                rules(pair, fast, false, &pair.static_tokens),
            )
        });
        let decode = decode
            .iter()
            .map(|rows| class(latencies, shape, *rows, rules(pair, fast, true, &[*rows])));
        products.push(ProductPartition {
            product: shape.product,
            rows: shape.rows,
            row_step: shape.row_step(pair.row_step),
            prefill: prefill.collect::<Result<_, _>>()?,
            decode: decode.collect::<Result<_, _>>()?,
        });
    }
    Ok(SocPartition {
        soc: soc.to_owned(),
        static_tokens: pair.static_tokens.clone(),
        products,
    })
}

fn class(
    latencies: &impl PairLatencies,
    shape: &CutShape,
    tokens: u32,
    rules: CutRules<'_>,
) -> Result<ClassCut, PartitionError> {
    let best = solve(latencies, shape, tokens, rules)?;
    let whole = |side, tokens| {
        let piece = CutPiece {
            shape,
            rows: shape.rows,
            tokens,
        };
        latencies.piece_us(side, piece, Company::Alone)
    };
    let padded = rules.static_tokens.iter().find(|size| **size >= tokens);
    Ok(ClassCut {
        tokens,
        cut: best.cut,
        latency_us: tenths(best.latency_us),
        first_us: padded
            .and_then(|padded| whole(Side::First, *padded))
            .map(tenths),
        second_us: whole(Side::Second, tokens).map(tenths),
    })
}

/// Tenths of a microsecond are all that anyone can measure, but not nothing.
fn tenths(us: f64) -> f64 {
    ((us * 10.0).round() / 10.0).max(0.1)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use heg_spec::{Cut, shipped};

    use super::*;
    use crate::annotation::llama_3b;
    use crate::partition::{PairModel, Partitions, products};

    fn of_3b() -> SocPartition {
        let soc = shipped::soc("snapdragon-8-gen3").unwrap();
        let model = PairModel::of(&soc).unwrap();
        let manifest = llama_3b::manifest();
        let shapes = products(&manifest.model, &manifest.kernels).unwrap();
        let pair = soc.pair.unwrap();
        partition(&soc.name, &pair, &model, &shapes, 1024).unwrap()
    }

    /// Counts how often it is asked.
    struct Counted(PairModel, Cell<u32>);

    impl PairLatencies for Counted {
        fn piece_us(&self, side: Side, piece: CutPiece<'_>, company: Company) -> Option<f64> {
            self.1.set(self.1.get() + 1);
            self.0.piece_us(side, piece, company)
        }
    }

    #[test]
    fn a_model_is_partitioned_in_a_moment() {
        let soc = shipped::soc("snapdragon-8-gen3").unwrap();
        let counted = Counted(PairModel::of(&soc).unwrap(), Cell::new(0));
        let manifest = llama_3b::manifest();
        let shapes = products(&manifest.model, &manifest.kernels).unwrap();
        let pair = soc.pair.unwrap();
        let found = partition(&soc.name, &pair, &counted, &shapes, 1024).unwrap();
        // Each takes some 50 ns, so that a model takes 5 ms.
        assert!(counted.1.get() < 100_000, "{}", counted.1.get());
        assert_eq!(found.products.len(), 5);
        let document = Partitions::new(vec![found]);
        let text = document.to_text().unwrap();
        assert_eq!(Partitions::parse(&text).unwrap(), document);
    }

    #[test]
    fn a_class_has_the_cut_of_its_largest_call() {
        let found = of_3b();
        let down = found.product(CutProduct::Down).unwrap();
        let at = |tokens| down.prefill(tokens).unwrap();
        assert_eq!((at(257).tokens, at(288).tokens), (288, 288));
        assert!(matches!(at(256).cut, Cut::Rows { .. }));
        assert!(at(256).latency_us < at(256).first_us.unwrap());
        assert_eq!(down.prefill(1025), None);
        let rows: Vec<u32> = down.decode.iter().map(|class| class.tokens).collect();
        assert_eq!(rows, [1, 2, 3, 4, 8, 16, 32]);
        assert!(found.product(CutProduct::Head).unwrap().prefill.is_empty());
        assert!(matches!(down.decode(1).unwrap().cut, Cut::Rows { .. }));
    }
}
