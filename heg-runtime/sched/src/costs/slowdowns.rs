//! The slow-down of kernels on a lane while another lane runs some: the contention table of a machine (Agent.xpu, Fig. 4).
//!
//! `heg profile` measures a cell for each pair of devices and of the ceilings that limit their kernels. A kernel counts as
//! limited by bandwidth if it draws at least half as much of it as the kernel of its lane that draws most: the measured
//! kernels are the two ends of that range, and a table has no more than these.

use crate::request::Lane;

/// The ceiling that limits a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelBound {
    /// The bandwidth of the memory.
    Memory,
    /// The throughput of the device.
    Compute,
}

/// The load that a kernel on a lane is for its neighbours.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LaneLoad {
    /// The lane.
    pub lane: Lane,
    /// Share of the peak DRAM bandwidth that the kernel draws alone, from 0 to 1.
    pub bandwidth: f64,
}

/// The contention table of a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slowdowns {
    /// Share of the bandwidth that the kernel of each lane draws that draws most.
    bandwidth_max: [f64; Lane::ALL.len()],
    /// Latency beside a neighbour divided by latency alone: by lane, bound, neighbour and bound of that.
    factors: [[[[f64; BOUNDS]; Lane::ALL.len()]; BOUNDS]; Lane::ALL.len()],
}

/// Number of values of [`KernelBound`].
const BOUNDS: usize = 2;

impl Slowdowns {
    /// Makes the table of a machine on which nothing slows anything down, from the share of the bandwidth that each
    /// lane's kernels draw at most.
    pub fn new(bandwidth_max: [f64; Lane::ALL.len()]) -> Self {
        Self {
            bandwidth_max,
            factors: [[[[1.0; BOUNDS]; Lane::ALL.len()]; BOUNDS]; Lane::ALL.len()],
        }
    }

    /// Sets a cell. A factor below 1 is noise, since no neighbour makes a kernel faster, and counts as 1.
    pub fn set(
        &mut self,
        (lane, bound): (Lane, KernelBound),
        (neighbour, its_bound): (Lane, KernelBound),
        factor: f64,
    ) {
        let cell = &mut self.factors[lane as usize][bound as usize];
        cell[neighbour as usize][its_bound as usize] = factor.max(1.0);
    }

    /// Returns the latency of a kernel beside another divided by its latency alone; 1 for two of one lane, which
    /// never run at once.
    pub fn factor(&self, own: LaneLoad, beside: LaneLoad) -> f64 {
        if own.lane == beside.lane {
            return 1.0;
        }
        let cell = &self.factors[own.lane as usize][self.bound(own) as usize];
        cell[beside.lane as usize][self.bound(beside) as usize]
    }

    fn bound(&self, load: LaneLoad) -> KernelBound {
        let most = self.bandwidth_max[load.lane as usize];
        match most > 0.0 && load.bandwidth >= most / 2.0 {
            true => KernelBound::Memory,
            false => KernelBound::Compute,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(lane: Lane, bandwidth: f64) -> LaneLoad {
        LaneLoad { lane, bandwidth }
    }

    #[test]
    fn a_kernel_is_slowed_by_its_bound_and_by_that_of_its_neighbour() {
        use KernelBound::{Compute, Memory};
        let mut table = Slowdowns::new([0.2, 0.8, 0.0]);
        table.set((Lane::Npu, Memory), (Lane::Igpu, Memory), 1.7);
        table.set((Lane::Npu, Compute), (Lane::Igpu, Memory), 1.1);
        table.set((Lane::Npu, Compute), (Lane::Igpu, Compute), 0.98);
        let (npu_memory, npu_compute) = (load(Lane::Npu, 0.1), load(Lane::Npu, 0.09));
        let (gemv, gemm) = (load(Lane::Igpu, 0.4), load(Lane::Igpu, 0.39));
        assert_eq!(table.factor(npu_memory, gemv), 1.7);
        assert_eq!(table.factor(npu_compute, gemv), 1.1);
        assert_eq!(table.factor(npu_compute, gemm), 1.0, "noise");
        assert_eq!(table.factor(gemv, npu_memory), 1.0, "not measured");
        assert_eq!(table.factor(gemv, gemm), 1.0, "one lane");
        // Nothing is known of the bandwidth of a CPU's kernels here.
        table.set((Lane::Cpu, Memory), (Lane::Npu, Compute), 2.0);
        assert_eq!(table.factor(load(Lane::Cpu, 0.0), npu_compute), 1.0);
    }
}
