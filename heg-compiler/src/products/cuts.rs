//! The cuts of a machine whose first device is an NPU: its compiler estimates a few pieces of each product, the solver
//! chooses by these estimates, and only the chosen pieces are compiled (HeteroLLM §4.3).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use heg_profiler::partition::{
    Company, CutPiece, CutShape, EstimatedPair, PairLatencies, PairModel, PartitionError,
    SocPartition, partition, products, sparse_shapes,
};
use heg_spec::{CutProduct, Group, NpuPlatform, Side, Soc};

use super::{Inquirer, Inquiry, Linear, kernel};
use crate::assemble::{kernel_of, model_of, parameter_of};
use crate::error::CompileError;
use crate::graph::{Activation, Op};
use crate::heg::KernelBody;
use crate::lower::WeightsFirst;
use crate::plan::Plan;

/// Computes the cuts of each machine; returns the results as text.
pub(crate) fn cuts(inquirer: &Inquirer<'_>, socs: &[Soc]) -> Result<String, CompileError> {
    if socs.is_empty() {
        return Err(CompileError::NothingToAsk {
            expected: "machines to partition the model for",
        });
    }
    let plan = inquirer.plan;
    let bodies = plan.heg.kernels.iter();
    let kernels: Vec<_> = bodies.map(|body| kernel_of(body, plan.weights)).collect();
    let shapes = products(&model_of(plan, "", &plan.weights()), &kernels)?;
    let each = socs.iter().map(|soc| {
        let found = cut_blobs(inquirer, soc, &shapes)?;
        Ok(found.to_string())
    });
    each.collect()
}

/// The cuts of a machine, and the blobs of its first device's pieces.
pub(crate) struct CutBlobs {
    pub(crate) partition: SocPartition,
    platform: NpuPlatform,
    /// Number of pieces compiled for estimates before the cuts were chosen.
    asked: usize,
    /// Pieces of the chosen cuts.
    pieces: Vec<CompiledPiece>,
    /// Bytes of distinct blobs.
    blob_bytes: u64,
    /// Bytes of all weights.
    weight_bytes: u64,
    /// Pieces that the compiler refuses, each with the reason.
    left_out: Vec<(String, String)>,
}

/// A part of a product on the first device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FirstPiece {
    product: CutProduct,
    rows: u32,
    tokens: u32,
}

/// A piece with its blob.
struct CompiledPiece {
    product: CutProduct,
    blob_bytes: u64,
    /// The compiler's estimate relative to the one interpolated between the pieces compiled before.
    error: Option<f64>,
}

/// The platform of a pair's first device.
pub(crate) fn npu_of(soc: &Soc) -> Option<NpuPlatform> {
    let first = soc.pair.as_ref()?.device(Side::First);
    Some(soc.devices.get(first)?.npu.as_ref()?.platform)
}

/// The cuts of a machine, by estimates of its NPU's compiler.
pub(crate) fn cut_blobs(
    inquirer: &Inquirer<'_>,
    soc: &Soc,
    shapes: &[CutShape],
) -> Result<CutBlobs, CompileError> {
    let model = PairModel::of(soc)?;
    let no_pair = || PartitionError::NoPair {
        soc: soc.name.clone(),
    };
    let pair = soc.pair.as_ref().ok_or_else(no_pair)?;
    let platform = npu_of(soc).ok_or(CompileError::NothingToAsk {
        expected: "a machine whose first device has an NPU's `platform`",
    })?;
    let layer = LayerProducts::of(inquirer.plan);
    let sparse = sparse_shapes(shapes, pair);
    let pieces: Vec<FirstPiece> = sparse
        .iter()
        .map(|at| FirstPiece {
            product: at.shape.product,
            rows: at.rows,
            tokens: at.tokens,
        })
        .collect();
    let replies = inquirer.ask(&layer.inquiries(&pieces, platform))?;
    let known = sparse.iter().zip(&replies);
    let known = known.filter_map(|(at, reply)| Some((*at, reply.as_ref().ok()?.latency_us?)));
    let latencies = EstimatedPair::new(known, model).map_err(PartitionError::from)?;
    let chunk_tokens = pair.static_tokens.last().copied().unwrap_or(1);
    let partition = partition(&soc.name, pair, &latencies, shapes, chunk_tokens)?;
    let chosen = first_pieces(&partition);
    let replies = inquirer.ask(&layer.inquiries(&chosen, platform))?;
    let mut found = CutBlobs {
        partition,
        platform,
        asked: sparse.len(),
        pieces: Vec::new(),
        blob_bytes: 0,
        weight_bytes: weight_bytes(inquirer.plan),
        left_out: Vec::new(),
    };
    let mut blobs = BTreeMap::new();
    for (piece, reply) in chosen.iter().zip(replies) {
        match reply {
            Err(error) => found.left_out.push((piece.to_string(), error.to_string())),
            Ok(reply) => {
                let blob = reply.made.blob;
                blobs.insert(blob.id, blob.bytes);
                let expected_us = piece.expected_us(shapes, &latencies);
                let ratio = reply.latency_us.zip(expected_us);
                found.pieces.push(CompiledPiece {
                    product: piece.product,
                    blob_bytes: blob.bytes,
                    error: ratio.map(|(estimate, expected)| (estimate / expected - 1.0).abs()),
                });
            }
        }
    }
    found.blob_bytes = blobs.values().sum();
    Ok(found)
}

/// The distinct pieces of the first device in all classes of a partition.
fn first_pieces(partition: &SocPartition) -> Vec<FirstPiece> {
    let mut found = BTreeSet::new();
    for product in &partition.products {
        let padded = |tokens: u32| {
            let mut sizes = partition.static_tokens.iter().copied();
            sizes.find(|size| *size >= tokens).unwrap_or(tokens)
        };
        let prompts = product.prefill.iter();
        let prompts = prompts.map(|class| (class, padded(class.tokens)));
        let decoding = product.decode.iter().map(|class| (class, class.tokens));
        for (class, padded_tokens) in prompts.chain(decoding) {
            let [first, _] = class.cut.pieces(product.rows, class.tokens, padded_tokens);
            found.extend(first.into_iter().map(|(rows, tokens)| FirstPiece {
                product: product.product,
                rows,
                tokens,
            }));
        }
    }
    found.into_iter().collect()
}

impl FirstPiece {
    fn expected_us(self, shapes: &[CutShape], latencies: &EstimatedPair) -> Option<f64> {
        let shape = shapes.iter().find(|shape| shape.product == self.product)?;
        let piece = CutPiece {
            shape,
            rows: self.rows,
            tokens: self.tokens,
        };
        latencies.piece_us(Side::First, piece, Company::Alone)
    }
}

impl fmt::Display for FirstPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rows of {} over {} tokens",
            self.rows, self.product, self.tokens
        )
    }
}

/// Bytes of a model's stored weights, each counted once.
fn weight_bytes(plan: &Plan) -> u64 {
    let weights = plan.weights();
    let bytes = weights
        .iter()
        .map(|param| parameter_of(param, plan.weights).bytes());
    bytes.sum()
}

/// The linear operators of a layer and of the head, in execution order. Every layer has the same ones.
struct LayerProducts {
    /// Query, key and value projections.
    qkv: Vec<Linear>,
    /// Output, gate, up and down projections.
    ffn: Vec<Linear>,
    head: Vec<Linear>,
    activation: Option<Activation>,
}

impl LayerProducts {
    fn of(plan: &Plan) -> Self {
        let ops = |group| {
            let mut bodies = plan.heg.kernels.iter();
            let body = bodies.find(|body| body.group == group);
            body.into_iter().flat_map(|body| &body.ops)
        };
        let linears = |group| ops(group).filter_map(|op| Linear::of(&op.op)).collect();
        let activation = ops(Group::Ffn).find_map(|op| match op.op {
            Op::Gated(activation) => Some(activation),
            _ => None,
        });
        Self {
            qkv: linears(Group::Qkv),
            ffn: linears(Group::Ffn),
            head: linears(Group::Head),
            activation,
        }
    }

    fn inquiries(&self, pieces: &[FirstPiece], platform: NpuPlatform) -> Vec<Inquiry> {
        let each = pieces.iter().map(|piece| Inquiry {
            name: format!("{piece} for NPU {platform}"),
            body: self.body(piece.product, piece.rows),
            tokens: piece.tokens,
            weights_first: WeightsFirst::NONE,
            platform,
        });
        each.collect()
    }

    /// The first rows of a product as a kernel; for queries, keys and values, those of the same number of groups of
    /// heads.
    fn body(&self, product: CutProduct, rows: u32) -> KernelBody {
        let (linears, gate) = match product {
            CutProduct::Qkv | CutProduct::Attention => (&self.qkv[..], None),
            CutProduct::Out => (self.ffn.get(..1).unwrap_or_default(), None),
            CutProduct::GateUp => (self.ffn.get(1..3).unwrap_or_default(), self.activation),
            CutProduct::Down => (self.ffn.get(3..).unwrap_or_default(), None),
            CutProduct::Head => (&self.head[..], None),
        };
        let all: u64 = match product {
            CutProduct::GateUp => linears.first().map_or(1, Linear::rows).into(),
            _ => linears.iter().map(|linear| u64::from(linear.rows())).sum(),
        };
        let part = |linear: &Linear| {
            let part = u64::from(linear.rows()) * u64::from(rows) / all.max(1);
            linear.first(u32::try_from(part).unwrap_or(u32::MAX))
        };
        let parts: Vec<Linear> = linears.iter().map(part).collect();
        kernel(&parts, gate)
    }
}

impl fmt::Display for CutBlobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (soc, platform) = (&self.partition.soc, self.platform);
        writeln!(
            f,
            "{soc}, NPU {platform}: cuts by estimates of {} pieces",
            self.asked
        )?;
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        for product in CutProduct::ALL {
            let pieces: Vec<_> = self
                .pieces
                .iter()
                .filter(|it| it.product == product)
                .collect();
            if pieces.is_empty() {
                continue;
            }
            let bytes = pieces.iter().map(|piece| piece.blob_bytes).sum();
            let mut errors: Vec<f64> = pieces.iter().filter_map(|piece| piece.error).collect();
            errors.sort_by(f64::total_cmp);
            let median = errors.get(errors.len() / 2).copied().unwrap_or(f64::NAN);
            writeln!(
                f,
                "  {product:<9} {:>4} blobs {:>7.1} MB, expected within {:.1}% (median)",
                pieces.len(),
                megabytes(bytes),
                100.0 * median
            )?;
        }
        let share = 100.0 * self.blob_bytes as f64 / self.weight_bytes as f64;
        writeln!(
            f,
            "  in all    {:>4} blobs {:>7.1} MB, {share:.1}% of {:.1} MB of weights",
            self.pieces.len(),
            megabytes(self.blob_bytes),
            megabytes(self.weight_bytes)
        )?;
        for (piece, why) in &self.left_out {
            writeln!(f, "  left out: {piece}: {why}")?;
        }
        Ok(())
    }
}
