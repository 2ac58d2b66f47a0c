//! The prefill pipeline: chooses the next prompt, and its next kernel (§4.3, §4.4).

use heg_spec::bug;
use heg_spec::policy::Resume;

use super::AgentXpu;
use super::next::Next;
use super::prefills::Slot;
use super::rules::Proposal;
use super::stage::Entry;
use crate::costs::Costs;
use crate::event::{Actions, Work};
use crate::forecast::{Waiting, rank};
use crate::kv::Room;
use crate::ledger::Progress as _;
use crate::mechanism::Mechanism;
use crate::prefill::Prefill;
use crate::request::{Class, Lane, Micros, RequestId};

impl<C: Costs> AgentXpu<C> {
    /// Puts a request into its queue, at its place.
    pub(super) fn enqueue(&mut self, id: RequestId) {
        let rank = self.rank(id);
        if let Some(entry) = self.ledger.get_mut(id) {
            entry.own.set_rank(rank);
        }
        if self.prefills.enqueue(id, &self.ledger) {
            self.tally.note(Mechanism::ShortPromptsFirst);
        }
    }

    /// The rank of a request, which comes before its arrival in the order of its class
    /// (`prefill.short_prompts_first`).
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

    /// The rest of a prompt before its first token.
    pub(super) fn waiting_of(&self, entry: &Entry) -> Option<Waiting> {
        if entry.ending.is_some() || entry.own.decodes() {
            return None;
        }
        let head = self
            .head_lane(entry)
            .map_or(0.0, |(_, cost)| cost.latency_us);
        let left_us = self.left_beside_others_us(entry);
        Some(Waiting {
            class: entry.class(),
            waits_since: entry.waits_since,
            prefill_us: left_us + head,
        })
    }

    /// Whether a waiting request takes the lanes from the one in progress.
    pub(super) fn preempts(&self, id: RequestId, current: RequestId) -> bool {
        let entries = self.ledger.get(id).zip(self.ledger.get(current));
        entries.is_some_and(|(next, current)| self.goes(Proposal::Preemption { next, current }))
    }

    /// Begins the waiting prompt that takes the lanes from the one in progress.
    fn begin_preempting(&mut self, current: RequestId, actions: &mut Actions) -> Option<RequestId> {
        if !self.goes_by_client() {
            let id = self.admissible(Class::Reactive)?;
            return (self.preempts(id, current) && self.begin(id, actions)).then_some(id);
        }
        let preempts = |it: &Self, id| it.preempts(id, current);
        let reactive = self.begin_in_turn(Class::Reactive, preempts, actions);
        let stays = self.class_of(current) != Some(Class::Proactive);
        if reactive.is_some() || stays || !self.prefills.queue(Class::Reactive).is_empty() {
            return reactive;
        }
        self.begin_in_turn(Class::Proactive, preempts, actions)
    }

    /// Decides which prompts run: a reactive request before any proactive one, which it preempts.
    pub(super) fn choose_prefills(&mut self, actions: &mut Actions) {
        self.forget_turns();
        self.start_aside(actions);
        if let Some(current) = self.prefills.holder(Slot::Foreground)
            && let Some(id) = self.begin_preempting(current, actions)
        {
            self.tally.note(match self.class_of(current) {
                _ if self.are_strangers(id, current) => Mechanism::ClientTurns,
                Some(Class::Reactive) => Mechanism::ShortPromptsFirst,
                _ => Mechanism::Preemption,
            });
            if self.are_strangers(id, current) {
                self.prefills.give_way();
            }
            self.prefills.give(Slot::Foreground, Some(id));
            self.pause(current);
        }
        if self.prefills.holder(Slot::Foreground).is_none()
            && let Some(id) = self.prefills.take(Slot::Backfill)
        {
            // There is no prompt left to run beside: it waits like the others.
            self.pause(id);
        }
        if self.prefills.holder(Slot::Foreground).is_none() {
            let aside = self.prefills.take(Slot::Aside);
            let next = aside.or_else(|| self.start_next(Class::Reactive, actions));
            self.prefills.give(Slot::Foreground, next);
        }
        if self.prefills.holder(Slot::Foreground).is_none() {
            // An overdue request that ran beside a reactive one takes over.
            let overdue = self.prefills.take(Slot::Overdue);
            let next = overdue.or_else(|| self.start_next(Class::Proactive, actions));
            self.prefills.give(Slot::Foreground, next);
        }
        self.note_turn();
        let reactive = self
            .prefills
            .holder(Slot::Foreground)
            .is_some_and(|id| self.class_of(id) == Some(Class::Reactive));
        if !reactive {
            return;
        }
        if self.prefills.holder(Slot::Overdue).is_none() {
            let overdue = self.promote(actions);
            self.prefills.give(Slot::Overdue, overdue);
        }
        if self.prefills.holder(Slot::Backfill).is_none() && self.goes(Proposal::Backfill) {
            let backfill = self.start_backfill(actions);
            self.prefills.give(Slot::Backfill, backfill);
            if backfill.is_some() {
                self.tally.note(Mechanism::Backfill);
            }
        }
    }

    /// Takes the next request of a class out of its queue, if there is room for it.
    pub(super) fn start_next(&mut self, class: Class, actions: &mut Actions) -> Option<RequestId> {
        // Memory that a reactive request waits for is not given to a proactive one.
        let waits = self.prefills.holder(Slot::Foreground).is_none()
            && !self.prefills.queue(Class::Reactive).is_empty();
        let starved = |it: &Self, id| class == Class::Proactive && waits && !it.has_begun(id);
        if self.goes_by_client() {
            let next = self.begin_in_turn(class, |it, id| !starved(it, id), actions);
            if next.is_some() {
                return next;
            }
        }
        let id = self.admissible(class)?;
        if !starved(self, id) && self.begin(id, actions) {
            return Some(id);
        }
        // Preempted requests have their memory, and give it back only when they go on.
        let mut queue = self.queue_by_turn(class).into_iter();
        let preempted = queue.find(|id| self.has_begun(*id))?;
        self.begin(preempted, actions).then_some(preempted)
    }

    pub(super) fn has_begun(&self, id: RequestId) -> bool {
        let entry = self.ledger.get(id);
        entry.is_some_and(|entry| !entry.own.is_queued())
    }

    /// Returns the request of a class that is to prefill next.
    pub(super) fn admissible(&self, class: Class) -> Option<RequestId> {
        if self.goes_by_client() {
            return self.heads(class).first().copied();
        }
        let buffered = self.prefills.buffered().first().copied();
        self.next_of(class, self.prefills.queue(class).iter(), buffered)
    }

    /// Returns the next of the waiting requests in `queue`, all of a class or a client's; `buffered` is the request
    /// that has the activation buffer.
    pub(super) fn next_of<'q>(
        &self,
        class: Class,
        mut queue: impl Iterator<Item = &'q RequestId> + Clone,
        buffered: Option<RequestId>,
    ) -> Option<RequestId> {
        let live = self.decode.len() + self.prefills.active().count();
        if live >= self.live_max {
            return None;
        }
        if class == Class::Proactive
            && let Some(id) = buffered
        {
            // There is one buffer: no other request may begin.
            return queue.any(|other| *other == id).then_some(id);
        }
        let overdue = |id: &&RequestId| self.ledger.get(**id).is_some_and(|e| e.own.is_overdue());
        if class == Class::Proactive
            && let Some(id) = queue.clone().find(overdue)
        {
            return Some(*id);
        }
        let first = queue.clone().next();
        match self.policy.prefill.resume {
            Resume::Arrival => first.copied(),
            Resume::LeastTimeToCompletion => {
                let time = |id: &RequestId| self.time_to_completion(*id);
                let least = queue.min_by(|a, b| time(a).total_cmp(&time(b)));
                if least != first {
                    self.tally.note(Mechanism::LeastTimeToCompletion);
                }
                least.copied()
            }
        }
    }

    /// Takes a request out of its queue and begins or continues its prefill; returns false if there is no room.
    pub(super) fn begin(&mut self, id: RequestId, actions: &mut Actions) -> bool {
        let Some(entry) = self.ledger.get(id) else {
            bug!("a request waits that is over");
            return false;
        };
        if entry.own.is_queued() {
            if entry.refusals.wait_for(&self.kv) {
                return false;
            }
            let tokens = entry.submission.tokens_max(self.model.context_tokens);
            let prompt = entry.prompt_tokens;
            let reactive = entry.class() == Class::Reactive;
            let submission = entry.submission;
            let window = self.window_of(&submission);
            let reserve = |this: &mut Self, actions: &mut Actions| {
                let kv = &mut this.kv;
                kv.reserve_within(window, &submission, tokens, actions)
            };
            let mut room = reserve(self, actions);
            while room == Room::Full && reactive && self.make_room(tokens, actions) {
                room = reserve(self, actions);
            }
            while room == Room::Full && self.claim_room(id, actions) {
                room = reserve(self, actions);
            }
            let Room::Reserved(reused) = room else {
                return false;
            };
            let prefill = Prefill::new(self.model, reused, prompt, window.chunk_tokens)
                .wanting(submission.prompt_logits)
                .within(window);
            if let Some(entry) = self.ledger.get_mut(id) {
                entry.own.begin(prefill, self.now);
            }
            if !reactive && self.policy.prefill.resume == Resume::Arrival {
                self.prefills.buffer(id);
            }
        }
        self.prefills.leave(id);
        true
    }

    /// Preempts a prefill; a kernel of it that runs goes on to its end.
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

    /// Gives the NPU the next kernel of a prompt if it is free.
    pub(super) fn fill_npu(&mut self, actions: &mut Actions) {
        if self.lanes.is_free(Lane::Npu)
            && let Some(next) = self.next_prefill(Lane::Npu)
        {
            self.start_prefill(Lane::Npu, next, actions);
        }
    }

    /// Launches the work that [`next_prefill`](Self::next_prefill) found.
    pub(super) fn start_prefill(&mut self, lane: Lane, next: Next, actions: &mut Actions) {
        self.note_place(lane, &next);
        let Some(prefill) = self.ledger.get_mut(next.id).and_then(Entry::prefill_mut) else {
            bug!("a prompt runs on that has not begun");
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

    /// Returns the next work for `lane` from the prompts in progress.
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
                let (at, cost) = self.lane_of(entry, prefill, step)?;
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
