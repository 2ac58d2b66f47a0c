//! Scenes: parts of tests that run in a process of their own, since what they set up is one for a process, or ends it.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs the test of this path in a process that `enter` gives its environment, to its end and within a bounded time. Shows
/// what it said, which is written to `folder`. The test plays its scene there, as it finds that environment.
#[track_caller]
pub(crate) fn play(
    test: &str,
    folder: &Path,
    patience: Duration,
    enter: impl FnOnce(&mut Command),
) {
    let said = folder.join("said");
    // Both at the end of one file, as a terminal shows them.
    let at_the_end = || {
        let mut options = File::options();
        options.create(true).append(true).open(&said).unwrap()
    };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .stdin(Stdio::null())
        .stdout(at_the_end())
        .stderr(at_the_end());
    enter(&mut command);
    let mut process = command.spawn().unwrap();
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = process.try_wait().unwrap() {
            break Some(status);
        }
        if begin.elapsed() > patience {
            process.kill().unwrap();
            process.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let text = std::fs::read_to_string(&said).unwrap_or_default();
    let _ = std::fs::remove_file(&said);
    println!("{text}");
    let took = begin.elapsed();
    assert!(
        status.is_some_and(|status| status.success()),
        "{test}: {status:?} after {took:?}"
    );
}
