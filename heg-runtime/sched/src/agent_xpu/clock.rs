//! Events of time: deadlines, overdue requests, hung kernels, and the one timer that stands for them all.

use super::AgentXpu;
use super::outlook::Outlook;
use super::stage::Entry;
use crate::costs::Costs;
use crate::event::{Action, Actions, Finish};
use crate::mechanism::Mechanism;
use crate::request::{Class, Lane, Micros, RequestId};

impl<C: Costs> AgentXpu<C> {
    /// Acts on everything whose time has come.
    pub(super) fn tick(&mut self, actions: &mut Actions) {
        let now = self.now;
        if self.due.is_some_and(|due| due <= now) {
            self.visit_due(actions);
        }
        for lane in Lane::ALL {
            if self
                .lanes
                .running(lane)
                .is_some_and(|running| running.hangs <= now)
            {
                self.hung(lane, actions);
            }
            if self.lanes.answers_by(lane).is_some_and(|by| by <= now) {
                self.silent(lane, actions);
            }
        }
        if matches!(self.outlook, Outlook::WaitsUntil(until) if until <= now) {
            self.give_up_waiting(actions);
        }
    }

    /// Ends and promotes the requests whose time has come, and finds the time of the next one.
    fn visit_due(&mut self, actions: &mut Actions) {
        let now = self.now;
        let threshold = self.ageing_threshold();
        let mut late: Vec<RequestId> = Vec::new();
        for (id, entry) in self.ledger.iter_mut() {
            if entry.submission.deadline.is_some_and(|at| at <= now) {
                late.push(id);
            }
            if overdue_at(entry, threshold).is_some_and(|at| at <= now) {
                entry.own.age();
                self.tally.note(Mechanism::Ageing);
            }
        }
        for id in late {
            self.end(id, Finish::Deadline, actions);
        }
        let requests = self.ledger.iter();
        self.due = requests
            .filter_map(|(_, entry)| next_of(entry, threshold))
            .min();
    }

    /// Takes the times of a new request into account. Those of others can only be later than noted.
    pub(super) fn expect(&mut self, id: RequestId) {
        let threshold = self.ageing_threshold();
        let next = self
            .ledger
            .get(id)
            .and_then(|entry| next_of(entry, threshold));
        self.due = self.due.into_iter().chain(next).min();
    }

    /// Sets the timer for the next event, unless it goes off before that anyway.
    pub(super) fn set_alarm(&mut self, actions: &mut Actions) {
        let hangs = self.lanes.all_running().map(|(_, running)| running.hangs);
        let others = [self.due, self.next_opening(), self.next_absence()];
        let next = hangs.chain(others.into_iter().flatten()).min();
        if let Some(at) = next
            && self.alarm.is_none_or(|alarm| at < alarm)
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

/// The time at which a request is to be dealt with.
fn next_of(entry: &Entry, threshold: Option<Micros>) -> Option<Micros> {
    let deadline = entry.submission.deadline.filter(|_| entry.ending.is_none());
    deadline
        .into_iter()
        .chain(overdue_at(entry, threshold))
        .min()
}

/// The time at which a request becomes overdue; `None` if it cannot, or already is.
fn overdue_at(entry: &Entry, threshold: Option<Micros>) -> Option<Micros> {
    let may =
        entry.class() == Class::Proactive && !entry.own.is_overdue() && entry.ending.is_none();
    threshold
        .filter(|_| may)
        .map(|threshold| entry.waits_since + threshold)
}
