//! The conductor at work: tells the scheduler what happens, and does what it says.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

mod actions;
mod forecast;
mod job;

use super::conductor::{Arrival, Conductor, Message, Room};
use super::lane::{LaneHandle, Report};
use super::live::{Live, refuse};
use super::pace::{Expected, Pace};
use super::served::Served;
use super::status::{LaneStatus, Status};
use super::waits::{Entry, Waits};
use super::warming::{Warmed, Warming};
use super::{Ask, Observer};
use crate::error::RuntimeError;
use crate::load::annotations;
use crate::sched::{
    Action, Actions, AnnotatedCosts, Class, Event, Finish, FlowId, Lane, Micros, ModelShape,
    RequestId, Scheduler, Submission, Ticket, Work, first_kernels, scheduler,
};

/// Once kernels are ready.
pub(super) struct Serving {
    scheduler: Box<dyn Scheduler>,
    pace: Rc<Pace>,
    /// As the policy has it.
    short_prompts_first: Option<f64>,
    start: Instant,
    timer: Option<Micros>,
    room: Room,
    lanes: [Option<LaneHandle>; Lane::ALL.len()],
    warming: Option<Warming>,
    running: [Option<Running>; Lane::ALL.len()],
    live: BTreeMap<RequestId, Live>,
    /// Calls of flows that have one under way, in order of arrival.
    held: VecDeque<Arrival>,
    /// Flows of requests that named none, to tell them apart.
    unnamed_flows: u64,
    /// What follows from actions that could not be carried out.
    events: VecDeque<Event>,
    observers: Vec<Box<dyn Observer>>,
    status: Status,
    /// Time spent in the scheduler and in carrying out its actions, of each step up to its last launch: what comes after
    /// that holds up nobody, and competes with the kernel for cores.
    dispatch: Duration,
    last_launch: Instant,
    waits: Waits,
    model: ModelShape,
}

/// What a lane was told to do.
struct Running {
    ticket: Ticket,
    work: Work,
    expected: Option<Expected>,
    /// Whether the scheduler has given it up, and waits for the lane.
    abandoned: bool,
}

/// What all named flows are below.
const UNNAMED: u64 = 1 << 63;

/// Fewer shared tokens than this are computed anew rather than taken from another request's cache.
const SHARED_MIN: u32 = 32;

impl Serving {
    pub(super) fn new(setup: Conductor) -> Self {
        let Conductor {
            loader,
            policy,
            model,
            room,
            lanes,
            warming,
            observers,
        } = setup;
        let manifest = loader.bundle().manifest();
        let kernels: Vec<_> = first_kernels(manifest).cloned().collect();
        let known = annotations(loader.bundle()).ok().flatten();
        let known = known
            .as_ref()
            .and_then(|all| all.soc(&loader.soc().name))
            .map(|soc| {
                AnnotatedCosts::new(
                    &manifest.model,
                    model.layers,
                    &kernels,
                    soc,
                    model.chunk_tokens,
                )
            });
        let present = [0, 1, 2].map(|lane: usize| lanes[lane].is_some());
        let pace = Rc::new(Pace::new(manifest, known, model, present));
        let status = Status {
            ready: true,
            kv_budget_bytes: policy.limits.kv_bytes(),
            lanes: Lane::ALL
                .into_iter()
                .filter(|lane| present[*lane as usize])
                .map(|lane| LaneStatus {
                    lane,
                    busy: None,
                    busy_us: 0,
                })
                .collect(),
            ..Status::default()
        };
        Self {
            short_prompts_first: policy.prefill.short_prompts_first,
            scheduler: scheduler(policy, Rc::clone(&pace)),
            pace,
            start: Instant::now(),
            timer: None,
            room,
            lanes,
            warming,
            running: [None, None, None],
            live: BTreeMap::new(),
            held: VecDeque::new(),
            unnamed_flows: 0,
            events: VecDeque::new(),
            observers,
            status,
            dispatch: Duration::ZERO,
            last_launch: Instant::now(),
            waits: Waits::default(),
            model,
        }
    }

    pub(super) fn run(mut self, early: VecDeque<Message>, messages: &Receiver<Message>) {
        for message in early {
            match message {
                Message::Submit(arrival) => self.submit(arrival, Entry::Queued),
                message => self.hear(message),
            }
        }
        loop {
            let message = match self.timer {
                None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => {
                    let left = at.since(self.now());
                    messages.recv_timeout(Duration::from_micros(left.0))
                }
            };
            match message {
                Ok(Message::Shutdown) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(message) => self.hear(message),
                Err(RecvTimeoutError::Timeout) => {
                    self.timer = None;
                    self.step(Event::Timer);
                }
            }
        }
        for (_, live) in std::mem::take(&mut self.live) {
            live.finish(Finish::Cancelled);
        }
        for arrival in self.held {
            refuse(arrival.listener, Finish::Cancelled, None);
        }
    }

    fn now(&self) -> Micros {
        Micros(self.start.elapsed().as_micros() as u64)
    }

    fn hear(&mut self, message: Message) {
        match message {
            Message::Submit(arrival) => {
                let entry = self.entry();
                self.submit(arrival, entry);
            }
            Message::Cancel(id) => self.cancel(id),
            Message::EndFlow(flow) => self.step(Event::EndFlow(flow)),
            Message::Done(report) => self.reported(report),
            Message::Warmed(warmed) => self.warmed(warmed),
            Message::Status(answer) => {
                let _ = answer.send(self.status());
            }
            Message::WaitReady(answer) => {
                let _ = answer.send(Ok(()));
            }
            // Every lane said so before.
            Message::Ready(..) | Message::Shutdown => {}
        }
    }

    /// One event for the scheduler, and what follows from it.
    fn step(&mut self, event: Event) {
        let (begin, before) = (Instant::now(), self.dispatch);
        self.events.push_back(event);
        let mut actions = Actions::new();
        while let Some(event) = self.events.pop_front() {
            let now = self.now();
            let told = (!self.observers.is_empty()).then(|| event.clone());
            self.scheduler.step(now, event, &mut actions);
            if let Some(event) = told {
                for observer in &mut self.observers {
                    observer.stepped(now, &event, &actions);
                }
            }
            // Listeners wake threads, for which no lane should wait. A stable sort: the rest stays in order.
            let is_heard = |action: &Action| matches!(action, Action::Emit(_) | Action::Finish(..));
            actions.sort_by_key(is_heard);
            for action in actions.drain(..) {
                self.carry_out(action);
            }
        }
        let end = match self.last_launch > begin {
            true => self.last_launch,
            false => Instant::now(),
        };
        // Actions may have led to further steps: those are within this one.
        self.dispatch = before + (end - begin);
    }

    /// How a reactive request comes in that comes now.
    fn entry(&self) -> Entry {
        let is_reactive = |live: &Live| live.class == Class::Reactive;
        if self.live.values().any(is_reactive) {
            Entry::Queued
        } else if self.running.iter().any(Option::is_some) {
            Entry::Preempting
        } else {
            Entry::Idle
        }
    }

    fn submit(&mut self, arrival: Arrival, entry: Entry) {
        let busy = |flow| self.live.values().any(|live| live.flow == flow);
        if arrival.ask.flow.is_some_and(busy) {
            self.held.push_back(arrival);
            return;
        }
        let Arrival {
            at,
            id,
            ask,
            listener,
        } = arrival;
        let (flow, shared_tokens) = self.flow_of(&ask);
        let scope = ask.scope;
        let submission = Submission {
            id,
            flow: Some(flow),
            class: ask.class,
            prompt_tokens: ask.prompt.len() as u32,
            shared_tokens,
            output_tokens_max: ask.tokens_max,
            deadline: ask
                .deadline
                .map(|span| self.now() + Micros(span.as_micros() as u64)),
        };
        let served = match Served::new(id, ask) {
            Ok(served) => served,
            Err(error) => return refuse(listener, Finish::Failed, Some(error.to_string())),
        };
        let predicted_ttft = self.predict(&submission);
        let live = Live::new(submission.class, (scope, flow), served, listener, (at, entry));
        self.live.insert(id, live);
        self.step(Event::Submit(submission));
        if let Some(live) = self.live.get_mut(&id) {
            live.accepted(predicted_ttft);
        }
    }

    /// The flow of a request, and how many tokens of its prompt are in that flow's cache. A request that names none
    /// goes on where another one of its scope ended that began alike.
    fn flow_of(&mut self, ask: &Ask) -> (FlowId, u32) {
        let memory = &self.room.memory;
        if let Some(flow) = ask.flow {
            return (flow, memory.shared(ask.scope, flow, &ask.prompt));
        }
        let idle =
            |flow: FlowId| flow.0 >= UNNAMED && !self.live.values().any(|live| live.flow == flow);
        memory
            .most_shared(ask.scope, &ask.prompt, SHARED_MIN, idle)
            .unwrap_or_else(|| {
                self.unnamed_flows += 1;
                (FlowId(UNNAMED + self.unnamed_flows), 0)
            })
    }

    fn cancel(&mut self, id: RequestId) {
        let held = self.held.iter().position(|arrival| arrival.id == id);
        match held.and_then(|at| self.held.remove(at)) {
            Some(arrival) => refuse(arrival.listener, Finish::Cancelled, None),
            None => self.step(Event::Cancel(id)),
        }
    }

    fn reported(&mut self, report: Report) {
        let Report {
            lane,
            ticket,
            outcome,
            took,
            longest,
        } = report;
        let Some(running) = self.running[lane as usize].take_if(|r| r.ticket == ticket) else {
            return;
        };
        if let Some(status) = self.status.lane_mut(lane) {
            status.busy = None;
            status.busy_us += took.as_micros() as u64;
        }
        let longest_us = |so_far: u64, span: Duration| so_far.max(span.as_micros() as u64);
        self.status.kernel_us_max = longest_us(self.status.kernel_us_max, longest.kernel);
        self.status.stretch_us_max = longest_us(self.status.stretch_us_max, longest.stretch);
        if running.abandoned {
            if let Some(handle) = &self.lanes[lane as usize] {
                handle.signals.reset.store(false, Ordering::Relaxed);
            }
            return self.step(Event::Ready(lane));
        }
        let event = match outcome {
            Ok(done) => {
                let whole = done.layers == 0 || done.layers == self.model.layers;
                if let (Some(expected), true) = (running.expected, whole) {
                    self.pace.observe(lane, expected, took);
                }
                Event::Done {
                    ticket,
                    layers: done.layers,
                    ended: done.ended,
                }
            }
            Err(error) => {
                for id in running.work.requests() {
                    if let Some(live) = self.live.get_mut(&id) {
                        live.error = Some(causes(&error));
                    }
                }
                match error {
                    RuntimeError::Reserve { .. } => Event::OutOfMemory(ticket),
                    _ => Event::Failed(ticket),
                }
            }
        };
        self.step(event);
    }

    /// A kernel was compiled, and is the lane's before the scheduler hears of it; or could not be, which costs
    /// nothing but the gain.
    fn warmed(&mut self, warmed: Warmed) {
        let Warmed {
            kernel,
            outcome,
            took,
        } = warmed;
        match outcome {
            Ok(forms) => {
                if let Some(npu) = &self.lanes[Lane::Npu as usize] {
                    npu.adopt(forms);
                }
                self.pace.warmed(kernel, took);
                self.status.warmed += 1;
                self.step(Event::Warmed(kernel));
            }
            Err(error) => {
                let message = causes(&error);
                if !self.status.warm_failures.contains(&message) {
                    self.status.warm_failures.push(message);
                }
                self.step(Event::WarmFailed(kernel));
            }
        }
    }
}

/// An error with its causes, on one line.
fn causes(error: &RuntimeError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
