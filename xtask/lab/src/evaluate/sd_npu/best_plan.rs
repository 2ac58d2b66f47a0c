//! The optimal plan for few blocks, against which greedy plans are measured.

use heg_sched::SwitchedBlock;

/// A way to reach a step with some of the blocks loaded, or being loaded.
#[derive(Clone)]
struct Way {
    now_us: f64,
    loaded_us: f64,
    short_from: Vec<f64>,
}

impl Way {
    /// Whether it is no later than another way in anything that matters from here on.
    fn is_no_later(&self, other: &Self) -> bool {
        let mut from = self.short_from.iter().zip(&other.short_from);
        self.now_us <= other.now_us
            && self.loaded_us.max(self.now_us) <= other.loaded_us.max(other.now_us)
            && from.all(|(own, others)| own.max(self.now_us) <= others.max(other.now_us))
    }

    /// Returns the end of the next step, which computes this block.
    fn end_us(&self, at: usize, block: &SwitchedBlock) -> f64 {
        match self.short_from[at] {
            f64::INFINITY => self.now_us + block.long_us,
            from => self.now_us.max(from) + block.short_us,
        }
    }

    /// Returns the same way with a further load.
    fn loading(&self, at: usize, block: &SwitchedBlock) -> Self {
        let mut way = self.clone();
        way.loaded_us = self.loaded_us.max(self.now_us) + block.load_us;
        way.short_from[at] = way.loaded_us;
        way
    }
}

/// Returns the least time at which decoding can begin under any plan, by dynamic programming over steps and sets of
/// loaded blocks: of two ways to the same step and set, one that is no earlier in anything is dropped. A load that
/// would begin after a step is not considered before the next one, and a computation that waits for its own block's
/// load is no better than one that does not. The running time grows with 2 to the number of blocks: it is short for
/// up to eight.
pub(super) fn best_ready_us(blocks: &[SwitchedBlock], chunks: usize) -> f64 {
    let sets = 1_usize << blocks.len();
    let mut ways = vec![Vec::new(); sets];
    ways[0].push(Way {
        now_us: 0.0,
        loaded_us: 0.0,
        short_from: vec![f64::INFINITY; blocks.len()],
    });
    for step in 0..blocks.len() * chunks {
        let computed = step % blocks.len();
        let end_us = |way: &Way| way.end_us(computed, &blocks[computed]);
        // Sets only grow, so one pass in ascending order sees every order of loads.
        for set in 0..sets {
            let kept = earliest(std::mem::take(&mut ways[set]));
            for way in kept.iter().filter(|way| way.loaded_us < end_us(way)) {
                for block in (0..blocks.len()).filter(|block| set >> block & 1 == 0) {
                    ways[set | 1 << block].push(way.loading(block, &blocks[block]));
                }
            }
            ways[set] = kept;
        }
        for way in ways.iter_mut().flatten() {
            way.now_us = end_us(way);
        }
    }
    let ends = ways.iter().enumerate().flat_map(|(set, ways)| {
        let left = (0..blocks.len()).filter(|block| set >> block & 1 == 0);
        let left_us: f64 = left.map(|block| blocks[block].load_us).sum();
        ways.iter()
            .map(move |way| way.loaded_us.max(way.now_us) + left_us)
    });
    ends.fold(f64::INFINITY, f64::min)
}

/// Drops the ways that are no better than another one.
fn earliest(ways: Vec<Way>) -> Vec<Way> {
    let mut kept: Vec<Way> = Vec::new();
    for way in ways {
        if !kept.iter().any(|other| other.is_no_later(&way)) {
            kept.retain(|other| !way.is_no_later(other));
            kept.push(way);
        }
    }
    kept
}
