//! Scripts for the schedulers, and one of them run by GNU parallel.

use super::matrix::FarmMatrix;
use super::{Scheduler, script};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const MATRIX: &str = r#"(revision: 1, store: "/mnt/farm", key: Some("/etc/heg/farm.key"),
    models: [
        (name: "small", path: "/mnt/models/small.ron", memory_gb: 2),
        (name: "large", path: "/mnt/models/the large one", weights: Some("w8a16"), memory_gb: 16),
    ],
    compilers: [(label: "npu-8.3", platforms: [3720]), (label: "npu-8.4", platforms: [3720, 4000])],
    profiles: [(label: "lunar-lake", soc: "core-ultra-200v")],
    push: Some("registry.example/acme"), tag: "2026.11", image: Some("registry.example/heg:1"))"#;

fn written(scheduler: Scheduler) -> String {
    script(&FarmMatrix::parse(MATRIX).unwrap(), scheduler).unwrap()
}

/// Whether a shell reads the script.
fn is_read(script: &str, folder: &Path) -> bool {
    let path = folder.join("script");
    fs::write(&path, script).unwrap();
    let status = Command::new("bash").arg("-n").arg(path).status();
    status.unwrap().success()
}

#[test]
fn each_scheduler_gets_its_script() {
    let folder = tempfile::tempdir().unwrap();
    for (name, scheduler) in [
        ("parallel", Scheduler::Parallel),
        ("slurm", Scheduler::Slurm),
        ("kubernetes", Scheduler::Kubernetes),
    ] {
        let script = written(scheduler);
        assert!(is_read(&script, folder.path()), "{name}");
        insta::assert_snapshot!(name, script);
    }
}

/// Each machine has a folder of its own: who makes a bundle sends it.
#[test]
fn machines_share_a_bucket_instead_of_a_folder() {
    let matrix = r#"(revision: 1, store: "/var/farm", shared: Some("s3://acme/heg"), key: Some("/etc/heg/farm.key"),
        models: [(name: "small", path: "/mnt/models/small.ron", memory_gb: 2)],
        compilers: [(label: "npu-8.4", platforms: [3720, 4000])],
        push: Some("registry.example/acme"), image: Some("registry.example/heg:1"))"#;
    let matrix = FarmMatrix::parse(matrix).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let scripts = [Scheduler::Parallel, Scheduler::Kubernetes].map(|scheduler| {
        let script = script(&matrix, scheduler).unwrap();
        assert!(is_read(&script, folder.path()));
        script
    });
    insta::assert_snapshot!(scripts.join("\n"));
}

#[test]
fn a_matrix_that_gives_no_jobs_is_refused() {
    let model = |name: &str| format!(r#"(name: "{name}", path: "p", memory_gb: 1)"#);
    let with = |models: &str, rest: &str| {
        format!(r#"(revision: 1, store: "s", models: [{models}]{rest})"#)
    };
    let (a, long) = (model("a"), model(&"a".repeat(64)));
    let shared = r#", shared: Some("s3://farm"), key: Some("k")"#;
    let [x, y] = ["x", "y"].map(|label| format!(r#"(label: "{label}", platforms: [4000])"#));
    let wrong = [
        "".to_owned(),
        "(".repeat(1000),
        with("", ""),
        with(&a, "").replace("revision: 1", "revision: 2"),
        with(&format!("{a}, {a}"), ""),
        with(&model("../a"), ""),
        with(&model("A"), ""),
        with(&model("a-"), ""),
        with(&long, ""),
        with(&a, r#", compilers: [(label: "x", platforms: [])]"#),
        with(&a, r#", speed: 1"#),
        with(&a, r#", shared: Some("s3://farm")"#),
        with(
            &a,
            &format!(r#"{shared}, profiles: [(label: "x", soc: "s")]"#),
        ),
        with(
            &a,
            &format!(r#"{shared}, push: Some("r"), compilers: [{x}, {y}]"#),
        ),
    ];
    let seen = wrong.map(|text| {
        let error = FarmMatrix::parse(&text).unwrap_err();
        format!("{error:#}")
    });
    insta::assert_snapshot!(seen.join("\n"));
    let matrix = FarmMatrix::parse(&with(&a, "")).unwrap();
    let error = script(&matrix, Scheduler::Kubernetes).unwrap_err();
    assert!(error.to_string().contains("no `image`"), "{error}");
    let broken = with(&a, "").replace(r#"path: "p""#, r#"path: "p\nrm -r /""#);
    let matrix = FarmMatrix::parse(&broken).unwrap();
    let error = script(&matrix, Scheduler::Parallel).unwrap_err();
    assert!(error.to_string().contains("line break"), "{error}");
}

/// Programs that write down how they were called; the second call of `hegc` for a platform fails, as a lost machine does.
fn stand_ins(folder: &Path) {
    let program = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let log = folder.join("calls");
    let call = format!(
        "#!/bin/sh\necho \"$(basename \"$0\") $*\" >> '{}'\n",
        log.display()
    );
    program("heg", &call);
    let lost = folder.join("lost");
    let fails = format!(
        "case \"$*\" in *4000*work*) mkdir '{0}' 2>/dev/null && exit 1;; esac\nexit 0\n",
        lost.display()
    );
    program("hegc", &format!("{call}{fails}"));
}

#[test]
fn parallel_runs_each_job_until_it_ends_well_and_then_no_more() {
    let test = "parallel_runs_each_job_until_it_ends_well_and_then_no_more";
    let found = Command::new("parallel").arg("--version").output();
    if !found.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("GNU parallel")) {
        return println!("skipped: {test}: no GNU parallel (Debian has it)");
    }
    let folder = tempfile::tempdir().unwrap();
    stand_ins(folder.path());
    fs::create_dir(folder.path().join("machines")).unwrap();
    for label in ["any", "npu-8.3", "npu-8.4", "lunar-lake"] {
        fs::write(folder.path().join("machines").join(label), ":\n").unwrap();
    }
    // As much memory as every machine has.
    let script = written(Scheduler::Parallel).replace("16G", "0G");
    fs::write(folder.path().join("farm.sh"), script).unwrap();
    let run = || {
        let path = std::env::var("PATH").unwrap();
        let mut bash = Command::new("bash");
        bash.arg("farm.sh").current_dir(&folder);
        bash.env("PATH", format!("{}:{path}", folder.path().display()));
        let output = bash.env("HOME", folder.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        fs::read_to_string(folder.path().join("calls")).unwrap()
    };
    let calls = run();
    let mut lines: Vec<&str> = calls.lines().collect();
    lines.sort_unstable();
    let repeated: Vec<&str> = lines
        .windows(2)
        .filter(|it| it[0] == it[1])
        .map(|it| it[0])
        .collect();
    assert_eq!(repeated.len(), 1, "the lost job alone: {repeated:?}");
    assert!(repeated[0].contains("--npu-platforms 4000"), "{repeated:?}");
    // Two models: once without blobs, three times with those of one platform, once measured, two bundles, sent.
    assert_eq!(lines.len() - 1, 2 * (1 + 3 + 1 + 2 + 1));
    let position = |needle: &str| {
        calls
            .lines()
            .position(|line| line.contains(needle))
            .unwrap()
    };
    assert!(position("heg profile") > position("4000 --output /mnt/farm/work"));
    assert!(position("heg push") > position("--profile"));
    assert_eq!(run(), calls, "run again: all ended well");
}
