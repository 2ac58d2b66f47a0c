//! The end of a job, which others wait for.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::{Code, NOT_READY};
use crate::log::lock;

/// Set once, to how the job ended.
#[derive(Debug, Default)]
pub(crate) struct Completion {
    code: Mutex<Option<Code>>,
    changed: Condvar,
}

/// The time until which somebody waits; `None` is for ever.
pub(crate) type Deadline = Option<Instant>;

/// The deadline of a timeout; all ones are none.
pub(crate) fn deadline(timeout_ns: u64) -> Deadline {
    match timeout_ns {
        u64::MAX => None,
        _ => Instant::now().checked_add(Duration::from_nanos(timeout_ns)),
    }
}

impl Completion {
    /// Ends the job.
    pub(crate) fn end(&self, code: Code) {
        *lock(&self.code) = Some(code);
        self.changed.notify_all();
    }

    /// Waits for the end; [`NOT_READY`] if it does not come in time.
    pub(crate) fn wait(&self, until: Deadline) -> Code {
        let mut code = lock(&self.code);
        loop {
            if let Some(code) = *code {
                return code;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return NOT_READY;
            }
            let waited = self.changed.wait_timeout(code, left.unwrap_or(LONG));
            code = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Chosen: it is waited for again, as long as there is no deadline.
const LONG: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::DEVICE_LOST;

    #[test]
    fn a_job_that_has_not_ended_is_not_ready() {
        let completion = Completion::default();
        assert_eq!(completion.wait(deadline(0)), NOT_READY);
        assert_eq!(completion.wait(deadline(1000)), NOT_READY);
        completion.end(DEVICE_LOST);
        assert_eq!(completion.wait(deadline(u64::MAX)), DEVICE_LOST);
    }
}
