//! The measured times in which blocks compute and load, from which plans are made.

use std::time::{Duration, Instant};

use heg_sched::SwitchedBlock;

use super::graph::Graph;

/// Times of the layers of a model, which are alike.
#[derive(Debug, Default)]
pub(super) struct BlockPace {
    /// µs of a row in a layer of a long graph.
    long_us: Option<f64>,
    /// The same of a short graph.
    short_us: Option<f64>,
    /// µs to load a layer.
    load_us: Option<f64>,
    /// The block that computes, with what, in how many layers and of how many rows, since when.
    begun: Option<(usize, Graph, (usize, usize), Instant)>,
}

/// µs of a row in a layer that was not measured yet: any will do, since plans compare times.
const GUESS_US: f64 = 1.0;
/// Factor by which a short graph takes longer. Chosen: it reads its weights more often.
const GUESS_SLOWER: f64 = 1.2;

impl BlockPace {
    /// The times of a block of `layers` layers, for a chunk of `rows` rows. Until a load was measured it takes as long as
    /// the block computes: in the paper's figure 8 two blocks hide one.
    pub(super) fn of(&self, layers: usize, rows: usize) -> SwitchedBlock {
        let (layers, rows) = (layers as f64, rows as f64);
        let long_us = self.long_us.unwrap_or(GUESS_US);
        let short_us = self.short_us.unwrap_or(long_us * GUESS_SLOWER);
        SwitchedBlock {
            long_us: long_us * rows * layers,
            short_us: short_us * rows * layers,
            load_us: self.load_us.unwrap_or(long_us * rows) * layers,
        }
    }

    /// A block begins to compute; the one before it has ended, if it had as many rows.
    pub(super) fn begins(&mut self, block: usize, graph: Graph, size: (usize, usize)) {
        let now = Instant::now();
        let before = self.begun.replace((block, graph, size, now));
        let Some((before, of, (layers, rows), since)) = before else {
            return;
        };
        if before + 1 == block && rows == size.1 {
            let pieces = (layers * rows).max(1) as f64;
            let known = match of {
                Graph::Long => &mut self.long_us,
                Graph::Short => &mut self.short_us,
            };
            learn(known, now.saturating_duration_since(since), pieces);
        }
    }

    /// Nothing computes any more.
    pub(super) fn rests(&mut self) {
        self.begun = None;
    }

    /// So many layers were loaded.
    pub(super) fn loaded(&mut self, layers: usize, took: Duration) {
        learn(&mut self.load_us, took, layers.max(1) as f64);
    }
}

/// Takes in a time: half of what is known is from the last one.
fn learn(known: &mut Option<f64>, took: Duration, pieces: f64) {
    let us = took.as_secs_f64() * 1e6 / pieces;
    *known = Some(known.map_or(us, |before| (before + us) / 2.0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_take_what_was_measured_of_their_layers() {
        let mut pace = BlockPace::default();
        let guessed = pace.of(2, 64);
        assert_eq!((guessed.long_us, guessed.load_us), (128.0, 128.0));
        assert!(guessed.short_us > guessed.long_us);
        pace.loaded(4, Duration::from_micros(800));
        assert_eq!(pace.of(2, 64).load_us, 400.0);
        pace.loaded(4, Duration::from_micros(1600));
        assert_eq!(pace.of(2, 64).load_us, 600.0);
    }

    #[test]
    fn only_blocks_that_follow_each_other_with_the_same_rows_are_measured() {
        let mut pace = BlockPace::default();
        pace.begins(0, Graph::Long, (2, 64));
        pace.begins(2, Graph::Long, (2, 64));
        pace.begins(3, Graph::Long, (2, 32));
        pace.rests();
        pace.begins(4, Graph::Long, (2, 32));
        assert_eq!((pace.long_us, pace.short_us), (None, None));
        pace.begins(5, Graph::Short, (2, 32));
        pace.begins(6, Graph::Short, (2, 32));
        assert!(pace.long_us.is_some() && pace.short_us.is_some());
    }
}
