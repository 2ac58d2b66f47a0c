//! A disk without room for a bundle: a pull says so before the first byte, and nothing is left behind. One that fills up
//! later keeps what has arrived.

use heg_tests::{Workbench, fixture, skipped};
use serde_json::Value;

use crate::registry::{heg_with_store, registry_or_skip, with_mounts};

#[test]
fn a_disk_that_is_too_small_is_told_and_nothing_of_it_lost() {
    let test = "a_disk_that_is_too_small_is_told_and_nothing_of_it_lost";
    let folder = tempfile::tempdir().unwrap();
    let Some(docker) = registry_or_skip(test, folder.path()) else {
        return;
    };
    let store = folder.path().join("store");
    std::fs::create_dir(&store).unwrap();
    let on_disk = |bytes: u64, script: &str| {
        let mount = format!("mount -t tmpfs -o size={bytes},mode=700 tmpfs \"$HEG_STORE\"");
        let script = format!("{mount} || exit 99; {script}");
        with_mounts(&heg_with_store(folder.path()), &script)
    };
    if !on_disk(2 << 20, "true").is_ok_and(|output| output.status.success()) {
        return skipped(&format!("{test}: no namespaces in which a user mounts"));
    }
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |_| ());
    let bundle = compiled.unwrap().0;
    let name = format!("{}/acme/chat:stable", docker.host);
    let mut push = heg_with_store(folder.path());
    let pushed = push.arg("push").arg(bundle).arg(&name).output().unwrap();
    assert!(pushed.status.success(), "{pushed:?}");

    let pull = format!("\"$0\" pull {name} --allow-unsigned");
    let script = format!("{pull}; status=$?; ls \"$HEG_STORE/tmp\"; exit $status");
    let output = on_disk(2 << 20, &script).unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains("has room for `"), "{text}");
    assert!(text.contains("`heg prune` may free some"), "{text}");
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "",
        "partial files"
    );

    // A disk with room for the parts, and for hardly a note of them. With more of it the same command goes on.
    let needed = text.split("expected `").nth(1).unwrap();
    let needed: u64 = needed.split('`').next().unwrap().parse().unwrap();
    let more = "mount -o remount,size=64m \"$HEG_STORE\"";
    let script = format!("{pull}; status=$?; {more} && {pull} --json && exit $status");
    let output = on_disk(needed + 4 * PAGE_BYTES, &script).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{errors}");
    assert!(errors.contains("No space left on device"), "{errors}");
    let told = String::from_utf8(output.stdout).unwrap();
    let planned: Value = serde_json::from_str(told.lines().next().unwrap()).unwrap();
    assert_eq!(planned["fetch_bytes"], 0, "{told}");
    assert!(told.contains("\"event\":\"pulled\""), "{told}");
}

/// The least that a file takes on that disk, in bytes.
const PAGE_BYTES: u64 = 4096;
