//! The log of calls: one line for each call that says something about copies, order, priority or faults.
//!
//! A line is `MICROSECONDS WORDS key=value…`, appended to the file that `SOFT_NPU_LOG` names. Tests read it: it is what
//! they assert. Without the variable nothing is written.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Writes a line, if there is a log.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    static START: OnceLock<Instant> = OnceLock::new();
    let Some(file) = file() else { return };
    let at_us = START.get_or_init(Instant::now).elapsed().as_micros();
    // One write for a line: threads, and processes that share the file, do not mix theirs.
    let line = format!("{at_us} {text}\n");
    // A log that cannot be written fails the test that reads it.
    let _ = lock(file).write_all(line.as_bytes());
}

/// Whether there is a log: some facts cost time to find out.
pub(crate) fn is_kept() -> bool {
    file().is_some()
}

fn file() -> Option<&'static Mutex<File>> {
    static LOG: OnceLock<Option<Mutex<File>>> = OnceLock::new();
    let open = || {
        let path = std::env::var_os("SOFT_NPU_LOG")?;
        let file = File::options().create(true).append(true).open(path);
        file.ok().map(Mutex::new)
    };
    LOG.get_or_init(open).as_ref()
}

/// Locks; a thread that panicked with the lock leaves a whole value in all uses of this crate.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a line to the log of calls.
macro_rules! note {
    ($($part:tt)*) => { $crate::log::line(format_args!($($part)*)) };
}
pub(crate) use note;
