//! Agent.xpu's scheduler: flow-aware coordination of NPU and iGPU (Agent.xpu v2 §4, v1 §6).
//!
//! Two pipelines share the lanes. Prefill takes one request at a time, its token-wise kernels on the NPU, its
//! attention on the iGPU (`prefill_pipeline`, with `binding` and `deferral`); decoding is batched and lives on the
//! iGPU (`decode_pipeline`).
//! A reactive request preempts a proactive prefill at the next kernel boundary, and joins the decode batch at
//! the next iteration. Nothing is copied or computed twice: a preempted request keeps its place in its own
//! activation buffer, its progress is a counter.
//!
//! # How long a proactive request may take
//!
//! Beside reactive prompts without end a proactive request p still finishes. It is overdue after the threshold T
//! of the policy at the latest, and has the lane of dynamic kernels then; where prompts age from their turn on, it has it T
//! after its turn, and so has each of the m − 1 whose turn comes before. Else m is 1. But for these times, m·T in all, the
//! lane is shared by
//!
//! * the prompts and heads of all proactive requests, C in all, p's own among them;
//! * one decode layer before each of their kernels, since decoding gives way between layers: K kernels, ℓ each;
//! * p's n iterations, and what was left of another one before each: 2·n·I; and before each of them chunks of reactive
//!   prompts for the time S that `split_beside_proactive_ms` says: n·S;
//! * attention and head of reactive prompts, D each. Their token-wise kernels keep to the NPU, but for one that
//!   had begun, F. A prompt takes the NPU for N at least and they go one by one, but for one that was preempted by a
//!   shorter one and a short one aside: a time W has at most W/N + 3 of them.
//!
//! The lane never idles beside this work, so W ≤ C + K·ℓ + n·(2·I + S) + F + 3·D + W·D/N, and p ends within
//!
//! ```text
//!   m·T + (C + K·ℓ + n·(2·I + S) + F + 3·D) / (1 − ρ),   ρ = D/N, the reactive load of the lane, below 1
//! ```
//!
//! times by what devices slow each other down. It holds with an NPU, `prefill_first` and ageing on, without faults,
//! as long as there is memory, without pressure tiers and bounds on iGPU or power, and while no more than `batch_max`
//! requests are overdue or reactive. Reactive requests that decode add their own tokens to the iterations that p waits for.
//!
//! One step is: take in the event, act on what time has brought (`clock`), fill the free lanes.

mod absence;
mod ageing;
mod answers_first;
mod aside;
mod backfill;
mod backlog;
mod binding;
mod clock;
mod company;
mod decode_pipeline;
mod dynamic_lane;
mod gates;
mod holds;
mod prefill_pipeline;
mod proactive_share;
mod recovery;
mod second_lane;
mod shortage;
mod stage;
mod tally;
mod turns;
mod warm;

use heg_spec::Policy;
use heg_spec::policy::SchedulerKind;

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
use absence::Outlook;
use backlog::Backlog;
use decode_pipeline::Decode;
use gates::Gates;
use prefill_pipeline::Prefills;
use proactive_share::ProactiveShare;
use stage::{Entry, Phase, Stage};
use turns::Turns;
use warm::Warmth;

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
    gates: Gates,
    share: ProactiveShare,
    turns: Turns,
    warmth: Warmth,
    backlog: Backlog,
    tally: Tally,
    tickets: u64,
    /// The timer that is set.
    alarm: Option<Micros>,
    /// No deadline passes and nobody becomes overdue before this.
    due: Option<Micros>,
    /// What becomes of requests where no lane has dynamic kernels.
    outlook: Outlook,
    /// How many requests may be live beyond the queue; all, or one for serial inference.
    live_max: usize,
}

impl<C: Costs> AgentXpu<C> {
    /// A scheduler for the lanes that `costs` knows kernels for.
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
            gates: Gates::default(),
            share: ProactiveShare::default(),
            turns: Turns::default(),
            warmth: Warmth::default(),
            backlog: Backlog::default(),
            tally: Tally::default(),
            tickets: 0,
            alarm: None,
            due: None,
            outlook: Outlook::Served,
            live_max: match policy.scheduler {
                SchedulerKind::Serial => 1,
                _ => usize::MAX,
            },
            costs,
            policy,
        };
        if scheduler.dynamic_lane().is_none() {
            scheduler.outlook = Outlook::Hopeless;
        }
        scheduler
    }

    /// Takes in a request, or turns one away where there are too many.
    fn submit(&mut self, mut submission: Submission, actions: &mut Actions) {
        if self.policy.scheduler == SchedulerKind::Serial {
            // Serial inference knows no classes.
            submission.class = Class::Proactive;
        }
        if !self.ledger.insert(submission, self.now, Stage::default()) {
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
            let queued = |_, entry: &Entry| matches!(entry.own.phase, Phase::Queued);
            let youngest = self.ledger.youngest_proactive(queued);
            self.end(youngest.unwrap_or(id), Finish::Shed, actions);
        }
        if self.ledger.get(id).is_some() {
            self.enqueue(id);
            self.expect(id);
        }
    }

    /// What a lane ran is done.
    fn done(&mut self, ticket: Ticket, layers: u32, outcome: Outcome<'_>, actions: &mut Actions) {
        let Some((lane, running)) = self.lanes.finish(ticket) else {
            return;
        };
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
                self.owe(lane, running.cost);
                self.decoded(&run, layers, outcome, actions);
            }
            // Never launched by this scheduler.
            Work::Mixed { .. } => {}
        }
    }

    /// A prompt gave its first token: its request decodes from now on.
    fn prefilled(&mut self, id: RequestId, outcome: Outcome<'_>, actions: &mut Actions) {
        self.prefills.forget(id);
        let Some(entry) = self.ledger.get_mut(id) else {
            return;
        };
        entry.own.phase = Phase::Decode;
        entry.waits_since = self.now;
        entry.own.failed = None;
        entry.succeeded();
        self.emit(id, outcome, actions);
        if self.ledger.get(id).is_some() {
            self.decode.join(id);
        }
    }

    /// A request has its new tokens.
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

    /// Lets a request go that has ended, or that starts over, unless something of it still runs. One that has ended
    /// does not wait for a lane that is to stop: its memory does.
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
            return;
        };
        entry.own.written_by = entry.own.written_by.or(stops);
        let Some(finish) = entry.ending else {
            return self.restart(id, actions);
        };
        let leaving = Leaving {
            finish,
            writers: entry.own.written_by,
            now: self.now,
        };
        self.prefills.forget(id);
        self.decode.leave(id);
        self.decode.isolation.leave(id);
        if let Some(entry) = self.ledger.remove(id) {
            self.ledger.close(entry, leaving, &mut self.kv, actions);
        }
    }

    /// Puts work on a free lane.
    fn launch(&mut self, lane: Lane, class: Class, work: Work, cost: Cost, actions: &mut Actions) {
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        let latency = Micros::from_f64(cost.latency_us);
        self.rest_after(lane, latency);
        let limits = &self.policy.limits;
        let patience = Micros(latency.0.saturating_mul(u64::from(limits.timeout_factor)))
            .max(Micros::from_millis(limits.timeout_min_ms));
        self.lanes.start(
            lane,
            Running {
                ticket,
                work: work.clone(),
                class,
                cost,
                ends: self.now + latency,
                hangs: self.now + patience,
                yielding: false,
            },
        );
        actions.push(Action::Launch { lane, ticket, work });
    }

    /// The lane of dynamic kernels: the iGPU, or what stands in for it.
    fn dynamic_lane(&self) -> Option<Lane> {
        [Lane::Igpu, Lane::Cpu].into_iter().find(|lane| {
            self.lanes.is_present(*lane) && self.costs.cost(*lane, ATTENTION).is_some()
        })
    }

    fn dispatch(&mut self, actions: &mut Actions) {
        self.drop_stray_iteration(actions);
        self.end_crowded_out(actions);
        self.choose_prefills(actions);
        let policy = &self.policy;
        let exclusive = policy.pressure.is_some() || policy.limits.power_watts_max.is_some();
        if exclusive && self.decodes_more_urgently() {
            // What starts first may keep the other from starting.
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

    fn holds(&self, holds: &mut Vec<Hold>) {
        self.append_holds(holds);
    }
}

/// The call that tells whether a lane can attend.
const ATTENTION: Call = Call::Prefill {
    kernel: super::event::Kernel::Mha,
    tokens: 1,
    context: 1,
};

/// The call that tells whether a lane has token-wise kernels.
fn token_wise(tokens: u32) -> Call {
    Call::Prefill {
        kernel: super::event::Kernel::Ffn,
        tokens,
        context: tokens,
    }
}
