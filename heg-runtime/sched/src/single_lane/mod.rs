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
mod live;
mod shortage;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use heg_spec::Policy;
use heg_spec::policy::SchedulerKind;

use super::Scheduler;
use super::costs::{Call, Costs, ModelShape};
use super::event::{Action, Actions, Event, Finish, Segment, Ticket, Work};
use super::isolation::Isolation;
use super::kv::{KvBudget, Refusals, Room};
use super::request::{Class, FlowId, Lane, Micros, RequestId, Submission};
use absence::LaneState;
use live::Live;

/// A scheduler for one device. `C` says which lanes there are.
#[derive(Debug)]
pub struct SingleLane<C> {
    policy: Policy,
    costs: C,
    model: ModelShape,
    now: Micros,
    lane: Lane,
    state: LaneState,
    kv: KvBudget,
    /// Waiting for room, in order of arrival.
    waiting: VecDeque<Live>,
    /// With room, in order of arrival.
    running: Vec<Live>,
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
    batch: Arc<[(RequestId, u32)]>,
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
        let live = Live::new(submission);
        let known = |other: &Live| other.id() == submission.id;
        if self.waiting.iter().any(known) || self.running.iter().any(known) {
            return;
        }
        let tokens = live.submission.tokens_max(self.model.context_tokens);
        let fits = tokens <= self.model.context_tokens && self.kv.could_fit(tokens);
        let full =
            self.waiting.len() + self.running.len() >= self.policy.limits.requests_max as usize;
        let valid = submission.prompt_tokens > 0 && submission.output_tokens_max > 0;
        if self.state == LaneState::Gone {
            actions.push(Action::Finish(submission.id, Finish::Failed));
        } else if fits && valid && !full {
            self.waiting.push_back(live);
        } else {
            actions.push(Action::Finish(submission.id, Finish::Shed));
        }
    }

    /// Moves requests for which there is room from the queue into the batch.
    fn admit(&mut self, actions: &mut Actions) {
        let only = self.exclusive_class();
        while let Some(next) = self.waiting.front() {
            if only.is_some_and(|only| only != next.class()) {
                return;
            }
            if next.refusals.wait_for(&self.kv) {
                return;
            }
            let tokens = next.submission.tokens_max(self.model.context_tokens);
            let room = self.kv.reserve(&next.submission, tokens, actions);
            let Room::Reserved(reused) = room else {
                return;
            };
            if let Some(mut live) = self.waiting.pop_front() {
                live.cached = reused;
                self.running.push(live);
            }
        }
    }

    /// Under [`SchedulerKind::PreemptRecompute`], the class that has the device to itself.
    fn exclusive_class(&self) -> Option<Class> {
        let mut all = self.waiting.iter().chain(&self.running);
        let exclusive = self.policy.scheduler == SchedulerKind::PreemptRecompute
            && all.any(|live| live.class() == Class::Reactive);
        exclusive.then_some(Class::Reactive)
    }

    /// The class that the next iteration is for; `None` for all.
    fn class_of_next(&self) -> Option<Class> {
        if self.policy.scheduler != SchedulerKind::TimeSharing {
            return self.exclusive_class();
        }
        let has = |class| self.running.iter().any(|live| live.class() == class);
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
        let mut eligible: Vec<&Live> = self
            .running
            .iter()
            .filter(|live| class.is_none_or(|class| live.class() == class))
            .collect();
        self.isolation.narrow(&mut eligible, |live| live.id());
        let Some(first) = eligible.first() else {
            return;
        };
        let last = first.class();
        let batch = self.decoding(&eligible);
        let prompts = self.prompts(&eligible, batch.len() as u32);
        self.last = Some(last);
        self.run(batch, prompts, actions);
    }

    /// Those that decode, as many as a batch takes.
    fn decoding(&self, eligible: &[&Live]) -> Arc<[(RequestId, u32)]> {
        let decoding = eligible.iter().filter(|live| live.is_decoding());
        decoding
            .take(self.policy.decode.batch_max as usize)
            .map(|live| (live.id(), live.context()))
            .collect()
    }

    /// Parts of prompts for what `decoding` requests leave of the budget; something of them if none decodes.
    fn prompts(&self, eligible: &[&Live], decoding: u32) -> Arc<[(RequestId, Segment)]> {
        let budget = self.policy.limits.tokens_per_iteration;
        let mut left = match decoding {
            0 => budget.max(1),
            some => budget.saturating_sub(some),
        };
        let mut prompts = Vec::new();
        for live in eligible.iter().filter(|live| !live.is_decoding()) {
            let tokens = left.min(live.prompt_tokens - live.cached);
            if tokens == 0 {
                break;
            }
            left -= tokens;
            let segment = Segment {
                position: live.cached,
                tokens,
            };
            prompts.push((live.id(), segment));
        }
        prompts.into()
    }

    fn run(
        &mut self,
        batch: Arc<[(RequestId, u32)]>,
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
    fn patience(&self, batch: &[(RequestId, u32)], prompts: &[(RequestId, Segment)]) -> Micros {
        let layers = f64::from(self.model.layers);
        let context = batch.iter().map(|(_, context)| *context).sum();
        let decode = Call::Layer {
            rows: batch.len() as u32,
            context,
            fused: false,
        };
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
        let preempted = |live: &mut Live| live.class() == Class::Proactive;
        let preempted: Vec<Live> = self.running.extract_if(.., preempted).collect();
        for mut live in preempted.into_iter().rev() {
            self.kv.release(live.id(), actions);
            actions.push(Action::Restart(live.id()));
            live.start_over();
            self.waiting.push_front(live);
        }
        // Reactive ones come first, each class in its order.
        self.waiting
            .make_contiguous()
            .sort_by_key(|live| live.submission.class);
    }

    fn done(&mut self, ended: &[RequestId], actions: &mut Actions) {
        let Some(iteration) = self.iteration.take() else {
            return;
        };
        self.isolation.succeeded(iteration.requests());
        for id in iteration.requests() {
            if let Some(live) = self.live_mut(id) {
                live.failures = 0;
                live.refusals = Refusals::default();
            }
        }
        for (id, _) in iteration.batch.iter() {
            self.emit(*id, ended, actions);
        }
        for (id, segment) in iteration.prompts.iter() {
            let whole = self.live_mut(*id).is_some_and(|live| {
                live.cached = segment.context();
                live.is_decoding()
            });
            if whole {
                self.emit(*id, ended, actions);
            }
        }
        self.settle(actions);
    }

    /// A request with room.
    fn live_mut(&mut self, id: RequestId) -> Option<&mut Live> {
        self.running.iter_mut().find(|live| live.id() == id)
    }

    fn emit(&mut self, id: RequestId, ended: &[RequestId], actions: &mut Actions) {
        let context_tokens = self.model.context_tokens;
        let Some(live) = self.live_mut(id) else {
            return;
        };
        if live.ending.is_some() {
            return;
        }
        live.generated += 1;
        actions.push(Action::Emit(id));
        let full =
            live.generated >= live.submission.output_tokens_max || live.context() > context_tokens;
        if full || ended.contains(&id) {
            live.ending = Some(Finish::Complete);
        }
    }

    /// Lets go what has ended and does not run. What runs on a lane that is to stop is not waited for: its memory is.
    fn settle(&mut self, actions: &mut Actions) {
        let held: Vec<RequestId> = self
            .iteration
            .iter()
            .flat_map(Iteration::requests)
            .collect();
        let stops = matches!(self.state, LaneState::Resetting(_));
        let over = |live: &mut Live| live.ending.is_some() && (stops || !held.contains(&live.id()));
        let ended: Vec<Live> = self.running.extract_if(.., over).collect();
        let given_up = self.waiting.iter().filter(|live| live.ending.is_some());
        let ended: Vec<Live> = ended.into_iter().chain(given_up.cloned()).collect();
        self.waiting.retain(|live| live.ending.is_none());
        for live in ended {
            let Some(finish) = live.ending else { continue };
            self.isolation.leave(live.id());
            if stops && held.contains(&live.id()) {
                self.kv.release_after(self.writer(), live.id(), actions);
            }
            match (finish, live.submission.flow) {
                (Finish::Complete | Finish::Cancelled | Finish::Deadline, Some(flow))
                    if live.cached > 0 =>
                {
                    // The token that was given last is not in the cache.
                    let kept = match live.is_decoding() {
                        true => live.context().saturating_sub(1),
                        false => live.cached,
                    };
                    self.kv.keep(live.id(), flow, kept, self.now, actions);
                }
                _ => self.kv.release(live.id(), actions),
            }
            if let Some(flow) = live.submission.flow.filter(|_| live.ends_flow) {
                self.end_flow(flow, actions);
            }
            actions.push(Action::Finish(live.id(), finish));
        }
    }

    /// A flow has no further calls; those that are under way leave no cache behind.
    fn end_flow(&mut self, flow: FlowId, actions: &mut Actions) {
        let mut live = false;
        let all = self.waiting.iter_mut().chain(&mut self.running);
        for other in all.filter(|other| other.submission.flow == Some(flow)) {
            other.ends_flow = true;
            live = true;
        }
        if !live {
            self.kv.release_flow(flow, actions);
        }
    }

    fn end_where(&mut self, finish: Finish, which: impl Fn(&Live) -> bool, actions: &mut Actions) {
        for live in self.waiting.iter_mut().chain(&mut self.running) {
            if which(live) {
                live.ending.get_or_insert(finish);
            }
        }
        self.settle(actions);
    }

    fn tick(&mut self, actions: &mut Actions) {
        let now = self.now;
        let late = |live: &Live| live.submission.deadline.is_some_and(|at| at <= now);
        self.end_where(Finish::Deadline, late, actions);
        let hangs = self.iteration.as_ref().map(|iteration| iteration.hangs);
        if self.state == LaneState::Present && hangs.is_some_and(|at| at <= now) {
            self.hung(actions);
        }
        if self.next_absence().is_some_and(|at| at <= now) {
            self.not_back(actions);
        }
    }

    /// Sets the timer for the next deadline, or for when the iteration counts as hung.
    fn set_alarm(&self, actions: &mut Actions) {
        let live = self.waiting.iter().chain(&self.running);
        let wanted = live.filter(|live| live.ending.is_none());
        let deadlines = wanted.filter_map(|live| live.submission.deadline);
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
        self.batch.iter().map(|(id, _)| *id).chain(prompts)
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
            Event::Cancel(id) => {
                self.end_where(Finish::Cancelled, |live| live.id() == id, actions);
            }
            Event::EndFlow(flow) => self.end_flow(flow, actions),
            Event::Done { ticket, ended, .. } if waited_for(ticket) => self.done(&ended, actions),
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
        self.waiting.is_empty() && self.running.is_empty()
    }
}
