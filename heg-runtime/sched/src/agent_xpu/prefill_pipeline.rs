//! The prefill pipeline: whose prompt is next, and what of it runs next (§4.3, §4.4).

use std::collections::VecDeque;

use heg_spec::policy::Resume;

use super::AgentXpu;
use super::gates::Proposal;
use super::stage::{Entry, Phase, Stage};
use crate::costs::{Cost, Costs};
use crate::event::{Actions, Work};
use crate::forecast::{Waiting, rank};
use crate::kv::Room;
use crate::ledger::Ledger;
use crate::mechanism::Mechanism;
use crate::prefill::{Prefill, Step};
use crate::request::{Class, Lane, Micros, RequestId};

/// Who prefills, and who waits to.
#[derive(Debug, Default)]
pub(super) struct Prefills {
    /// Waiting requests by rank, then in order of arrival; preempted ones are among them.
    pub(super) reactive: VecDeque<RequestId>,
    pub(super) proactive: VecDeque<RequestId>,
    /// The request whose prompt is under way.
    pub(super) foreground: Option<RequestId>,
    /// An overdue proactive request that has the iGPU while a reactive one has the NPU (§4.5).
    pub(super) overdue: Option<RequestId>,
    /// A reactive request that has the iGPU while another one has the NPU.
    pub(super) aside: Option<RequestId>,
    /// A proactive request that fills bubbles of the NPU beside a reactive one (v1 6.3).
    pub(super) backfill: Option<RequestId>,
    /// Whose activations are in the proactive buffer: a prompt that has begun, preempted or not.
    pub(super) buffered: Option<RequestId>,
    /// Counts changes of who waits or prefills.
    revision: u64,
}

impl Prefills {
    /// Puts a request into its queue. Says whether it passes one that came earlier.
    fn enqueue(&mut self, id: RequestId, ledger: &Ledger<Stage>) -> bool {
        let Some(entry) = ledger.get(id) else {
            return false;
        };
        let queue = match entry.class() {
            Class::Reactive => &mut self.reactive,
            Class::Proactive => &mut self.proactive,
        };
        let before = |other: &Entry| (other.own.rank, other.order) < (entry.own.rank, entry.order);
        let place = queue.partition_point(|other| ledger.get(*other).is_none_or(before));
        let mut behind = queue.iter().skip(place);
        let passes =
            behind.any(|other| ledger.get(*other).is_some_and(|it| it.order < entry.order));
        queue.insert(place, id);
        self.revision += 1;
        passes
    }

    /// Takes a request out, wherever it is.
    pub(super) fn leave(&mut self, id: RequestId) {
        self.reactive.retain(|other| *other != id);
        self.proactive.retain(|other| *other != id);
        let slots = [
            &mut self.foreground,
            &mut self.aside,
            &mut self.overdue,
            &mut self.backfill,
        ];
        for slot in slots {
            if *slot == Some(id) {
                *slot = None;
            }
        }
        self.revision += 1;
    }

    /// A number that changes whenever somebody comes or goes.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// As [`Prefills::leave`], for a request whose activations are not wanted any more.
    pub(super) fn forget(&mut self, id: RequestId) {
        self.leave(id);
        if self.buffered == Some(id) {
            self.buffered = None;
        }
    }

    /// Waiting requests, the reactive ones first.
    pub(super) fn waiting(&self) -> impl Iterator<Item = RequestId> {
        self.reactive.iter().chain(&self.proactive).copied()
    }

    /// How many proactive requests wait.
    pub(super) fn proactive_waiting(&self) -> usize {
        self.proactive.len()
    }

    /// Whether a request's prompt is under way.
    pub(super) fn is_active(&self, id: RequestId) -> bool {
        self.active().any(|active| active == id)
    }

    /// Those under way, the more important first.
    fn active(&self) -> impl Iterator<Item = RequestId> {
        [self.foreground, self.aside, self.overdue, self.backfill]
            .into_iter()
            .flatten()
    }
}

/// Something of a prompt that a lane may run now.
pub(super) struct Next {
    pub(super) id: RequestId,
    pub(super) class: Class,
    pub(super) cost: Cost,
    pub(super) kernel: Option<Step>,
}

impl<C: Costs> AgentXpu<C> {
    /// Puts a request into its queue, at its place.
    pub(super) fn enqueue(&mut self, id: RequestId) {
        let rank = self.rank(id);
        if let Some(entry) = self.ledger.get_mut(id) {
            entry.own.rank = rank;
        }
        if self.prefills.enqueue(id, &self.ledger) {
            self.tally.note(Mechanism::ShortPromptsFirst);
        }
    }

    /// What orders requests of a class before their arrival does (`prefill.short_prompts_first`).
    fn rank(&self, id: RequestId) -> Micros {
        let times = self.policy.prefill.short_prompts_first;
        let entry = self.ledger.get(id);
        let entry = entry.filter(|entry| entry.class() == Class::Reactive);
        match (times, entry) {
            (Some(times), Some(entry)) => {
                rank(times, entry.waits_since, self.time_to_completion(id))
            }
            _ => Micros(0),
        }
    }

    /// What is left of a prompt before its first token.
    pub(super) fn waiting_of(&self, entry: &Entry) -> Option<Waiting> {
        if entry.ending.is_some() || matches!(entry.own.phase, Phase::Decode) {
            return None;
        }
        let head = self
            .head_lane(entry)
            .map_or(0.0, |(_, cost)| cost.latency_us);
        Some(Waiting {
            class: entry.class(),
            waits_since: entry.waits_since,
            prefill_us: self.left_us(entry) + head,
        })
    }

    /// Whether a waiting reactive request takes the lanes from the one under way: from a proactive one, or from a longer
    /// one of its own class. One of those is preempted at a time: with the one under way and the one aside, three have
    /// activations at most.
    pub(super) fn preempts(&self, id: RequestId, current: RequestId) -> bool {
        let entries = self.ledger.get(id).zip(self.ledger.get(current));
        let Some((next, entry)) = entries.filter(|_| self.policy.prefill.preempt) else {
            return false;
        };
        let shorter = || {
            let mut waiting = self.prefills.reactive.iter();
            entry.ending.is_none()
                && !waiting.any(|other| self.has_begun(*other))
                && next.own.rank < self.rank(current)
        };
        entry.class() == Class::Proactive || shorter()
    }

    /// Decides who prefills: a reactive request before any proactive one, which it preempts.
    pub(super) fn choose_prefills(&mut self, actions: &mut Actions) {
        self.start_aside(actions);
        if let Some(current) = self.prefills.foreground
            && let Some(id) = self.admissible(Class::Reactive)
            && self.preempts(id, current)
            && self.begin(id, actions)
        {
            self.tally.note(match self.class_of(current) {
                Some(Class::Reactive) => Mechanism::ShortPromptsFirst,
                _ => Mechanism::Preemption,
            });
            self.prefills.foreground = Some(id);
            self.pause(current);
        }
        if self.prefills.foreground.is_none()
            && let Some(id) = self.prefills.backfill.take()
        {
            // Nobody is left to run beside: it waits like the others.
            self.pause(id);
        }
        if self.prefills.foreground.is_none() {
            let aside = self.prefills.aside.take();
            self.prefills.foreground = aside.or_else(|| self.start_next(Class::Reactive, actions));
        }
        if self.prefills.foreground.is_none() {
            // An overdue request that was beside a reactive one takes over.
            let overdue = self.prefills.overdue.take();
            self.prefills.foreground =
                overdue.or_else(|| self.start_next(Class::Proactive, actions));
        }
        self.weigh_backlog();
        self.note_turn();
        let reactive = self
            .prefills
            .foreground
            .is_some_and(|id| self.class_of(id) == Some(Class::Reactive));
        if !reactive {
            return;
        }
        if self.prefills.overdue.is_none() {
            self.prefills.overdue = self.promote(actions);
        }
        let backfills = self
            .policy
            .pressure
            .is_some_and(|tiers| tiers.duration_bound);
        if backfills && self.prefills.backfill.is_none() {
            self.prefills.backfill = self.start_backfill(actions);
            if self.prefills.backfill.is_some() {
                self.tally.note(Mechanism::Backfill);
            }
        }
    }

    /// The overdue request that gets the iGPU: one that fills bubbles, or the next of its queue.
    fn promote(&mut self, actions: &mut Actions) -> Option<RequestId> {
        let presses = |id: &RequestId| self.presses(*id);
        if let Some(id) = self.prefills.backfill.filter(presses) {
            self.prefills.backfill = None;
            return Some(id);
        }
        let next = self.admissible(Class::Proactive).filter(presses);
        if let Some(id) = next
            && self.begin(id, actions)
        {
            return next;
        }
        // It has not waited long enough or finds no room; one that was preempted needs none, and may have.
        let mut queue = self.prefills.proactive.iter().copied();
        let preempted = queue.find(|id| self.presses(*id) && self.has_begun(*id))?;
        self.begin(preempted, actions).then_some(preempted)
    }

    /// Takes the next request of a class out of its queue, if there is room for it.
    pub(super) fn start_next(&mut self, class: Class, actions: &mut Actions) -> Option<RequestId> {
        let id = self.admissible(class)?;
        // Memory that a reactive request waits for is not given to a proactive one.
        let waits = self.prefills.foreground.is_none() && !self.prefills.reactive.is_empty();
        let starved = class == Class::Proactive && waits && !self.has_begun(id);
        if !starved && self.begin(id, actions) {
            return Some(id);
        }
        // Those that were preempted have their memory, and give it back only when they go on.
        let mut queue = self.queue(class).iter().copied();
        let preempted = queue.find(|id| self.has_begun(*id))?;
        self.begin(preempted, actions).then_some(preempted)
    }

    fn has_begun(&self, id: RequestId) -> bool {
        let entry = self.ledger.get(id);
        entry.is_some_and(|entry| !matches!(entry.own.phase, Phase::Queued))
    }

    fn queue(&self, class: Class) -> &VecDeque<RequestId> {
        match class {
            Class::Reactive => &self.prefills.reactive,
            Class::Proactive => &self.prefills.proactive,
        }
    }

    /// The request of a class that is to prefill next.
    pub(super) fn admissible(&self, class: Class) -> Option<RequestId> {
        let queue = self.queue(class);
        let live = self.decode.len() + self.prefills.active().count();
        if live >= self.live_max {
            return None;
        }
        if class == Class::Proactive
            && let Some(id) = self.prefills.buffered
        {
            // There is one buffer: nobody else may begin.
            return queue.contains(&id).then_some(id);
        }
        let overdue = |id: &&RequestId| self.ledger.get(**id).is_some_and(|e| e.own.overdue);
        if class == Class::Proactive
            && let Some(id) = queue.iter().find(overdue)
        {
            return Some(*id);
        }
        match self.policy.prefill.resume {
            Resume::Arrival => queue.front().copied(),
            Resume::LeastTimeToCompletion => {
                let time = |id: &RequestId| self.time_to_completion(*id);
                let least = queue.iter().min_by(|a, b| time(a).total_cmp(&time(b)));
                if least != queue.front() {
                    self.tally.note(Mechanism::LeastTimeToCompletion);
                }
                least.copied()
            }
        }
    }

    /// Takes a request out of its queue and lets its prefill begin or go on; false if there is no room.
    pub(super) fn begin(&mut self, id: RequestId, actions: &mut Actions) -> bool {
        let Some(entry) = self.ledger.get(id) else {
            return false;
        };
        if matches!(entry.own.phase, Phase::Queued) {
            if entry.refusals.wait_for(&self.kv) {
                return false;
            }
            let tokens = entry.submission.tokens_max(self.model.context_tokens);
            let prompt = entry.prompt_tokens;
            let reactive = entry.class() == Class::Reactive;
            let submission = entry.submission;
            let mut room = self.kv.reserve(&submission, tokens, actions);
            while room == Room::Full && reactive && self.make_room(tokens, actions) {
                room = self.kv.reserve(&submission, tokens, actions);
            }
            let Room::Reserved(reused) = room else {
                return false;
            };
            let chunk = self.chunk_tokens(submission.class);
            let prefill = Prefill::new(self.model.layers, reused, prompt, chunk)
                .wanting(submission.prompt_logits);
            if let Some(entry) = self.ledger.get_mut(id) {
                entry.own.phase = Phase::Prefill(prefill);
                entry.own.turn.get_or_insert(self.now);
            }
            if !reactive && self.policy.prefill.resume == Resume::Arrival {
                self.prefills.buffered = Some(id);
            }
        }
        self.prefills.leave(id);
        true
    }

    /// Preempts a prefill; what runs of it goes on to its end.
    fn pause(&mut self, id: RequestId) {
        self.prefills.leave(id);
        // It may just have ended, and wait for its last kernel.
        if self
            .ledger
            .get(id)
            .is_some_and(|entry| entry.ending.is_none())
        {
            self.enqueue(id);
        }
    }

    pub(super) fn class_of(&self, id: RequestId) -> Option<Class> {
        self.ledger.get(id).map(Entry::class)
    }

    /// Keeps the NPU busy.
    pub(super) fn fill_npu(&mut self, actions: &mut Actions) {
        if self.lanes.is_free(Lane::Npu)
            && let Some(next) = self.next_prefill(Lane::Npu)
        {
            self.start_prefill(Lane::Npu, next, actions);
        }
    }

    /// Launches what [`next_prefill`](Self::next_prefill) found.
    pub(super) fn start_prefill(&mut self, lane: Lane, next: Next, actions: &mut Actions) {
        self.note_place(lane, &next);
        let Some(prefill) = self.ledger.get_mut(next.id).and_then(Entry::prefill_mut) else {
            return;
        };
        let work = match next.kernel {
            Some(step) => {
                prefill.start(step.part);
                Work::Prefill {
                    request: next.id,
                    segment: step.segment,
                    layer: step.layer,
                    kernel: step.kernel,
                }
            }
            None => {
                prefill.start_head();
                Work::Head(next.id)
            }
        };
        self.launch(lane, next.class, work, next.cost, actions);
    }

    /// What `lane` may run of the prompts under way.
    pub(super) fn next_prefill(&self, lane: Lane) -> Option<Next> {
        self.prefills.active().find_map(|id| {
            let entry = self.ledger.get(id)?;
            if !entry.may_run() {
                return None;
            }
            let prefill = entry.prefill()?;
            let class = entry.class();
            if prefill.head_is_ready() {
                let (at, cost) = self.head_lane(entry)?;
                let proposal = Proposal::Prompt {
                    entry,
                    lane,
                    cost,
                    step: None,
                };
                let admitted = at == lane && self.may_start(proposal);
                return admitted.then_some(Next {
                    id,
                    class,
                    cost,
                    kernel: None,
                });
            }
            prefill.ready().find_map(|step| {
                let (at, cost) = self.lane_of(id, entry, prefill, step)?;
                let proposal = Proposal::Prompt {
                    entry,
                    lane,
                    cost,
                    step: Some((prefill, step)),
                };
                let admitted = at == lane && self.may_start(proposal);
                admitted.then_some(Next {
                    id,
                    class,
                    cost,
                    kernel: Some(step),
                })
            })
        })
    }
}
