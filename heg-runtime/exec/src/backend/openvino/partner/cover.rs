//! The pieces that compute an area: each for all of the area's outputs, and for a run of its tokens.

use std::collections::BTreeMap;
use std::ops::Range;

use heg_artifacts::manifest::{RowsForm, RowsPiece};

/// The pieces of a bundle that a device takes, by what they compute.
#[derive(Debug, Default)]
pub(super) struct PieceIndex(BTreeMap<(RowsForm, u32), BTreeMap<u32, usize>>);

/// A run of a piece over some tokens of an area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PieceRun {
    /// Place of the piece among the bundle's.
    pub(super) piece: usize,
    /// Tokens that the piece computes; those behind the run's own are padding.
    pub(super) size: usize,
    /// Tokens of the call.
    pub(super) tokens: Range<usize>,
}

impl PieceIndex {
    /// Adds a piece by its place among the bundle's.
    pub(super) fn add(&mut self, place: usize, piece: &RowsPiece) {
        let of_rows = self.0.entry((piece.form, piece.rows)).or_default();
        of_rows.insert(piece.tokens, place);
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The runs that compute `rows` outputs for `tokens`: one of the smallest size that holds all of them, since each run takes
    /// its time to reach the device; else several, the last one padded. `None` if no piece has this number of outputs, or if
    /// too many runs or too much padding would be needed.
    pub(super) fn cover(
        &self,
        form: RowsForm,
        rows: usize,
        tokens: Range<usize>,
    ) -> Option<Vec<PieceRun>> {
        let sizes = self.0.get(&(form, u32::try_from(rows).ok()?))?;
        let sizes: Vec<(usize, usize)> = sizes
            .iter()
            .map(|(size, piece)| (*size as usize, *piece))
            .collect();
        let one = sizes.iter().find(|(size, _)| *size >= tokens.len());
        let one = one.map(|(size, piece)| {
            vec![PieceRun {
                piece: *piece,
                size: *size,
                tokens: tokens.clone(),
            }]
        });
        let most = PADDING_MAX.saturating_mul(tokens.len());
        let computed = |runs: &Vec<PieceRun>| runs.iter().map(|run| run.size).sum::<usize>();
        let found = one.or_else(|| in_several(&sizes, tokens));
        found.filter(|runs| computed(runs) <= most)
    }
}

/// The largest size that fits, again and again, and the smallest that holds the rest.
fn in_several(sizes: &[(usize, usize)], tokens: Range<usize>) -> Option<Vec<PieceRun>> {
    let mut runs = Vec::new();
    let mut first = tokens.start;
    while first < tokens.end {
        let rest = tokens.end - first;
        let fits = sizes.iter().rfind(|(size, _)| *size <= rest);
        let (size, piece) = fits.or(sizes.first())?;
        if runs.len() == RUNS_MAX {
            return None;
        }
        let end = tokens.end.min(first + size);
        runs.push(PieceRun {
            piece: *piece,
            size: *size,
            tokens: first..end,
        });
        first = end;
    }
    Some(runs)
}

/// Most rows that are computed for each token. Chosen: within a class of the bundle's partition a call has more than half of
/// the tokens of its piece; a product that another rule gives to the NPU may have few.
const PADDING_MAX: usize = 4;

/// Most runs for an area. Chosen: a prompt that is cut in sizes of powers of two takes fewer.
const RUNS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use heg_artifacts::manifest::ElementType;

    use super::*;

    fn form(columns: u32) -> RowsForm {
        RowsForm {
            element: ElementType::I8,
            columns,
            group_columns: None,
            centred: false,
        }
    }

    fn index(sizes: &[(u32, u32)]) -> PieceIndex {
        let mut index = PieceIndex::default();
        for (place, (rows, tokens)) in sizes.iter().enumerate() {
            let piece = RowsPiece {
                form: form(64),
                rows: *rows,
                tokens: *tokens,
                activations: ElementType::F16,
                blobs: Vec::new(),
            };
            index.add(place, &piece);
        }
        index
    }

    /// Place, size and tokens of each run.
    fn cover(index: &PieceIndex, rows: usize, tokens: Range<usize>) -> Vec<(usize, usize, usize)> {
        let runs = index.cover(form(64), rows, tokens.clone());
        let runs = runs.unwrap_or_default();
        let mut next = tokens.start;
        for run in &runs {
            assert_eq!(run.tokens.start, next, "{runs:?}");
            assert!(run.tokens.len() <= run.size && !run.tokens.is_empty());
            next = run.tokens.end;
        }
        assert!(runs.is_empty() || next == tokens.end, "{runs:?}");
        let each = runs.iter();
        each.map(|run| (run.piece, run.size, run.tokens.len()))
            .collect()
    }

    #[test]
    fn tokens_are_padded_to_one_size_or_to_the_last_of_several() {
        let index = index(&[(96, 32), (96, 64), (40, 32)]);
        assert_eq!(cover(&index, 96, 0..32), [(0, 32, 32)]);
        assert_eq!(cover(&index, 96, 0..8), [(0, 32, 8)]);
        assert_eq!(cover(&index, 96, 0..33), [(1, 64, 33)]);
        assert_eq!(cover(&index, 96, 5..101), [(1, 64, 64), (0, 32, 32)]);
        assert_eq!(
            cover(&index, 96, 0..97),
            [(1, 64, 64), (0, 32, 32), (0, 32, 1)]
        );
        assert_eq!(cover(&index, 40, 0..40), [(2, 32, 32), (2, 32, 8)]);
    }

    #[test]
    fn outputs_and_forms_without_a_piece_and_calls_of_many_runs_are_not_covered() {
        let index = index(&[(96, 1)]);
        assert_eq!(cover(&index, 96, 0..8).len(), 8);
        assert_eq!(index.cover(form(64), 96, 0..9), None);
        let padded = self::index(&[(96, 32)]);
        assert_eq!(padded.cover(form(64), 96, 0..7), None);
        assert_eq!(index.cover(form(64), 88, 0..1), None);
        assert_eq!(index.cover(form(32), 96, 0..1), None);
        assert!(PieceIndex::default().is_empty());
    }
}
