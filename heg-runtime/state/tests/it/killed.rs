//! A writer that is killed at any moment, on a real disk.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use heg_state::{KeptLimits, StateFolder, StateOwner};

use crate::pages::{keep, model, recall};
use crate::world::Dice;

/// Environment variable with the folder of [`writes_until_it_is_killed`], set only for it.
const FOLDER: &str = "HEG_TEST_STATE_FOLDER";

const LIMITS: KeptLimits = KeptLimits {
    budget_bytes: 40 * 4400,
    age_max: Duration::from_secs(3600),
};

fn prompt(number: u32) -> Vec<u32> {
    (0..600).map(|at| at / 200 * (number % 7) + at).collect()
}

/// The process that is killed below; by itself it tests nothing.
#[test]
fn writes_until_it_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let folder = StateFolder::open(Path::new(&folder), LIMITS).unwrap();
    for number in 0.. {
        keep(&folder, &model(1), StateOwner::this_user(), &prompt(number)).unwrap();
    }
}

#[test]
fn a_killed_writer_leaves_only_pages_that_are_right() {
    let above = tempfile::tempdir().unwrap();
    let path = above.path().join("state");
    let mut dice = Dice(3);
    let mut found = 0;
    for _ in 0..25 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::writes_until_it_is_killed"])
            .env(FOLDER, &path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(10 + dice.below(60)));
        child.kill().unwrap();
        child.wait().unwrap();
        let folder = StateFolder::open(&path, LIMITS).unwrap();
        for number in 0..7 {
            let tokens = prompt(number);
            let owner = StateOwner::this_user();
            found += recall(&folder, &model(1), owner, &tokens).unwrap();
        }
        let listing = folder.list().unwrap();
        assert!(listing.bytes <= LIMITS.budget_bytes && listing.damaged.is_empty());
    }
    assert!(found > 0, "no page was ever found");
    let files = std::fs::read_dir(&path).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let left: Vec<String> = names.filter(|name| name.starts_with("tmp-")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[cfg(unix)]
#[test]
fn nobody_else_can_read_what_is_kept() {
    use std::os::unix::fs::PermissionsExt;
    let above = tempfile::tempdir().unwrap();
    let path = above.path().join("state");
    let folder = StateFolder::open(&path, LIMITS).unwrap();
    keep(&folder, &model(1), StateOwner::this_user(), &prompt(1)).unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    for file in std::fs::read_dir(&path).unwrap() {
        let file = file.unwrap();
        let is_empty = file.metadata().unwrap().len() == 0;
        assert!(is_empty || mode(&file.path()) == 0o600, "{:?}", file.path());
    }
}
