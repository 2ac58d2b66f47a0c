//! A disk without room for a bundle: a pull says so before the first byte, and nothing is left behind.

use std::process::Command;

use heg_tests::{Workbench, fixture, skipped};

use crate::registry::{heg_with_store, registry_or_skip};

#[test]
fn a_disk_that_is_too_small_is_told_before_the_first_byte() {
    let test = "a_disk_that_is_too_small_is_told_before_the_first_byte";
    let folder = tempfile::tempdir().unwrap();
    let Some(docker) = registry_or_skip(test, folder.path()) else {
        return;
    };
    // In a namespace of its own a user may mount a file system in memory.
    let store = folder.path().join("store");
    std::fs::create_dir(&store).unwrap();
    let on_small_disk = |script: &str| {
        let mount = "mount -t tmpfs -o size=2m,mode=700 tmpfs \"$HEG_STORE\"";
        let mut shell = Command::new("unshare");
        shell
            .args(["--map-root-user", "--mount", "sh", "-c"])
            .arg(format!("{mount} || exit 99; {script}"))
            .arg(env!("CARGO_BIN_EXE_heg"));
        let asked = heg_with_store(folder.path());
        shell.envs(
            asked
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        shell.output()
    };
    if !on_small_disk("true").is_ok_and(|output| output.status.success()) {
        return skipped(&format!("{test}: no namespaces in which a user mounts"));
    }
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |_| ());
    let bundle = compiled.unwrap().0;
    let name = format!("{}/acme/chat:stable", docker.host);
    let mut push = heg_with_store(folder.path());
    let pushed = push.arg("push").arg(bundle).arg(&name).output().unwrap();
    assert!(pushed.status.success(), "{pushed:?}");

    let pull = format!("\"$0\" pull {name} --allow-unsigned; status=$?");
    let output = on_small_disk(&format!("{pull}; ls \"$HEG_STORE/tmp\"; exit $status")).unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains("has room for `"), "{text}");
    assert!(text.contains("`heg prune` may free some"), "{text}");
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "",
        "partial files"
    );
}
