//! Agent.xpu's scheduler: flow-aware coordination of NPU and iGPU (Agent.xpu v2 §4, v1 §6).
//!
//! Two pipelines share the lanes. Prefill takes one request at a time, its token-wise kernels on the NPU, its
//! attention on the iGPU (`prefill_pipeline`, with `binding` and `rules`); decoding is batched and runs on the
//! iGPU (`decode_pipeline`). A reactive request preempts a proactive prefill at the next kernel boundary, and
//! joins the decode batch at the next iteration. Nothing is copied or computed twice: a preempted request keeps
//! its place in its own activation buffer, and its progress is a counter.
//!
//! # Bound on the time of a proactive request
//!
//! Beside an endless supply of reactive prompts, a proactive request p still finishes. It is overdue after the
//! threshold T of the policy at the latest, and has the lane of dynamic kernels then. If prompts age from their turn
//! on, it has the lane T after its turn, and so has each of the m − 1 whose turn comes before; otherwise m is 1.
//! Apart from these times, m·T in total, the lane is shared by
//!
//! * the prompts and heads of all proactive requests, C in total, including p's own;
//! * one decode layer before each of their kernels, since decoding gives way between layers: K kernels, ℓ each;
//! * p's n iterations, and the rest of another one before each: 2·n·I; and before each of them chunks of reactive
//!   prompts for the time S given by `split_beside_proactive_ms`: n·S;
//! * attention and head of reactive prompts, D each. Their token-wise kernels stay on the NPU, except one that had
//!   begun, F. A prompt takes the NPU for at least N and they run one by one, except one that was preempted by a
//!   shorter one and a short one aside: a time W has at most W/N + 3 of them.
//!
//! The lane never idles beside this work, so W ≤ C + K·ℓ + n·(2·I + S) + F + 3·D + W·D/N, and p ends within
//!
//! ```text
//!   m·T + (C + K·ℓ + n·(2·I + S) + F + 3·D) / (1 − ρ),   ρ = D/N, the reactive load of the lane, below 1
//! ```
//!
//! times the factor by which devices slow each other down. It holds with an NPU, `prefill_first` and ageing on,
//! without faults, while there is enough memory, without pressure tiers and bounds on iGPU or power, and while at
//! most `batch_max` requests are overdue or reactive. Reactive requests that decode add their own tokens to the
//! iterations that p waits for.
//!
//! One step is: take in the event, act on elapsed times (`clock`), fill the free lanes.

mod absence;
mod binding;
mod client_turns;
mod clock;
mod decode_pipeline;
mod decodes;
mod dynamic_lane;
mod holds;
mod next;
mod outlook;
mod prefill_pipeline;
mod prefills;
mod recovery;
mod remaining;
mod rule_list;
pub(crate) mod rules;
mod second_lane;
mod shortage;
mod slots;
mod stage;
mod tally;
mod turns;
mod view;
mod viewed;
mod warm;
mod warmth;

use heg_spec::{Policy, bug};

use super::Scheduler;
use super::costs::{Call, Cost, Costs, ModelShape};
use super::event::{Action, Actions, Event, Finish, Ticket, Work};
use super::hold::Hold;
use super::kv::KvBudget;
use super::lanes::{Lanes, Running};
use super::ledger::{Leaving, Ledger, Outcome};
use super::mechanism::{ActivationCounts, Tally};
use super::prefill::Prefill;
use super::request::{Class, Lane, Micros, RequestId, Submission};
use decodes::Decode;
use outlook::Outlook;
use prefills::Prefills;
use rule_list::RuleList;
use stage::{Entry, Stage};
use turns::Turns;
use warmth::Warmth;

/// The scheduler. `C` predicts the speed of kernels.
#[derive(Debug)]
pub struct AgentXpu<C> {
    policy: Policy,
    costs: C,
    model: ModelShape,
    now: Micros,
    lanes: Lanes,
    ledger: Ledger<Stage>,
    kv: KvBudget,
    prefills: Prefills,
    decode: Decode,
    rules: RuleList,
    turns: Turns,
    warmth: Warmth,
    tally: Tally,
    tickets: u64,
    /// The timer that is set.
    alarm: Option<Micros>,
    /// No deadline passes and no request becomes overdue before this time.
    due: Option<Micros>,
    /// The outlook of requests while no lane has dynamic kernels.
    outlook: Outlook,
    /// Most requests that may be live beyond the queue.
    live_max: usize,
}

impl<C: Costs> AgentXpu<C> {
    /// Makes a scheduler for the lanes that `costs` knows kernels for.
    pub fn new(policy: Policy, costs: C) -> Self {
        let model = costs.model();
        let has = |lane| {
            let probes = [Call::Head { rows: 1 }, token_wise(model.chunk_tokens)];
            probes
                .into_iter()
                .any(|call| costs.cost(lane, call).is_some())
        };
        let mut scheduler = Self {
            model,
            now: Micros(0),
            lanes: Lanes::new(has),
            ledger: Ledger::of(model),
            kv: KvBudget::of(&policy.limits, model),
            prefills: Prefills::default(),
            decode: Decode::default(),
            rules: RuleList::of(&policy),
            turns: Turns::default(),
            warmth: Warmth::default(),
            tally: Tally::of(&policy),
            tickets: 0,
            alarm: None,
            due: None,
            outlook: Outlook::Served,
            live_max: usize::MAX,
            costs,
            policy,
        };
        if scheduler.dynamic_lane().is_none() {
            scheduler.outlook = Outlook::Hopeless;
        }
        scheduler
    }

    /// Limits the number of requests between the beginning of their prompt and their end to `live_max`.
    pub fn serving_at_most(mut self, live_max: usize) -> Self {
        self.live_max = live_max;
        self
    }

    /// Takes in a request, or turns one away if there are too many.
    fn submit(&mut self, submission: Submission, actions: &mut Actions) {
        let turn_us = match self.ledger.clients().are_only(submission.client) {
            true => 0.0,
            false => self.turn_us(),
        };
        let own = Stage::default();
        if !self.ledger.insert(submission, self.now, own, turn_us) {
            // The number is taken: the live request keeps it, and this call changes nothing.
            return;
        }
        let id = submission.id;
        if self.outlook == Outlook::Hopeless {
            self.end(id, Finish::Failed, actions);
            return;
        }
        if !self.ledger.could_serve(&submission, &self.kv) {
            self.end(id, Finish::Shed, actions);
            return;
        }
        if self.ledger.is_over(&self.policy.limits) {
            let queued = |entry: &Entry| entry.own.is_queued();
            let given_up = match self.ledger.clients().are_several() {
                true => self.ledger.crowding(id, queued),
                false => {
                    let youngest = self.ledger.youngest_proactive(&self.kv, |_, it| queued(it));
                    youngest.unwrap_or(id)
                }
            };
            self.end(given_up, Finish::Shed, actions);
        }
        if self.ledger.get(id).is_some() {
            self.enqueue(id);
            self.expect(id);
        }
    }

    /// Notes that a lane's launch is done.
    fn done(&mut self, ticket: Ticket, layers: u32, outcome: Outcome<'_>, actions: &mut Actions) {
        let Some((lane, running)) = self.lanes.finish(ticket) else {
            return;
        };
        self.charge(lane, &running, layers);
        match running.work {
            Work::Prefill {
                request, segment, ..
            } => {
                if let Some(entry) = self.ledger.get_mut(request) {
                    entry.succeeded();
                    if let Some(prefill) = entry.prefill_mut() {
                        prefill.complete(segment.position);
                    }
                }
                self.settle(request, actions);
            }
            Work::Head(request) => self.prefilled(request, outcome, actions),
            Work::Decode(run) => {
                self.rules.decoded(self, lane, running.cost);
                self.decoded(&run, layers, outcome, actions);
            }
            Work::Mixed { .. } => {
                bug!("this scheduler never launches mixed work");
            }
        }
    }

    /// Notes that a prompt gave its first token: its request decodes from now on.
    fn prefilled(&mut self, id: RequestId, outcome: Outcome<'_>, actions: &mut Actions) {
        self.prefills.forget(id);
        let Some(entry) = self.ledger.get_mut(id) else {
            return;
        };
        entry.own.decode();
        entry.waits_since = self.now;
        entry.succeeded();
        self.emit(id, outcome, actions);
        if self.ledger.get(id).is_some() {
            self.decode.join(id);
        }
    }

    /// Gives a request its new tokens.
    fn emit(&mut self, id: RequestId, outcome: Outcome<'_>, actions: &mut Actions) {
        self.ledger.emit(id, outcome, actions);
        self.settle(id, actions);
    }

    /// Ends a request now, or as soon as nothing of it runs.
    fn end(&mut self, id: RequestId, finish: Finish, actions: &mut Actions) {
        if let Some(entry) = self.ledger.get_mut(id) {
            entry.ending.get_or_insert(finish);
            self.settle(id, actions);
        }
    }

    /// Closes a request that has ended, or restarts one that is to start over, unless some of its work still runs.
    /// One that has ended does not wait for a lane that is to stop: only its memory does.
    fn settle(&mut self, id: RequestId, actions: &mut Actions) {
        let Some(entry) = self.ledger.get(id).filter(|entry| !entry.may_run()) else {
            return;
        };
        let runs = entry.prefill().is_some_and(Prefill::is_running) || self.decode_holds(id);
        let stops = self.lanes.stops(id);
        if runs && (entry.ending.is_none() || stops.is_empty() || self.lanes.runs(id)) {
            return;
        }
        let Some(entry) = self.ledger.get_mut(id) else {
            bug!("a request is gone that was looked up just now");
            return;
        };
        entry.own.add_writers(stops);
        let Some(finish) = entry.ending else {
            return self.restart(id, actions);
        };
        let leaving = Leaving {
            finish,
            writers: entry.own.writers(),
            now: self.now,
        };
        self.prefills.forget(id);
        self.decode.leave(id);
        self.decode.isolation_mut().leave(id);
        if let Some(entry) = self.ledger.remove(id) {
            self.ledger.close(entry, leaving, &mut self.kv, actions);
        }
    }

    /// Puts work on a free lane.
    fn launch(&mut self, lane: Lane, class: Class, work: Work, cost: Cost, actions: &mut Actions) {
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        let latency = Micros::from_f64(cost.latency_us);
        let limits = &self.policy.limits;
        let patience = Micros(latency.0.saturating_mul(u64::from(limits.timeout_factor)))
            .max(Micros::from_millis(limits.timeout_min_ms));
        let running = Running {
            ticket,
            work: work.clone(),
            class,
            cost,
            ends: self.now + latency,
            hangs: self.now + patience,
            yielding: false,
        };
        self.rules.started(self.now, lane, &running);
        self.lanes.start(lane, running);
        actions.push(Action::Launch { lane, ticket, work });
    }

    /// The lane of dynamic kernels: the iGPU, or the lane that stands in for it.
    fn dynamic_lane(&self) -> Option<Lane> {
        [Lane::Igpu, Lane::Cpu].into_iter().find(|lane| {
            self.lanes.is_present(*lane) && self.costs.cost(*lane, ATTENTION).is_some()
        })
    }

    fn dispatch(&mut self, actions: &mut Actions) {
        self.drop_stray_iteration(actions);
        self.end_crowded_out(actions);
        self.choose_prefills(actions);
        if self.rules.exclude() && self.decodes_more_urgently() {
            // The lane that starts first may keep the other from starting.
            self.fill_dynamic_lane(actions);
            self.fill_npu(actions);
            self.verify_aside(actions);
        } else {
            self.fill_npu(actions);
            self.verify_aside(actions);
            self.fill_dynamic_lane(actions);
        }
        self.warm_up(actions);
    }
}

impl<C: Costs> Scheduler for AgentXpu<C> {
    fn step(&mut self, now: Micros, event: Event, actions: &mut Actions) {
        self.now = self.now.max(now);
        self.tally.open_step();
        match event {
            Event::Submit(submission) => self.submit(submission, actions),
            Event::Cancel(id) => self.end(id, Finish::Cancelled, actions),
            Event::EndFlow(flow) => self.ledger.end_flow(flow, &mut self.kv, actions),
            Event::Done {
                ticket,
                layers,
                ended,
                given,
            } => {
                let outcome = Outcome {
                    ended: &ended,
                    given: &given,
                };
                self.done(ticket, layers, outcome, actions);
            }
            Event::Failed(ticket) => self.failed(ticket, actions),
            Event::OutOfMemory(ticket) => self.out_of_memory(ticket, actions),
            Event::Unreserved(id) => self.unreserved(id, actions),
            Event::Unreadable { ticket, request } => self.unreadable(ticket, request, actions),
            Event::Offloaded(transfer) => self.kv.offloaded(transfer),
            Event::OffloadFailed(transfer) => self.kv.offload_failed(transfer),
            Event::Lost(lane) => self.lost(lane, actions),
            Event::Ready(lane) => self.ready(lane, actions),
            Event::Warmed(kernel) => self.warmth.warmed(kernel, actions),
            Event::WarmFailed(kernel) => self.warmth.failed(kernel),
            Event::Timer => self.alarm = None,
        }
        self.tick(actions);
        self.dispatch(actions);
        self.set_alarm(actions);
        self.tally.close_step();
    }

    fn is_idle(&self) -> bool {
        self.ledger.is_empty()
    }

    fn activations(&self) -> ActivationCounts {
        self.tally.activations()
    }

    fn first_token_in(&self, request: RequestId) -> Option<Micros> {
        let times = self.policy.prefill.short_prompts_first;
        self.ledger
            .first_token_in(request, times, |entry| self.waiting_of(entry))
    }

    fn prompts_left(&self, class: Class) -> Micros {
        self.ledger
            .prompts_left(class, |entry| self.waiting_of(entry))
    }

    fn holds(&self, holds: &mut Vec<Hold>) {
        self.append_holds(holds);
    }
}

/// The call that shows whether a lane can attend.
const ATTENTION: Call = Call::Prefill {
    kernel: super::event::LayerKernel::Mha,
    tokens: 1,
    context: 1,
};

/// Returns the call that shows whether a lane has token-wise kernels.
fn token_wise(tokens: u32) -> Call {
    Call::Prefill {
        kernel: super::event::LayerKernel::Ffn,
        tokens,
        context: tokens,
    }
}
