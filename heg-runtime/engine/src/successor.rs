//! The successor of a lane whose device was lost: a lane of the same name with the devices that are left.
//!
//! The scheduler keeps the requests of a lost lane until it is back; the successor is that return. It comes once for
//! each device that is lost, and not where nothing is left to run every call. A lane that ended for another reason, such
//! as a panic, has none.

use std::sync::Arc;

use super::lane::{LaneHandle, LaneSetup};
use super::machine::Machine;
use crate::error::EngineError;
use heg_exec::{Descents, Duty, Executor, ExecutorOptions, Loader};
use heg_sched::Lane;

/// Makes successors of lanes.
pub(super) struct Successors {
    pub(super) loader: Arc<Loader>,
    pub(super) duties: Vec<(Lane, Duty)>,
    pub(super) exec: ExecutorOptions,
    pub(super) setup: LaneSetup,
    /// Lost devices that are known of.
    pub(super) lost: usize,
}

impl Successors {
    /// Whether a device was lost since this was asked before.
    pub(super) fn notice_loss(&mut self) -> bool {
        let lost = self.loader.lost_devices().count();
        let is_more = lost > self.lost;
        self.lost = lost;
        is_more
    }

    /// Starts the successor of a lane, if the devices that are left run all of its calls.
    pub(super) fn start(
        &self,
        lane: Lane,
        machine: &dyn Machine,
    ) -> Option<Result<(LaneHandle, Descents), EngineError>> {
        let mut duties = self.duties.iter();
        let (_, duty) = duties.find(|(of, _)| *of == lane)?;
        if !duty.is_every_call() || !self.loader.has_left(*duty) {
            return None;
        }
        let executor = Executor::with_duty(Arc::clone(&self.loader), *duty, self.exec);
        Some(executor.map_err(EngineError::from).map(|executor| {
            let descents = executor.descents();
            let executor = machine.executor(lane, executor);
            let handle = LaneHandle::start(lane, executor, self.setup.clone());
            (handle, descents)
        }))
    }
}
