//! The rows of activations that the segments of a prompt take turns in: a prompt takes memory for its window, however long
//! it is (Agent.xpu 4.1).

use heg_sched::PromptWindow;

/// Rows for the segments of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowRing {
    /// Number of tokens that are computed.
    tokens: usize,
    /// Number of rows after which the first one comes again: whole segments.
    rows: usize,
    /// Rows behind each segment that a kernel may write, since it pads its call.
    padding: usize,
}

impl RowRing {
    /// For a prompt of `tokens` tokens to be computed. Behind the segments in the window lie rows for padding, since the
    /// segment that comes next in the ring may be the one that is furthest behind.
    pub(super) fn new(window: PromptWindow, tokens: usize, padding: usize) -> Self {
        let chunk = (window.chunk_tokens as usize).max(1);
        let segments = (window.segments as usize).saturating_add(padding.div_ceil(chunk));
        Self {
            tokens,
            rows: segments.max(1).saturating_mul(chunk),
            padding,
        }
    }

    /// Number of rows to allocate.
    pub(super) fn allocated(self) -> usize {
        self.rows.min(self.tokens) + self.padding
    }

    /// Whether each token has a row of its own.
    pub(super) const fn is_whole(self) -> bool {
        self.tokens <= self.rows
    }

    /// The row of the token at a distance from the first one. Those of a segment are consecutive.
    pub(super) const fn row_of(self, distance: u32) -> usize {
        distance as usize % self.rows
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn segments_on_their_way_have_rows_of_their_own(
            chunk_tokens in 1_u32..9, segments in 1_u32..5, tokens in 1_u32..200, padding in 0_usize..20,
        ) {
            let window = PromptWindow { chunk_tokens, segments };
            let ring = RowRing::new(window, tokens as usize, padding);
            let starts: Vec<u32> = (0..tokens).step_by(chunk_tokens as usize).collect();
            for together in starts.windows(segments as usize) {
                let mut written = vec![None; ring.allocated()];
                for (&start, is_last) in together.iter().zip((1..).map(|n| n == together.len())) {
                    let count = chunk_tokens.min(tokens - start) as usize;
                    let first = ring.row_of(start);
                    for row in &mut written[first..first + count] {
                        prop_assert_eq!(row.replace(start), None);
                    }
                    // The rows behind the last one belong to none on its way.
                    let behind = first + count..first + count + padding;
                    if is_last {
                        prop_assert!(written[behind].iter().all(Option::is_none));
                    }
                }
            }
        }
    }

    #[test]
    fn a_window_bounds_the_memory_and_a_short_prompt_takes_less() {
        let window = PromptWindow {
            chunk_tokens: 256,
            segments: 16,
        };
        assert_eq!(RowRing::new(window, 32_000, 256).allocated(), 4096 + 512);
        assert!(!RowRing::new(window, 32_000, 256).is_whole());
        assert_eq!(RowRing::new(window, 100, 256).allocated(), 356);
        assert!(RowRing::new(window, 4096 + 256, 256).is_whole());
        assert_eq!(
            RowRing::new(PromptWindow::WHOLE, 32_000, 256).allocated(),
            32_256
        );
    }
}
