//! The prompts that wait, and the prompts in progress.

use std::collections::VecDeque;

use super::stage::{Entry, Stage};
use crate::ledger::Ledger;
use crate::request::{Class, RequestId};
use heg_spec::bug;

/// The role of a prompt in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// The prompt that the lanes belong to.
    Foreground,
    /// A reactive prompt that has the iGPU while another one has the NPU.
    Aside,
    /// An overdue proactive prompt that has the iGPU while a reactive one has the NPU (§4.5).
    Overdue,
    /// A proactive prompt that fills bubbles of the NPU beside a reactive one (v1 6.3).
    Backfill,
}

impl Slot {
    /// All slots, the more important first.
    const ALL: [Self; 4] = [Self::Foreground, Self::Aside, Self::Overdue, Self::Backfill];
}

/// The requests that prefill, and those that wait to.
///
/// - A request waits in the queue of its class, or has a slot, or neither; never two of them.
/// - A queue is in the order of rank, then of arrival; it includes preempted requests.
/// - A request whose activations are buffered has begun, preempted or not; it stays buffered until it is forgotten.
#[derive(Debug, Default)]
pub(crate) struct Prefills {
    reactive: VecDeque<RequestId>,
    proactive: VecDeque<RequestId>,
    slots: [Option<RequestId>; Slot::ALL.len()],
    buffered: Vec<RequestId>,
    gave_way: bool,
    revision: u64,
}

impl Prefills {
    /// Puts a request into its queue. Returns whether it passes one that came earlier.
    pub(super) fn enqueue(&mut self, id: RequestId, ledger: &Ledger<Stage>) -> bool {
        let Some(entry) = ledger.get(id) else {
            bug!("a request is queued that is over");
            return false;
        };
        let queue = match entry.class() {
            Class::Reactive => &mut self.reactive,
            Class::Proactive => &mut self.proactive,
        };
        let before =
            |other: &Entry| (other.own.rank(), other.order) < (entry.own.rank(), entry.order);
        let place = queue.partition_point(|other| ledger.get(*other).is_none_or(before));
        let mut behind = queue.iter().skip(place);
        let passes =
            behind.any(|other| ledger.get(*other).is_some_and(|it| it.order < entry.order));
        queue.insert(place, id);
        self.revision += 1;
        passes
    }

    /// Takes a request out of its queue or slot.
    pub(super) fn leave(&mut self, id: RequestId) {
        self.reactive.retain(|other| *other != id);
        self.proactive.retain(|other| *other != id);
        for slot in &mut self.slots {
            slot.take_if(|holder| *holder == id);
        }
        self.revision += 1;
    }

    /// Takes a request out like [`Prefills::leave`], and drops its activations.
    pub(super) fn forget(&mut self, id: RequestId) {
        self.leave(id);
        self.buffered.retain(|other| *other != id);
    }

    /// Gives a slot to a request that was taken out of its queue, or clears it.
    pub(super) fn give(&mut self, slot: Slot, id: Option<RequestId>) {
        debug_assert!(
            id.is_none_or(|id| !self.waiting().chain(self.active()).any(|it| it == id)),
            "{id:?} is somewhere else already"
        );
        self.slots[slot as usize] = id;
    }

    /// Takes a slot from its holder.
    pub(super) fn take(&mut self, slot: Slot) -> Option<RequestId> {
        self.slots[slot as usize].take()
    }

    /// The request that has a slot.
    pub(super) fn holder(&self, slot: Slot) -> Option<RequestId> {
        self.slots[slot as usize]
    }

    /// Whether a request has a slot.
    pub(super) fn holds(&self, slot: Slot, id: RequestId) -> bool {
        self.holder(slot) == Some(id)
    }

    /// Waiting requests of a class.
    pub(super) fn queue(&self, class: Class) -> &VecDeque<RequestId> {
        match class {
            Class::Reactive => &self.reactive,
            Class::Proactive => &self.proactive,
        }
    }

    /// Waiting requests, the reactive ones first.
    pub(super) fn waiting(&self) -> impl Iterator<Item = RequestId> {
        self.reactive.iter().chain(&self.proactive).copied()
    }

    /// Whether a request's prompt is in progress.
    pub(super) fn is_active(&self, id: RequestId) -> bool {
        self.active().any(|active| active == id)
    }

    /// Prompts in progress, the more important first.
    pub(super) fn active(&self) -> impl Iterator<Item = RequestId> {
        Slot::ALL.into_iter().filter_map(|slot| self.holder(slot))
    }

    /// Notes that a request's activations are in its client's proactive buffer from now on.
    pub(super) fn buffer(&mut self, id: RequestId) {
        self.buffered.push(id);
    }

    /// Requests whose activations are in their client's proactive buffer: prompts that have begun, preempted or not.
    pub(super) fn buffered(&self) -> &[RequestId] {
        &self.buffered
    }

    /// Notes that a prompt that had begun gave way to another client's turn, so that a client may have more than one
    /// begun prompt.
    pub(super) fn give_way(&mut self) {
        self.gave_way = true;
    }

    /// Notes that all prompts that gave way to others have gone on.
    pub(super) fn go_on(&mut self) {
        self.gave_way = false;
    }

    /// Whether prompts that had begun gave way to other clients' turns, and have not all gone on.
    pub(super) fn have_given_way(&self) -> bool {
        self.gave_way
    }

    /// A number that changes whenever a request comes or goes.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }
}
