//! What a side has of a product, and in which pieces its threads take that.

use heg_artifacts::manifest::Parameter;
use heg_artifacts::program::Part;
use heg_spec::Side;

use crate::division::{AREAS, Area, Division};
use crate::execution::{Execution, PIECES_OF_A_THREAD};
use crate::product::TILE_OUTPUTS;

/// Part of a product in an area of a side.
pub(crate) struct Share<'p> {
    pub(crate) part: &'p Part,
    pub(crate) area: Area,
    /// Outputs of a piece.
    pub(crate) size: usize,
    /// Their number.
    pub(crate) pieces: usize,
}

impl Execution<'_> {
    /// What a side has of a product: of each of its areas, each part.
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
                let pieces = match area.tokens.is_empty() {
                    true => 0,
                    false => area.outputs.len().div_ceil(size),
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

    /// Outputs of a part's pieces, in an area that has so many of all parts: so few that all threads of a side end at about
    /// the same time, and enough to be worth taking.
    fn outputs_of_piece(&self, part: &Part, all: usize, side: Side) -> usize {
        let fair = all.div_ceil(self.crew(side) * PIECES_OF_A_THREAD);
        let most = PIECE_BYTES / self.row_bytes(part).max(1);
        fair.min(most).div_ceil(OUTPUT_STEP).max(1) * OUTPUT_STEP
    }

    /// Bytes of a row of a part's matrix.
    fn row_bytes(&self, part: &Part) -> usize {
        let parameter = self.kernel.parameters.get(part.weight.0 as usize);
        parameter.map_or(1, |Parameter { element, shape, .. }| {
            let width = shape.last().map_or(1, |width| u64::from(*width));
            element.bytes_of(width).unwrap_or(u64::MAX) as usize
        })
    }
}

/// Bytes of weights of a piece at most. Chosen: reading them takes some 15 µs, so that taking a piece costs nothing.
const PIECE_BYTES: usize = 1 << 19;

/// Pieces are multiples of this many outputs. Chosen: two tiles.
const OUTPUT_STEP: usize = 2 * TILE_OUTPUTS;
