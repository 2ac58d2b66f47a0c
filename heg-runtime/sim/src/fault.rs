//! Scripted faults of a simulation.

use std::collections::{BTreeMap, BTreeSet};

use heg_sched::{Event, FlowId, Lane, Micros, RequestId, Transfer, Work};

/// A script of faults. Launches, reservations and transfers are numbered from 0 since the start of the simulation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Faults {
    /// Launches that do not succeed, by number.
    pub launches: BTreeMap<u64, LaunchFault>,
    /// Requests that keep their launches from succeeding.
    pub culprits: BTreeMap<RequestId, Flaw>,
    /// Devices that go away.
    pub interruptions: Vec<Interruption>,
    /// Reservations that are refused, by number.
    pub refusals: BTreeSet<u64>,
    /// Requests whose reservations are all refused.
    pub never_reserved: BTreeSet<RequestId>,
    /// Caches that cannot be written to flash, by number.
    pub failed_writes: BTreeSet<u64>,
    /// Caches that cannot be read from flash, by number.
    pub failed_reads: BTreeSet<u64>,
}

/// The fault of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchFault {
    /// The launch fails at the time at which it would have completed.
    Fail,
    /// The launch never ends, until its lane is reset.
    Hang,
    /// The launch takes this much longer; a reset does not stop it, and it reports its end after all.
    Late(Micros),
    /// The launch never ends, and the lane does not answer a reset either.
    Wedge,
    /// The launch runs out of memory at once.
    OutOfMemory,
}

/// A request that keeps launches from succeeding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flaw {
    /// The fault of those launches.
    pub fault: LaunchFault,
    /// Period: 1 is every launch with the request, 2 every second one, and so on.
    pub every: u64,
}

/// The loss of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interruption {
    /// The lane of the device.
    pub lane: Lane,
    /// Time of the loss.
    pub lost: Micros,
    /// Time of the return, if any.
    pub back: Option<Micros>,
}

/// The state of a script of faults during a simulation.
#[derive(Debug)]
pub(super) struct Mishaps<'a> {
    faults: &'a Faults,
    launches: u64,
    reservations: u64,
    writes: u64,
    reads: u64,
    /// Number of launches so far with each culprit.
    flawed: BTreeMap<RequestId, u64>,
    /// Requests whose reservation was refused, until the scheduler hears of it.
    refused: BTreeSet<RequestId>,
    /// Flows on flash, and on their way there.
    stored: BTreeSet<FlowId>,
    leaving: BTreeMap<Transfer, Option<FlowId>>,
    /// Requests whose rows are still to be read from flash.
    unread: BTreeSet<RequestId>,
}

impl<'a> Mishaps<'a> {
    pub(super) fn of(faults: &'a Faults) -> Self {
        Self {
            faults,
            launches: 0,
            reservations: 0,
            writes: 0,
            reads: 0,
            flawed: BTreeMap::new(),
            refused: BTreeSet::new(),
            stored: BTreeSet::new(),
            leaving: BTreeMap::new(),
            unread: BTreeSet::new(),
        }
    }

    /// Reserves memory for a request, which takes its flow's cache back; returns false if that is refused.
    pub(super) fn reserves(&mut self, id: RequestId, flow: Option<FlowId>, reused: u32) -> bool {
        let number = self.reservations;
        self.reservations += 1;
        self.unread.remove(&id);
        if let Some(flow) = flow {
            self.keeps_nothing(flow);
            if self.stored.remove(&flow) && reused > 0 {
                self.unread.insert(id);
            }
        }
        let refused =
            self.faults.refusals.contains(&number) || self.faults.never_reserved.contains(&id);
        if refused {
            self.refused.insert(id);
        }
        !refused
    }

    /// Notes that the scheduler has heard of a refused reservation.
    pub(super) fn refusal_heard(&mut self, id: RequestId) {
        self.refused.remove(&id);
    }

    /// Returns whether all requests of a launch have their memory.
    pub(super) fn has_memory(&self, work: &Work) -> bool {
        !self.refused.iter().any(|id| work.is_of(*id))
    }

    /// Starts a launch; returns its fault, if any.
    pub(super) fn launches(&mut self, work: &Work) -> Option<LaunchFault> {
        let number = self.launches;
        self.launches += 1;
        let mut fault = self.faults.launches.get(&number).copied();
        for (id, flaw) in &self.faults.culprits {
            if work.is_of(*id) {
                let launches = self.flawed.entry(*id).or_default();
                *launches += 1;
                if launches.is_multiple_of(flaw.every.max(1)) {
                    fault = fault.or(Some(flaw.fault));
                }
            }
        }
        fault
    }

    /// Returns whether a launch has to read the cache of a request from flash.
    pub(super) fn has_unread(&self, work: &Work) -> bool {
        self.unread.iter().any(|id| work.is_of(*id))
    }

    /// Reads the caches of a launch's requests from flash; returns a request whose rows cannot be read.
    pub(super) fn reads(&mut self, work: &Work) -> Option<RequestId> {
        let readers: Vec<RequestId> = self.unread.iter().copied().collect();
        for id in readers.into_iter().filter(|id| work.is_of(*id)) {
            let number = self.reads;
            self.reads += 1;
            if self.faults.failed_reads.contains(&number) {
                return Some(id);
            }
            self.unread.remove(&id);
        }
        None
    }

    /// Starts to write a cache to flash.
    pub(super) fn writes(&mut self, flow: FlowId, transfer: Transfer) {
        self.leaving.insert(transfer, Some(flow));
    }

    /// Drops the cache of a flow on flash, because it was given up or taken back.
    pub(super) fn keeps_nothing(&mut self, flow: FlowId) {
        for owner in self.leaving.values_mut() {
            *owner = owner.filter(|other| *other != flow);
        }
    }

    /// Drops the cache as [`Mishaps::keeps_nothing`] does, for a flow that is to keep nothing anywhere.
    pub(super) fn released(&mut self, flow: FlowId) {
        self.keeps_nothing(flow);
        self.stored.remove(&flow);
    }

    /// Ends the writing of a cache.
    pub(super) fn written(&mut self, transfer: Transfer) -> Event {
        let number = self.writes;
        self.writes += 1;
        let flow = self.leaving.remove(&transfer).flatten();
        if self.faults.failed_writes.contains(&number) {
            return Event::OffloadFailed(transfer);
        }
        self.stored.extend(flow);
        Event::Offloaded(transfer)
    }
}
