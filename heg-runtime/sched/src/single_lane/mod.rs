//! Schedulers for one device: continuous batching as OpenVINO GenAI and llama.cpp do it.
//!
//! An iteration takes a token of every request that decodes, and fills the rest of its budget with parts of prompts,
//! first come first served (chunked prefill, "dynamic split fuse" in OpenVINO's terms). It is one launch: no request
//! enters or leaves before its end. Classes do not matter, unless a rule of `sharing` distinguishes them: the rules
//! of the schemes that ours is compared with (Agent.xpu v2, Fig. 6) are in `heg-sim`. Short texts that only get a vector
//! run by `ReactiveFirst`: many of one class are one launch.

mod absence;
mod client_turns;
mod compose;
mod holds;
mod progress;
mod sharing;
mod shortage;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use heg_spec::{Policy, bug};

use super::Scheduler;
use super::costs::{Call, Costs, ModelShape};
use super::event::{Action, Actions, Decoding, Event, Finish, Segment, Ticket, Work};
use super::forecast::{Waiting, prefill_us};
use super::hold::Hold;
use super::isolation::Isolation;
use super::kv::{KvBudget, Room};
use super::lanes::LaneSet;
use super::ledger::{Leaving, Ledger, Outcome};
use super::mechanism::{ActivationCounts, Tally};
use super::request::{Class, Lane, Micros, RequestId, Submission};
use absence::LaneState;
use progress::{Entry, Progress};
pub use sharing::{ClassesPresent, DeviceSharing};
use sharing::{OneBatch, ReactiveFirst};

/// A scheduler for one device, with the costs `C`.
#[derive(Debug)]
pub struct SingleLane<C> {
    policy: Policy,
    sharing: Box<dyn DeviceSharing>,
    costs: C,
    model: ModelShape,
    now: Micros,
    lane: Lane,
    state: LaneState,
    ledger: Ledger<Progress>,
    kv: KvBudget,
    /// Requests that wait for room, in order of arrival.
    waiting: VecDeque<RequestId>,
    /// Requests that have room, in order of arrival.
    running: Vec<RequestId>,
    iteration: Option<Iteration>,
    /// The search for requests that make iterations fail.
    isolation: Isolation,
    /// Class of the last iteration, if the classes alternate.
    last: Option<Class>,
    tally: Tally,
    tickets: u64,
}

#[derive(Debug)]
struct Iteration {
    ticket: Ticket,
    batch: Arc<[Decoding]>,
    prompts: Arc<[(RequestId, Segment)]>,
    /// The time at which it counts as hung.
    hangs: Micros,
}

impl<C: Costs> SingleLane<C> {
    /// Makes a scheduler for the policy's device.
    pub fn new(policy: Policy, costs: C) -> Self {
        Self::shared(policy, costs, Box::new(OneBatch))
    }

    /// Makes a scheduler whose iterations serve one class, the reactive one first.
    pub fn by_priority(policy: Policy, costs: C) -> Self {
        Self::shared(policy, costs, Box::new(ReactiveFirst))
    }

    /// Makes a scheduler whose classes share the device by a rule.
    pub fn shared(policy: Policy, costs: C, sharing: Box<dyn DeviceSharing>) -> Self {
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
            ledger: match sharing.is_of_one_rank() {
                true => Ledger::of(model).of_one_rank(),
                false => Ledger::of(model),
            },
            kv: KvBudget::of(&policy.limits, model),
            waiting: VecDeque::new(),
            running: Vec::new(),
            iteration: None,
            isolation: Isolation::default(),
            last: None,
            tally: Tally::default(),
            tickets: 0,
            policy,
            sharing,
            costs,
        }
    }

    fn submit(&mut self, submission: Submission, actions: &mut Actions) {
        let id = submission.id;
        let turn_us = match self.ledger.clients().are_only(submission.client) {
            true => 0.0,
            false => self.turn_us(),
        };
        let own = Progress::default();
        if !self.ledger.insert(submission, self.now, own, turn_us) {
            return;
        }
        self.waiting.push_back(id);
        if self.state == LaneState::Gone {
            self.end(id, Finish::Failed, actions);
        } else if !self.ledger.could_serve(&submission, &self.kv) {
            self.end(id, Finish::Shed, actions);
        } else if self.ledger.is_over(&self.policy.limits) {
            let waits = |entry: &Entry| self.waiting.contains(&entry.id());
            let given_up = match self.ledger.clients().are_several() {
                true => self.ledger.crowding(id, waits),
                false => id,
            };
            self.end(given_up, Finish::Shed, actions);
        }
    }

    /// Moves requests for which there is room from the queue into the batch.
    fn admit(&mut self, actions: &mut Actions) {
        if self.ledger.clients().are_several() {
            return self.admit_in_turn(actions);
        }
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

    /// Returns the running requests, in order of arrival.
    fn running(&self) -> impl Iterator<Item = &Entry> {
        self.running.iter().filter_map(|id| self.ledger.get(*id))
    }

    /// The class that has the device to itself.
    fn exclusive_class(&self) -> Option<Class> {
        let all = self.ledger.iter().map(|(_, entry)| entry.class());
        self.sharing.exclusive(ClassesPresent::of(all))
    }

    /// The class that the next iteration is for; `None` for all.
    fn class_of_next(&self) -> Option<Class> {
        let with_room = ClassesPresent::of(self.running().map(Entry::class));
        let next = || self.sharing.next(with_room, self.last);
        self.exclusive_class().or_else(next)
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

    /// Discards the computed state of the other classes if one class has the device to itself.
    fn forget_preempted(&mut self, actions: &mut Actions) {
        let Some(only) = self.exclusive_class() else {
            return;
        };
        let ledger = &self.ledger;
        let class_of = |id: &RequestId| ledger.get(*id).map(Entry::class);
        let preempted = |id: &mut RequestId| class_of(id).is_some_and(|class| class != only);
        let preempted: Vec<RequestId> = self.running.extract_if(.., preempted).collect();
        for id in preempted.into_iter().rev() {
            self.kv.release(id, actions);
            self.start_over(id, actions);
        }
        // Its own requests come first, each class in its order.
        let ledger = &self.ledger;
        self.waiting
            .make_contiguous()
            .sort_by_key(|id| ledger.get(*id).map(|entry| entry.class() != only));
    }

    /// Sends a request to the head of the queue and discards its computed state.
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
        self.charge(&iteration);
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

    /// Closes requests that have ended and do not run. Work on a lane that is being stopped does not delay this, but
    /// its memory stays held.
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
        // All are removed before the first is closed: requests that end together do not keep each other's flows.
        let ended: Vec<Entry> = ended
            .into_iter()
            .filter_map(|id| self.ledger.remove(id))
            .collect();
        for entry in ended {
            let Some(finish) = entry.ending else {
                bug!("a request leaves that has not ended");
                continue;
            };
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

    /// The rest of a prompt before its first token.
    fn waiting_of(&self, entry: &Entry) -> Option<Waiting> {
        let reused = entry.submission.known_tokens().max(entry.own.cached);
        (!entry.own.decodes && entry.ending.is_none()).then(|| Waiting {
            class: entry.class(),
            waits_since: entry.waits_since,
            prefill_us: prefill_us(&self.costs, self.lane, reused, entry.prompt_tokens),
        })
    }

    /// Sets the timer for the next deadline, or for the time at which the iteration counts as hung.
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
        self.tally.open_step();
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
        self.tally.close_step();
    }

    fn activations(&self) -> ActivationCounts {
        self.tally.activations()
    }

    fn is_idle(&self) -> bool {
        self.ledger.is_empty()
    }

    fn first_token_in(&self, request: RequestId) -> Option<Micros> {
        self.ledger
            .first_token_in(request, None, |entry| self.waiting_of(entry))
    }

    fn prompts_left(&self, class: Class) -> Micros {
        self.ledger
            .prompts_left(class, |entry| self.waiting_of(entry))
    }

    fn holds(&self, holds: &mut Vec<Hold>) {
        self.append_holds(holds);
    }
}
