//! `heg doctor --gpu` with a driver that fails, and the number of times that a start asks for the machine's GPUs.

use std::process::{Command, Output};

use heg_tests::{Workbench, fixture, skipped};
use heg_vk_faults::{Installed, VkEntry, VkFault, VkPlan};

/// `heg` with a cache of its own, on devices that have the layer.
struct Machine {
    workbench: Workbench,
    layer: Installed,
}

impl Machine {
    /// `None` where there is no lavapipe, which is noted.
    fn new(test: &str) -> Option<Self> {
        let workbench = Workbench::new().unwrap();
        let folder = workbench.path("layer");
        std::fs::create_dir_all(&folder).unwrap();
        let layer = Installed::new(&folder).unwrap();
        let machine = Self { workbench, layer };
        let found = machine.heg(&["doctor", "--gpu", "lavapipe"]);
        if found.status.success() {
            return Some(machine);
        }
        let said = String::from_utf8_lossy(&found.stderr);
        let required = std::env::var_os("HEG_REQUIRE_GPU").is_some();
        assert!(!required, "{said}");
        skipped(&format!("{test}: no lavapipe"));
        None
    }

    fn heg(&self, arguments: &[&str]) -> Output {
        let mut heg = Command::new(env!("CARGO_BIN_EXE_heg"));
        let heg = heg.env_clear().args(arguments);
        heg.env("HEG_CACHE_DIR", self.workbench.path("cache"))
            .envs(self.layer.environment())
            .output()
            .unwrap()
    }

    /// The output of `heg`, and the layer's record of it.
    fn said(&self, arguments: &[&str], plan: &VkPlan) -> (Output, Vec<VkEntry>) {
        self.layer.plan(plan).unwrap();
        self.layer.clear_record().unwrap();
        (self.heg(arguments), self.layer.record().unwrap())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_driver_that_crashes_at_a_pipeline_is_a_line_of_the_report() {
    let test = "a_driver_that_crashes_at_a_pipeline_is_a_line_of_the_report";
    let Some(machine) = Machine::new(test) else {
        return;
    };
    let doctor = ["doctor", "--gpu", "lavapipe"];
    let crash = VkPlan::of(VkFault::CrashAtPipeline, 0, 1);
    let (crashed, record) = machine.said(&doctor, &crash);
    let reason = "its driver ended the process that examined it (signal 6)";
    assert_eq!(crashed.status.code(), Some(4), "{crashed:?}");
    let report = text(&crashed.stdout);
    let line = format!("results   none: {reason}\n");
    assert!(report.starts_with("device    llvmpipe"), "{report}");
    assert!(report.contains(&line), "{report}");
    let error = text(&crashed.stderr);
    assert_eq!(error, format!("error: examine the GPU: {reason}\n"));
    assert!(record.iter().any(|entry| matches!(
        entry,
        VkEntry::Fault { name, .. } if name == "crash-at-pipeline"
    )));
    let (crashed, _) = machine.said(&[&doctor[..], &["--json"]].concat(), &crash);
    let json: serde_json::Value = serde_json::from_slice(&crashed.stdout).unwrap();
    assert_eq!(json["results"], "none");
    assert_eq!(json["failed"], reason);
    // A pipeline that is refused is an error that may pass.
    let refused = VkPlan::of(VkFault::NoPipeline, 0, 1);
    let (refused, _) = machine.said(&doctor, &refused);
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");
    assert!(text(&refused.stdout).contains("results   none: "));
    let (well, _) = machine.said(&[&doctor[..], &["--json"]].concat(), &VkPlan::default());
    let json: serde_json::Value = serde_json::from_slice(&well.stdout).unwrap();
    assert_eq!(json["caches"], "imported");
    assert!(
        well.status.success() && json["results"] == "equal",
        "{json}"
    );
    assert!(
        json["failed"].is_null() && json["wrong"]["fma"].as_u64() > Some(0),
        "{json}"
    );
}

#[test]
fn a_start_asks_for_the_machines_gpus_once() {
    let Some(machine) = Machine::new("a_start_asks_for_the_machines_gpus_once") else {
        return;
    };
    let compiled = machine
        .workbench
        .compile(&fixture("tiny-agent"), "model", |_| ());
    let bundle = compiled.unwrap().0;
    let bundle = bundle.to_str().unwrap();
    let run = ["run", bundle, "--soc", "host-gpu", "--prompt-ids", "[5, 6]"];
    // This process and the one that examines the device at first sight; then this process alone.
    for expected in [[2, 2], [1, 1]] {
        let (ran, record) = machine.said(&run, &VkPlan::default());
        assert!(ran.status.success(), "{ran:?}");
        let of = |entry| record.iter().filter(|other| **other == entry).count();
        assert_eq!([of(VkEntry::Instance), of(VkEntry::Device)], expected);
    }
}
