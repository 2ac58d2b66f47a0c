//! Baselines that use one device: continuous batching as OpenVINO GenAI and llama.cpp do it, and the two other
//! schemes of Fig. 6.
//!
//! An iteration takes a token of every request that decodes, and fills what is left of its budget with parts
//! of prompts, first come first served (chunked prefill, "dynamic split fuse" in OpenVINO's terms). It is one
//! launch: nothing enters or leaves before its end. Only the two schemes of Fig. 6 look at classes:
//!
//! * (a) *preempt and recompute*: while a reactive request lives, nothing else runs, and what proactive ones
//!   had in the cache is thrown away;
//! * (b) *time sharing*: reactive and proactive requests are two streams of their own batches, whose
//!   iterations alternate.

mod absence;
mod holds;
mod progress;
mod shortage;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use heg_spec::Policy;
use heg_spec::policy::SchedulerKind;

use super::Scheduler;
use super::batch::{Candidate, with_drafts};
use super::costs::{Call, Costs, ModelShape};
use super::event::{Action, Actions, Decoding, Event, Finish, Segment, Ticket, Work};
use super::forecast::{Waiting, prefill_us};
use super::hold::Hold;
use super::isolation::Isolation;
use super::kv::{KvBudget, Room};
use super::lanes::LaneSet;
use super::ledger::{Leaving, Ledger, Outcome};
use super::request::{Class, Lane, Micros, RequestId, Submission};
use absence::LaneState;
use progress::{Entry, Progress};

/// A scheduler for one device. `C` says which lanes there are.
#[derive(Debug)]
pub struct SingleLane<C> {
    policy: Policy,
    costs: C,
    model: ModelShape,
    now: Micros,
    lane: Lane,
    state: LaneState,
    ledger: Ledger<Progress>,
    kv: KvBudget,
    /// Waiting for room, in order of arrival.
    waiting: VecDeque<RequestId>,
    /// With room, in order of arrival.
    running: Vec<RequestId>,
    iteration: Option<Iteration>,
    /// Who makes iterations fail.
    isolation: Isolation,
    /// Class of the last iteration, where streams alternate.
    last: Option<Class>,
    tickets: u64,
}

#[derive(Debug)]
struct Iteration {
    ticket: Ticket,
    batch: Arc<[Decoding]>,
    prompts: Arc<[(RequestId, Segment)]>,
    /// When it counts as hung.
    hangs: Micros,
}

impl<C: Costs> SingleLane<C> {
    /// A scheduler for the policy's device.
    pub fn new(policy: Policy, costs: C) -> Self {
        let model = costs.model();
        let lane = Lane::from(policy.device);
        Self {
            state: match costs.cost(lane, Call::Head { rows: 1 }) {
                Some(_) => LaneState::Present,
                None => LaneState::Gone,
            },
            model,
            now: Micros(0),
            lane,
            ledger: Ledger::of(model),
            kv: KvBudget::of(&policy.limits, model),
            waiting: VecDeque::new(),
            running: Vec::new(),
            iteration: None,
            isolation: Isolation::default(),
            last: None,
            tickets: 0,
            policy,
            costs,
        }
    }

    fn submit(&mut self, submission: Submission, actions: &mut Actions) {
        let id = submission.id;
        if !self
            .ledger
            .insert(submission, self.now, Progress::default())
        {
            return;
        }
        self.waiting.push_back(id);
        let serves = self.ledger.could_serve(&submission, &self.kv);
        if self.state == LaneState::Gone {
            self.end(id, Finish::Failed, actions);
        } else if !serves || self.ledger.is_over(&self.policy.limits) {
            self.end(id, Finish::Shed, actions);
        }
    }

    /// Moves requests for which there is room from the queue into the batch.
    fn admit(&mut self, actions: &mut Actions) {
        let only = self.exclusive_class();
        while let Some(next) = self.waiting.front().and_then(|id| self.ledger.get_mut(*id)) {
            if only.is_some_and(|only| only != next.class()) || next.refusals.wait_for(&self.kv) {
                return;
            }
            let submission = next.submission;
            let tokens = submission.tokens_max(self.model.context_tokens);
            let Room::Reserved(reused) = self.kv.reserve(&submission, tokens, actions) else {
                return;
            };
            next.reach(reused);
            self.waiting.pop_front();
            self.running.push(submission.id);
        }
    }

    /// Requests that run, in order of arrival.
    fn running(&self) -> impl Iterator<Item = &Entry> {
        self.running.iter().filter_map(|id| self.ledger.get(*id))
    }

    /// Under [`SchedulerKind::PreemptRecompute`], the class that has the device to itself.
    fn exclusive_class(&self) -> Option<Class> {
        let mut all = self.ledger.iter();
        let exclusive = self.policy.scheduler == SchedulerKind::PreemptRecompute
            && all.any(|(_, entry)| entry.class() == Class::Reactive);
        exclusive.then_some(Class::Reactive)
    }

    /// The class that the next iteration is for; `None` for all.
    fn class_of_next(&self) -> Option<Class> {
        if self.policy.scheduler != SchedulerKind::TimeSharing {
            return self.exclusive_class();
        }
        let has = |class| self.running().any(|entry| entry.class() == class);
        let both = has(Class::Reactive) && has(Class::Proactive);
        both.then_some(match self.last {
            Some(Class::Reactive) => Class::Proactive,
            Some(Class::Proactive) | None => Class::Reactive,
        })
    }

    fn launch(&mut self, actions: &mut Actions) {
        if self.iteration.is_some() || self.state != LaneState::Present {
            return;
        }
        self.forget_preempted(actions);
        self.admit(actions);
        let class = self.class_of_next();
        let mut eligible: Vec<&Entry> = self
            .running()
            .filter(|entry| class.is_none_or(|class| entry.class() == class))
            .collect();
        self.isolation.narrow(&mut eligible, |entry| entry.id());
        let Some(first) = eligible.first() else {
            return;
        };
        let last = first.class();
        let batch = self.decoding(&eligible);
        let rows = Decoding::rows_of(&batch);
        let prompts = self.prompts(&eligible, rows);
        self.last = Some(last);
        self.run(batch, prompts, actions);
    }

    /// Those that decode, as many as a batch takes.
    fn decoding(&self, eligible: &[&Entry]) -> Arc<[Decoding]> {
        let decoding = eligible.iter().filter(|entry| entry.own.decodes);
        let batch: Vec<Candidate> = decoding
            .take(self.policy.decode.batch_max as usize)
            .map(|entry| Candidate {
                id: entry.id(),
                class: entry.class(),
                context: entry.context(),
                overdue: false,
                draft: entry.draft(self.model.context_tokens),
            })
            .collect();
        let time = |batch: &[Decoding]| {
            let us = |call| Some(self.costs.cost(self.lane, call)?.latency_us);
            let layer = us(Call::layer(batch, false))?;
            let rows = Decoding::rows_of(batch);
            Some(layer * f64::from(self.model.layers) + us(Call::Head { rows })?)
        };
        with_drafts(&batch, &self.policy, time)
    }

    /// Parts of prompts for what `decoding` rows leave of the budget; something of them if none decodes.
    fn prompts(&self, eligible: &[&Entry], decoding: u32) -> Arc<[(RequestId, Segment)]> {
        let budget = self.policy.limits.tokens_per_iteration;
        let mut left = match decoding {
            0 => budget.max(1),
            some => budget.saturating_sub(some),
        };
        let mut prompts = Vec::new();
        for entry in eligible.iter().filter(|entry| !entry.own.decodes) {
            let tokens = left.min(entry.prompt_tokens - entry.own.cached);
            if tokens == 0 {
                break;
            }
            left -= tokens;
            let segment = Segment {
                position: entry.own.cached,
                tokens,
            };
            prompts.push((entry.id(), segment));
        }
        prompts.into()
    }

    fn run(
        &mut self,
        batch: Arc<[Decoding]>,
        prompts: Arc<[(RequestId, Segment)]>,
        actions: &mut Actions,
    ) {
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        let hangs = self.now + self.patience(&batch, &prompts);
        self.iteration = Some(Iteration {
            ticket,
            batch: Arc::clone(&batch),
            prompts: Arc::clone(&prompts),
            hangs,
        });
        actions.push(Action::Launch {
            lane: self.lane,
            ticket,
            work: Work::Mixed { batch, prompts },
        });
    }

    /// How long an iteration may take: a generous multiple of its parts one after the other.
    fn patience(&self, batch: &[Decoding], prompts: &[(RequestId, Segment)]) -> Micros {
        let layers = f64::from(self.model.layers);
        let decode = Call::layer(batch, false);
        let latency = |call| {
            self.costs
                .cost(self.lane, call)
                .map_or(0.0, |cost| cost.latency_us)
        };
        let mut total = if batch.is_empty() {
            0.0
        } else {
            latency(decode)
        };
        for (_, segment) in prompts {
            for kernel in [super::Kernel::Qkv, super::Kernel::Mha, super::Kernel::Ffn] {
                total += latency(Call::Prefill {
                    kernel,
                    tokens: segment.tokens,
                    context: segment.context(),
                });
            }
        }
        let limits = &self.policy.limits;
        Micros::from_f64(total * layers * f64::from(limits.timeout_factor))
            .max(Micros::from_millis(limits.timeout_min_ms))
    }

    /// Fig. 6a: a reactive request throws away what proactive ones had.
    fn forget_preempted(&mut self, actions: &mut Actions) {
        if self.exclusive_class().is_none() {
            return;
        }
        let ledger = &self.ledger;
        let class_of = |id: &RequestId| ledger.get(*id).map(Entry::class);
        let preempted = |id: &mut RequestId| class_of(id) == Some(Class::Proactive);
        let preempted: Vec<RequestId> = self.running.extract_if(.., preempted).collect();
        for id in preempted.into_iter().rev() {
            self.kv.release(id, actions);
            self.start_over(id, actions);
        }
        // Reactive ones come first, each class in its order.
        let ledger = &self.ledger;
        self.waiting
            .make_contiguous()
            .sort_by_key(|id| ledger.get(*id).map(Entry::class));
    }

    /// Sends a request to the head of the queue with nothing computed.
    fn start_over(&mut self, id: RequestId, actions: &mut Actions) {
        if let Some(entry) = self.ledger.get_mut(id) {
            entry.start_over(actions);
            entry.reach(0);
            self.waiting.push_front(id);
        }
    }

    fn done(&mut self, outcome: Outcome<'_>, actions: &mut Actions) {
        let Some(iteration) = self.iteration.take() else {
            return;
        };
        self.isolation.succeeded(iteration.requests());
        for id in iteration.requests() {
            if let Some(entry) = self.ledger.get_mut(id) {
                entry.succeeded();
            }
        }
        for member in iteration.batch.iter() {
            self.emit(member.request, outcome, actions);
        }
        for (id, segment) in iteration.prompts.iter() {
            let entry = self.ledger.get_mut(*id);
            let whole = entry.is_some_and(|entry| {
                entry.reach(segment.context());
                entry.own.decodes
            });
            if whole {
                self.emit(*id, outcome, actions);
            }
        }
        self.settle(actions);
    }

    fn emit(&mut self, id: RequestId, outcome: Outcome<'_>, actions: &mut Actions) {
        if let Some(entry) = self.ledger.get_mut(id) {
            entry.waits_since = self.now;
        }
        self.ledger.emit(id, outcome, actions);
    }

    /// Lets go what has ended and does not run. What runs on a lane that is to stop is not waited for: its memory is.
    fn settle(&mut self, actions: &mut Actions) {
        let held: Vec<RequestId> = self
            .iteration
            .iter()
            .flat_map(Iteration::requests)
            .collect();
        let stops = matches!(self.state, LaneState::Resetting(_));
        let ends = |id: &RequestId| self.ledger.get(*id).and_then(|entry| entry.ending);
        let over = |id: &mut RequestId| ends(id).is_some() && (stops || !held.contains(id));
        let mut ended: Vec<RequestId> = self.running.extract_if(.., over).collect();
        ended.extend(self.waiting.iter().filter(|id| ends(id).is_some()));
        self.waiting.retain(|id| ends(id).is_none());
        // All leave before the first is closed: those that end together do not keep each other's flows.
        let ended: Vec<Entry> = ended
            .into_iter()
            .filter_map(|id| self.ledger.remove(id))
            .collect();
        for entry in ended {
            let Some(finish) = entry.ending else { continue };
            self.isolation.leave(entry.id());
            let leaving = Leaving {
                finish,
                writers: match stops && held.contains(&entry.id()) {
                    true => self.writer(),
                    false => LaneSet::default(),
                },
                now: self.now,
            };
            self.ledger.close(entry, leaving, &mut self.kv, actions);
        }
    }

    /// Ends a request, as soon as nothing of it runs.
    fn end(&mut self, id: RequestId, finish: Finish, actions: &mut Actions) {
        if let Some(entry) = self.ledger.get_mut(id) {
            entry.ending.get_or_insert(finish);
        }
        self.settle(actions);
    }

    fn end_where(&mut self, finish: Finish, which: impl Fn(&Entry) -> bool, actions: &mut Actions) {
        for (_, entry) in self.ledger.iter_mut() {
            if which(entry) {
                entry.ending.get_or_insert(finish);
            }
        }
        self.settle(actions);
    }

    fn tick(&mut self, actions: &mut Actions) {
        let now = self.now;
        let late = |entry: &Entry| entry.submission.deadline.is_some_and(|at| at <= now);
        self.end_where(Finish::Deadline, late, actions);
        let hangs = self.iteration.as_ref().map(|iteration| iteration.hangs);
        if self.state == LaneState::Present && hangs.is_some_and(|at| at <= now) {
            self.hung(actions);
        }
        if self.next_absence().is_some_and(|at| at <= now) {
            self.not_back(actions);
        }
    }

    /// What is left of a prompt before its first token.
    fn waiting_of(&self, entry: &Entry) -> Option<Waiting> {
        let reused = entry.submission.shared_tokens.max(entry.own.cached);
        (!entry.own.decodes && entry.ending.is_none()).then(|| Waiting {
            class: entry.class(),
            waits_since: entry.waits_since,
            prefill_us: prefill_us(&self.costs, self.lane, reused, entry.prompt_tokens),
        })
    }

    /// Sets the timer for the next deadline, or for when the iteration counts as hung.
    fn set_alarm(&self, actions: &mut Actions) {
        let all = self.ledger.iter().map(|(_, entry)| entry);
        let wanted = all.filter(|entry| entry.ending.is_none());
        let deadlines = wanted.filter_map(|entry| entry.submission.deadline);
        let hangs = self.iteration.as_ref().map(|iteration| iteration.hangs);
        let hangs = hangs.filter(|_| self.state == LaneState::Present);
        let times = deadlines.chain(hangs).chain(self.next_absence());
        if let Some(at) = times.min() {
            actions.push(Action::Timer(at));
        }
    }
}

impl Iteration {
    fn requests(&self) -> impl Iterator<Item = RequestId> {
        let prompts = self.prompts.iter().map(|(id, _)| *id);
        self.batch
            .iter()
            .map(|member| member.request)
            .chain(prompts)
    }
}

impl<C: Costs> Scheduler for SingleLane<C> {
    fn step(&mut self, now: Micros, event: Event, actions: &mut Actions) {
        self.now = self.now.max(now);
        let waited_for = |ticket: Ticket| {
            let iteration = self.iteration.as_ref().map(|iteration| iteration.ticket);
            self.state == LaneState::Present && iteration == Some(ticket)
        };
        match event {
            Event::Submit(submission) => self.submit(submission, actions),
            Event::Cancel(id) => self.end(id, Finish::Cancelled, actions),
            Event::EndFlow(flow) => self.ledger.end_flow(flow, &mut self.kv, actions),
            Event::Done {
                ticket,
                ended,
                given,
                ..
            } if waited_for(ticket) => {
                let outcome = Outcome {
                    ended: &ended,
                    given: &given,
                };
                self.done(outcome, actions);
            }
            Event::Failed(ticket) if waited_for(ticket) => self.give_up_iteration(actions),
            Event::OutOfMemory(ticket) if waited_for(ticket) => self.out_of_memory(actions),
            Event::Unreserved(id) => self.unreserved(id, actions),
            Event::Unreadable { ticket, request } if waited_for(ticket) => {
                self.unreadable(request, actions);
            }
            Event::Offloaded(transfer) => self.kv.offloaded(transfer),
            Event::OffloadFailed(transfer) => self.kv.offload_failed(transfer),
            Event::Lost(lane) if lane == self.lane => self.lost(actions),
            Event::Ready(lane) if lane == self.lane => self.ready(actions),
            Event::Done { .. }
            | Event::Failed(_)
            | Event::OutOfMemory(_)
            | Event::Unreadable { .. }
            | Event::Lost(_)
            | Event::Ready(_)
            | Event::Warmed(_)
            | Event::WarmFailed(_)
            | Event::Timer => {}
        }
        self.tick(actions);
        self.end_crowded_out(actions);
        self.launch(actions);
        self.set_alarm(actions);
    }

    fn is_idle(&self) -> bool {
        self.ledger.is_empty()
    }

    fn first_token_in(&self, request: RequestId) -> Option<Micros> {
        self.ledger
            .first_token_in(request, None, |entry| self.waiting_of(entry))
    }

    fn holds(&self, holds: &mut Vec<Hold>) {
        self.append_holds(holds);
    }
}
