//! Sizes to which the rows of calls are padded.

use heg_sched::Switching;

/// The number of rows of a dynamic form is a multiple of this. Chosen: at most 15 rows of padding; a prompt of a new
/// length takes a third longer, because every kernel is planned again (100 tokens, 1B model, two cores).
pub(crate) const ROW_STEP: usize = 16;

/// The attention's context grows by this many tokens at a time. Chosen: at most 31 masked rows, which cost
/// less than planning for a new shape each token (1.2 ms of 54 ms a token, 1B model, two cores).
pub(crate) const CONTEXT_STEP: usize = 32;

/// Rows of a short graph: those of the smallest chunk of an NPU's kernels, and the most that a verification has.
pub(crate) const SHORT_ROWS: u32 = 32;

/// Rows that a dynamic form computes for `tokens` tokens: those of a small batch, else a multiple of 16.
pub fn padded(tokens: usize) -> usize {
    match tokens {
        0..=ROW_STEP => tokens,
        _ => tokens.next_multiple_of(ROW_STEP),
    }
}

/// Rows of the static forms that a way of switching requires.
pub(crate) fn switched_rows(way: Switching) -> usize {
    match way {
        Switching::Resident => 0,
        Switching::Progressive => SHORT_ROWS as usize,
    }
}

/// A chunk's rows are a multiple of this number, so that only a prompt's last chunk is padded.
pub fn rows_step(way: Switching) -> usize {
    ROW_STEP.max(switched_rows(way))
}
