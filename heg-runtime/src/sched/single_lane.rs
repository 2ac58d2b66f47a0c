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

use std::collections::VecDeque;
use std::sync::Arc;

use heg_spec::Policy;
use heg_spec::policy::SchedulerKind;
use heg_spec::soc::DeviceClass;

use super::Scheduler;
use super::costs::{Call, Costs, ModelShape};
use super::event::{Action, Actions, Event, Finish, Segment, Ticket, Work};
use super::kv::KvBudget;
use super::request::{Class, Lane, Micros, RequestId, Submission};

/// A scheduler for one device. `C` says which lanes there are.
#[derive(Debug)]
pub struct SingleLane<C> {
    policy: Policy,
    costs: C,
    model: ModelShape,
    now: Micros,
    lane: Lane,
    present: bool,
    kv: KvBudget,
    /// Waiting for room, in order of arrival.
    waiting: VecDeque<Live>,
    /// With room, in order of arrival.
    running: Vec<Live>,
    iteration: Option<Iteration>,
    /// Class of the last iteration, where streams alternate.
    last: Option<Class>,
    tickets: u64,
}

#[derive(Debug, Clone)]
struct Live {
    submission: Submission,
    /// Tokens to prefill: the prompt, and what was generated before a restart.
    prompt_tokens: u32,
    /// Of these, in the cache.
    cached: u32,
    generated: u32,
    ending: Option<Finish>,
}

#[derive(Debug)]
struct Iteration {
    ticket: Ticket,
    batch: Arc<[(RequestId, u32)]>,
    prompts: Arc<[(RequestId, Segment)]>,
    /// When it counts as hung.
    hangs: Micros,
    failures: u32,
}

/// How often an iteration is tried.
const ATTEMPTS: u32 = 3;

impl Live {
    fn new(submission: Submission) -> Self {
        Self {
            submission,
            prompt_tokens: submission.prompt_tokens,
            cached: 0,
            generated: 0,
            ending: None,
        }
    }

    fn id(&self) -> RequestId {
        self.submission.id
    }

    fn is_decoding(&self) -> bool {
        self.cached >= self.prompt_tokens
    }

    /// Tokens in the cache when it decodes next, the one that is fed then included.
    fn context(&self) -> u32 {
        self.submission.prompt_tokens + self.generated
    }

    fn tokens_max(&self, context_tokens: u32) -> u32 {
        let prompt = self.submission.prompt_tokens;
        prompt
            .saturating_add(self.submission.output_tokens_max)
            .min(context_tokens)
            .max(prompt)
    }
}

impl<C: Costs> SingleLane<C> {
    /// A scheduler for the policy's device.
    pub fn new(policy: Policy, costs: C) -> Self {
        let model = costs.model();
        let lane = match policy.device {
            DeviceClass::Npu => Lane::Npu,
            DeviceClass::Igpu => Lane::Igpu,
            DeviceClass::Cpu => Lane::Cpu,
        };
        let budget = u64::from(policy.limits.kv_mib) * 1024 * 1024;
        Self {
            present: costs.cost(lane, Call::Head { rows: 1 }).is_some(),
            model,
            now: Micros(0),
            lane,
            kv: KvBudget::new(budget / model.kv_bytes_per_token.max(1)),
            waiting: VecDeque::new(),
            running: Vec::new(),
            iteration: None,
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
        let tokens = live.tokens_max(self.model.context_tokens);
        let fits = tokens <= self.model.context_tokens && self.kv.could_fit(tokens);
        let full =
            self.waiting.len() + self.running.len() >= self.policy.limits.requests_max as usize;
        let valid = submission.prompt_tokens > 0 && submission.output_tokens_max > 0;
        if fits && valid && !full && self.present {
            self.waiting.push_back(live);
        } else {
            actions.push(Action::Finish(submission.id, Finish::Shed));
        }
    }

    /// Moves requests for which there is room from the queue into the batch.
    fn admit(&mut self, actions: &mut Actions) {
        while let Some(next) = self.waiting.front() {
            let tokens = next.tokens_max(self.model.context_tokens);
            let Some(reused) = self.kv.reserve(&next.submission, tokens, actions) else {
                return;
            };
            if let Some(mut live) = self.waiting.pop_front() {
                live.cached = reused;
                self.running.push(live);
            }
        }
    }

    /// Which requests the next iteration is for.
    fn eligible(&self) -> impl Fn(&Live) -> bool + use<C> {
        let class_of = |live: &Live| live.submission.class;
        let has = |class| {
            let mut wanting = self.running.iter().filter(|live| live.ending.is_none());
            wanting.any(|live| class_of(live) == class)
        };
        let only = match self.policy.scheduler {
            SchedulerKind::PreemptRecompute if has(Class::Reactive) => Some(Class::Reactive),
            SchedulerKind::TimeSharing if has(Class::Reactive) && has(Class::Proactive) => {
                match self.last {
                    Some(Class::Reactive) => Some(Class::Proactive),
                    Some(Class::Proactive) | None => Some(Class::Reactive),
                }
            }
            _ => None,
        };
        move |live: &Live| live.ending.is_none() && only.is_none_or(|only| class_of(live) == only)
    }

    fn launch(&mut self, actions: &mut Actions) {
        if self.iteration.is_some() || !self.present {
            return;
        }
        self.forget_preempted(actions);
        self.admit(actions);
        let eligible = self.eligible();
        let batch: Arc<[(RequestId, u32)]> = self
            .running
            .iter()
            .filter(|live| eligible(live) && live.is_decoding())
            .take(self.policy.decode.batch_max as usize)
            .map(|live| (live.id(), live.context()))
            .collect();
        let budget = self.policy.limits.tokens_per_iteration;
        let mut left = budget
            .saturating_sub(batch.len() as u32)
            .max(u32::from(batch.is_empty()));
        let mut prompts = Vec::new();
        for live in self
            .running
            .iter()
            .filter(|live| eligible(live) && !live.is_decoding())
        {
            let tokens = left.min(live.prompt_tokens - live.cached);
            if tokens == 0 {
                break;
            }
            left -= tokens;
            prompts.push((
                live.id(),
                Segment {
                    position: live.cached,
                    tokens,
                },
            ));
        }
        if batch.is_empty() && prompts.is_empty() {
            return;
        }
        let first = batch
            .first()
            .map(|(id, _)| *id)
            .or(prompts.first().map(|(id, _)| *id));
        let of_first = self.running.iter().find(|live| Some(live.id()) == first);
        self.last = of_first.map(|live| live.submission.class);
        self.run(batch, prompts.into(), 0, actions);
    }

    fn run(
        &mut self,
        batch: Arc<[(RequestId, u32)]>,
        prompts: Arc<[(RequestId, Segment)]>,
        failures: u32,
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
            failures,
        });
        actions.push(Action::Launch {
            lane: self.lane,
            ticket,
            work: Work::Mixed { batch, prompts },
        });
        actions.push(Action::Timer(hangs));
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
        let reactive = |live: &Live| live.submission.class == Class::Reactive;
        let mut all = self.waiting.iter().chain(&self.running);
        if self.policy.scheduler != SchedulerKind::PreemptRecompute || !all.any(reactive) {
            return;
        }
        let (kept, preempted) = std::mem::take(&mut self.running)
            .into_iter()
            .partition::<Vec<_>, _>(reactive);
        self.running = kept;
        for mut live in preempted.into_iter().rev() {
            self.kv.release(live.id(), actions);
            actions.push(Action::Restart(live.id()));
            live.prompt_tokens = live.context();
            live.cached = 0;
            live.submission.shared_tokens = 0;
            self.waiting.push_front(live);
        }
        // Reactive ones come first, each class in its order.
        self.waiting
            .make_contiguous()
            .sort_by_key(|live| live.submission.class);
    }

    fn done(&mut self, ticket: Ticket, ended: &[RequestId], actions: &mut Actions) {
        let Some(iteration) = self
            .iteration
            .take_if(|iteration| iteration.ticket == ticket)
        else {
            return;
        };
        for (id, _) in iteration.batch.iter() {
            self.emit(*id, ended, actions);
        }
        for (id, segment) in iteration.prompts.iter() {
            let live = self.running.iter_mut().find(|live| live.id() == *id);
            let whole = live.is_some_and(|live| {
                live.cached = segment.context();
                live.is_decoding()
            });
            if whole {
                self.emit(*id, ended, actions);
            }
        }
        self.settle(actions);
    }

    fn emit(&mut self, id: RequestId, ended: &[RequestId], actions: &mut Actions) {
        let context_tokens = self.model.context_tokens;
        let Some(live) = self.running.iter_mut().find(|live| live.id() == id) else {
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

    /// Lets go what has ended and does not run.
    fn settle(&mut self, actions: &mut Actions) {
        let held: Vec<RequestId> = self
            .iteration
            .iter()
            .flat_map(Iteration::requests)
            .collect();
        let over = |live: &Live| live.ending.is_some() && !held.contains(&live.id());
        let now = self.now;
        for live in self.running.extract_if(.., |live| over(live)) {
            let Some(finish) = live.ending else { continue };
            match (finish, live.submission.flow) {
                (Finish::Complete, Some(flow)) => {
                    let kept = live.context().saturating_sub(1);
                    self.kv.keep(live.id(), flow, kept, now, actions);
                }
                _ => self.kv.release(live.id(), actions),
            }
            actions.push(Action::Finish(live.id(), finish));
        }
        for live in &self.waiting {
            if let Some(finish) = live.ending {
                actions.push(Action::Finish(live.id(), finish));
            }
        }
        self.waiting.retain(|live| live.ending.is_none());
    }

    fn end_where(&mut self, finish: Finish, which: impl Fn(&Live) -> bool, actions: &mut Actions) {
        for live in self.waiting.iter_mut().chain(&mut self.running) {
            if which(live) {
                live.ending.get_or_insert(finish);
            }
        }
        self.settle(actions);
    }

    /// The iteration did not succeed: it is tried again, and its requests end when that is in vain.
    fn retry(&mut self, actions: &mut Actions) {
        let Some(iteration) = self.iteration.take() else {
            return;
        };
        let failures = iteration.failures + 1;
        if failures < ATTEMPTS && self.present {
            self.run(iteration.batch, iteration.prompts, failures, actions);
            return;
        }
        let blamed: Vec<RequestId> = iteration.requests().collect();
        self.end_where(Finish::Failed, |live| blamed.contains(&live.id()), actions);
    }

    fn lose(&mut self, actions: &mut Actions) {
        self.present = false;
        self.iteration = None;
        self.end_where(Finish::Failed, |_| true, actions);
    }

    fn tick(&mut self, actions: &mut Actions) {
        let now = self.now;
        let late = |live: &Live| live.submission.deadline.is_some_and(|at| at <= now);
        self.end_where(Finish::Deadline, late, actions);
        if self
            .iteration
            .as_ref()
            .is_some_and(|iteration| iteration.hangs <= now)
        {
            // The lane is not there until it says so; then the iteration is tried again.
            actions.push(Action::Reset(self.lane));
            self.iteration = None;
            self.present = false;
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
        let current = self.iteration.as_ref().map(|iteration| iteration.ticket);
        match event {
            Event::Submit(submission) => self.submit(submission, actions),
            Event::Cancel(id) => {
                self.end_where(Finish::Cancelled, |live| live.id() == id, actions);
            }
            Event::EndFlow(flow) => self.kv.release_flow(flow, actions),
            Event::Done { ticket, ended, .. } => self.done(ticket, &ended, actions),
            Event::Failed(ticket) | Event::OutOfMemory(ticket) if current == Some(ticket) => {
                if matches!(event, Event::OutOfMemory(_)) {
                    self.kv.release_flows(actions);
                }
                self.retry(actions);
            }
            Event::Lost(lane) if lane == self.lane => self.lose(actions),
            Event::Ready(lane) if lane == self.lane => self.present = true,
            Event::Failed(_)
            | Event::OutOfMemory(_)
            | Event::Lost(_)
            | Event::Ready(_)
            | Event::Warmed(_)
            | Event::Timer => {}
        }
        self.tick(actions);
        self.launch(actions);
        // Deadlines of those that wait have no launch to be noticed by.
        let live = self.waiting.iter().chain(&self.running);
        let next = live.filter_map(|live| live.submission.deadline).min();
        let hangs = self.iteration.as_ref().map(|iteration| iteration.hangs);
        if let Some(at) = next
            .into_iter()
            .chain(hangs)
            .min()
            .filter(|at| *at > self.now)
        {
            actions.push(Action::Timer(at));
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }
}
