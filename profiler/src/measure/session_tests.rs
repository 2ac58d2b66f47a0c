//! Whole profiles of a device with known latencies.

use std::time::Duration;

use heg_artifacts::SectionId;
use heg_artifacts::manifest::{Binding, ShapeClass};
use heg_spec::{CutProduct, Side};

use super::*;
use crate::annotation::Regime;
use crate::measure::synthetic::{self, BESIDE_FACTOR, Disturbance, Synthetic};
use crate::measure::{DeviceIdentity, Report, check};
use crate::partition::{Company, PieceTable};

/// Noise of 2 %, one outlier in twenty runs, and a neighbour that is busy a fifth of the time.
fn realistic() -> Disturbance {
    Disturbance {
        cold_factor: 3.0,
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
        &MeasurementPlan::default(),
        &mut (),
    )
    .unwrap()
}

#[test]
fn steps_are_found_and_held_out_calls_predicted() {
    let mut subject = subject(two_kernels());
    let profile = measured(&mut subject);
    insta::assert_snapshot!("report_alone", Report::new(&subject.cases, &profile));
    let check = check(&mut subject, &profile, &MeasurementPlan::default(), 40, 1).unwrap();
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

/// Keeps the last profile that it was given, and stops after some of them.
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
    let plan = MeasurementPlan::default();
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
    let plan = MeasurementPlan {
        budget: Duration::from_millis(1),
        ..MeasurementPlan::default()
    };
    let profile = profile(&mut subject, empty(&[DeviceClass::Cpu]), &plan, &mut ()).unwrap();
    let table = &profile.variant(subject.case(0)).unwrap().table;
    assert_eq!(table.entries().len(), 13);
}

#[test]
fn a_case_that_was_measured_on_a_slow_device_is_measured_again() {
    let slow_start = Disturbance {
        busy_runs: 1500,
        busy_every: u64::MAX,
        busy_factor: 1.4,
        ..Disturbance::default()
    };
    let mut subject = Synthetic::new(two_kernels(), slow_start);
    let profile = measured(&mut subject);
    for (index, case) in two_kernels().iter().enumerate() {
        for (call, latency_us) in profile.variant(case).unwrap().table.entries() {
            let truth_us = synthetic::truth_us(subject.case(index), *call);
            assert!(
                (latency_us / truth_us - 1.0).abs() < 0.01,
                "{} {call:?}",
                case.kernel
            );
        }
    }
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
    let profile = profile(&mut subject, devices, &MeasurementPlan::default(), &mut ()).unwrap();
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
    let plan = MeasurementPlan {
        contention: false,
        ..MeasurementPlan::default()
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
        &MeasurementPlan::default(),
        &mut (),
    );
    let check = check(
        &mut subject,
        &profile.unwrap(),
        &MeasurementPlan::default(),
        10,
        1,
    )
    .unwrap();
    let sizes: Vec<u32> = check
        .comparisons
        .iter()
        .map(|one| one.call.tokens)
        .collect();
    assert_eq!(sizes, [32, 64, 128]);
}

/// A profile of a kernel, and of pieces of a product.
fn with_pieces() -> Profile {
    let mut subject = subject(two_kernels()[..1].to_vec());
    let mut profile = measured(&mut subject);
    let piece = |side, company, entries: &[_]| PieceTable {
        product: CutProduct::Down,
        side,
        company,
        table: LatencyTable::try_from(entries.to_vec()).unwrap(),
    };
    profile.pieces = vec![
        piece(Side::First, Company::Alone, &[(9, 512, 100.5)]),
        piece(
            Side::First,
            Company::Beside,
            &[(9, 128, 30.0), (9, 256, 57.25)],
        ),
    ];
    profile
}

#[test]
fn a_profile_is_read_as_it_was_written() {
    let profile = with_pieces();
    let text = profile.to_text().unwrap();
    assert_eq!(Profile::parse(&text).unwrap(), profile);
    // Older files have none.
    let without = text.split(" pieces: [").next().unwrap();
    let older = Profile::parse(&format!("{without})")).unwrap();
    assert!(older.pieces.is_empty() && older.devices == profile.devices);
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
    let text = with_pieces().to_text().unwrap();
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
            refused("company: Beside", "company: Alone"),
            refused("company: Beside", "company: Between"),
            refused("(9, 256, ", "(9, 128, "),
            refused("57.3", "inf"),
            Profile::parse("").unwrap_err().to_string(),
            Profile::parse(&" ".repeat(super::super::PROFILE_BYTES_MAX + 1))
                .unwrap_err()
                .to_string(),
        ]
        .join("\n")
    );
}
