//! The cuts of a machine whose first device is an NPU: its compiler estimates a few pieces of each product, the solver
//! chooses by these estimates, and only the chosen pieces are compiled (HeteroLLM §4.3).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use heg_artifacts::manifest::{RowsPiece, Section};
use heg_profiler::partition::{
    Company, CutPiece, CutShape, EstimatedPair, PairLatencies, PairModel, PairShape,
    PartitionError, SocPartition, partition, products, sparse_shapes,
};
use heg_spec::{CutProduct, NpuPlatform, Side, Soc};

use super::Inquirer;
use super::pieces::{FirstPiece, LayerMatrices};
use crate::assemble::{kernel_of, model_of, parameter_of};
use crate::error::CompileError;
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
    /// First device's parts in the chosen cuts.
    parts: Vec<CompiledPart>,
    /// Pieces of their matrices, as bundles have them, ascending.
    pub(crate) pieces: Vec<RowsPiece>,
    /// Distinct blobs of these.
    pub(crate) sections: Vec<Section>,
    /// Bytes of all weights.
    weight_bytes: u64,
    /// Pieces that the compiler refuses, each with the reason.
    left_out: Vec<(String, String)>,
}

/// A part of a product with blobs for its matrices.
struct CompiledPart {
    product: CutProduct,
    /// Sections of its blobs, one for each matrix.
    blobs: Vec<Section>,
    /// The compiler's estimate relative to the one interpolated between the parts compiled before.
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
    let layer = LayerMatrices::of(inquirer.plan);
    let sparse = sparse_shapes(shapes, pair);
    let part = |at: &PairShape| FirstPiece {
        product: at.shape.product,
        rows: at.rows,
        tokens: at.tokens,
    };
    let parts: Vec<FirstPiece> = sparse.iter().map(part).collect();
    let replies = layer.ask(inquirer, &parts, platform)?;
    let known = sparse
        .iter()
        .filter_map(|at| Some((*at, layer.estimate_us(part(at), &replies)?)));
    let latencies = EstimatedPair::new(known, model).map_err(PartitionError::from)?;
    let chunk_tokens = pair.static_tokens.last().copied().unwrap_or(1);
    let partition = partition(&soc.name, pair, &latencies, shapes, chunk_tokens)?;
    let chosen = first_pieces(&partition);
    let mut found = CutBlobs {
        partition,
        platform,
        asked: replies.len(),
        parts: Vec::new(),
        pieces: Vec::new(),
        sections: Vec::new(),
        weight_bytes: weight_bytes(inquirer.plan),
        left_out: Vec::new(),
    };
    let replies = layer.ask(inquirer, &chosen, platform)?;
    for part in chosen {
        let blobs = layer.pieces(part).into_iter();
        let blobs = blobs.filter_map(|piece| Some(replies.get(&piece)?.as_ref().ok()?.made.blob));
        let expected_us = part.expected_us(shapes, &latencies);
        let ratio = layer.estimate_us(part, &replies).zip(expected_us);
        found.parts.push(CompiledPart {
            product: part.product,
            blobs: blobs.collect(),
            error: ratio.map(|(estimate, expected)| (estimate / expected - 1.0).abs()),
        });
    }
    for (piece, reply) in &replies {
        match reply {
            Err(error) => found.left_out.push((piece.to_string(), error.to_string())),
            Ok(reply) => {
                let (made, section) = layer.made(*piece, (platform, reply), inquirer)?;
                found.pieces.push(made);
                if !found.sections.contains(&section) {
                    found.sections.push(section);
                }
            }
        }
    }
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

/// Bytes of a model's stored weights, each counted once.
fn weight_bytes(plan: &Plan) -> u64 {
    let weights = plan.weights();
    let bytes = weights
        .iter()
        .map(|param| parameter_of(param, plan.weights).bytes());
    bytes.sum()
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
            let parts = self.parts.iter().filter(|it| it.product == product);
            let parts: Vec<_> = parts.collect();
            if parts.is_empty() {
                continue;
            }
            let blobs = parts.iter().flat_map(|part| &part.blobs);
            let blobs: BTreeMap<_, _> = blobs.map(|blob| (blob.id, blob.bytes)).collect();
            let mut errors: Vec<f64> = parts.iter().filter_map(|part| part.error).collect();
            errors.sort_by(f64::total_cmp);
            let median = errors.get(errors.len() / 2).copied().unwrap_or(f64::NAN);
            writeln!(
                f,
                "  {product:<9} {:>4} blobs {:>7.1} MB, expected within {:.1}% (median)",
                blobs.len(),
                megabytes(blobs.values().sum()),
                100.0 * median
            )?;
        }
        let blob_bytes = self.sections.iter().map(|section| section.bytes).sum();
        let share = 100.0 * blob_bytes as f64 / self.weight_bytes as f64;
        writeln!(
            f,
            "  in all    {:>4} blobs {:>7.1} MB, {share:.1}% of {:.1} MB of weights",
            self.sections.len(),
            megabytes(blob_bytes),
            megabytes(self.weight_bytes)
        )?;
        for (piece, why) in &self.left_out {
            writeln!(f, "  left out: {piece}: {why}")?;
        }
        Ok(())
    }
}
