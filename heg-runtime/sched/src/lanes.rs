//! The devices, and the work that runs on them.

use super::costs::Cost;
use super::event::{Ticket, Work};
use super::request::{Class, Lane, Micros, RequestId};

/// The time that a lane has to answer when told to stop, in multiples of the least time after which a
/// kernel counts as hung (`limits.timeout_min_ms`). Chosen: drivers reset a device within seconds.
pub const RESET_PATIENCE: u64 = 5;

/// The longest time that requests wait for a lost lane to come back, also where no kernel counts as hung. Chosen: drivers
/// reset a device within seconds.
const RETURN_MAX_MS: u32 = 10_000;

/// The time that requests wait for a lost lane to come back: as long as a kernel may hang, and not without an end.
pub(super) fn return_time(timeout_min_ms: u32) -> Micros {
    Micros::from_millis(timeout_min_ms.min(RETURN_MAX_MS))
}

/// A set of lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LaneSet([bool; Lane::ALL.len()]);

impl LaneSet {
    /// Returns the lanes for which `is` holds.
    pub(super) fn of(is: impl Fn(Lane) -> bool) -> Self {
        Self(Lane::ALL.map(is))
    }

    pub(super) fn is_empty(self) -> bool {
        !self.0.contains(&true)
    }

    pub(super) fn insert(&mut self, lane: Lane) {
        self.0[lane as usize] = true;
    }

    pub(super) fn remove(&mut self, lane: Lane) {
        self.0[lane as usize] = false;
    }

    /// Returns the lanes in both sets.
    pub(super) fn and(self, other: Self) -> Self {
        Self::of(|lane| self.0[lane as usize] && other.0[lane as usize])
    }

    /// Returns the lanes in either set.
    pub(super) fn or(self, other: Self) -> Self {
        Self::of(|lane| self.0[lane as usize] || other.0[lane as usize])
    }
}

/// A launch that runs on a lane.
#[derive(Debug, Clone)]
pub(super) struct Running {
    pub(super) ticket: Ticket,
    pub(super) work: Work,
    pub(super) class: Class,
    pub(super) cost: Cost,
    /// The time at which it should be done, if nothing slows it down.
    pub(super) ends: Micros,
    /// The time at which it counts as hung.
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
    /// Told to stop its work, if it had any, and to answer by a time.
    Resetting(Option<Running>, Micros),
}

/// The launch that was on a lane that is gone.
#[derive(Debug, Clone)]
pub(super) enum Left {
    /// One that ran normally.
    Running(Running),
    /// One that was to be stopped.
    Hung(Running),
}

/// All lanes; each runs one launch at a time.
#[derive(Debug, Clone)]
pub(super) struct Lanes([State; Lane::ALL.len()]);

impl Lanes {
    /// Returns all lanes; those for which `has` holds are present.
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
            State::Absent | State::Free | State::Resetting(..) => None,
        }
    }

    pub(super) fn running_mut(&mut self, lane: Lane) -> Option<&mut Running> {
        match &mut self.0[lane as usize] {
            State::Busy(running) => Some(running),
            State::Absent | State::Free | State::Resetting(..) => None,
        }
    }

    /// Returns all launches that run.
    pub(super) fn all_running(&self) -> impl Iterator<Item = (Lane, &Running)> {
        Lane::ALL
            .into_iter()
            .filter_map(|lane| Some((lane, self.running(lane)?)))
    }

    /// Occupies a free lane.
    pub(super) fn start(&mut self, lane: Lane, running: Running) {
        self.0[lane as usize] = State::Busy(running);
    }

    /// Frees the lane of a launch; `None` if no lane runs the ticket.
    pub(super) fn finish(&mut self, ticket: Ticket) -> Option<(Lane, Running)> {
        let mut lanes = Lane::ALL.into_iter();
        let lane = lanes.find(|lane| self.running(*lane).is_some_and(|r| r.ticket == ticket))?;
        match std::mem::replace(&mut self.0[lane as usize], State::Free) {
            State::Busy(running) => Some((lane, running)),
            State::Absent | State::Free | State::Resetting(..) => None,
        }
    }

    /// Frees a lane of the launch that runs there, if `which` holds for it.
    pub(super) fn take_if(
        &mut self,
        lane: Lane,
        which: impl Fn(&Running) -> bool,
    ) -> Option<Running> {
        self.running(lane).filter(|running| which(running))?;
        self.vacate(lane, State::Free)
    }

    /// Removes a lane; returns the launch that was on it.
    pub(super) fn lose(&mut self, lane: Lane) -> Option<Left> {
        match std::mem::replace(&mut self.0[lane as usize], State::Absent) {
            State::Busy(running) => Some(Left::Running(running)),
            State::Resetting(running, _) => running.map(Left::Hung),
            State::Absent | State::Free => None,
        }
    }

    /// Gives a lane until `until` to stop its work, which may go on running. Returns the requests of that work.
    pub(super) fn reset(&mut self, lane: Lane, until: Micros) -> Vec<RequestId> {
        let running = self.vacate(lane, State::Absent);
        let ids = running.as_ref().map(|running| running.work.requests());
        self.0[lane as usize] = State::Resetting(running, until);
        ids.unwrap_or_default()
    }

    /// Returns the lanes that are to stop work of a request.
    pub(super) fn stops(&self, id: RequestId) -> LaneSet {
        LaneSet::of(|lane| match self.state(lane) {
            State::Resetting(Some(running), _) => running.work.is_of(id),
            State::Absent | State::Free | State::Busy(_) | State::Resetting(None, _) => false,
        })
    }

    /// Whether any work of a request runs.
    pub(super) fn runs(&self, id: RequestId) -> bool {
        self.all_running()
            .any(|(_, running)| running.work.is_of(id))
    }

    /// The time by which a lane that was reset has to have answered.
    pub(super) fn answers_by(&self, lane: Lane) -> Option<Micros> {
        match self.state(lane) {
            State::Resetting(_, until) => Some(*until),
            State::Absent | State::Free | State::Busy(_) => None,
        }
    }

    fn vacate(&mut self, lane: Lane, state: State) -> Option<Running> {
        match std::mem::replace(&mut self.0[lane as usize], state) {
            State::Busy(running) => Some(running),
            State::Absent | State::Free | State::Resetting(..) => None,
        }
    }

    /// Makes a lane present again; returns the work that it has stopped.
    pub(super) fn restore(&mut self, lane: Lane) -> Option<Running> {
        if self.running(lane).is_some() {
            return None;
        }
        match std::mem::replace(&mut self.0[lane as usize], State::Free) {
            State::Resetting(running, _) => running,
            State::Absent | State::Free | State::Busy(_) => None,
        }
    }

    /// Share of the peak bandwidth that is drawn now (v1 6.4, P_mem).
    pub(super) fn pressure(&self) -> f64 {
        self.all_running().map(|(_, r)| r.cost.bandwidth).sum()
    }
}
