//! Runs a bundle's template and tokenizer, and forms, in the process of a command; exceeding a limit ends the command
//! plainly.
//!
//! `heg serve` has other clients, and runs such work in separate processes. A command serves only its user: another
//! process would delay the first token, and a failure may as well end the command, if it gives the reason. Stack
//! overflows, and memory that the system refuses, arrive as a signal (`platform`); memory that it grants is watched
//! here.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::platform::{end_plainly_while, own_memory_bytes};

/// Makes a prompt, or compiles a form. If that exceeds a limit, the process ends with `Incompatible`, and a line.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> T {
    let _plainly = end_plainly_while();
    let (_running, ended) = channel::<()>();
    let Some(before) = own_memory_bytes() else {
        return work();
    };
    let watch = move || {
        let mut wait = FIRST_LOOK;
        // Ends with the work, which drops its side of the channel.
        while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            wait = LOOK;
            if own_memory_bytes().is_some_and(|now| now > before + MEMORY_MAX) {
                std::process::abort();
            }
        }
    };
    // Without a thread only the system's own limit applies.
    let _ = thread::Builder::new()
        .name("text watch".to_owned())
        .spawn(watch);
    work()
}

/// Maximum memory for prompts and forms, including that of the engine meanwhile, in bytes. Chosen: ten times that of
/// the longest prompt.
const MEMORY_MAX: u64 = 2 << 30;

/// Time before memory is first checked. Chosen: ordinary work is over by then.
const FIRST_LOOK: Duration = Duration::from_millis(100);

/// Time between two checks.
const LOOK: Duration = Duration::from_millis(10);
