//! Fences: what one submission to a queue comes to (driver, `level_zero_driver/source/fence.cpp`).

use std::sync::{Arc, Mutex};

use super::completion::{Completion, deadline};
use crate::abi::{Code, NOT_READY, SUCCESS};
use crate::handles::Handles;
use crate::log::lock;

/// A fence of a queue.
#[derive(Debug)]
pub(crate) struct Fence {
    /// Handle of its queue, as a number.
    pub(crate) queue: usize,
    state: Mutex<FenceState>,
}

#[derive(Debug, Default)]
struct FenceState {
    is_signalled: bool,
    jobs: Vec<Arc<Completion>>,
}

/// Fences that callers hold.
pub(crate) static FENCES: Handles<Fence> = Handles::new();

impl Fence {
    /// A fence that nothing was submitted with.
    pub(crate) fn new(queue: usize) -> Self {
        Self {
            queue,
            state: Mutex::default(),
        }
    }

    /// Stands for these jobs from now on. One that was signalled and not reset stays so; one without jobs is.
    pub(crate) fn track(&self, jobs: Vec<Arc<Completion>>) {
        let mut state = lock(&self.state);
        state.is_signalled |= jobs.is_empty();
        state.jobs = jobs;
    }

    /// Forgets that it was signalled; its jobs stay.
    pub(crate) fn reset(&self) {
        lock(&self.state).is_signalled = false;
    }

    /// Waits for its jobs. A job that failed is reported each time, until the fence stands for others.
    pub(crate) fn wait(&self, timeout_ns: u64) -> Code {
        let jobs = {
            let state = lock(&self.state);
            if state.is_signalled {
                return SUCCESS;
            }
            state.jobs.clone()
        };
        if jobs.is_empty() {
            return NOT_READY;
        }
        let until = deadline(timeout_ns);
        // All are waited for; then the first that failed counts (`Device::jobStatusToResult`).
        let codes: Vec<Code> = jobs.iter().map(|job| job.wait(until)).collect();
        if codes.contains(&NOT_READY) {
            return NOT_READY;
        }
        let failed = codes.into_iter().find(|code| *code != SUCCESS);
        if failed.is_none() {
            *lock(&self.state) = FenceState {
                is_signalled: true,
                jobs: Vec::new(),
            };
        }
        failed.unwrap_or(SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::DEVICE_LOST;

    fn ended(code: Code) -> Arc<Completion> {
        let job = Arc::new(Completion::default());
        job.end(code);
        job
    }

    #[test]
    fn a_fence_says_how_its_jobs_ended_until_it_stands_for_others() {
        let fence = Fence::new(1);
        assert_eq!(fence.wait(u64::MAX), NOT_READY);
        fence.track(vec![ended(SUCCESS), ended(DEVICE_LOST)]);
        assert_eq!(fence.wait(u64::MAX), DEVICE_LOST);
        fence.reset();
        assert_eq!(fence.wait(u64::MAX), DEVICE_LOST);
        fence.track(vec![ended(SUCCESS)]);
        assert_eq!(fence.wait(u64::MAX), SUCCESS);
        fence.reset();
        assert_eq!(fence.wait(u64::MAX), NOT_READY);
    }

    #[test]
    fn a_fence_that_is_not_reset_stays_signalled() {
        let fence = Fence::new(1);
        fence.track(Vec::new());
        assert_eq!(fence.wait(0), SUCCESS);
        fence.track(vec![Arc::default()]);
        assert_eq!(fence.wait(0), SUCCESS);
        fence.reset();
        assert_eq!(fence.wait(0), NOT_READY);
    }
}
