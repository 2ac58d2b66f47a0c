//! Machines and models of the evaluation, and the cost of a product on a machine for any cut.

use anyhow::{Context, Result};
use heg_profiler::partition::{
    Company, CutPiece, CutRules, CutShape, PairLatencies, PairModel, rules, solve,
};
use heg_sim::Dimensions;
use heg_spec::pair::Pair;
use heg_spec::policy::Synchronisation;
use heg_spec::{Cut, CutProduct, Side, Soc, shipped};
use xtask::fail::Fail;

/// A machine with two devices that share products.
#[derive(Clone)]
pub(super) struct Machine {
    pub(super) soc: Soc,
    pub(super) pair: Pair,
    pub(super) rates: PairModel,
    /// Bytes per weight, including its share of scales.
    pub(super) weight_bytes: f64,
}

/// A model's shapes from its published configuration.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelShapes {
    pub(super) name: &'static str,
    pub(super) dimensions: Dimensions,
}

/// The paper's models.
pub(super) const MODELS: [ModelShapes; 4] = [
    ModelShapes {
        name: "llama-3-8b",
        dimensions: Dimensions {
            layers: 32,
            hidden: 4096,
            inner: 14_336,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            vocab: 128_256,
        },
    },
    ModelShapes {
        name: "llama-2-7b",
        dimensions: Dimensions {
            layers: 32,
            hidden: 4096,
            inner: 11_008,
            heads: 32,
            kv_heads: 32,
            head_dim: 128,
            vocab: 32_000,
        },
    },
    ModelShapes {
        name: "llama-3.2-3b",
        dimensions: Dimensions {
            layers: 28,
            hidden: 3072,
            inner: 8192,
            heads: 24,
            kv_heads: 8,
            head_dim: 128,
            vocab: 128_256,
        },
    },
    ModelShapes {
        name: "internlm2-1.8b",
        dimensions: Dimensions {
            layers: 24,
            hidden: 2048,
            inner: 8192,
            heads: 16,
            kv_heads: 8,
            head_dim: 128,
            vocab: 92_544,
        },
    },
];

impl ModelShapes {
    /// The products of a layer, and the head.
    pub(super) fn products(self, weight_bytes: f64) -> [CutShape; 5] {
        let d = self.dimensions;
        let (queries, keys) = (d.heads * d.head_dim, d.kv_heads * d.head_dim);
        let shape = |product, rows, depth, matrices: u32, unit_rows| CutShape {
            product,
            rows,
            depth,
            matrices,
            unit_rows,
            row_bytes: f64::from(depth) * f64::from(matrices) * weight_bytes,
        };
        let heads_rows = (d.heads / d.kv_heads + 2) * d.head_dim;
        [
            shape(CutProduct::Qkv, queries + 2 * keys, d.hidden, 1, heads_rows),
            shape(CutProduct::Out, d.hidden, queries, 1, 1),
            shape(CutProduct::GateUp, d.inner, d.hidden, 2, 1),
            shape(CutProduct::Down, d.hidden, d.inner, 1, 1),
            shape(CutProduct::Head, d.vocab, d.hidden, 1, 1),
        ]
    }
}

/// The cost of one or more products.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Spent {
    pub(super) latency_us: f64,
    /// Time in which each device works.
    pub(super) first_us: f64,
    pub(super) second_us: f64,
    /// Weights and activations that products read and write, in bytes.
    pub(super) moved_bytes: f64,
}

impl Spent {
    /// Adds a cost that occurs `times` times, one after the other.
    pub(super) fn add(&mut self, other: Self, times: f64) {
        self.latency_us += times * other.latency_us;
        self.first_us += times * other.first_us;
        self.second_us += times * other.second_us;
        self.moved_bytes += times * other.moved_bytes;
    }
}

impl Machine {
    /// The machine of a shipped SoC file.
    pub(super) fn of(name: &str, weight_bytes: f64) -> Result<Self> {
        let refuse = || Fail::input(format!("cannot use SoC `{name}`"));
        let soc = shipped::soc(name).with_context(refuse)?;
        let rates = PairModel::of(&soc).with_context(refuse)?;
        let pair = soc.pair.clone().with_context(refuse)?;
        Ok(Self {
            soc,
            pair,
            rates,
            weight_bytes,
        })
    }

    /// This machine while another program takes a share of its second device.
    pub(super) fn with_second_taken(&self, share: f64) -> Self {
        let mut slower = self.clone();
        slower.rates.second.flops_per_sec *= 1.0 - share;
        slower.rates.second.bytes_per_sec *= 1.0 - share;
        slower
    }

    /// The rules for choosing cuts: with fast synchronisation, as in the paper.
    pub(super) fn rules<'r>(&self, decode: bool, sizes: &'r [u32]) -> CutRules<'r> {
        rules(&self.pair, Synchronisation::Fast, decode, sizes)
    }

    /// The solver's cut.
    pub(super) fn best(&self, shape: &CutShape, tokens: u32, rules: CutRules<'_>) -> Result<Cut> {
        Ok(solve(&self.rates, shape, tokens, rules)?.cut)
    }

    fn us(&self, side: Side, shape: &CutShape, rows: u32, tokens: u32, company: Company) -> f64 {
        let us = self
            .rates
            .piece_us(side, piece(shape, rows, tokens), company);
        us.unwrap_or(f64::NAN)
    }

    /// The cost of a product with a cut. Both devices begin at once; when one is done the other has the memory to
    /// itself.
    pub(super) fn spent(
        &self,
        shape: &CutShape,
        tokens: u32,
        cut: &Cut,
        (sync, decode): (Synchronisation, bool),
    ) -> Spent {
        let (rows, sizes) = (shape.rows, self.pair.static_tokens.iter());
        let padded = match decode {
            true => tokens,
            false => sizes
                .copied()
                .find(|size| *size >= tokens)
                .unwrap_or(tokens),
        };
        let [first, second] = cut.pieces(rows, tokens, padded);
        let of = |side, pieces: &[(u32, u32)]| {
            [Company::Alone, Company::Beside].map(|company| -> f64 {
                let each = pieces
                    .iter()
                    .map(|(rows, tokens)| self.us(side, shape, *rows, *tokens, company));
                each.sum()
            })
        };
        let one = of(Side::First, &first);
        let other = of(Side::Second, &second);
        let hand_over_us = match cut {
            Cut::Whole(Side::Second) => 0.0,
            _ => rules(&self.pair, sync, decode, &[]).hand_over_us,
        };
        let pieces = first.iter().chain(&second);
        let moved_bytes =
            pieces.map(|(rows, tokens)| self.rates.moved_bytes(piece(shape, *rows, *tokens)));
        let moved_bytes = moved_bytes.sum();
        Spent {
            latency_us: together(one, other) + hand_over_us,
            first_us: one[1].min(together(one, other)),
            second_us: other[1].min(together(one, other)),
            moved_bytes,
        }
    }

    /// The cost of the second device's work between the products of a layer: norms, rotation, attention over `context`
    /// tokens, the activation, residual additions.
    pub(super) fn between(&self, model: ModelShapes, tokens: u32, context: u32) -> Spent {
        let d = model.dimensions;
        let rates = &self.rates.second;
        let [tokens, context, hidden, inner] = [tokens, context, d.hidden, d.inner].map(f64::from);
        let queries = f64::from(d.heads * d.head_dim);
        let keys = f64::from(d.kv_heads * d.head_dim);
        // Each token sees the ones before it.
        let seen = tokens * (context - (tokens - 1.0) / 2.0);
        let attention = 4.0 * seen * queries / rates.flops_per_sec;
        let cache = context * 2.0 * keys;
        // Two norms and two additions of two or three rows each, rotation in place, two inner rows to one.
        let rows = tokens * (10.0 * hidden + 2.0 * (queries + keys) + 3.0 * inner);
        let moved = (cache + rows) * self.rates.activation_bytes / rates.bytes_per_sec;
        let latency_us = (attention + moved) * 1e6;
        Spent {
            latency_us,
            second_us: latency_us,
            ..Spent::default()
        }
    }
}

const fn piece(shape: &CutShape, rows: u32, tokens: u32) -> CutPiece<'_> {
    CutPiece {
        shape,
        rows,
        tokens,
    }
}

/// The time until both are done, from the times that each takes alone and beside the other.
fn together(one: [f64; 2], other: [f64; 2]) -> f64 {
    let (sooner, later) = if one[1] <= other[1] {
        (one, other)
    } else {
        (other, one)
    };
    if sooner[1] == 0.0 {
        return later[0];
    }
    sooner[1] + (1.0 - sooner[1] / later[1]) * later[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_left_has_the_memory_for_itself() {
        assert_eq!(together([0.0, 0.0], [7.0, 10.0]), 7.0);
        assert_eq!(together([7.0, 10.0], [7.0, 10.0]), 10.0);
        // Half done beside the other, the rest alone.
        assert_eq!(together([3.0, 5.0], [8.0, 10.0]), 9.0);
    }
}
