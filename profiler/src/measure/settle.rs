//! From runs to one latency per call.
//!
//! A *visit* runs a call at every place to warm it up, then times some runs and takes their median. Disturbances only
//! ever make a measurement longer, and last for a while: other processes, a lower clock. So visits to a call are spread
//! over time, all calls in turn, and the latency is settled once the two shortest visits agree. Two visits within one
//! disturbance would agree as well: therefore a *gauge*, one short call of the same kernel, is visited after each, and
//! measurements made while the gauge was slow are left out.

use std::time::Duration;

use super::Subject;
use crate::predict::{CallShape, LatencyTable};

/// The time budget and the tolerances of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasurementPlan {
    /// Time for all runs together, warm-up included. A soft limit: each call of the first grid is visited once, however
    /// long it takes.
    pub budget: Duration,
    /// Largest difference between the two shortest visits at which a call is settled, as a share of the shorter.
    pub agreement: f64,
    /// Number of undisturbed visits after which a call is not visited again.
    pub visits_max: u32,
    /// Error of interpolation above which the grid is made denser.
    pub tolerance: f64,
    /// Whether to measure the contention between two devices, if they can run at once.
    pub contention: bool,
}

impl Default for MeasurementPlan {
    /// Chosen: a 1B model on two cores settles within the budget; measurements on a quiet machine repeat within 3 %; 5
    /// % is half of the permitted error of predictions.
    fn default() -> Self {
        Self {
            budget: Duration::from_secs(90),
            agreement: 0.03,
            visits_max: 8,
            tolerance: 0.05,
            contention: true,
        }
    }
}

/// A call with its latency.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settled {
    /// The call.
    pub call: CallShape,
    /// Its latency, in µs.
    pub latency_us: f64,
    /// Difference between the two shortest visits, as a share of the shorter; infinite after one visit.
    pub spread: f64,
    /// Number of undisturbed visits behind it; may be 0.
    pub visits: u32,
}

/// Remaining time, across kernels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    pub(super) left: Duration,
}

/// The call of a case that shows whether the device is undisturbed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gauge {
    call: CallShape,
    shortest_us: f64,
}

impl Gauge {
    /// Chooses the middle one of several calls: long enough to be affected by disturbances, and no longer.
    pub(super) fn among(calls: &[CallShape]) -> Self {
        Self {
            call: calls.get(calls.len() / 2).copied().unwrap_or_default(),
            shortest_us: f64::INFINITY,
        }
    }

    /// Chooses the middle call of a table, whose latencies are from an undisturbed device.
    pub(super) fn of_table(table: &LatencyTable) -> Self {
        let entries = table.entries();
        let middle = entries.get(entries.len() / 2).copied();
        let (call, shortest_us) = middle.unwrap_or((CallShape::default(), f64::INFINITY));
        Self { call, shortest_us }
    }

    /// Whether the device is faster now than when the gauge was taken.
    pub(super) fn is_outdone<S: Subject>(
        &self,
        subject: &mut S,
        case: usize,
        budget: &mut Budget,
    ) -> Result<bool, S::Error> {
        let places = subject.cases().get(case).map_or(1, |case| case.places);
        let now_us = visit(subject, case, self.call, places, budget)?;
        Ok(now_us * (1.0 + DISTURBED_MIN) < self.shortest_us)
    }

    /// Whether the device was undisturbed when the gauge took this long.
    fn approves(&self, gauge_us: f64) -> bool {
        gauge_us <= self.shortest_us * (1.0 + DISTURBED_MIN)
    }
}

/// Measures `calls` of a case; the result is in their order. `visited` gets the number of settled calls after each
/// visit. A call that was visited only once, because time ran out, is not settled but has a latency.
pub fn settle<S: Subject>(
    subject: &mut S,
    case: usize,
    calls: &[CallShape],
    plan: &MeasurementPlan,
    visited: &mut dyn FnMut(usize),
) -> Result<Vec<Settled>, S::Error> {
    let mut budget = Budget { left: plan.budget };
    let mut gauge = Gauge::among(calls);
    settle_within(subject, case, calls, plan, &mut gauge, &mut budget, visited)
}

/// Like [`settle`], with a shared gauge and budget.
pub(super) fn settle_within<S: Subject>(
    subject: &mut S,
    case: usize,
    calls: &[CallShape],
    plan: &MeasurementPlan,
    gauge: &mut Gauge,
    budget: &mut Budget,
    visited: &mut dyn FnMut(usize),
) -> Result<Vec<Settled>, S::Error> {
    let places = subject.cases().get(case).map_or(1, |case| case.places);
    let mut visits: Vec<Visits> = vec![Visits::default(); calls.len()];
    let mut before_us = 0.0_f64;
    for round in 0..plan.visits_max.max(1).saturating_mul(PATIENCE) {
        for turn in 0..calls.len() {
            // Each round starts elsewhere, so that no two calls are always neighbours in time.
            let index = (turn + round as usize * calls.len() / 3) % calls.len();
            let so_far = visits[index].settled(gauge);
            let is_enough = so_far.spread <= plan.agreement || so_far.visits >= plan.visits_max;
            if is_enough || (round > 0 && budget.left.is_zero()) {
                continue;
            }
            let latency_us = visit(subject, case, calls[index], places, budget)?;
            let gauge_us = visit(subject, case, gauge.call, places, budget)?;
            gauge.shortest_us = gauge.shortest_us.min(gauge_us);
            // A visit is undisturbed if the gauge was, both before and after.
            visits[index].0.push((latency_us, gauge_us.max(before_us)));
            before_us = gauge_us;
            let settled = visits.iter().map(|all| all.settled(gauge));
            visited(settled.filter(|one| one.spread <= plan.agreement).count());
        }
    }
    let settled = calls.iter().zip(&visits).map(|(call, visits)| Settled {
        call: *call,
        ..visits.settled(gauge)
    });
    Ok(settled.collect())
}

/// The visits to one call: its latency, and the longer of the gauge's before and after, in µs.
#[derive(Debug, Clone, Default)]
struct Visits(Vec<(f64, f64)>);

impl Visits {
    /// The result so far; the caller fills in the call.
    fn settled(&self, gauge: &Gauge) -> Settled {
        let approved = self.0.iter().filter(|visit| gauge.approves(visit.1));
        let mut sorted_us: Vec<f64> = approved.map(|visit| visit.0).collect();
        sorted_us.sort_by(f64::total_cmp);
        // The mean of the two shortest: the shortest alone would depend on luck when there are many visits.
        let (latency_us, spread) = match sorted_us[..] {
            [shortest, second, ..] => ((shortest + second) / 2.0, (second - shortest) / shortest),
            [only] => (only, f64::INFINITY),
            [] => {
                let all_us = self.0.iter().map(|visit| visit.0);
                (all_us.fold(f64::NAN, f64::min), f64::INFINITY)
            }
        };
        Settled {
            call: CallShape::default(),
            latency_us,
            spread,
            visits: sorted_us.len() as u32,
        }
    }
}

/// One visit: the median of some runs, in µs.
fn visit<S: Subject>(
    subject: &mut S,
    case: usize,
    call: CallShape,
    places: u32,
    budget: &mut Budget,
) -> Result<f64, S::Error> {
    let mut run = |budget: &mut Budget| -> Result<Duration, S::Error> {
        let took = subject.run(case, call)?;
        budget.left = budget.left.saturating_sub(took);
        Ok(took)
    };
    for _ in 0..places {
        run(budget)?;
    }
    let mut times_us = Vec::new();
    let mut timed = Duration::ZERO;
    while times_us.len() < RUNS_MIN || (timed < VISIT_MIN && times_us.len() < RUNS_MAX) {
        let took = run(budget)?;
        timed += took;
        times_us.push(took.as_secs_f64() * 1e6);
    }
    times_us.sort_by(f64::total_cmp);
    Ok(quantile(&times_us, 0.5).unwrap_or(f64::NAN))
}

/// A quantile of ascending numbers, interpolated linearly; `None` if there are no numbers.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = share.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (
        sorted.get(at.floor() as usize)?,
        sorted.get(at.ceil() as usize)?,
    );
    Some(below + (above - below) * at.fract())
}

/// Fewest timed runs of a visit, so that one outlier does not move the median. Chosen.
const RUNS_MIN: usize = 5;

/// Most timed runs of a visit. Chosen.
const RUNS_MAX: usize = 64;

/// Rounds for each visit that is wanted, since some fall into disturbances. Chosen.
const PATIENCE: u32 = 3;

/// Slowdown of the gauge, as a share, above which the device counts as disturbed. Chosen: several times the difference
/// between visits on a quiet machine.
const DISTURBED_MIN: f64 = 0.08;

/// Shortest duration of a visit; short runs are repeated to fill it. Chosen: longer than the time slice of an operating
/// system's scheduler.
const VISIT_MIN: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{self, Disturbance, Synthetic};

    fn line(tokens: &[u32]) -> Vec<CallShape> {
        let call = |tokens: &u32| CallShape {
            tokens: *tokens,
            context: 0,
        };
        tokens.iter().map(call).collect()
    }

    fn worst_error(disturbance: Disturbance) -> f64 {
        let mut subject = Synthetic::new(vec![synthetic::case("ffn", 256, 0)], disturbance);
        let calls = line(&[1, 8, 32, 64, 65, 256]);
        let settled = settle(
            &mut subject,
            0,
            &calls,
            &MeasurementPlan::default(),
            &mut |_| (),
        )
        .unwrap();
        let errors = settled.iter().map(|one| {
            let truth_us = synthetic::truth_us(subject.case(0), one.call);
            (one.latency_us / truth_us - 1.0).abs()
        });
        errors.fold(0.0, f64::max)
    }

    #[test]
    fn a_quiet_device_is_measured_exactly_after_two_visits() {
        let mut subject =
            Synthetic::new(vec![synthetic::case("ffn", 256, 0)], Disturbance::default());
        let settled = settle(
            &mut subject,
            0,
            &line(&[1, 64]),
            &MeasurementPlan::default(),
            &mut |_| (),
        )
        .unwrap();
        assert!(
            settled
                .iter()
                .all(|one| one.visits == 2 && one.spread < 1e-3)
        );
        assert!(worst_error(Disturbance::default()) < 1e-3);
    }

    #[test]
    fn warm_up_is_discarded() {
        let disturbance = Disturbance {
            cold_factor: 20.0,
            ..Disturbance::default()
        };
        assert!(worst_error(disturbance) < 1e-3);
    }

    #[test]
    fn noise_and_outliers_are_averaged_out() {
        let disturbance = Disturbance {
            noise: 0.03,
            outlier_share: 0.15,
            outlier_factor: 8.0,
            ..Disturbance::default()
        };
        assert!(worst_error(disturbance) < 0.04);
    }

    #[test]
    fn a_busy_period_is_waited_out() {
        let disturbance = Disturbance {
            busy_runs: 60,
            busy_every: 150,
            busy_factor: 3.0,
            ..Disturbance::default()
        };
        assert!(worst_error(disturbance) < 0.02);
    }

    #[test]
    fn a_drift_favours_no_call() {
        let disturbance = Disturbance {
            drift_per_run: 2e-5,
            ..Disturbance::default()
        };
        assert!(worst_error(disturbance) < 0.02);
    }

    #[test]
    fn a_spent_budget_ends_repeats_but_leaves_no_call_out() {
        let disturbance = Disturbance {
            noise: 0.5,
            ..Disturbance::default()
        };
        let mut subject = Synthetic::new(vec![synthetic::case("ffn", 256, 0)], disturbance);
        let plan = MeasurementPlan {
            budget: Duration::from_micros(1),
            ..MeasurementPlan::default()
        };
        let settled = settle(&mut subject, 0, &line(&[1, 64, 256]), &plan, &mut |_| ()).unwrap();
        assert!(
            settled
                .iter()
                .all(|one| one.visits <= 1 && one.latency_us > 0.0)
        );
    }

    #[test]
    fn quantiles_lie_between_their_neighbours() {
        let sorted = [1.0, 2.0, 3.0, 10.0];
        let found = [0.0, 0.5, 1.0, 2.0].map(|share| quantile(&sorted, share));
        assert_eq!(found, [Some(1.0), Some(2.5), Some(10.0), Some(10.0)]);
        assert_eq!(quantile(&[], 0.5), None);
    }
}
