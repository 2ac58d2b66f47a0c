//! The rows of KV caches that a lane's device has: a pool in each half of each layer, given to sequences.
//!
//! A sequence has a run of the pool's rows. The first rows of a run are the same as the host's, as long as the cache's stamp is
//! the one that was noted; all others are copied before they are read.

use crate::mem::{KvCache, KvStamp};

/// The runs of a pool.
pub(super) struct Runs {
    runs: Vec<Run>,
    /// Rows that were given out, from the first on.
    given: usize,
    /// Rows of the pool.
    rows: usize,
    layers: usize,
}

/// The rows of a sequence.
pub(super) struct Run {
    stamp: KvStamp,
    /// First row in the pool.
    pub(super) first: usize,
    rows: usize,
    /// By layer: leading rows that are the host's.
    same: Vec<usize>,
}

/// Runs are a multiple of this, so that a sequence that grows by a token mostly keeps its rows. Chosen.
const STEP: usize = 256;

impl Runs {
    /// A pool of `rows` rows, with no run given out.
    pub(super) fn new(rows: usize, layers: usize) -> Self {
        Self {
            runs: Vec::new(),
            given: 0,
            rows,
            layers,
        }
    }

    /// Rows that sequences of these lengths take together.
    pub(super) fn rows_for(tokens: impl Iterator<Item = usize>) -> usize {
        tokens.map(|tokens| tokens.next_multiple_of(STEP)).sum()
    }

    /// Gives each cache a run of as many rows as are asked for, and returns their indices. Those of other caches go where
    /// there is no room beside them; `None` where there is none without them.
    pub(super) fn place(&mut self, asked: &[(&KvCache, usize)]) -> Option<Vec<usize>> {
        self.try_to_place(asked).or_else(|| {
            self.clear();
            self.try_to_place(asked)
        })
    }

    fn try_to_place(&mut self, asked: &[(&KvCache, usize)]) -> Option<Vec<usize>> {
        let mut found = Vec::with_capacity(asked.len());
        for (cache, rows) in asked {
            let stamp = cache.stamp();
            let mut known = self.runs.iter();
            let known = known.position(|run| run.stamp.cache == stamp.cache && run.rows >= *rows);
            let index = match known {
                Some(index) => index,
                None => self.give(stamp, *rows)?,
            };
            let run = self.runs.get_mut(index)?;
            if run.stamp != stamp {
                run.same.fill(0);
                run.stamp = stamp;
            }
            found.push(index);
        }
        Some(found)
    }

    fn give(&mut self, stamp: KvStamp, rows: usize) -> Option<usize> {
        let rows = rows.next_multiple_of(STEP);
        let end = self.given.checked_add(rows);
        let end = end.filter(|end| *end <= self.rows)?;
        self.runs.push(Run {
            stamp,
            first: self.given,
            rows,
            same: vec![0; self.layers],
        });
        self.given = end;
        Some(self.runs.len() - 1)
    }

    /// A run.
    pub(super) fn run(&mut self, index: usize) -> Option<&mut Run> {
        self.runs.get_mut(index)
    }

    /// Takes all runs back.
    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.given = 0;
    }
}

impl Run {
    /// Leading rows of a layer that are the host's.
    pub(super) fn same(&self, layer: usize) -> usize {
        self.same.get(layer).copied().unwrap_or(0)
    }

    /// Notes that the host has the first rows of a layer as the device has them.
    pub(super) fn note_same(&mut self, layer: usize, rows: usize) {
        if let Some(same) = self.same.get_mut(layer) {
            *same = rows;
        }
    }

    /// Notes the stamp that a cache has after the device's rows were written to it.
    pub(super) fn note_stamp(&mut self, cache: &KvCache) {
        self.stamp = cache.stamp();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Half, KvShape};
    use heg_openvino::TensorType;

    fn cache() -> KvCache {
        let shape = KvShape {
            layers: 2,
            width: 4,
            context_tokens: 1024,
            padding_rows: 0,
            element: TensorType::Bf16,
        };
        KvCache::reserve(shape).unwrap()
    }

    #[test]
    fn runs_stay_until_there_is_no_room_and_rows_until_they_are_written() {
        let (first, second) = (cache(), cache());
        let mut runs = Runs::new(2 * STEP, 2);
        let placed = runs.place(&[(&first, 3), (&second, 1)]).unwrap();
        assert_eq!(placed, [0, 1]);
        runs.run(0).unwrap().note_same(1, 3);
        assert_eq!(runs.place(&[(&first, 4)]).unwrap(), [0]);
        assert_eq!(runs.run(0).unwrap().same(1), 3);
        first.write_row(0, Half::Keys, 0, &[1; 8]).unwrap();
        assert_eq!(runs.place(&[(&first, 4)]).unwrap(), [0]);
        assert_eq!(runs.run(0).unwrap().same(1), 0);
        // A longer one takes the place of both, and three are too many.
        assert_eq!(runs.place(&[(&second, STEP + 1)]).unwrap(), [0]);
        let third = cache();
        assert!(
            runs.place(&[(&first, 1), (&second, 1), (&third, 1)])
                .is_none()
        );
    }

    #[test]
    fn rows_that_others_may_write_count_as_written() {
        let cache = cache();
        let stamp = cache.stamp();
        cache.read_rows(0, Half::Keys, 0, &mut [0; 8]).unwrap();
        assert!(cache.stamp() == stamp);
        cache.for_program(0, Half::Keys, 0, 1).unwrap();
        assert!(cache.stamp() != stamp);
    }
}
