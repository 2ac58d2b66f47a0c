//! The conductor once kernels are ready: tells the scheduler of events, and carries out its actions.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

mod actions;
mod calibrate;
mod job;
mod observing;
mod outcome;
mod standing;

use super::baked::BakedStates;
use super::calibration::Calibrations;
use super::conductor::{Conductor, Room, end_all};
use super::descents::AllDescents;
use super::drafts::Drafting;
use super::health::{LostLane, Pulse};
use super::held::Held;
use super::kept::KeptState;
use super::lane::LaneHandle;
use super::live::{Live, Owner};
use super::machine::Machine;
use super::message::{Arrival, Message, receive};
use super::pace::{Expected, Pace};
use super::prefix::PrefixRows;
use super::report::Warmed;
use super::request::{AnswerKind, Request, ScopeId, refuse};
use super::resident::Residence;
use super::served::Served;
use super::shared_prompts::EnginePrompts;
use super::status::{LaneStatus, Status};
use super::successor::Successors;
use super::touching::Untouched;
use super::vectors::is_whole;
use super::waits::{Entry, Waits};
use super::warming::Warming;
use heg_artifacts::manifest::TextVectors;
use heg_costs::AnnotatedCosts;
use heg_draft::History;
use heg_exec::mem::ActivationRows;
use heg_exec::{Loader, PairedRoles};
use heg_sched::{
    Action, Actions, ClientId, Event, Finish, FlowId, Lane, Micros, ModelShape, Observer,
    PromptLogits, RequestId, Scheduler, Submission, Ticket, Work,
};

/// The conductor once kernels are ready.
pub(super) struct Serving {
    machine: Arc<dyn Machine>,
    pulse: Pulse,
    scheduler: Box<dyn Scheduler>,
    pace: Rc<Pace>,
    start: Instant,
    timer: Option<Micros>,
    room: Room,
    lanes: [Option<LaneHandle>; Lane::ALL.len()],
    warming: Option<Warming>,
    running: [Option<Running>; Lane::ALL.len()],
    successors: Successors,
    descents: AllDescents,
    live: BTreeMap<RequestId, Live>,
    /// Calls of flows that have another call in progress, in order of arrival.
    held: Held,
    /// Number of flows given to requests that named none.
    unnamed_flows: u64,
    /// Events that follow from actions that could not be carried out.
    events: VecDeque<Event>,
    drafting: Drafting,
    calibrations: Calibrations,
    /// Rows that slices of prompts are computed in, once there was one.
    slice_room: Option<Arc<ActivationRows>>,
    observers: Vec<Box<dyn Observer>>,
    status: Status,
    /// Time spent in the scheduler and in its actions, of each step up to its last launch: work after that delays
    /// no lane, and competes with the kernel for cores.
    dispatch: Duration,
    last_launch: Instant,
    waits: Waits,
    /// Two roles that run every kernel together, if any do.
    pair: Option<Arc<PairedRoles>>,
    /// Kept state, if there is any.
    kept: Option<KeptState>,
    /// The states of the bundle, if there are any.
    baked: Option<BakedStates>,
    /// The devices, which count what they copied.
    loader: Arc<Loader>,
    untouched: Untouched,
    residence: Residence,
    /// The engine's prompts among those of the machine.
    prompts: EnginePrompts,
    model: ModelShape,
    /// End-of-sequence tokens of the model.
    eos_ids: Vec<u32>,
    /// The vectors that the model gives, if it gives some.
    vectors: Option<TextVectors>,
}

/// A launch that a lane is running.
struct Running {
    ticket: Ticket,
    work: Work,
    expected: Option<Expected>,
    since: Instant,
    /// Time at which the scheduler gave it up; the engine then waits for the lane, which may still write to its
    /// memory.
    abandoned: Option<Instant>,
}

/// The first id of unnamed flows; ids of named flows are below.
const UNNAMED: u64 = 1 << 63;

/// Longest time that the end of an engine waits for kept state to be written. Chosen: a disk takes a long prompt.
const SETTLES: Duration = Duration::from_secs(3);

/// Fewest shared tokens for which another request's cache is reused; fewer are computed again.
const SHARED_MIN: u32 = 32;

/// The lanes of a machine, which run nothing yet.
fn idle_lanes(present: [bool; 3]) -> Vec<LaneStatus> {
    let lanes = Lane::ALL.into_iter();
    let lanes = lanes.filter(|lane| present[*lane as usize]);
    let idle = |lane| LaneStatus {
        lane,
        busy: None,
        busy_us: 0,
        waited_us: 0,
    };
    lanes.map(idle).collect()
}

/// The status of an engine that has served nothing yet.
fn first_status(lost: Vec<LostLane>, present: [bool; 3], kv_budget_bytes: u64) -> Status {
    Status {
        ready: true,
        lost,
        kv_budget_bytes,
        lanes: idle_lanes(present),
        ..Status::default()
    }
}

impl Serving {
    /// Takes over from the conductor, with the known costs of the machine.
    pub(super) fn new(setup: Conductor, known: Option<AnnotatedCosts>) -> Self {
        let Conductor {
            machine,
            pulse,
            loader,
            policy,
            model,
            room,
            lanes,
            descents,
            warming,
            kept,
            baked,
            lost,
            mut successors,
            residence,
            prompts,
            observers,
        } = setup;
        // What was lost while kernels were prepared is no lane's loss.
        successors.notice_loss();
        let manifest = loader.bundle().manifest();
        let present = [0, 1, 2].map(|lane: usize| lanes[lane].is_some());
        let pace = Rc::new(Pace::new(&loader, known, model, present));
        let status = first_status(lost, present, policy.limits.kv_bytes());
        let eos_ids = manifest.text.eos_ids.clone();
        let calibrations = Calibrations::new(policy.drafts.calibration);
        let scheduler = machine.scheduler(policy, Rc::clone(&pace));
        Self {
            machine,
            pulse,
            eos_ids,
            vectors: manifest.vectors,
            scheduler,
            pace,
            start: Instant::now(),
            timer: None,
            room,
            lanes,
            warming,
            running: [None, None, None],
            successors,
            descents,
            live: BTreeMap::new(),
            held: Held::default(),
            unnamed_flows: 0,
            events: VecDeque::new(),
            drafting: Drafting::new(manifest.model.vocab),
            calibrations,
            slice_room: None,
            observers,
            status,
            dispatch: Duration::ZERO,
            last_launch: Instant::now(),
            waits: Waits::default(),
            pair: loader.pair().cloned(),
            kept: kept.ok().flatten(),
            baked,
            untouched: Untouched::new(&loader),
            residence,
            prompts,
            loader,
            model,
        }
    }

    /// Drafts from these answers of a scope.
    pub(super) fn recall(&mut self, scope: ScopeId, history: History) {
        self.drafting.recall(scope, history);
    }

    pub(super) fn run(
        mut self,
        early: VecDeque<Arrival>,
        ended: Vec<FlowId>,
        messages: &Receiver<Message>,
    ) {
        for arrival in early {
            self.submit(arrival, Entry::Queued);
        }
        for flow in ended {
            self.step(Event::EndFlow(flow));
        }
        loop {
            match receive(messages, self.next_alarm()) {
                Ok(Message::Shutdown) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(message) => self.hear(message),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.wake();
            self.residence.need(!self.live.is_empty());
        }
        for (_, live) in std::mem::take(&mut self.live) {
            live.finish(Finish::Cancelled);
        }
        // A reader of the prompts may be the next process of this user.
        self.room.memory.settle(SETTLES);
        let threads = (self.lanes, self.warming);
        end_all(
            self.held.take_all(),
            threads,
            &*self.machine,
            self.observers,
        );
    }

    /// The time at which there is something to do even if no message comes.
    fn next_alarm(&self) -> Option<Instant> {
        let timer = self
            .timer
            .map(|at| self.start + Duration::from_micros(at.0));
        let patience = self.machine.patience();
        let lanes = self.running.iter().flatten();
        let given_up = lanes.filter_map(|running| Some(running.abandoned? + patience));
        let others = [timer, self.held.next_deadline(), self.calibrates_at()];
        given_up.chain(others.into_iter().flatten()).min()
    }

    /// Handles everything that is due: deadlines, silent lanes, the scheduler's timer, rows of prompts.
    fn wake(&mut self) {
        let now = Instant::now();
        if self.next_alarm().is_none_or(|alarm| alarm > now) {
            return;
        }
        for arrival in self.held.expired(now) {
            arrival.refuse(Finish::Deadline, None);
        }
        self.give_up_lanes(now);
        if self.timer.is_some_and(|at| at <= self.now()) {
            self.timer = None;
            self.step(Event::Timer);
        }
        self.calibrate(now);
    }

    fn now(&self) -> Micros {
        Micros(self.start.elapsed().as_micros() as u64)
    }

    fn hear(&mut self, message: Message) {
        match message {
            Message::Submit(arrival) => {
                self.calibrations.wait();
                let entry = self.entry();
                self.submit(*arrival, entry);
            }
            Message::Cancel(id) => self.cancel(id),
            Message::EndFlow(flow) => self.step(Event::EndFlow(flow)),
            Message::Recall(scope, history) => self.recall(scope, history),
            Message::Done(report) => self.reported(report),
            Message::Lost(lane, loss) => self.lose(lane, loss),
            Message::Transferred(event) => self.step(event),
            Message::Warmed(warmed) => self.warmed(warmed),
            Message::Calibrated(place, found) => self.calibrated(place, found),
            Message::Status(answer) => {
                let _ = answer.send(self.status());
            }
            Message::WaitReady(answer) => {
                let _ = answer.send(Ok(()));
            }
            Message::Ready(lane, ready) => self.succeeded(lane, ready),
            Message::Shutdown => {}
        }
    }

    /// Passes an event to the scheduler and carries out the actions that follow.
    fn step(&mut self, event: Event) {
        let (begin, before) = (Instant::now(), self.dispatch);
        let is_new = matches!(event, Event::Submit(_));
        self.events.push_back(event);
        let mut actions = Actions::new();
        while let Some(event) = self.events.pop_front() {
            let now = self.now();
            let told = (!self.observers.is_empty()).then(|| event.clone());
            self.scheduler.step(now, event, &mut actions);
            if let Some(event) = told {
                self.tell_step(now, &event, &actions);
            }
            // Listeners wake threads, for which no lane should wait. The sort is stable: other actions stay in order.
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
        // Actions may have led to further steps, which are part of this one's time.
        self.dispatch = before + (end - begin);
        self.tell_holds();
        self.tell_prompts(is_new);
    }

    fn submit(&mut self, arrival: Arrival, entry: Entry) {
        if self.residence.need(true) {
            self.untouched = Untouched::new(&self.loader);
        }
        self.untouched.touch();
        let busy = |flow| self.live.values().any(|live| live.owner.flow == flow);
        if arrival.request.flow.is_some_and(busy) {
            self.held.push(arrival);
            self.tell_holds();
            return;
        }
        let deadline = arrival.deadline().map(|at| {
            let span = at.saturating_duration_since(self.start);
            Micros(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
        });
        let Arrival {
            at,
            id,
            request,
            drafts,
            listener,
            kept,
        } = arrival;
        let (flow, shared_tokens, kept) = self.beginning_of(&request, kept);
        let owner = Owner {
            scope: request.scope,
            prefixes: request.prefix_scope(),
            state: request.state,
            flow,
        };
        let submission = Submission {
            id,
            client: ClientId(request.scope.0),
            // Nothing goes on behind a text that only has a vector.
            flow: (request.kind == AnswerKind::Tokens).then_some(flow),
            class: request.class,
            prompt_tokens: request.prompt.len() as u32,
            shared_tokens,
            kept_tokens: kept.as_ref().map_or(0, |kept| kept.tokens() as u32),
            output_tokens_max: request.tokens_max,
            deadline,
            prompt_logits: match (request.kind, self.vectors, request.prompt_log_probs) {
                (AnswerKind::Vector | AnswerKind::Score, Some(vectors), _) if is_whole(vectors) => {
                    PromptLogits::WholePrompt
                }
                (AnswerKind::Tokens, _, Some(_)) => PromptLogits::AllRows,
                _ => PromptLogits::LastRow,
            },
        };
        let vectors = self.vectors.filter(|_| request.kind != AnswerKind::Tokens);
        let served = match Served::new(id, request, (&self.eos_ids, vectors)) {
            Ok(served) => served,
            Err(error) => return refuse(listener, Finish::Failed, Some(Arc::new(error))),
        };
        let class = submission.class;
        let mut live = Live::new(class, owner, (served, drafts), listener, (at, entry));
        if matches!(kept, Some(PrefixRows::Baked(_))) {
            self.tell_baked(id);
        }
        live.kept = kept;
        self.live.insert(id, live);
        self.step(Event::Submit(submission));
        let alone = self.scheduler.first_token_in(id).unwrap_or_default();
        let predicted = alone + self.prompts.delay(class, alone);
        if let Some(live) = self.live.get_mut(&id) {
            live.accepted(Duration::from_micros(predicted.0));
        }
    }

    /// Returns the flow of a request, and the beginning of its prompt that need not be computed: tokens of the flow's
    /// cache, or more of them in kept state or the bundle.
    fn beginning_of(
        &mut self,
        request: &Request,
        kept: Option<PrefixRows>,
    ) -> (FlowId, u32, Option<PrefixRows>) {
        let (flow, shared_tokens) = self.flow_of(request);
        let wants_all_rows = request.wants_all_rows();
        let is_longer = |kept: &PrefixRows| kept.tokens() as u32 >= shared_tokens + SHARED_MIN;
        let kept = kept.filter(|kept| !wants_all_rows && is_longer(kept));
        match (&kept, request.flow) {
            (None, _) => (flow, shared_tokens, None),
            (Some(_), Some(flow)) => (flow, 0, kept),
            // A shorter one that another request left stays.
            (Some(_), None) => (self.new_flow(), 0, kept),
        }
    }

    /// Returns the flow of a request, and the number of its prompt's tokens in that flow's cache. A request that
    /// names no flow continues an ended request of its scope that began with the same tokens; one that wants log
    /// probabilities of its prompt continues nothing.
    fn flow_of(&mut self, request: &Request) -> (FlowId, u32) {
        let memory = &self.room.memory;
        let wants_all_rows = request.wants_all_rows();
        match request.flow {
            Some(flow) if wants_all_rows => return (flow, 0),
            Some(flow) => {
                return (
                    flow,
                    memory.shared(request.prefix_scope(), flow, &request.prompt),
                );
            }
            None => {}
        }
        let idle = |flow: FlowId| {
            flow.0 >= UNNAMED && !self.live.values().any(|live| live.owner.flow == flow)
        };
        memory
            .most_shared(request.prefix_scope(), &request.prompt, SHARED_MIN, idle)
            .filter(|_| !wants_all_rows)
            .unwrap_or_else(|| (self.new_flow(), 0))
    }

    /// Returns a flow for a request that named none.
    fn new_flow(&mut self) -> FlowId {
        self.unnamed_flows += 1;
        FlowId(UNNAMED + self.unnamed_flows)
    }

    fn cancel(&mut self, id: RequestId) {
        match self.held.remove(id) {
            Some(arrival) => arrival.refuse(Finish::Cancelled, None),
            None => self.step(Event::Cancel(id)),
        }
    }

    /// Hands a compiled kernel to its lane, before the scheduler is told of it. A kernel that could not be compiled
    /// costs only the speed-up.
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
                let message = heg_exec::chain(&error);
                if !self.status.warm_failures.contains(&message) {
                    self.status.warm_failures.push(message);
                }
                self.step(Event::WarmFailed(kernel));
            }
        }
    }
}
