//! A side's share of a product, and the pieces that its threads take it in.

use heg_artifacts::manifest::Parameter;
use heg_artifacts::program::Part;
use heg_spec::Side;

use crate::division::{AREAS, Area, Division};
use crate::execution::{Execution, PIECES_OF_A_THREAD};
use crate::product::TILE_OUTPUTS;

/// One matrix of a product in one area of a side.
pub(crate) struct Share<'p> {
    pub(crate) part: &'p Part,
    pub(crate) area: Area,
    /// Outputs per piece.
    pub(crate) size: usize,
    /// Number of pieces.
    pub(crate) pieces: usize,
}

impl Execution<'_> {
    /// The shares of a side: for each of its areas, each matrix.
    pub(crate) fn shares<'p>(
        &'p self,
        parts: &'p [Part],
        division: Division,
        side: Side,
    ) -> impl Iterator<Item = Share<'p>> {
        (0..AREAS).flat_map(move |number| {
            let area = move |part: &Part| {
                let width = self.kernel.width(part.out);
                division.area(side, number, width, self.call.rows)
            };
            let all: usize = parts.iter().map(|part| area(part).outputs.len()).sum();
            parts.iter().map(move |part| {
                let (area, size) = (area(part), self.outputs_of_piece(part, all, side));
                let pieces = if area.tokens.is_empty() {
                    0
                } else {
                    area.outputs.len().div_ceil(size)
                };
                Share {
                    part,
                    area,
                    size,
                    pieces,
                }
            })
        })
    }

    /// Outputs per piece of `part`, in an area that has `all` outputs of all matrices: few enough that the side's
    /// threads end at about the same time, and enough to amortise taking a piece.
    fn outputs_of_piece(&self, part: &Part, all: usize, side: Side) -> usize {
        let fair = all.div_ceil(self.crew(side) * PIECES_OF_A_THREAD);
        let most = PIECE_BYTES / self.row_bytes(part).max(1);
        fair.min(most).div_ceil(OUTPUT_STEP).max(1) * OUTPUT_STEP
    }

    /// Bytes per row of a part's matrix.
    fn row_bytes(&self, part: &Part) -> usize {
        let parameter = self.kernel.parameters.get(part.weight.0 as usize);
        parameter.map_or(1, |Parameter { element, shape, .. }| {
            let width = shape.last().map_or(1, |width| u64::from(*width));
            element.bytes_of(width).unwrap_or(u64::MAX) as usize
        })
    }
}

/// Most bytes of weights in a piece. Chosen: reading them takes some 15 µs, which hides the cost of taking a piece.
const PIECE_BYTES: usize = 1 << 19;

/// Granularity of pieces in outputs. Chosen: two tiles.
const OUTPUT_STEP: usize = 2 * TILE_OUTPUTS;
