//! What time brings: deadlines, overdue requests, hung kernels, and the one timer that stands for them all.

use super::AgentXpu;
use crate::sched::costs::Costs;
use crate::sched::event::{Action, Actions, Finish};
use crate::sched::request::{Class, Lane, Micros, RequestId};
use crate::sched::table::Entry;

impl<C: Costs> AgentXpu<C> {
    /// Acts on everything whose time has come.
    pub(super) fn tick(&mut self, actions: &mut Actions) {
        let now = self.now;
        let threshold = self.ageing_threshold();
        let mut late: Vec<RequestId> = Vec::new();
        for (id, entry) in self.table.iter_mut() {
            if entry
                .submission
                .deadline
                .is_some_and(|deadline| deadline <= now)
            {
                late.push(id);
            }
            if overdue_at(entry, threshold).is_some_and(|at| at <= now) {
                entry.overdue = true;
            }
        }
        for id in late {
            self.end(id, Finish::Deadline, actions);
        }
        for lane in Lane::ALL {
            if self
                .lanes
                .running(lane)
                .is_some_and(|running| running.hangs <= now)
            {
                self.hung(lane, actions);
            }
        }
    }

    /// Sets the timer for what comes next, unless it is set for that.
    pub(super) fn set_alarm(&mut self, actions: &mut Actions) {
        let threshold = self.ageing_threshold();
        let requests = self.table.iter().flat_map(|(_, entry)| {
            let deadline = entry.submission.deadline.filter(|_| entry.ending.is_none());
            [deadline, overdue_at(entry, threshold)]
        });
        let lanes = self
            .lanes
            .all_running()
            .map(|(_, running)| Some(running.hangs));
        let next = requests
            .chain(lanes)
            .chain([self.next_deferral()])
            .flatten()
            .min();
        if let Some(at) = next
            && self.alarm != Some(at)
        {
            self.alarm = Some(at);
            actions.push(Action::Timer(at));
        }
    }

    fn ageing_threshold(&self) -> Option<Micros> {
        let ageing = self.policy.ageing?;
        Some(Micros::from_millis(ageing.threshold_ms))
    }
}

/// When a request becomes overdue, if it may and is not yet.
fn overdue_at(entry: &Entry, threshold: Option<Micros>) -> Option<Micros> {
    let may = entry.class() == Class::Proactive && !entry.overdue && entry.ending.is_none();
    threshold
        .filter(|_| may)
        .map(|threshold| entry.waits_since + threshold)
}
