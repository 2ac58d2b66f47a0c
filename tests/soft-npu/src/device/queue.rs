//! Queues (driver, `level_zero_driver/source/cmdqueue.cpp`).

use std::sync::Mutex;

use super::completion::Completion;
use super::job::Job;
use super::list::CommandList;
use super::worker;
use crate::abi::{Code, DEVICE_LOST, INVALID_SIZE, UNINITIALIZED};
use crate::fault::{FaultPoint, fails};
use crate::handles::Handles;
use crate::log::lock;
use std::sync::Arc;

/// A queue.
pub(crate) struct Queue {
    /// Its priority when it was made, and now.
    made_with: Priority,
    priority: Mutex<Priority>,
}

/// Urgency of a queue's work. A greater one goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// When nothing else is there.
    Idle,
    /// By default.
    Normal,
    /// Before others.
    Realtime,
}

/// Queues that callers hold.
pub(crate) static QUEUES: Handles<Queue> = Handles::new();

impl Priority {
    /// From `ze_command_queue_priority_t` (driver, `cmdqueue.cpp`, `toVPUDevicePriority`).
    pub(crate) const fn of(number: u32) -> Self {
        match number {
            1 => Self::Idle,
            2 => Self::Realtime,
            _ => Self::Normal,
        }
    }

    /// `ze_command_queue_priority_t`, for the log.
    pub(super) const fn number(self) -> u32 {
        match self {
            Self::Normal => 0,
            Self::Idle => 1,
            Self::Realtime => 2,
        }
    }
}

impl Queue {
    /// Makes a queue.
    ///
    /// # Errors
    ///
    /// [`UNINITIALIZED`] by a fault, as where the kernel makes no queue (driver, `cmdqueue.cpp`, `create`).
    pub(crate) fn new(priority: Priority) -> Result<Self, Code> {
        match fails(FaultPoint::Queue) {
            true => Err(UNINITIALIZED),
            false => Ok(Self {
                made_with: priority,
                priority: Mutex::new(priority),
            }),
        }
    }

    /// Moves it to the background, or back (driver, `cmdqueue.cpp`, `setWorkloadType`).
    pub(crate) fn set_background(&self, is_background: bool) {
        *lock(&self.priority) = match is_background {
            true => Priority::Idle,
            false => self.made_with,
        };
    }

    /// Submits lists, in order, and returns what to wait for.
    ///
    /// # Errors
    ///
    /// [`INVALID_SIZE`] for none, [`UNINITIALIZED`] for one that is still recorded, [`DEVICE_LOST`] by a fault, and
    /// errors of [`CommandList::job`].
    pub(crate) fn submit(&self, lists: &[Arc<CommandList>]) -> Result<Vec<Arc<Completion>>, Code> {
        if lists.is_empty() {
            return Err(INVALID_SIZE);
        }
        if lists.iter().any(|list| !list.is_closed()) {
            return Err(UNINITIALIZED);
        }
        if fails(FaultPoint::Submit) {
            return Err(DEVICE_LOST);
        }
        let mut completions = Vec::new();
        for list in lists {
            let commands = list.job()?;
            // An empty list is skipped.
            if commands.is_empty() {
                continue;
            }
            let completion = Arc::new(Completion::default());
            completions.push(Arc::clone(&completion));
            let job = Job {
                commands,
                completion,
            };
            worker::submit(job, *lock(&self.priority))?;
        }
        Ok(completions)
    }
}
