//! The conductor until kernels are ready: starts the lanes, and holds requests that arrive early.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Instant;

use heg_spec::{Policy, bug};

use super::baked::BakedStates;
use super::descents::AllDescents;
use super::flash::Outbox;
use super::health::{LostLane, Pulse};
use super::held::Held;
use super::kept::{Keeper, KeptState};
use super::lane::{LaneHandle, LaneSetup};
use super::lane_plan::LanePlan;
use super::machine::Machine;
use super::memory::Memory;
use super::message::{Arrival, Message, receive, turn_away};
use super::options::EngineOptions;
use super::reclaim::Reclaim;
use super::report::LaneLoss;
use super::request::ScopeId;
use super::resident::Residence;
use super::serving::Serving;
use super::shared_prompts::EnginePrompts;
use super::speeds::known_costs;
use super::status::Status;
use super::successor::Successors;
use super::thread::Farewell;
use super::warming::Warming;
use crate::error::EngineError;
use heg_draft::History;
use heg_exec::mem::{KvShape, MemoryHome, Widths};
use heg_exec::{Executor, Loader};
use heg_sched::{Finish, FlowId, Lane, ModelShape, Observer, WorkStage, with_rows};

/// The conductor before kernels are ready.
pub(super) struct Conductor {
    pub(super) machine: Arc<dyn Machine>,
    pub(super) pulse: Pulse,
    pub(super) loader: Arc<Loader>,
    pub(super) policy: Policy,
    pub(super) model: ModelShape,
    pub(super) room: Room,
    pub(super) lanes: [Option<LaneHandle>; Lane::ALL.len()],
    /// Rungs that were passed over.
    pub(super) descents: AllDescents,
    /// The compiler for the NPU's lane, if there is one.
    pub(super) warming: Option<Warming>,
    /// Kept state, if there is a folder for it, or why nothing is kept in it.
    pub(super) kept: Result<Option<KeptState>, String>,
    /// The states of the bundle, if there are any.
    pub(super) baked: Option<BakedStates>,
    /// Lanes whose kernels could not be prepared.
    pub(super) lost: Vec<LostLane>,
    pub(super) successors: Successors,
    /// The bundle's place in the memory of all engines.
    pub(super) residence: Residence,
    /// The engine's prompts among those of the machine.
    pub(super) prompts: EnginePrompts,
    pub(super) observers: Vec<Box<dyn Observer>>,
}

/// The memory of requests, and the widths that its sizes follow from.
pub(super) struct Room {
    pub(super) widths: Widths,
    /// The home of rows of activations.
    pub(super) home: MemoryHome,
    /// Rows that a kernel may write behind a prompt.
    pub(super) padding_rows: usize,
    pub(super) memory: Memory,
    pub(super) reclaim: Reclaim,
}

impl Room {
    /// The room of an engine whose kernels of any shape this executor runs.
    fn of(dynamic: &Executor, padding_rows: usize, memory: Memory, reclaim: Reclaim) -> Self {
        Self {
            widths: dynamic.widths(),
            home: dynamic.home(),
            padding_rows,
            memory,
            reclaim,
        }
    }
}

impl Conductor {
    /// Begins to prepare the kernels of every lane.
    pub(super) fn new(
        loader: Loader,
        policy: Policy,
        options: EngineOptions,
        machine: Arc<dyn Machine>,
        pulse: Pulse,
        inbox: &Sender<Message>,
    ) -> Result<Self, EngineError> {
        let loader = Arc::new(loader);
        let plan = LanePlan::of(&loader, policy, &options, &*machine)?;
        let executors = plan.executors(&loader)?;
        let (_, dynamic) = executors
            .last()
            .ok_or_else(|| bug!("a machine has no lane"))?;
        let turns = options.turns.of_engine();
        let (prompts, turns) = (turns.prompts(), plan.turns(turns));
        let rows = dynamic.options();
        let policy = with_rows(plan.policy, rows.batch, rows.chunk_tokens);
        let (shape, padding_rows) = fitting_all(&executors, dynamic);
        let model = model_shape(dynamic, plan.chunk_tokens, shape)?;
        let kept = options.state.clone();
        let kept = kept.map(|folder| KeptState::new(folder, &loader, shape));
        let kept = kept.transpose();
        let baked = BakedStates::new(&loader, shape, &options.baked)?;
        let reclaim = Reclaim::start();
        let memory = Memory::new(
            dynamic.kv_room().with_shape(shape),
            options.flash.clone(),
            kept.as_ref().ok().cloned().flatten().map(Keeper::start),
            Arc::clone(&machine),
            reclaim.clone(),
            told_by_flash(inbox.clone()),
        );
        let room = Room::of(dynamic, padding_rows, memory, reclaim);
        let npu = executors.iter().find(|(lane, _)| *lane == Lane::Npu);
        let warming = npu.map(|(_, npu)| Warming::start(npu.warmer(), inbox.clone()));
        let descents = descents_of(&executors, baked.as_ref());
        let setup = LaneSetup {
            inbox: inbox.clone(),
            drafts: policy.drafts,
            turns,
        };
        let lanes = started(executors, &*machine, &setup);
        let successors = Successors {
            loader: Arc::clone(&loader),
            duties: plan.duties,
            exec: plan.exec,
            setup,
            lost: 0,
        };
        let residence = options.resident.place(loader.bundle());
        Ok(Self {
            machine,
            pulse,
            residence,
            prompts,
            loader,
            policy,
            model,
            room,
            lanes,
            descents,
            warming,
            kept,
            baked,
            lost: Vec::new(),
            successors,
            observers: options.observers,
        })
    }

    /// Tokens that the policy's KV budget has room for.
    pub(super) fn kv_tokens(&self) -> u32 {
        let tokens = self.policy.limits.kv_bytes() / self.model.kv_bytes_per_token.max(1);
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }

    /// Rungs that were passed over; known when kernels are ready.
    pub(super) fn descents(&self) -> AllDescents {
        self.descents.clone()
    }

    /// Runs until the last handle is gone.
    pub(super) fn run(mut self, messages: &Receiver<Message>) {
        // The lanes still prepare their kernels.
        let known = known_costs(&self.loader, self.model);
        let mut early = Early::default();
        let mut missing = self.lanes.iter().flatten().count();
        while missing > 0 {
            let message = receive(messages, early.held.next_deadline());
            for arrival in early.held.expired(Instant::now()) {
                arrival.refuse(Finish::Deadline, None);
            }
            let (lane, error) = match message {
                Ok(Message::Ready(_, Ok(()))) => {
                    missing -= 1;
                    continue;
                }
                Ok(Message::Ready(lane, Err(error))) => (lane, error),
                Ok(Message::Lost(lane, LaneLoss { why, .. })) => {
                    (lane, EngineError::LaneLost { lane, why })
                }
                Ok(Message::Shutdown) | Err(RecvTimeoutError::Disconnected) => {
                    return self.end(early);
                }
                Ok(message) => {
                    early.hear(message);
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => continue,
            };
            if lane != Lane::Npu {
                return self.fail(error, early, messages);
            }
            // The other lane has kernels for every call.
            let why = error.chain();
            for observer in &mut self.observers {
                observer.lost(lane, &why);
            }
            self.lanes[lane as usize] = None;
            self.warming = None;
            self.lost.push(LostLane { lane, why });
            missing -= 1;
        }
        self.pulse.ready();
        for lost in &self.lost {
            self.pulse.lost(lost.clone());
        }
        for answer in early.waiting.drain(..) {
            let _ = answer.send(Ok(()));
        }
        let mut serving = Serving::new(self, known);
        for (scope, history) in early.recalled {
            serving.recall(scope, history);
        }
        serving.run(early.held.take_all(), early.ended, messages);
    }

    /// Refuses every request until the last handle is gone.
    fn fail(self, error: EngineError, early: Early, messages: &Receiver<Message>) {
        self.pulse.failed(error.chain());
        let mut error = Some(error);
        let mut tell = |answer: Sender<Result<(), EngineError>>| {
            let _ = answer.send(Err(error.take().unwrap_or(EngineError::EngineStopped)));
        };
        let Early {
            mut held, waiting, ..
        } = early;
        waiting.into_iter().for_each(&mut tell);
        for arrival in held.take_all() {
            arrival.refuse(Finish::Failed, Some(Arc::new(EngineError::EngineStopped)));
        }
        while let Ok(message) = messages.recv() {
            match message {
                Message::WaitReady(answer) => tell(answer),
                Message::Status(answer) => {
                    let _ = answer.send(Status::default());
                }
                Message::Shutdown => break,
                message => turn_away(message),
            }
        }
        self.end(Early::default());
    }

    fn end(self, mut early: Early) {
        let threads = (self.lanes, self.warming);
        end_all(
            early.held.take_all(),
            threads,
            &*self.machine,
            self.observers,
        );
    }
}

/// Messages that arrived before kernels were ready.
#[derive(Default)]
struct Early {
    held: Held,
    ended: Vec<FlowId>,
    recalled: Vec<(ScopeId, History)>,
    waiting: Vec<Sender<Result<(), EngineError>>>,
}

impl Early {
    fn hear(&mut self, message: Message) {
        match message {
            Message::Submit(arrival) => self.held.push(*arrival),
            Message::Cancel(id) => {
                if let Some(arrival) = self.held.remove(id) {
                    arrival.refuse(Finish::Cancelled, None);
                }
            }
            Message::EndFlow(flow) => self.ended.push(flow),
            Message::Recall(scope, history) => self.recalled.push((scope, history)),
            Message::WaitReady(answer) => self.waiting.push(answer),
            Message::Status(answer) => {
                let _ = answer.send(Status::default());
            }
            // No lane has run any kernel, and there are no caches.
            Message::Ready(..)
            | Message::Lost(..)
            | Message::Done(_)
            | Message::Transferred(_)
            | Message::Warmed(_)
            | Message::Calibrated(..)
            | Message::Shutdown => {}
        }
    }
}

/// Ends an engine: cancels requests that the scheduler does not have, and ends the threads that use devices.
/// Observers are told of threads that do not answer, since the process does not wait for a hung driver.
pub(super) fn end_all(
    held: VecDeque<Arrival>,
    (lanes, warming): ([Option<LaneHandle>; Lane::ALL.len()], Option<Warming>),
    machine: &dyn Machine,
    mut observers: Vec<Box<dyn Observer>>,
) {
    for arrival in held {
        arrival.refuse(Finish::Cancelled, None);
    }
    let patience = machine.patience();
    let deadline = Instant::now() + patience;
    let mut tell = |what: &str, lane| {
        let seconds = patience.as_secs();
        let why =
            format!("{what} within {seconds} s of being told to end; its thread is left behind");
        for observer in &mut observers {
            observer.lost(lane, &why);
        }
    };
    let mut lanes = lanes;
    for lane in lanes.iter_mut().flatten() {
        lane.stop();
    }
    for (lane, handle) in Lane::ALL.into_iter().zip(lanes) {
        let farewell = handle.map(|handle| handle.end(deadline));
        if farewell == Some(Farewell::LeftBehind) {
            tell("its device did not answer", lane);
        }
    }
    let farewell = warming.map(|warming| warming.end(deadline));
    if farewell == Some(Farewell::LeftBehind) {
        tell("its compiler did not answer", Lane::Npu);
    }
}

/// The model as the scheduler sees it, with caches of this shape.
fn model_shape(
    dynamic: &Executor,
    chunk_tokens: usize,
    shape: KvShape,
) -> Result<ModelShape, EngineError> {
    Ok(ModelShape {
        layers: dynamic.manifest().layers.len() as u32,
        order: dynamic.orders().at(WorkStage::Prefill),
        chunk_tokens: chunk_tokens as u32,
        context_tokens: shape.context_tokens as u32,
        kv_bytes_per_token: dynamic.kv_bytes_per_token()?,
    })
}

/// Starts the lane of each executor.
fn started(
    executors: Vec<(Lane, Executor)>,
    machine: &dyn Machine,
    setup: &LaneSetup,
) -> [Option<LaneHandle>; Lane::ALL.len()] {
    let mut lanes = [None, None, None];
    for (lane, executor) in executors {
        let executor = machine.executor(lane, executor);
        lanes[lane as usize] = Some(LaneHandle::start(lane, executor, setup.clone()));
    }
    lanes
}

/// Returns an outbox that tells the conductor the outcome of each transfer to flash.
fn told_by_flash(inbox: Sender<Message>) -> Outbox {
    Box::new(move |event| inbox.send(Message::Transferred(event)).is_ok())
}

/// The shape of a cache that every lane can use, and the rows that any of their kernels may write behind a prompt.
fn fitting_all(executors: &[(Lane, Executor)], dynamic: &Executor) -> (KvShape, usize) {
    let mut shape = dynamic.kv_shape();
    let mut padding_rows = 0;
    for (_, executor) in executors {
        shape.padding_rows = shape.padding_rows.max(executor.kv_shape().padding_rows);
        padding_rows = padding_rows.max(executor.padding_rows());
    }
    (shape, padding_rows)
}

/// The rungs that the lanes pass over, and the states of the bundle that are not used.
fn descents_of(executors: &[(Lane, Executor)], baked: Option<&BakedStates>) -> AllDescents {
    let descents = AllDescents::default();
    for (_, executor) in executors {
        descents.add(executor.descents());
    }
    if let Some(baked) = baked {
        descents.add(baked.descents().to_vec().into());
    }
    descents
}
