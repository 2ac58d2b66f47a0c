//! The devices, and what runs on them.

use super::costs::Cost;
use super::event::{Ticket, Work};
use super::request::{Class, Lane, Micros};

/// Something that runs.
#[derive(Debug, Clone)]
pub(super) struct Running {
    pub(super) ticket: Ticket,
    pub(super) work: Work,
    pub(super) class: Class,
    pub(super) cost: Cost,
    /// When it should be done, if nothing slows it down.
    pub(super) ends: Micros,
    /// When it counts as hung.
    pub(super) hangs: Micros,
    /// Whether it was asked to yield.
    pub(super) yielding: bool,
}

/// State of one lane.
#[derive(Debug, Clone)]
enum State {
    Absent,
    Free,
    Busy(Running),
    /// Asked to reset.
    Resetting,
}

/// All lanes; each runs one launch at a time.
#[derive(Debug, Clone)]
pub(super) struct Lanes([State; Lane::ALL.len()]);

impl Lanes {
    /// Those that `has` says are there.
    pub(super) fn new(has: impl Fn(Lane) -> bool) -> Self {
        Self(Lane::ALL.map(|lane| {
            if has(lane) {
                State::Free
            } else {
                State::Absent
            }
        }))
    }

    fn state(&self, lane: Lane) -> &State {
        &self.0[lane as usize]
    }

    /// Whether the lane exists, busy or not.
    pub(super) fn is_present(&self, lane: Lane) -> bool {
        !matches!(self.state(lane), State::Absent)
    }

    pub(super) fn is_free(&self, lane: Lane) -> bool {
        matches!(self.state(lane), State::Free)
    }

    pub(super) fn running(&self, lane: Lane) -> Option<&Running> {
        match self.state(lane) {
            State::Busy(running) => Some(running),
            State::Absent | State::Free | State::Resetting => None,
        }
    }

    pub(super) fn running_mut(&mut self, lane: Lane) -> Option<&mut Running> {
        match &mut self.0[lane as usize] {
            State::Busy(running) => Some(running),
            State::Absent | State::Free | State::Resetting => None,
        }
    }

    /// Everything that runs.
    pub(super) fn all_running(&self) -> impl Iterator<Item = (Lane, &Running)> {
        Lane::ALL
            .into_iter()
            .filter_map(|lane| Some((lane, self.running(lane)?)))
    }

    /// Occupies a free lane.
    pub(super) fn start(&mut self, lane: Lane, running: Running) {
        self.0[lane as usize] = State::Busy(running);
    }

    /// Frees the lane of a launch; `None` for a ticket that nobody waits for.
    pub(super) fn finish(&mut self, ticket: Ticket) -> Option<(Lane, Running)> {
        let mut lanes = Lane::ALL.into_iter();
        let lane = lanes.find(|lane| self.running(*lane).is_some_and(|r| r.ticket == ticket))?;
        match std::mem::replace(&mut self.0[lane as usize], State::Free) {
            State::Busy(running) => Some((lane, running)),
            State::Absent | State::Free | State::Resetting => None,
        }
    }

    /// Frees a lane of what runs there, if `which` says so.
    pub(super) fn take_if(
        &mut self,
        lane: Lane,
        which: impl Fn(&Running) -> bool,
    ) -> Option<Running> {
        self.running(lane).filter(|running| which(running))?;
        self.vacate(lane, State::Free)
    }

    /// Takes a lane away, with what ran on it.
    pub(super) fn lose(&mut self, lane: Lane) -> Option<Running> {
        self.vacate(lane, State::Absent)
    }

    /// Takes away what runs on a lane that is to be reset.
    pub(super) fn reset(&mut self, lane: Lane) -> Option<Running> {
        self.vacate(lane, State::Resetting)
    }

    fn vacate(&mut self, lane: Lane, state: State) -> Option<Running> {
        match std::mem::replace(&mut self.0[lane as usize], state) {
            State::Busy(running) => Some(running),
            State::Absent | State::Free | State::Resetting => None,
        }
    }

    /// A lane is there again.
    pub(super) fn restore(&mut self, lane: Lane) {
        if self.running(lane).is_none() {
            self.0[lane as usize] = State::Free;
        }
    }

    /// Share of the peak bandwidth that is drawn now (v1 6.4, P_mem).
    pub(super) fn pressure(&self) -> f64 {
        self.all_running().map(|(_, r)| r.cost.bandwidth).sum()
    }
}
