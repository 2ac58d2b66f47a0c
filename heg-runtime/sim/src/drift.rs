//! Speed of a machine that changes while it runs: with its clock, its heat and its neighbours.

use heg_sched::{Lane, Micros};

/// The factors by which kernels take longer than their costs say, by lane and time. Without any, all take these.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SpeedDrift([Vec<DriftSpan>; Lane::ALL.len()]);

/// A factor from a time on.
#[derive(Debug, Clone, Copy, PartialEq)]
struct DriftSpan {
    from: Micros,
    factor: f64,
}

impl SpeedDrift {
    /// Adds a factor that holds on a lane from a time on, until the next. Times of a lane ascend; a factor that is not
    /// above 0 counts as 1.
    pub fn add(&mut self, lane: Lane, from: Micros, factor: f64) {
        let factor = match factor > 0.0 && factor.is_finite() {
            true => factor,
            false => 1.0,
        };
        self.0[lane as usize].push(DriftSpan { from, factor });
    }

    /// The factor of a launch that starts now.
    pub(crate) fn factor(&self, lane: Lane, now: Micros) -> f64 {
        let spans = &self.0[lane as usize];
        let next = spans.partition_point(|span| span.from <= now);
        let span = next.checked_sub(1).and_then(|at| spans.get(at));
        span.map_or(1.0, |span| span.factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_holds_on_its_lane_until_the_next() {
        let mut drift = SpeedDrift::default();
        drift.add(Lane::Cpu, Micros(10), 2.0);
        drift.add(Lane::Cpu, Micros(20), f64::NAN);
        drift.add(Lane::Cpu, Micros(30), 0.5);
        let factors = [0, 10, 19, 20, 29, 30, 1000].map(|at| drift.factor(Lane::Cpu, Micros(at)));
        assert_eq!(factors, [1.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.5]);
        assert_eq!(drift.factor(Lane::Npu, Micros(15)), 1.0);
    }
}
