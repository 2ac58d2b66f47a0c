//! `heg` as a process on machines of all kinds, with a model that runs: without OpenVINO.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use heg_tests::{Workbench, fixture};

/// A folder with the tiny agent's bundle.
struct Machine {
    workbench: Workbench,
    bundle: PathBuf,
}

impl Machine {
    fn new() -> Self {
        let workbench = Workbench::new().unwrap();
        let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |_| ());
        Self {
            bundle: compiled.unwrap().0,
            workbench,
        }
    }

    /// `heg` in an environment that has nothing but a cache.
    fn heg(&self, program: &Path) -> Command {
        let mut heg = Command::new(program);
        heg.env_clear()
            .env("HEG_CACHE_DIR", self.workbench.path("cache"));
        heg
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn assert_status(output: &Output, status: i32) {
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "{out}{error}");
}

const IDS: &str = "[5, 6, 7]";

#[test]
fn cpu_programs_need_no_openvino() {
    let machine = Machine::new();
    // OpenVINO is looked for beside the program and in three folders above it.
    let folder = machine.workbench.path("a/b/c");
    fs::create_dir_all(&folder).unwrap();
    let alone = folder.join("heg");
    fs::copy(env!("CARGO_BIN_EXE_heg"), &alone).unwrap();
    let heg = |command: &str, arguments: &[&str]| {
        let mut heg = machine.heg(&alone);
        let heg = heg.arg(command).arg(&machine.bundle);
        heg.args(arguments).output().unwrap()
    };
    for soc in ["host-cpu", "host-cpu-f32"] {
        let run = heg("run", &["--soc", soc, "--prompt-ids", IDS, "--stats"]);
        assert_status(&run, 0);
        let said = text(&run.stderr);
        assert!(said.starts_with("runs   CPU programs ("), "{said}");
        let doctor = heg("doctor", &["--soc", soc]);
        assert_status(&doctor, 0);
        let said = text(&doctor.stdout);
        let rungs = |verdict: &str| said.lines().filter(|line| line.ends_with(verdict)).count();
        let found = (
            rungs("  right"),
            rungs("  not tried: OpenVINO is not there"),
        );
        assert_eq!(found, (4, 4), "{said}");
    }
    let missing = heg("run", &["--soc", "host-roles", "--prompt-ids", IDS]);
    assert_status(&missing, 4);
    let said = text(&missing.stderr);
    let doing = "error: OpenVINO: load the libraries, which SoC `host-roles` needs for its npu\n";
    assert!(said.starts_with(doing), "{said}");
    assert!(said.contains("hint: run `cargo xtask setup`"), "{said}");
    assert!(said.ends_with("`--soc host-cpu`\n"), "{said}");
}
