//! Chooses how many chunks of a layer the NPU takes (Agent.xpu §4.3, Algorithm 1).
//!
//! T_npu, T_igpu and T_fixed are times of a device alone. While both run they take longer, by what is known of their
//! contention, and the one that has more to do is alone for the rest of it.

use std::ops::Add;

/// Time of a piece of a layer, in µs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct PieceTime {
    /// While the other device is idle.
    pub(super) alone_us: f64,
    /// While the other device runs its part of the layer.
    pub(super) beside_us: f64,
}

impl Add for PieceTime {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            alone_us: self.alone_us + other.alone_us,
            beside_us: self.beside_us + other.beside_us,
        }
    }
}

impl PieceTime {
    fn times(self, count: usize) -> Self {
        Self {
            alone_us: count as f64 * self.alone_us,
            beside_us: count as f64 * self.beside_us,
        }
    }

    /// Time until two devices have done a piece each, which they begin at once.
    fn until_both(self, other: Self) -> f64 {
        if [self, other].iter().all(|it| it.alone_us == it.beside_us) {
            return self.alone_us.max(other.alone_us);
        }
        let (short, long) = match self.beside_us <= other.beside_us {
            true => (self, other),
            false => (other, self),
        };
        let done = short.beside_us / long.beside_us.max(f64::MIN_POSITIVE);
        short.beside_us + long.alone_us * (1.0 - done)
    }
}

/// Time of one layer of a prompt on either device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LayerTimes {
    /// Token-wise kernels of one chunk on the NPU.
    pub(super) npu_chunk: PieceTime,
    /// Token-wise kernels of one chunk on the iGPU.
    pub(super) igpu_chunk: PieceTime,
    /// Work that stays on the iGPU in any case: the remainder, and attention, which the wave front puts beside
    /// the token-wise kernels of other chunks.
    pub(super) igpu_fixed: PieceTime,
}

/// Returns the number k of `chunks` chunks for the NPU that minimises max(k · T_npu, (N − k) · T_igpu +
/// T_fixed); the largest such k, which spares the iGPU.
pub(super) fn npu_chunks(chunks: usize, times: LayerTimes) -> usize {
    let makespan = |k: usize| {
        let npu = times.npu_chunk.times(k);
        npu.until_both(times.igpu_chunk.times(chunks - k) + times.igpu_fixed)
    };
    (0..=chunks)
        .rev()
        .min_by(|a, b| makespan(*a).total_cmp(&makespan(*b)))
        .unwrap_or(chunks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(npu: f64, igpu: f64, fixed: f64) -> LayerTimes {
        let alone = |alone_us| PieceTime {
            alone_us,
            beside_us: alone_us,
        };
        LayerTimes {
            npu_chunk: alone(npu),
            igpu_chunk: alone(igpu),
            igpu_fixed: alone(fixed),
        }
    }

    #[test]
    fn the_makespan_is_balanced() {
        assert_eq!(npu_chunks(8, times(10.0, 10.0, 0.0)), 4);
        assert_eq!(npu_chunks(8, times(10.0, 30.0, 0.0)), 6);
        assert_eq!(npu_chunks(8, times(10.0, 10.0, 40.0)), 6);
        assert_eq!(npu_chunks(8, times(10.0, 10.0, 1000.0)), 8);
        assert_eq!(npu_chunks(0, times(10.0, 10.0, 1.0)), 0);
        assert_eq!(npu_chunks(1, times(10.0, 5.0, 0.0)), 0);
    }

    #[test]
    fn no_other_choice_is_better() {
        for chunks in 0..12 {
            for (npu, igpu, fixed) in [(3.0, 7.0, 2.0), (7.0, 3.0, 11.0), (1.0, 1.0, 5.0)] {
                let span = |k: usize| (k as f64 * npu).max((chunks - k) as f64 * igpu + fixed);
                let chosen = npu_chunks(chunks, times(npu, igpu, fixed));
                assert!((0..=chunks).all(|k| span(k) >= span(chosen)));
            }
        }
    }

    #[test]
    fn a_device_that_suffers_beside_the_other_takes_less() {
        let mut times = times(10.0, 10.0, 0.0);
        assert_eq!(npu_chunks(8, times), 4);
        // The iGPU suffers, and the NPU does not.
        times.igpu_chunk.beside_us = 30.0;
        assert_eq!(npu_chunks(8, times), 6);
        // Side by side both take longer than one after the other would.
        times.npu_chunk.beside_us = 30.0;
        assert_eq!(npu_chunks(8, times), 8);
    }

    #[test]
    fn the_longer_piece_is_alone_when_the_shorter_one_is_done() {
        let piece = |alone_us, beside_us| PieceTime {
            alone_us,
            beside_us,
        };
        // After 20 µs the second has done 20 of 60, and takes the other two thirds of 40 µs alone.
        let both = piece(10.0, 20.0).until_both(piece(40.0, 60.0));
        assert!((both - (20.0 + 40.0 * 2.0 / 3.0)).abs() < 1e-9, "{both}");
        assert_eq!(piece(0.0, 0.0).until_both(piece(40.0, 60.0)), 40.0);
        assert_eq!(piece(0.0, 0.0).until_both(piece(0.0, 0.0)), 0.0);
    }
}
