//! Another process: what it says, and its end within a time.

use std::io::Read;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// The output of a process while it runs.
pub(crate) struct Said {
    pub(crate) out: Lines,
    pub(crate) errors: Lines,
}

/// The text of a pipe, read to its end by a thread.
pub(crate) struct Lines(Option<thread::JoinHandle<Vec<u8>>>);

impl Said {
    pub(crate) fn listen(process: &mut Child) -> Self {
        Self {
            out: Lines::of(process.stdout.take()),
            errors: Lines::of(process.stderr.take()),
        }
    }
}

impl Lines {
    fn of(pipe: Option<impl Read + Send + 'static>) -> Self {
        let thread = pipe.and_then(|pipe| {
            let read = move || {
                let mut text = Vec::new();
                // What was read before an error is all that there is.
                let _ = pipe.take(SAID_BYTES_MAX).read_to_end(&mut text);
                text
            };
            thread::Builder::new().spawn(read).ok()
        });
        Self(thread)
    }

    /// The last line that is not empty.
    pub(crate) fn last(self) -> Option<String> {
        let text = self.0?.join().ok()?;
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.next_back().map(str::to_owned)
    }
}

/// Waits for a process, and ends one that takes too long.
pub(crate) fn ended_within(process: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let begin = Instant::now();
    loop {
        match process.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if begin.elapsed() < patience => thread::sleep(LOOK),
            Ok(None) | Err(_) => {
                let _ = process.kill();
                let _ = process.wait();
                return None;
            }
        }
    }
}

/// Time between two looks at a process. Chosen: small beside the start of a driver.
const LOOK: Duration = Duration::from_millis(5);

/// Most bytes that are read of what a process says.
const SAID_BYTES_MAX: u64 = 1 << 20;
