//! Where a request is in its life, as Agent.xpu's scheduler sees it.

use crate::lanes::LaneSet;
use crate::ledger;
use crate::prefill::Prefill;
use crate::request::{Lane, Micros};

/// A request in this scheduler's ledger.
pub(super) type Entry = ledger::Entry<Stage>;

/// What only this scheduler knows of a request.
#[derive(Debug, Clone, Default)]
pub(super) struct Stage {
    pub(super) phase: Phase,
    /// What comes before the order of arrival in a queue.
    pub(super) rank: Micros,
    /// Whether it has waited for its next token beyond the policy's threshold.
    pub(super) overdue: bool,
    /// Since when no other proactive prompt was before its own.
    pub(super) turn: Option<Micros>,
    /// Lane on which its last launch failed.
    pub(super) failed: Option<Lane>,
    /// Whether its cache does not count: it starts over as soon as nothing of it runs any more.
    pub(super) starts_over: bool,
    /// Lanes that may still write to its memory although they are to stop, or count as lost.
    pub(super) written_by: LaneSet,
}

/// Where a request is in its life.
#[derive(Debug, Clone, Default)]
pub(super) enum Phase {
    /// Nothing of it ran, and it has no room in the KV cache.
    #[default]
    Queued,
    /// Its prompt is under way, or was preempted.
    Prefill(Prefill),
    /// It generates.
    Decode,
}

impl ledger::Progress for Stage {
    fn cached(&self, context: u32) -> u32 {
        match &self.phase {
            Phase::Queued => 0,
            Phase::Prefill(prefill) => prefill.cached(),
            Phase::Decode => context.saturating_sub(1),
        }
    }
}

impl Entry {
    /// Whether anything more of it may be launched.
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
