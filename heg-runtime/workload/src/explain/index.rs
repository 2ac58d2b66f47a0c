//! Look-up of a trace's contents in a span of time, by lane and by request.

use std::collections::BTreeMap;

use heg_sched::{Class, Lane, Micros, RequestId};

use super::slowed::{Slowed, UsualTimes};
use crate::traced::{LaneAway, RunTrace, TracedAbsence, TracedHold, TracedLaunch, TracedWarmUp};

/// Launches in the order of their starts.
pub(super) type Launches<'t> = Vec<&'t TracedLaunch>;

/// The part of a trace that concerns a span of time.
pub(super) struct Index<'t> {
    trace: &'t RunTrace,
    lanes: [Launches<'t>; Lane::ALL.len()],
    requests: BTreeMap<RequestId, [Launches<'t>; Lane::ALL.len()]>,
    /// The holds of each request, in the order of their starts.
    holds: BTreeMap<RequestId, Vec<&'t TracedHold>>,
    usual: UsualTimes,
}

impl<'t> Index<'t> {
    pub(super) fn of(trace: &'t RunTrace, start: Micros, end: Micros) -> Self {
        let mut index = Self {
            trace,
            lanes: [const { Vec::new() }; Lane::ALL.len()],
            requests: BTreeMap::new(),
            holds: BTreeMap::new(),
            usual: UsualTimes::of(&all_launches(trace)),
        };
        let touches = |from: Micros, to: Micros| to >= start && from <= end;
        for launch in &trace.launches {
            if touches(launch.start, launch.end) {
                index.lanes[launch.lane as usize].push(launch);
                for id in &launch.requests {
                    let lanes = index.requests.entry(*id).or_default();
                    lanes[launch.lane as usize].push(launch);
                }
            }
        }
        for hold in &trace.holds {
            if touches(hold.start, hold.end) {
                index.holds.entry(hold.request).or_default().push(hold);
            }
        }
        let of_requests = index.requests.values_mut().flatten();
        for launches in index.lanes.iter_mut().chain(of_requests) {
            launches.sort_by_key(|launch| (launch.start, launch.end));
        }
        for holds in index.holds.values_mut() {
            holds.sort_by_key(|hold| (hold.start, hold.end));
        }
        index
    }

    /// Returns the launch of a request that ends last of those that began before a time, on any lane.
    pub(super) fn last_before(&self, id: RequestId, at: Micros) -> Option<&'t TracedLaunch> {
        let lanes = self.requests.get(&id)?;
        let latest = lanes.iter().filter_map(|launches| {
            let behind = launches.partition_point(|launch| launch.start < at);
            launches.get(behind.checked_sub(1)?)
        });
        latest
            .copied()
            .max_by_key(|launch| (launch.end.min(at), launch.start))
    }

    /// Returns the launches of a request.
    pub(super) fn launches_of(&self, id: RequestId) -> impl Iterator<Item = &'t TracedLaunch> {
        let lanes = self.requests.get(&id);
        lanes.into_iter().flatten().flatten().copied()
    }

    /// Returns what slowed a launch down, if it took longer than usual.
    pub(super) fn slowed(&self, launch: &TracedLaunch) -> Option<Slowed> {
        self.usual.slowed(&self.lanes, launch)
    }

    /// Returns the launches on a lane, from the one that ran at a time on.
    pub(super) fn on_lane(&self, lane: Lane, at: Micros) -> &[&'t TracedLaunch] {
        let launches = &self.lanes[lane as usize];
        let behind = launches.partition_point(|launch| launch.start <= at);
        launches.get(behind.saturating_sub(1)..).unwrap_or_default()
    }

    /// Returns the holds of a request, from a time on.
    pub(super) fn holds_of(&self, id: RequestId, at: Micros) -> &[&'t TracedHold] {
        let holds = self.holds.get(&id).map_or(&[][..], Vec::as_slice);
        let behind = holds.partition_point(|hold| hold.start <= at);
        holds.get(behind.saturating_sub(1)..).unwrap_or_default()
    }

    /// Returns the way in which a lane was away at a time, if it was.
    pub(super) fn away(&self, lane: Lane, at: Micros) -> Option<LaneAway> {
        let covers = |it: &&TracedAbsence| it.lane == lane && it.start <= at && at < it.end;
        let absence = self.trace.absences.iter().find(covers);
        absence.map(|absence| absence.state)
    }

    /// Returns the kernel that was compiled at a time.
    pub(super) fn warm_up(&self, at: Micros) -> Option<&'t TracedWarmUp> {
        let mut warm_ups = self.trace.warm_ups.iter();
        warm_ups.find(|it| it.start <= at && at < it.end)
    }

    /// Returns the class of a request; `None` if the trace does not have its arrival.
    pub(super) fn class(&self, id: RequestId) -> Option<Class> {
        self.trace.requests.get(&id).map(|request| request.class)
    }
}

/// Returns all launches of a trace by lane, in the order of their starts.
fn all_launches(trace: &RunTrace) -> [Launches<'_>; Lane::ALL.len()] {
    let mut lanes = [const { Vec::new() }; Lane::ALL.len()];
    for launch in &trace.launches {
        lanes[launch.lane as usize].push(launch);
    }
    for launches in &mut lanes {
        launches.sort_by_key(|launch: &&TracedLaunch| (launch.start, launch.end));
    }
    lanes
}
