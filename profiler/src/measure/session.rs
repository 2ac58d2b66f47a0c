//! A whole profile: kernel by kernel, saved after each, so that a killed measurement resumes where it was.

use heg_spec::DeviceClass;

use super::profile::peaks_of;
use super::settle::{Budget, Gauge, MeasurementPlan, Settled, settle_within};
use super::{Case, Profile, Subject, contention, grid};
use crate::model::DevicePeaks;
use crate::predict::{CallShape, LatencyTable};

/// Follows the progress of a profile.
pub trait Watch<E> {
    /// Reports, after each visit, the number of settled calls of a case.
    fn visited(&mut self, _case: &Case, _settled: usize, _calls: usize) {}

    /// Called after each case with the profile so far, to be saved. An error ends the measurement.
    fn measured(&mut self, _profile: &Profile) -> Result<(), E> {
        Ok(())
    }
}

/// Ignores the progress.
impl<E> Watch<E> for () {}

/// Measures everything that `profile` lacks: every case alone, then the contention between devices.
pub fn profile<S: Subject>(
    subject: &mut S,
    mut profile: Profile,
    plan: &MeasurementPlan,
    watch: &mut dyn Watch<S::Error>,
) -> Result<Profile, S::Error> {
    let cases = subject.cases().to_vec();
    let missing: Vec<usize> = (0..cases.len())
        .filter(|index| profile.variant(&cases[*index]).is_none())
        .collect();
    let mut budget = Budget { left: plan.budget };
    for (done, index) in missing.iter().enumerate() {
        let case = &cases[*index];
        // Time that a case leaves unused goes to the others.
        let rest = u32::try_from(missing.len() - done).unwrap_or(u32::MAX);
        let mut share = Budget {
            left: budget.left / rest,
        };
        let before = share.left;
        let table = measure_case(subject, *index, case, plan, &mut share, watch)?;
        budget.left = budget
            .left
            .saturating_sub(before.saturating_sub(share.left));
        if let Some(table) = table {
            profile.put(case, table);
            watch.measured(&profile)?;
        }
    }
    look_again(subject, &mut profile, plan, &missing, watch)?;
    if plan.contention && profile.contention.is_empty() {
        profile.contention = contention::measure(subject, &profile)?;
        if !profile.contention.is_empty() {
            watch.measured(&profile)?;
        }
    }
    Ok(profile)
}

/// Measures each case again, once, if the device is now faster than during its measurement: a disturbance that outlasts
/// a case cannot be distinguished from a slow device until it is over.
fn look_again<S: Subject>(
    subject: &mut S,
    profile: &mut Profile,
    plan: &MeasurementPlan,
    measured: &[usize],
    watch: &mut dyn Watch<S::Error>,
) -> Result<(), S::Error> {
    let cases = subject.cases().to_vec();
    for index in measured {
        let case = &cases[*index];
        let Some(variant) = profile.variant(case) else {
            continue;
        };
        let gauge = Gauge::of_table(&variant.table);
        let mut budget = Budget {
            left: plan.budget / u32::try_from(measured.len()).unwrap_or(u32::MAX),
        };
        if !gauge.is_outdone(subject, *index, &mut budget)? {
            continue;
        }
        if let Some(table) = measure_case(subject, *index, case, plan, &mut budget, watch)? {
            profile.put(case, table);
            watch.measured(profile)?;
        }
    }
    Ok(())
}

/// Measures the table of one case: the first grid, then denser where the middle of an interval was mispredicted.
/// Returns `None` if the case cannot be measured.
fn measure_case<S: Subject>(
    subject: &mut S,
    index: usize,
    case: &Case,
    plan: &MeasurementPlan,
    budget: &mut Budget,
    watch: &mut dyn Watch<S::Error>,
) -> Result<Option<LatencyTable>, S::Error> {
    let first = grid::first(case);
    let mut gauge = Gauge::among(&first);
    let mut settle_more = |calls: &[CallShape], known: &[Settled], budget: &mut Budget| {
        let before = known.len();
        let mut visited = |settled| watch.visited(case, before + settled, before + calls.len());
        settle_within(
            subject,
            index,
            calls,
            plan,
            &mut gauge,
            budget,
            &mut visited,
        )
    };
    let mut known = settle_more(&first, &[], budget)?;
    let mut intervals = match table_of(&known) {
        Some(table) => grid::intervals(&table),
        None => return Ok(None),
    };
    loop {
        let Some(table) = table_of(&known) else {
            return Ok(None);
        };
        let middles = grid::middles(&table, &intervals);
        if middles.is_empty() || budget.left.is_zero() {
            return Ok(Some(table));
        }
        let found = settle_more(&middles, &known, budget)?;
        let denser = grid::denser(case, &table, &found, &intervals, plan.tolerance);
        known.extend(found.iter().filter(|one| denser.keeps(one.call)));
        let rows = settle_more(&denser.calls, &known, budget)?;
        known.extend(rows);
        intervals = denser.intervals;
    }
}

/// The table of settled calls; `None` if there are none, or if a latency is impossible.
fn table_of(settled: &[Settled]) -> Option<LatencyTable> {
    let mut entries: Vec<(CallShape, f64)> = settled
        .iter()
        .map(|one| (one.call, one.latency_us))
        .collect();
    entries.sort_by_key(|entry| entry.0);
    LatencyTable::new(entries).ok()
}

/// The highest rates that any case reached on a device, in place of its peaks.
pub fn device_peaks(cases: &[Case], profile: &Profile, device: DeviceClass) -> Option<DevicePeaks> {
    let on_device = cases.iter().filter(|case| case.device == device);
    let tables = on_device.filter_map(|case| Some((&case.work, &profile.variant(case)?.table)));
    peaks_of(tables)
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
