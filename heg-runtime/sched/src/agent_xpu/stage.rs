//! The stage of a request's life, as Agent.xpu's scheduler sees it.

use crate::lanes::LaneSet;
use crate::ledger;
use crate::prefill::Prefill;
use crate::request::{Lane, Micros};

/// A request in this scheduler's ledger.
pub(crate) type Entry = ledger::Entry<Stage>;

/// State of a request that only this scheduler needs.
///
/// - It is queued, prefills and decodes in this order, or starts over from the queue.
/// - Once overdue it stays so, and `turn` keeps the time at which its turn first came.
/// - The lane on which it failed is forgotten with its first token.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stage {
    phase: Phase,
    rank: Micros,
    overdue: bool,
    turn: Option<Micros>,
    failed: Option<Lane>,
    starts_over: bool,
    written_by: LaneSet,
}

/// The phase of a request's life.
#[derive(Debug, Clone, Default)]
pub(crate) enum Phase {
    /// Nothing of it has run, and it has no room in the KV cache.
    #[default]
    Queued,
    /// Its prompt is in progress, or was preempted.
    Prefill(Prefill),
    /// It decodes.
    Decode,
}

impl Stage {
    /// The phase of its life.
    pub(super) fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Whether nothing of it has run.
    pub(super) fn is_queued(&self) -> bool {
        matches!(self.phase, Phase::Queued)
    }

    /// Notes that its prompt begins at a time.
    pub(super) fn begin(&mut self, prefill: Prefill, now: Micros) {
        self.phase = Phase::Prefill(prefill);
        self.note_turn(now);
    }

    /// Notes that its prompt gave its first token.
    pub(super) fn decode(&mut self) {
        self.phase = Phase::Decode;
        self.failed = None;
    }

    /// Returns it to its queue, with its computed state discarded.
    pub(super) fn requeue(&mut self) {
        self.phase = Phase::Queued;
        self.starts_over = false;
    }

    /// Invalidates its cache: it starts over as soon as nothing of it runs.
    pub(super) fn spoil(&mut self) {
        self.starts_over = true;
    }

    /// Its rank, which comes before the order of arrival in a queue.
    pub(super) fn rank(&self) -> Micros {
        self.rank
    }

    /// Gives it a rank, before it is put into a queue.
    pub(super) fn set_rank(&mut self, rank: Micros) {
        self.rank = rank;
    }

    /// Whether it has waited for its next token beyond the policy's threshold.
    pub(crate) fn is_overdue(&self) -> bool {
        self.overdue
    }

    /// Notes that it has waited beyond the threshold.
    pub(super) fn age(&mut self) {
        self.overdue = true;
    }

    /// Notes that no other proactive prompt is before its own.
    pub(super) fn note_turn(&mut self, now: Micros) {
        self.turn.get_or_insert(now);
    }

    /// The time since which no other proactive prompt was before its own.
    pub(super) fn turn(&self) -> Option<Micros> {
        self.turn
    }

    /// The lane on which its last launch failed.
    pub(super) fn failed_on(&self) -> Option<Lane> {
        self.failed
    }

    /// Notes that a launch of it failed on a lane.
    pub(super) fn fail_on(&mut self, lane: Lane) {
        self.failed = Some(lane);
    }

    /// Lanes that may still write to its memory although they are to stop, or count as lost.
    pub(super) fn writers(&self) -> LaneSet {
        self.written_by
    }

    /// Adds lanes that may still write to its memory.
    pub(super) fn add_writers(&mut self, lanes: LaneSet) {
        self.written_by = self.written_by.or(lanes);
    }

    /// Notes that a lane no longer writes to its memory.
    pub(super) fn remove_writer(&mut self, lane: Lane) {
        self.written_by.remove(lane);
    }

    /// Takes the lanes that may still write to its memory; the memory's owner tracks them from now on.
    pub(super) fn take_writers(&mut self) -> LaneSet {
        std::mem::take(&mut self.written_by)
    }
}

impl ledger::Progress for Stage {
    fn cached(&self, context: u32) -> u32 {
        match &self.phase {
            Phase::Queued => 0,
            Phase::Prefill(prefill) => prefill.cached(),
            Phase::Decode => context.saturating_sub(1),
        }
    }

    fn decodes(&self) -> bool {
        matches!(self.phase, Phase::Decode)
    }
}

impl Entry {
    /// Whether more of its work may be launched.
    pub(super) fn may_run(&self) -> bool {
        self.ending.is_none() && !self.own.starts_over
    }

    pub(super) fn prefill(&self) -> Option<&Prefill> {
        match &self.own.phase {
            Phase::Prefill(prefill) => Some(prefill),
            Phase::Queued | Phase::Decode => None,
        }
    }

    pub(super) fn prefill_mut(&mut self) -> Option<&mut Prefill> {
        match &mut self.own.phase {
            Phase::Prefill(prefill) => Some(prefill),
            Phase::Queued | Phase::Decode => None,
        }
    }
}
