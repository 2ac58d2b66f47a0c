//! The request table (Agent.xpu §4.1): every live request, where it is in its life, and the queues.

use std::collections::BTreeMap;

use super::event::Finish;
use super::kv::Refusals;
use super::lanes::LaneSet;
use super::prefill::Prefill;
use super::request::{Class, Lane, Micros, RequestId, Submission};

/// A live request.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) submission: Submission,
    /// Number of requests that came before it.
    pub(super) order: u64,
    /// Comes before `order` in a queue.
    pub(super) rank: Micros,
    pub(super) phase: Phase,
    /// Since when it waits for its next token, which may make it overdue: its arrival, or its last token.
    /// Neither a pause nor a restart takes anything off its age.
    pub(super) waits_since: Micros,
    pub(super) overdue: bool,
    /// Tokens to prefill: the prompt, and after a restart the answer so far.
    pub(super) prompt_tokens: u32,
    /// Tokens of the answer so far.
    pub(super) generated: u32,
    /// Whether its flow has no further calls.
    pub(super) ends_flow: bool,
    /// How it will end, as soon as nothing of it runs any more.
    pub(super) ending: Option<Finish>,
    /// Where its last launch failed.
    pub(super) failed: Option<Lane>,
    /// How often in a row a launch with it alone failed.
    pub(super) failures: u32,
    /// What it has in its cache does not count: it starts over as soon as nothing of it runs any more.
    pub(super) starts_over: bool,
    /// Lanes that may still write to its memory although they are to stop, or count as lost.
    pub(super) written_by: LaneSet,
    /// What it knows of memory that could not be had.
    pub(super) refusals: Refusals,
}

/// Where a request is in its life.
#[derive(Debug, Clone)]
pub(super) enum Phase {
    /// Nothing of it ran, and it has no room in the KV cache.
    Queued,
    /// Its prompt is under way, or was preempted.
    Prefill(Prefill),
    /// It generates.
    Decode,
}

impl Entry {
    pub(super) fn class(&self) -> Class {
        self.submission.class
    }

    /// A launch with it succeeded: it was neither the launch's fault nor its memory's.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
        self.refusals = Refusals::default();
    }

    /// Whether anything more of it may be launched.
    pub(super) fn may_run(&self) -> bool {
        self.ending.is_none() && !self.starts_over
    }

    pub(super) fn prefill(&self) -> Option<&Prefill> {
        match &self.phase {
            Phase::Prefill(prefill) => Some(prefill),
            Phase::Queued | Phase::Decode => None,
        }
    }

    pub(super) fn prefill_mut(&mut self) -> Option<&mut Prefill> {
        match &mut self.phase {
            Phase::Prefill(prefill) => Some(prefill),
            Phase::Queued | Phase::Decode => None,
        }
    }

    /// Leading tokens whose keys and values are in its cache, in every layer. The one that was given last is not: no
    /// kernel has read it.
    pub(super) fn cached(&self) -> u32 {
        match &self.phase {
            Phase::Queued => 0,
            Phase::Prefill(prefill) => prefill.cached(),
            Phase::Decode => self.context().saturating_sub(1),
        }
    }

    /// Tokens that its answer may still have.
    pub(super) fn tokens_left(&self) -> u32 {
        let most = self.submission.output_tokens_max;
        most.saturating_sub(self.generated)
    }

    /// Tokens in its cache when it decodes next, the one that is fed then included.
    pub(super) fn context(&self) -> u32 {
        self.submission.prompt_tokens + self.generated
    }
}

/// All live requests.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    entries: BTreeMap<RequestId, Entry>,
    submitted: u64,
}

impl Table {
    /// Takes in a request; false if its number is in use.
    pub(super) fn insert(&mut self, submission: Submission, now: Micros) -> bool {
        if self.entries.contains_key(&submission.id) {
            return false;
        }
        let entry = Entry {
            submission,
            order: self.submitted,
            rank: Micros(0),
            phase: Phase::Queued,
            waits_since: now,
            overdue: false,
            prompt_tokens: submission.prompt_tokens,
            generated: 0,
            ends_flow: false,
            ending: None,
            failed: None,
            failures: 0,
            starts_over: false,
            written_by: LaneSet::default(),
            refusals: Refusals::default(),
        };
        self.submitted += 1;
        self.entries.insert(submission.id, entry);
        true
    }

    pub(super) fn remove(&mut self, id: RequestId) -> Option<Entry> {
        self.entries.remove(&id)
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: RequestId) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestId, &Entry)> {
        self.entries.iter().map(|(id, entry)| (*id, entry))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (RequestId, &mut Entry)> {
        self.entries.iter_mut().map(|(id, entry)| (*id, entry))
    }

    /// The proactive requests that are best given up for others: the youngest first.
    pub(super) fn youngest_proactive(
        &self,
        may: impl Fn(RequestId, &Entry) -> bool,
    ) -> Option<RequestId> {
        self.iter()
            .filter(|(id, entry)| entry.class() == Class::Proactive && may(*id, entry))
            .max_by_key(|(_, entry)| entry.order)
            .map(|(id, _)| id)
    }
}
