//! Pieces of products for an NPU: the rows of each matrix that a part of a product has, and a blob for each.
//!
//! A program multiplies matrices apart and adds biases, residuals and activations itself, so a piece is one matrix's rows
//! and nothing else. Rows are inputs: matrices of one form share a piece, in all layers.

use std::collections::BTreeMap;
use std::fmt;

use heg_artifacts::manifest::{ElementType, RowsForm, RowsPiece, Section};
use heg_spec::{CutProduct, DEVICE_STEP, DeviceClass, Group, NpuPlatform, matrix_outputs};

use super::{Inquirer, Inquiry, Linear, Reply, kernel};
use crate::assemble::parameter_of;
use crate::error::CompileError;
use crate::graph::Op;
use crate::lower::WeightsFirst;
use crate::npu::NpuError;
use crate::plan::Plan;
use crate::precompile::blob_of;
use crate::variants::activations;

/// A part of a product on the first device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FirstPiece {
    pub(super) product: CutProduct,
    pub(super) rows: u32,
    pub(super) tokens: u32,
}

/// Rows of a matrix over a number of tokens: the work of one blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MatrixPiece {
    form: RowsForm,
    rows: u32,
    tokens: u32,
}

/// The compiler's replies, by piece.
pub(super) type PieceReplies = BTreeMap<MatrixPiece, Result<Reply, NpuError>>;

/// The matrices of a layer and of the head, by product. Every layer has the same ones.
pub(super) struct LayerMatrices {
    of_product: BTreeMap<CutProduct, Vec<(RowsForm, Linear)>>,
    activations: ElementType,
}

impl LayerMatrices {
    pub(super) fn of(plan: &Plan) -> Self {
        let linears = |group| {
            let body = plan.heg.kernels.iter().find(|body| body.group == group);
            let ops = body.into_iter().flat_map(|body| &body.ops);
            ops.filter_map(|op| linear(&op.op, plan)).collect()
        };
        let qkv: Vec<_> = linears(Group::Qkv);
        let ffn: Vec<_> = linears(Group::Ffn);
        let part = |range: std::ops::Range<usize>| ffn.get(range).unwrap_or_default().to_vec();
        let of_product = [
            (CutProduct::Qkv, qkv),
            (CutProduct::Out, part(0..1)),
            (CutProduct::GateUp, part(1..3)),
            (CutProduct::Down, part(3..4)),
            (CutProduct::Head, linears(Group::Head)),
        ];
        Self {
            of_product: of_product.into(),
            activations: activations(DeviceClass::Npu, plan.weights),
        }
    }

    /// The pieces of a part, by the rule by which a pair divides the matrices of a product.
    pub(super) fn pieces(&self, part: FirstPiece) -> Vec<MatrixPiece> {
        let matrices = self.of_product.get(&part.product);
        let matrices = matrices.map_or(&[][..], Vec::as_slice);
        let widths = matrices.iter().map(|(_, linear)| linear.rows() as usize);
        let all = match part.product {
            CutProduct::GateUp => widths.max().unwrap_or(0),
            _ => widths.sum(),
        };
        let piece = |(form, linear): &(RowsForm, Linear)| {
            let width = linear.rows() as usize;
            let rows = matrix_outputs(part.rows as usize, all, width, DEVICE_STEP);
            MatrixPiece {
                form: *form,
                rows: u32::try_from(rows).unwrap_or(u32::MAX),
                tokens: part.tokens,
            }
        };
        let pieces = matrices.iter().map(piece);
        pieces.filter(|piece| piece.rows > 0).collect()
    }

    /// Asks the compiler about the pieces of some parts.
    pub(super) fn ask(
        &self,
        inquirer: &Inquirer<'_>,
        parts: &[FirstPiece],
        platform: NpuPlatform,
    ) -> Result<PieceReplies, CompileError> {
        let pieces = parts.iter().flat_map(|part| self.pieces(*part));
        let mut pieces: Vec<MatrixPiece> = pieces.collect();
        pieces.sort_unstable();
        pieces.dedup();
        let inquiries = pieces.iter();
        let inquiries = inquiries.filter_map(|piece| self.inquiry(*piece, platform));
        let replies = inquirer.ask(&inquiries.collect::<Vec<_>>())?;
        Ok(pieces.into_iter().zip(replies).collect())
    }

    fn inquiry(&self, piece: MatrixPiece, platform: NpuPlatform) -> Option<Inquiry> {
        let mut matrices = self.of_product.values().flatten();
        // Matrices of one form may have fewer rows.
        let has_rows = |linear: &Linear| linear.rows() >= piece.rows;
        let (_, linear) =
            matrices.find(|(form, linear)| *form == piece.form && has_rows(linear))?;
        Some(Inquiry {
            name: format!("{piece} for NPU {platform}"),
            body: kernel(&[linear.first(piece.rows)], None),
            tokens: piece.tokens,
            weights_first: WeightsFirst::NONE,
            platform,
        })
    }

    /// A part's estimate: its matrices are computed one after the other. `None` if the compiler refuses one.
    pub(super) fn estimate_us(&self, part: FirstPiece, replies: &PieceReplies) -> Option<f64> {
        let pieces = self.pieces(part);
        let each = pieces
            .iter()
            .map(|piece| replies.get(piece)?.as_ref().ok()?.latency_us);
        each.sum()
    }

    /// A piece with its blob, as bundles have it, and the blob's section.
    pub(super) fn made(
        &self,
        piece: MatrixPiece,
        (platform, reply): (NpuPlatform, &Reply),
        inquirer: &Inquirer<'_>,
    ) -> Result<(RowsPiece, Section), CompileError> {
        let section = reply.made.blob;
        let bytes = inquirer.store.map(section.id)?;
        let made = RowsPiece {
            form: piece.form,
            rows: piece.rows,
            tokens: piece.tokens,
            activations: self.activations,
            blobs: vec![blob_of(&piece.to_string(), platform, section.id, &bytes)?],
        };
        Ok((made, section))
    }
}

/// A matrix without its bias, which a program adds itself.
fn linear(op: &Op, plan: &Plan) -> Option<(RowsForm, Linear)> {
    let linear = Linear {
        bias: None,
        ..Linear::of(op)?
    };
    let form = RowsForm::of(&parameter_of(&linear.weight, plan.weights))?;
    Some((form, linear))
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

impl fmt::Display for MatrixPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rows of {} columns over {} tokens",
            self.rows, self.form.columns, self.tokens
        )
    }
}
