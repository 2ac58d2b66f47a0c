//! Chooses how many chunks of a layer the NPU takes (Agent.xpu §4.3, Algorithm 1).

/// Time of one layer of a prompt on either device, in µs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LayerTimes {
    /// Token-wise kernels of one chunk on the NPU.
    pub(super) npu_chunk_us: f64,
    /// Token-wise kernels of one chunk on the iGPU.
    pub(super) igpu_chunk_us: f64,
    /// Work that stays on the iGPU in any case: the remainder, and attention, which the wave front puts beside
    /// the token-wise kernels of other chunks.
    pub(super) igpu_fixed_us: f64,
}

/// Returns the number k of `chunks` chunks for the NPU that minimises max(k · T_npu, (N − k) · T_igpu +
/// T_fixed); the largest such k, which spares the iGPU.
pub(super) fn npu_chunks(chunks: usize, times: LayerTimes) -> usize {
    let makespan = |k: usize| {
        let npu = k as f64 * times.npu_chunk_us;
        let igpu = (chunks - k) as f64 * times.igpu_chunk_us + times.igpu_fixed_us;
        npu.max(igpu)
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
        LayerTimes {
            npu_chunk_us: npu,
            igpu_chunk_us: igpu,
            igpu_fixed_us: fixed,
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
}
