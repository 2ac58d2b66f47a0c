//! Checks predictions on calls that are not in the profile.

use super::session::device_peaks;
use super::settle::{Budget, Gauge, MeasurementPlan, Settled, settle_within};
use super::{Case, Profile, Subject};
use crate::predict::{CallShape, Check, Comparison, Steps, held_out};

/// Measures `calls` calls of each dynamic case that are not in the profile, and predicts them from it; each static
/// variant that has neighbours is predicted from these. `seed` chooses the calls.
pub fn check<S: Subject>(
    subject: &mut S,
    profile: &Profile,
    plan: &MeasurementPlan,
    calls: u32,
    seed: u64,
) -> Result<Check, S::Error> {
    let cases = subject.cases().to_vec();
    let plan = MeasurementPlan {
        budget: plan.budget / u32::try_from(cases.len().max(1)).unwrap_or(u32::MAX),
        ..plan.clone()
    };
    let mut check = Check::default();
    for (index, case) in cases.iter().enumerate() {
        let peaks = device_peaks(&cases, profile, case.device);
        let Some(calibrated) = peaks.and_then(|peaks| profile.calibrated(case, peaks)) else {
            continue;
        };
        if case.shape.chunk().is_some() {
            continue;
        }
        let calls = held_out(&calibrated.table, calls, seed);
        let mut budget = Budget { left: plan.budget };
        let mut gauge = Gauge::of_table(&calibrated.table);
        let measured = settle_within(
            subject,
            index,
            &calls,
            &plan,
            &mut gauge,
            &mut budget,
            &mut |_| (),
        )?;
        let compare = |one: &Settled| Comparison {
            kernel: label(&cases, case),
            call: one.call,
            measured_us: one.latency_us,
            predicted_us: calibrated.latency_us(&case.work, one.call),
            roofline_us: calibrated.roofline.map(|roofline| {
                roofline.latency_us(one.call.flops(&case.work), one.call.bytes(&case.work))
            }),
        };
        check.comparisons.extend(measured.iter().map(compare));
    }
    for kernel in static_kernels(&cases) {
        check.comparisons.extend(left_out(&kernel, profile, &cases));
    }
    Ok(check)
}

/// The static cases of each kernel on each device.
fn static_kernels(cases: &[Case]) -> Vec<Vec<&Case>> {
    let mut kernels: Vec<Vec<&Case>> = Vec::new();
    for case in cases.iter().filter(|case| case.shape.chunk().is_some()) {
        let same = |kernel: &&mut Vec<&Case>| {
            let first = kernel.first();
            first.is_some_and(|one| one.kernel == case.kernel && one.device == case.device)
        };
        match kernels.iter_mut().find(same) {
            Some(kernel) => kernel.push(case),
            None => kernels.push(vec![case]),
        }
    }
    kernels
}

/// Predicts each size of a kernel that lies between others from the others.
fn left_out(kernel: &[&Case], profile: &Profile, cases: &[Case]) -> Vec<Comparison> {
    let measured = kernel.iter().filter_map(|case| {
        let table = &profile.variant(case)?.table;
        Some((case.shape, table.entries().first()?.1))
    });
    let compiled = kernel.iter().map(|case| case.shape);
    let (Ok(steps), Some(case)) = (Steps::new(measured, compiled), kernel.first()) else {
        return Vec::new();
    };
    let inner = steps.table().entries();
    let inner = inner
        .get(1..inner.len().saturating_sub(1))
        .unwrap_or_default();
    let compare = |(call, measured_us): &(CallShape, f64)| {
        Some(Comparison {
            kernel: label(cases, case),
            call: *call,
            measured_us: *measured_us,
            predicted_us: steps.without(*call)?.size_us(&case.work, *call),
            roofline_us: None,
        })
    };
    inner.iter().filter_map(compare).collect()
}

/// The kernel's name, with its role if there are several.
fn label(cases: &[Case], case: &Case) -> String {
    match cases.iter().all(|other| other.device == case.device) {
        true => case.kernel.clone(),
        false => format!("{} {}", case.kernel, case.device.name()),
    }
}
