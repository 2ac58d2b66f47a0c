//! A whole profile: kernel by kernel, saved after each, so that one that is killed goes on where it was.

use heg_artifacts::manifest::DeviceClass;

use super::profile::peaks_of;
use super::settle::{Budget, Gauge, Plan, Settled, settle, settle_within};
use super::{Case, Profile, Subject, contention, grid};
use crate::model::DevicePeaks;
use crate::predict::{Call, Check, Comparison, LatencyTable, Steps, held_out};

/// Is told how a profile goes on.
pub trait Watch<E> {
    /// After each visit: so many of the calls of a case are settled.
    fn visited(&mut self, _case: &Case, _settled: usize, _calls: usize) {}

    /// After each case: the profile as it is now, to be saved. What this refuses ends the measurement.
    fn measured(&mut self, _profile: &Profile) -> Result<(), E> {
        Ok(())
    }
}

/// Nobody watches.
impl<E> Watch<E> for () {}

/// Measures what `profile` does not have yet: every case alone, then what devices do to each other.
pub fn profile<S: Subject>(
    subject: &mut S,
    mut profile: Profile,
    plan: &Plan,
    watch: &mut dyn Watch<S::Error>,
) -> Result<Profile, S::Error> {
    let cases = subject.cases().to_vec();
    let missing: Vec<usize> = (0..cases.len())
        .filter(|index| profile.variant(&cases[*index]).is_none())
        .collect();
    let mut budget = Budget { left: plan.budget };
    for (done, index) in missing.iter().enumerate() {
        let case = &cases[*index];
        // What one case leaves of its share goes to the rest.
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
    if plan.contention && profile.contention.is_empty() {
        profile.contention = contention::measure(subject, &profile, plan)?;
        if !profile.contention.is_empty() {
            watch.measured(&profile)?;
        }
    }
    Ok(profile)
}

/// The table of one case: the first grid, then denser where the middle of an interval was mispredicted. None
/// where the case cannot be measured.
fn measure_case<S: Subject>(
    subject: &mut S,
    index: usize,
    case: &Case,
    plan: &Plan,
    budget: &mut Budget,
    watch: &mut dyn Watch<S::Error>,
) -> Result<Option<LatencyTable>, S::Error> {
    let first = grid::first(case);
    let mut gauge = Gauge::new(first.first().copied().unwrap_or_default());
    let mut settle_more = |calls: &[Call], known: &[Settled], budget: &mut Budget| {
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

/// None of nothing, or of latencies that no kernel has.
fn table_of(settled: &[Settled]) -> Option<LatencyTable> {
    let mut entries: Vec<(Call, f64)> = settled
        .iter()
        .map(|one| (one.call, one.latency_us))
        .collect();
    entries.sort_by_key(|entry| entry.0);
    LatencyTable::new(entries).ok()
}

/// Measures `calls` calls of each dynamic case that are not in the profile, and predicts them from it; of static
/// variants, each that has neighbours is predicted from these. `seed` chooses the calls.
pub fn check<S: Subject>(
    subject: &mut S,
    profile: &Profile,
    plan: &Plan,
    calls: u32,
    seed: u64,
) -> Result<Check, S::Error> {
    let cases = subject.cases().to_vec();
    let plan = Plan {
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
        let measured = settle(subject, index, &calls, &plan, &mut |_| ())?;
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

/// Each size of a kernel that lies between others, predicted from the others.
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
    let compare = |(call, measured_us): &(Call, f64)| {
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

/// The kernel's name, with its role where there are several.
fn label(cases: &[Case], case: &Case) -> String {
    match cases.iter().all(|other| other.device == case.device) {
        true => case.kernel.clone(),
        false => format!("{} {:?}", case.kernel, case.device).to_lowercase(),
    }
}

/// The most that any case reached on a device: stands for its peaks.
pub fn device_peaks(cases: &[Case], profile: &Profile, device: DeviceClass) -> Option<DevicePeaks> {
    let on_device = cases.iter().filter(|case| case.device == device);
    let tables = on_device.filter_map(|case| Some((&case.work, &profile.variant(case)?.table)));
    peaks_of(tables)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use heg_artifacts::SectionId;
    use heg_artifacts::manifest::{Binding, ShapeClass};

    use super::*;
    use crate::annotation::Regime;
    use crate::measure::synthetic::{self, BESIDE_FACTOR, Disturbance, Synthetic};
    use crate::measure::{DeviceIdentity, Report};

    /// Noise of 2 %, an outlier in twenty runs, and a neighbour that is busy a fifth of the time.
    fn realistic() -> Disturbance {
        Disturbance {
            cold_factor: 10.0,
            noise: 0.02,
            outlier_share: 0.05,
            outlier_factor: 5.0,
            busy_runs: 100,
            busy_every: 500,
            busy_factor: 2.0,
            drift_per_run: 0.0,
        }
    }

    fn subject(cases: Vec<Case>) -> Synthetic {
        Synthetic::new(cases, realistic())
    }

    fn two_kernels() -> Vec<Case> {
        vec![
            synthetic::case("ffn", 256, 0),
            synthetic::case("mha", 256, 4096),
        ]
    }

    fn empty(classes: &[DeviceClass]) -> Profile {
        let identity = |class: &DeviceClass| DeviceIdentity {
            class: *class,
            openvino: "CPU".to_owned(),
            name: "a device with a known truth".to_owned(),
            driver: "1.0".to_owned(),
            properties: [("NUM_STREAMS".to_owned(), "1".to_owned())].into(),
        };
        let devices = classes.iter().map(identity).collect();
        Profile::new(SectionId::of(b"a bundle"), "synthetic", devices)
    }

    fn measured(subject: &mut Synthetic) -> Profile {
        profile(
            subject,
            empty(&[DeviceClass::Cpu]),
            &Plan::default(),
            &mut (),
        )
        .unwrap()
    }

    #[test]
    fn steps_are_found_and_held_out_calls_predicted() {
        let mut subject = subject(two_kernels());
        let profile = measured(&mut subject);
        insta::assert_snapshot!("report_alone", Report::new(&subject.cases, &profile));
        let check = check(&mut subject, &profile, &Plan::default(), 40, 1).unwrap();
        assert!(check.comparisons.len() > 50);
        assert!(check.passes(), "{check}");
        insta::assert_snapshot!(check);
    }

    #[test]
    fn the_grid_is_dense_where_latency_jumps_and_only_there() {
        let mut subject = Synthetic::new(two_kernels(), Disturbance::default());
        let profile = measured(&mut subject);
        let tokens = |index: usize| {
            let table = &profile.variant(subject.case(index)).unwrap().table;
            let mut tokens: Vec<u32> = table.entries().iter().map(|entry| entry.0.tokens).collect();
            tokens.dedup();
            tokens
        };
        let near_step = |at: u32| tokens(0).iter().filter(|c| c.abs_diff(at) < 10).count();
        assert!(near_step(192) >= 2, "{:?}", tokens(0));
        assert!(tokens(0).len() < 45, "{:?}", tokens(0));
        assert!(tokens(1).len() < 20, "{:?}", tokens(1));
    }

    /// Keeps the last profile it was given, and stops after some.
    struct Kill {
        after: usize,
        saved: Option<Profile>,
    }

    impl<E> Watch<E> for Kill {
        fn measured(&mut self, profile: &Profile) -> Result<(), E> {
            assert!(self.after > 0, "measured again what was saved");
            self.after -= 1;
            self.saved = Some(profile.clone());
            Ok(())
        }
    }

    #[test]
    fn a_killed_profile_goes_on() {
        let cases = two_kernels();
        let mut first = Kill {
            after: 1,
            saved: None,
        };
        let plan = Plan::default();
        let mut of_ffn = subject(cases[..1].to_vec());
        profile(&mut of_ffn, empty(&[DeviceClass::Cpu]), &plan, &mut first).unwrap();
        let saved = Profile::parse(&first.saved.unwrap().to_text().unwrap()).unwrap();
        let mut second = Kill {
            after: 1,
            saved: None,
        };
        let whole = profile(
            &mut subject(cases.clone()),
            saved.clone(),
            &plan,
            &mut second,
        )
        .unwrap();
        assert_eq!(whole.variant(&cases[0]), saved.variant(&cases[0]));
        assert!(whole.variant(&cases[1]).is_some());
        let mut idle = subject(cases);
        profile(
            &mut idle,
            whole,
            &plan,
            &mut Kill {
                after: 0,
                saved: None,
            },
        )
        .unwrap();
        assert_eq!(idle.runs, 0);
    }

    #[test]
    fn a_small_budget_gives_a_coarse_profile() {
        let mut subject = subject(two_kernels());
        let plan = Plan {
            budget: Duration::from_millis(1),
            ..Plan::default()
        };
        let profile = profile(&mut subject, empty(&[DeviceClass::Cpu]), &plan, &mut ()).unwrap();
        let table = &profile.variant(subject.case(0)).unwrap().table;
        assert_eq!(table.entries().len(), 13);
    }

    #[test]
    fn devices_that_run_at_once_are_measured_beside_each_other() {
        let on = |device| Case {
            device,
            ..synthetic::case("ffn", 64, 0)
        };
        let mut subject = Synthetic::new(
            vec![on(DeviceClass::Npu), on(DeviceClass::Igpu)],
            Disturbance::default(),
        );
        let devices = empty(&[DeviceClass::Npu, DeviceClass::Igpu]);
        let profile = profile(&mut subject, devices, &Plan::default(), &mut ()).unwrap();
        assert_eq!(profile.contention.len(), 8);
        insta::assert_snapshot!(Report::new(&subject.cases, &profile));
        for cell in &profile.contention {
            let expected = match cell.subject().1 {
                Regime::MemoryBound => BESIDE_FACTOR,
                Regime::ComputeBound => 1.0,
            };
            assert!((cell.slowdown() - expected).abs() < 0.01, "{cell:?}");
        }
        let alone = Profile {
            contention: Vec::new(),
            ..profile
        };
        let plan = Plan {
            contention: false,
            ..Plan::default()
        };
        let again = super::profile(&mut subject, alone, &plan, &mut ()).unwrap();
        assert!(again.contention.is_empty());
    }

    #[test]
    fn static_variants_are_predicted_from_their_neighbours() {
        let variant = |tokens| Case {
            shape: ShapeClass::Static { tokens },
            binding: Binding::Input,
            device: DeviceClass::Npu,
            ..synthetic::case("ffn", tokens, 0)
        };
        let mut subject = subject([16, 32, 64, 128, 256].map(variant).to_vec());
        let profile = profile(
            &mut subject,
            empty(&[DeviceClass::Npu]),
            &Plan::default(),
            &mut (),
        );
        let check = check(&mut subject, &profile.unwrap(), &Plan::default(), 10, 1).unwrap();
        let sizes: Vec<u32> = check
            .comparisons
            .iter()
            .map(|one| one.call.tokens)
            .collect();
        assert_eq!(sizes, [32, 64, 128]);
    }

    #[test]
    fn a_profile_is_read_as_it_was_written() {
        let mut subject = subject(two_kernels()[..1].to_vec());
        let profile = measured(&mut subject);
        let text = profile.to_text().unwrap();
        assert_eq!(Profile::parse(&text).unwrap(), profile);
        insta::assert_snapshot!(text);
    }

    #[test]
    fn another_bundle_or_device_is_refused() {
        let profile = empty(&[DeviceClass::Cpu]);
        let identities = |profile: &Profile| -> Vec<DeviceIdentity> {
            profile
                .devices
                .iter()
                .map(|one| one.identity.clone())
                .collect()
        };
        let mut devices = identities(&profile);
        assert_eq!(profile.expect(profile.bundle, &devices), Ok(()));
        let other = profile
            .expect(SectionId::of(b"another"), &devices)
            .unwrap_err();
        devices[0].driver = "2.0".to_owned();
        let newer = profile.expect(profile.bundle, &devices).unwrap_err();
        let none = profile.expect(profile.bundle, &[]).unwrap_err();
        insta::assert_snapshot!(format!("{other}\n{newer}\n{none}"));
    }

    #[test]
    fn nonsense_is_no_profile() {
        let text = measured(&mut subject(two_kernels()[..1].to_vec()))
            .to_text()
            .unwrap();
        let refused = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            Profile::parse(&text.replacen(from, to, 1))
                .unwrap_err()
                .to_string()
        };
        let entry = "(1, 0, ";
        let variant = text.split("variants: [").nth(1).unwrap();
        let variant = variant.split("\n   ]").next().unwrap();
        insta::assert_snapshot!(
            [
                refused("revision: 1", "revision: 2"),
                refused("soc:", "sock:"),
                refused(entry, "(0, 0, "),
                refused(entry, "(1, 0, -"),
                refused(entry, "(77, 0, "),
                refused(variant, &format!("{variant}{variant}")),
                Profile::parse("").unwrap_err().to_string(),
                Profile::parse(&" ".repeat(super::super::PROFILE_BYTES_MAX + 1))
                    .unwrap_err()
                    .to_string(),
            ]
            .join("\n")
        );
    }
}
