//! One DRAM behind several devices: the speed of kernels that run side by side.
//!
//! A kernel k with latency T alone draws the share u of the peak bandwidth while it runs, so it moves u·T. The
//! bandwidth that it is granted, g ≤ u, sets its pace:
//!
//! ```text
//! speed = g / u          time = T · u / g
//! ```
//!
//! - Each device has a cap b, the most it can draw (its ports, its outstanding requests); u counts up to b.
//! - Together they draw at most the shared cap B, which is below 1: HeteroLLM (3.3) measures 43 GB/s for one device and
//!   59 GB/s for two, of 68.
//! - If Σ u ≤ B all are granted their demand. Otherwise the bandwidth is divided as a memory controller does among
//!   ports that all have requests waiting: in proportion to b, and none gets more than its demand, g = min(u, θ·b) with
//!   Σ g = B (weighted max-min fairness).
//!
//! So memory-bound kernels (u near b) slow down in proportion, and compute-bound ones (u below their share) hardly or
//! not at all, as in Agent.xpu's Fig. 4: GEMV beside GEMV suffers, GEMM beside GEMV does not.
//!
//! A machine whose contention was measured has a table ([`Slowdowns`]), and that is the speed of its kernels in place of
//! the caps: it has all that slows them down, caches and ports included.

use heg_profiler::annotation::SocAnnotation;
use heg_spec::DeviceClass;

use heg_sched::{Lane, LaneLoad, Slowdowns};

/// Bandwidths as shares of the DRAM's peak.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DramModel {
    /// b: the largest share that each lane's device draws alone.
    pub lanes: [f64; Lane::ALL.len()],
    /// B: the largest share that they draw together.
    pub shared: f64,
    /// The measured slow-downs of kernels beside each other, in place of the caps.
    pub slowdowns: Option<Slowdowns>,
}

impl Default for DramModel {
    /// No caps: any device can draw the whole bandwidth.
    fn default() -> Self {
        Self {
            lanes: [1.0; Lane::ALL.len()],
            shared: 1.0,
            slowdowns: None,
        }
    }
}

/// Bandwidth of all devices together, as a share of the peak: 59 of 68 GB/s (HeteroLLM 3.3).
const SHARED: f64 = 59.0 / 68.0;

impl DramModel {
    /// Returns the DRAM of a machine. The cap of each device is that of its memory-bound kernels, or the whole
    /// bandwidth if that is unknown. The shared cap is the one that HeteroLLM measured, since no SoC file has a better
    /// one.
    pub fn of(soc: &SocAnnotation) -> Self {
        let cap = |class| {
            let spec = soc.device(class).and_then(|device| device.spec);
            spec.map_or(1.0, |spec| {
                spec.effective_bytes_per_sec() / spec.peaks().bytes_per_sec()
            })
        };
        let lanes = [DeviceClass::Npu, DeviceClass::Igpu, DeviceClass::Cpu].map(cap);
        Self {
            lanes,
            shared: SHARED,
            slowdowns: None,
        }
    }

    /// Takes a machine's measured slow-downs, where there are some, in place of the caps of its devices. The bandwidth of
    /// all together then has no limit of its own.
    #[must_use]
    pub fn measured(self, slowdowns: Option<Slowdowns>) -> Self {
        match slowdowns {
            None => self,
            some => Self {
                lanes: [1.0; Lane::ALL.len()],
                shared: Lane::ALL.len() as f64,
                slowdowns: some,
            },
        }
    }

    /// HeteroLLM's phone (3.3): one device gets 43 GB/s of 68, two get 59.
    pub fn snapdragon() -> Self {
        Self {
            lanes: [43.0 / 68.0; Lane::ALL.len()],
            shared: 59.0 / 68.0,
            slowdowns: None,
        }
    }

    /// Returns the bandwidth granted to each lane, from its demand; 0 demands nothing.
    pub fn grants(&self, demands: [f64; Lane::ALL.len()]) -> [f64; Lane::ALL.len()] {
        let mut wanted = [0.0; Lane::ALL.len()];
        for ((wanted, demand), cap) in wanted.iter_mut().zip(demands).zip(self.lanes) {
            *wanted = demand.clamp(0.0, cap);
        }
        let mut grants = wanted;
        let mut left = self.shared;
        let mut open = wanted.map(|wanted| wanted > 0.0);
        if wanted.iter().sum::<f64>() <= left {
            return grants;
        }
        // A lane that demands less than its share gets all of its demand; the others divide the rest, until none
        // demands less.
        loop {
            let weights: f64 = weights_of(&self.lanes, &open);
            let share = |lane: usize| left / weights * self.lanes[lane];
            let modest = (0..open.len()).find(|lane| open[*lane] && wanted[*lane] <= share(*lane));
            let Some(lane) = modest else {
                for lane in 0..open.len() {
                    if open[lane] {
                        grants[lane] = share(lane);
                    }
                }
                return grants;
            };
            open[lane] = false;
            left -= wanted[lane];
            if !open.contains(&true) {
                return grants;
            }
        }
    }

    /// Returns the speed of each lane's kernel, from its demand, which an idle lane has not; 1 is the speed of running
    /// alone.
    pub fn speeds(&self, demands: [Option<f64>; Lane::ALL.len()]) -> [f64; Lane::ALL.len()] {
        if let Some(slowdowns) = &self.slowdowns {
            return measured_speeds(slowdowns, demands);
        }
        let demands = demands.map(|demand| demand.unwrap_or(0.0));
        let grants = self.grants(demands);
        let mut speeds = [1.0; Lane::ALL.len()];
        for (lane, speed) in speeds.iter_mut().enumerate() {
            let wanted = demands[lane].min(self.lanes[lane]);
            if wanted > 0.0 {
                *speed = grants[lane] / wanted;
            }
        }
        speeds
    }
}

fn measured_speeds(
    slowdowns: &Slowdowns,
    demands: [Option<f64>; Lane::ALL.len()],
) -> [f64; Lane::ALL.len()] {
    let loads = Lane::ALL.map(|lane| {
        let bandwidth = demands[lane as usize]?;
        Some(LaneLoad { lane, bandwidth })
    });
    loads.map(|own| {
        let Some(own) = own else { return 1.0 };
        let factors = loads.iter().flatten();
        let slower: f64 = factors
            .map(|beside| slowdowns.factor(own, *beside))
            .product();
        1.0 / slower
    })
}

fn weights_of(caps: &[f64], open: &[bool]) -> f64 {
    caps.iter()
        .zip(open)
        .filter_map(|(cap, open)| open.then_some(cap))
        .sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(found: f64, expected: f64) -> bool {
        (found - expected).abs() < 1e-9
    }

    #[test]
    fn heterollms_figures_come_out() {
        let memory = DramModel::snapdragon();
        let alone = memory.grants([0.0, 1.0, 0.0]);
        assert!(close(alone[1] * 68.0, 43.0));
        let both = memory.grants([1.0, 1.0, 0.0]);
        assert!(close((both[0] + both[1]) * 68.0, 59.0));
        // Each one slows down to 29.5 of 43 GB/s.
        assert!(close(
            memory.speeds([Some(1.0), Some(1.0), None])[0],
            29.5 / 43.0
        ));
    }

    #[test]
    fn a_compute_bound_kernel_keeps_its_pace_beside_a_memory_bound_one() {
        let memory = DramModel::snapdragon();
        let [gemm, gemv, _] = memory.speeds([Some(0.2), Some(0.63), None]);
        assert!(gemm > 0.97, "{gemm}");
        assert!(gemv <= 1.0);
        let [gemm, gemv, _] = DramModel::default().speeds([Some(0.4), Some(1.0), None]);
        assert!(close(gemm, 1.0) && close(gemv, 0.6), "{gemm} {gemv}");
    }

    #[test]
    fn memory_bound_kernels_slow_in_proportion_to_their_caps() {
        let memory = DramModel {
            lanes: [0.3, 0.6, 0.6],
            shared: 0.75,
            slowdowns: None,
        };
        let speeds = memory.speeds([0.3, 0.6, 0.6].map(Some));
        assert!(speeds.iter().all(|speed| close(*speed, 0.5)), "{speeds:?}");
    }

    #[test]
    fn a_measured_table_stands_in_place_of_the_caps() {
        use heg_sched::KernelBound::{Compute, Memory};
        let mut table = Slowdowns::new([0.4, 0.8, 0.8]);
        table.set((Lane::Npu, Memory), (Lane::Igpu, Memory), 2.0);
        table.set((Lane::Npu, Memory), (Lane::Cpu, Compute), 1.25);
        table.set((Lane::Igpu, Memory), (Lane::Npu, Memory), 1.6);
        let memory = DramModel::snapdragon().measured(Some(table));
        assert_eq!(memory.speeds([Some(0.4), None, None]), [1.0; 3]);
        let both = memory.speeds([Some(0.4), Some(0.8), None]);
        assert_eq!(both, [0.5, 1.0 / 1.6, 1.0]);
        // A kernel that draws nothing is a neighbour too, and three of them slow each other down by both factors.
        let all = memory.speeds([Some(0.4), Some(0.8), Some(0.0)]);
        assert_eq!(all, [1.0 / 2.5, 1.0 / 1.6, 1.0]);
        let unmeasured = DramModel::snapdragon().measured(None);
        assert_eq!(unmeasured, DramModel::snapdragon());
    }

    proptest! {
        #[test]
        fn nothing_is_drawn_beyond_the_caps_and_nothing_is_wasted(
            demands in prop::array::uniform3(0.0..1.5f64),
            lanes in prop::array::uniform3(0.05..1.0f64),
            shared in 0.05..1.0f64,
        ) {
            let memory = DramModel { lanes, shared, slowdowns: None };
            let grants = memory.grants(demands);
            let mut wanted = 0.0;
            for lane in 0..3 {
                prop_assert!(grants[lane] <= demands[lane].min(lanes[lane]) + 1e-12);
                wanted += demands[lane].min(lanes[lane]);
            }
            let drawn: f64 = grants.iter().sum();
            prop_assert!((drawn - wanted.min(shared)).abs() < 1e-9);
            // A kernel that runs alone is not slowed down, unless the shared cap is lower.
            for lane in (0..3).filter(|lane| demands[*lane].min(lanes[*lane]) <= shared) {
                let mut alone = [None; 3];
                alone[lane] = Some(demands[lane]);
                prop_assert_eq!(memory.speeds(alone)[lane], 1.0);
            }
        }
    }
}
