//! The conductor at work: tells the scheduler what happens, and does what it says.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

mod forecast;
mod job;

use super::conductor::{Conductor, Message, Room};
use super::lane::{LaneHandle, Report};
use super::live::{Live, refuse};
use super::pace::{Expected, Pace};
use super::served::{Member, Prompt, Served};
use super::status::{LaneStatus, Status};
use super::warming::{Warmed, Warming};
use super::{Ask, Listener, Observer};
use crate::error::RuntimeError;
use crate::load::annotations;
use crate::mem::Activations;
use crate::sched::{
    Action, Actions, AnnotatedCosts, Class, Event, Finish, FlowId, Lane, Micros, ModelShape,
    RequestId, Scheduler, Submission, Ticket, Work, first_kernels, scheduler,
};

/// Once kernels are ready.
pub(super) struct Serving {
    scheduler: Box<dyn Scheduler>,
    pace: Rc<Pace>,
    start: Instant,
    timer: Option<Micros>,
    room: Room,
    lanes: [Option<LaneHandle>; Lane::ALL.len()],
    warming: Option<Warming>,
    running: [Option<Running>; Lane::ALL.len()],
    live: BTreeMap<RequestId, Live>,
    /// Calls of flows that have one under way, in order of arrival.
    held: VecDeque<(Instant, RequestId, Ask, Listener)>,
    /// Flows of requests that named none, to tell them apart.
    unnamed_flows: u64,
    /// What follows from actions that could not be carried out.
    events: VecDeque<Event>,
    observers: Vec<Box<dyn Observer>>,
    status: Status,
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
            model,
        }
    }

    pub(super) fn run(mut self, early: VecDeque<(Instant, Message)>, messages: &Receiver<Message>) {
        for (at, message) in early {
            self.hear(at, message);
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
                Ok(message) => self.hear(Instant::now(), message),
                Err(RecvTimeoutError::Timeout) => {
                    self.timer = None;
                    self.step(Event::Timer);
                }
            }
        }
        for (_, live) in std::mem::take(&mut self.live) {
            live.finish(Finish::Cancelled);
        }
        for (_, _, _, listener) in self.held {
            refuse(listener, Finish::Cancelled, None);
        }
    }

    fn now(&self) -> Micros {
        Micros(self.start.elapsed().as_micros() as u64)
    }

    fn hear(&mut self, at: Instant, message: Message) {
        match message {
            Message::Submit(id, ask, listener) => self.submit(at, id, ask, listener),
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
        let begin = Instant::now();
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
            for action in actions.drain(..) {
                self.carry_out(action);
            }
        }
        self.status.dispatch_us += begin.elapsed().as_micros() as u64;
    }

    fn submit(&mut self, at: Instant, id: RequestId, ask: Ask, listener: Listener) {
        let busy = |flow| self.live.values().any(|live| live.flow == flow);
        if ask.flow.is_some_and(busy) {
            self.held.push_back((at, id, ask, listener));
            return;
        }
        let (flow, shared_tokens) = self.flow_of(&ask);
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
        let live = Live::new(submission.class, flow, served, listener, at);
        self.live.insert(id, live);
        self.step(Event::Submit(submission));
        if let Some(live) = self.live.get_mut(&id) {
            live.accepted(predicted_ttft);
        }
    }

    /// The flow of a request, and how many tokens of its prompt are in that flow's cache. A request that names none
    /// goes on where another one ended that began alike.
    fn flow_of(&mut self, ask: &Ask) -> (FlowId, u32) {
        let memory = &self.room.memory;
        if let Some(flow) = ask.flow {
            return (flow, memory.shared(flow, &ask.prompt));
        }
        let idle =
            |flow: FlowId| flow.0 >= UNNAMED && !self.live.values().any(|live| live.flow == flow);
        memory
            .most_shared(&ask.prompt, SHARED_MIN, idle)
            .unwrap_or_else(|| {
                self.unnamed_flows += 1;
                (FlowId(UNNAMED + self.unnamed_flows), 0)
            })
    }

    fn cancel(&mut self, id: RequestId) {
        let held = self.held.iter().position(|(_, held, ..)| *held == id);
        match held.and_then(|at| self.held.remove(at)) {
            Some((_, _, _, listener)) => refuse(listener, Finish::Cancelled, None),
            None => self.step(Event::Cancel(id)),
        }
    }

    fn reported(&mut self, report: Report) {
        let Report {
            lane,
            ticket,
            outcome,
            took,
        } = report;
        let Some(running) = self.running[lane as usize].take_if(|r| r.ticket == ticket) else {
            return;
        };
        if let Some(status) = self
            .status
            .lanes
            .iter_mut()
            .find(|status| status.lane == lane)
        {
            status.busy = None;
            status.busy_us += took.as_micros() as u64;
        }
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

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Launch { lane, ticket, work } => self.launch(lane, ticket, work),
            Action::Yield(ticket) => {
                let lanes = self.running.iter().zip(&self.lanes);
                let runs = |(running, _): &(&Option<Running>, _)| {
                    running.as_ref().is_some_and(|r| r.ticket == ticket)
                };
                if let Some((_, Some(handle))) = lanes.into_iter().find(runs) {
                    handle.signals.ask_to_yield(ticket);
                }
            }
            Action::Reset(lane) => self.reset(lane),
            Action::Reserve {
                request,
                tokens,
                reused,
            } => self.reserve(request, tokens, reused),
            Action::Release(request) => self.room.memory.release(request),
            Action::Keep {
                request,
                flow,
                tokens,
            } => {
                if let Some(live) = self.live.get(&request) {
                    let tokens = live.leading_tokens(tokens);
                    self.room.memory.keep(request, flow, tokens);
                }
            }
            Action::Offload(flow) => self.room.memory.offload(flow),
            Action::ReleaseFlow(flow) => self.room.memory.release_flow(flow),
            Action::Restart(request) => {
                if let Some(live) = self.live.get_mut(&request) {
                    live.prompt = None;
                }
            }
            Action::Emit(request) => self.emit(request),
            Action::Finish(request, finish) => self.finish(request, finish),
            Action::Timer(at) => self.timer = Some(at),
            Action::Warm(kernel) => {
                let asked = self
                    .warming
                    .as_ref()
                    .is_some_and(|warming| warming.warm(kernel));
                if !asked {
                    self.events.push_back(Event::WarmFailed(kernel));
                }
            }
            Action::Unload(kernel) => {
                self.pace.unloaded(kernel);
                if let Some(npu) = &self.lanes[Lane::Npu as usize] {
                    npu.unload(kernel);
                }
            }
        }
    }

    fn launch(&mut self, lane: Lane, ticket: Ticket, work: Work) {
        for id in work.requests() {
            if let Some(live) = self.live.get_mut(&id) {
                live.start();
            }
        }
        let Some(job) = self.job(&work) else {
            // Its memory could not be had.
            self.events.push_back(Event::OutOfMemory(ticket));
            return;
        };
        self.status.launches += 1;
        let classes = work
            .requests()
            .into_iter()
            .filter_map(|id| Some(self.live.get(&id)?.class));
        let class = classes.min();
        if let Some(status) = self
            .status
            .lanes
            .iter_mut()
            .find(|status| status.lane == lane)
        {
            status.busy = class;
        }
        self.running[lane as usize] = Some(Running {
            ticket,
            expected: self.pace.expected(lane, &work),
            work,
            abandoned: false,
        });
        let launched = self.lanes[lane as usize]
            .as_ref()
            .is_some_and(|handle| handle.launch(ticket, class.unwrap_or(Class::Proactive), job));
        if !launched {
            self.running[lane as usize] = None;
            self.events.push_back(Event::Lost(lane));
        }
    }

    fn reset(&mut self, lane: Lane) {
        if let Some(running) = &mut self.running[lane as usize] {
            running.abandoned = true;
        }
        if let Some(handle) = &self.lanes[lane as usize] {
            handle.signals.reset.store(true, Ordering::Relaxed);
        }
    }

    /// Cache and activations of a request. Where there is no memory its first launch says so.
    fn reserve(&mut self, request: RequestId, tokens_max: u32, reused: u32) {
        let Some(live) = self.live.get_mut(&request) else {
            return;
        };
        let tokens = live.served.with_tokens(<[u32]>::len);
        live.reused_tokens = reused;
        self.status.reused_tokens += u64::from(reused);
        let new = tokens.saturating_sub(reused as usize).max(1);
        let made = self
            .room
            .memory
            .reserve(request, live.flow, (tokens_max, reused))
            .and_then(|reserved| {
                let rows = Activations::new(new + self.room.padding_rows, self.room.widths)?;
                Ok((reserved, rows))
            });
        match made {
            Ok((reserved, rows)) => {
                live.prompt = Some(Prompt {
                    member: Member {
                        served: Arc::clone(&live.served),
                        cache: reserved.cache,
                    },
                    rows: Arc::new(rows),
                    unread: reserved.unread,
                    first: tokens.saturating_sub(new) as u32,
                });
            }
            Err(error) => live.error = Some(causes(&error)),
        }
    }

    fn emit(&mut self, request: RequestId) {
        self.status.generated_tokens += 1;
        if let Some(live) = self.live.get_mut(&request) {
            if live.prompt.take().is_some() {
                let prompt = live.prompt_tokens.saturating_sub(live.reused_tokens);
                self.status.prompt_tokens += u64::from(prompt);
            }
            live.emit();
        }
    }

    fn finish(&mut self, request: RequestId, finish: Finish) {
        self.status.finished += 1;
        let Some(live) = self.live.remove(&request) else {
            return;
        };
        let flow = live.flow;
        live.finish(finish);
        // The next call of its flow, if there is one.
        let next = self
            .held
            .iter()
            .position(|(_, _, ask, _)| ask.flow == Some(flow));
        if let Some((at, id, ask, listener)) = next.and_then(|at| self.held.remove(at)) {
            self.submit(at, id, ask, listener);
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
