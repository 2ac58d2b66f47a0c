//! The conductor until kernels are ready: which lanes there are, what each runs, and who waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use heg_artifacts::manifest::DeviceClass;
use heg_spec::Policy;
use heg_spec::policy::SchedulerKind;

use super::lane::{LaneHandle, Report};
use super::live::refuse;
use super::memory::Memory;
use super::reclaim::Reclaim;
use super::serving::Serving;
use super::status::Status;
use super::warming::{Warmed, Warming};
use super::{Ask, EngineOptions, Listener, Observer};
use crate::error::RuntimeError;
use crate::exec::{Duty, Executor, ExecutorOptions, Loader, ROW_STEP, padded};
use crate::mem::Widths;
use crate::sched::{Finish, FlowId, Lane, ModelShape, RequestId};

/// What the conductor hears.
pub(super) enum Message {
    Submit(Arrival),
    Cancel(RequestId),
    EndFlow(FlowId),
    Ready(Lane, Result<(), RuntimeError>),
    Done(Report),
    Warmed(Warmed),
    Status(Sender<Status>),
    WaitReady(Sender<Result<(), RuntimeError>>),
    Shutdown,
}

/// A request that was handed in.
pub(super) struct Arrival {
    pub(super) at: Instant,
    pub(super) id: RequestId,
    pub(super) ask: Ask,
    pub(super) listener: Listener,
}

/// Before kernels are ready.
pub(super) struct Conductor {
    pub(super) loader: Arc<Loader>,
    pub(super) policy: Policy,
    pub(super) model: ModelShape,
    pub(super) room: Room,
    pub(super) lanes: [Option<LaneHandle>; Lane::ALL.len()],
    /// For the NPU's lane, where there is one.
    pub(super) warming: Option<Warming>,
    pub(super) observers: Vec<Box<dyn Observer>>,
}

/// What memory is made of.
pub(super) struct Room {
    pub(super) widths: Widths,
    /// Rows that a kernel may write behind a prompt.
    pub(super) padding_rows: usize,
    pub(super) memory: Memory,
    pub(super) reclaim: Reclaim,
}

impl Conductor {
    /// Begins to prepare the kernels of every lane.
    pub(super) fn new(
        loader: Loader,
        mut policy: Policy,
        options: EngineOptions,
        inbox: &Sender<Message>,
    ) -> Result<Self, RuntimeError> {
        let loader = Arc::new(loader);
        let manifest = loader.bundle().manifest();
        let chunk_tokens = chunk_tokens(&loader, options.exec.chunk_tokens);
        let exec = ExecutorOptions {
            chunk_tokens: match policy.scheduler {
                SchedulerKind::AgentXpu | SchedulerKind::Serial => chunk_tokens,
                _ => policy.limits.tokens_per_iteration as usize,
            },
            batch: policy.decode.batch_max as usize,
            ..options.exec
        };
        if options.flash.is_none() {
            policy.limits.flash_mib = 0;
        }
        if loader.has_only_cpu() {
            policy.limits.timeout_min_ms = u32::MAX;
        }
        let mut lanes = [None, None, None];
        let mut executors = Vec::new();
        for (lane, duty) in lanes_of(&loader) {
            let executor = Executor::with_duty(Arc::clone(&loader), duty, exec)?;
            executors.push((lane, executor));
        }
        let Some((_, dynamic)) = executors.last() else {
            return Err(RuntimeError::LoaderGone);
        };
        policy.decode.batch_max = policy.decode.batch_max.min(dynamic.options().batch as u32);
        let mut shape = dynamic.kv_shape();
        let mut padding_rows = 0;
        for (_, executor) in &executors {
            shape.padding_rows = shape.padding_rows.max(executor.kv_shape().padding_rows);
            padding_rows = padding_rows.max(executor.padding_rows());
        }
        let model = ModelShape {
            layers: manifest.layers.len() as u32,
            chunk_tokens: chunk_tokens as u32,
            context_tokens: shape.context_tokens as u32,
            kv_bytes_per_token: shape.token_bytes() as u64,
        };
        let reclaim = Reclaim::start();
        let room = Room {
            widths: dynamic.widths(),
            padding_rows,
            memory: Memory::new(shape, options.flash.clone(), reclaim.clone()),
            reclaim,
        };
        let npu = executors.iter().find(|(lane, _)| *lane == Lane::Npu);
        let warming = npu.map(|(_, npu)| Warming::start(npu.warmer(), inbox.clone()));
        for (lane, executor) in executors {
            lanes[lane as usize] = Some(LaneHandle::start(lane, executor, inbox.clone()));
        }
        Ok(Self {
            loader,
            policy,
            model,
            room,
            lanes,
            warming,
            observers: options.observers,
        })
    }

    /// Tokens that the policy's KV budget has room for.
    pub(super) fn kv_tokens(&self) -> u32 {
        let tokens = self.policy.limits.kv_bytes() / self.model.kv_bytes_per_token.max(1);
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }

    /// Runs until the last handle is gone.
    pub(super) fn run(mut self, messages: &Receiver<Message>) {
        let mut early = VecDeque::new();
        let mut waiting: Vec<Sender<Result<(), RuntimeError>>> = Vec::new();
        let mut missing = self.lanes.iter().flatten().count();
        while missing > 0 {
            match messages.recv() {
                Ok(Message::Ready(_, Ok(()))) => missing -= 1,
                Ok(Message::Ready(Lane::Npu, Err(_))) => {
                    // The other lane has kernels for every call.
                    self.lanes[Lane::Npu as usize] = None;
                    self.warming = None;
                    missing -= 1;
                }
                Ok(Message::Ready(_, Err(error))) => return fail(error, waiting, early, messages),
                Ok(Message::WaitReady(answer)) => waiting.push(answer),
                Ok(Message::Status(answer)) => {
                    let _ = answer.send(Status::default());
                }
                Ok(Message::Shutdown) | Err(_) => {
                    early.into_iter().for_each(turn_away);
                    return;
                }
                Ok(message) => early.push_back(message),
            }
        }
        for answer in waiting {
            let _ = answer.send(Ok(()));
        }
        Serving::new(self).run(early, messages);
    }
}

/// Nothing can be served: everybody is told, until the last handle is gone.
fn fail(
    error: RuntimeError,
    waiting: Vec<Sender<Result<(), RuntimeError>>>,
    early: VecDeque<Message>,
    messages: &Receiver<Message>,
) {
    let mut error = Some(error);
    let mut tell = |answer: Sender<Result<(), RuntimeError>>| {
        let _ = answer.send(Err(error.take().unwrap_or(RuntimeError::LoaderGone)));
    };
    waiting.into_iter().for_each(&mut tell);
    early.into_iter().for_each(turn_away);
    while let Ok(message) = messages.recv() {
        match message {
            Message::WaitReady(answer) => tell(answer),
            Message::Status(answer) => {
                let _ = answer.send(Status::default());
            }
            Message::Shutdown => return,
            message => turn_away(message),
        }
    }
}

fn turn_away(message: Message) {
    if let Message::Submit(arrival) = message {
        refuse(
            arrival.listener,
            Finish::Failed,
            Some("the engine has stopped".to_owned()),
        );
    }
}

/// The lanes of a machine, and what each runs; the one with dynamic kernels last.
fn lanes_of(loader: &Loader) -> Vec<(Lane, Duty)> {
    let dynamic = match loader.has(DeviceClass::Igpu) {
        true => Lane::Igpu,
        false => Lane::Cpu,
    };
    let npu = loader.has(DeviceClass::Npu);
    let npu = npu.then_some((Lane::Npu, Duty::Static));
    npu.into_iter().chain([(dynamic, Duty::Dynamic)]).collect()
}

/// Tokens of a prefill chunk: as asked for, or the next smaller ones that the NPU has kernels for. No kernel pads
/// them: what it wrote behind a chunk would be rows of the next one, which may be under way.
fn chunk_tokens(loader: &Loader, asked: usize) -> usize {
    let asked = match asked.max(1) {
        few @ ..ROW_STEP => few,
        many => many - many % ROW_STEP,
    };
    if lanes_of(loader).len() < 2 {
        return asked;
    }
    let kernels = loader.bundle().manifest().kernels.iter();
    let variants = kernels.flat_map(|kernel| &kernel.variants);
    let chunks = variants.filter_map(|variant| variant.shape.chunk());
    let fitting = chunks
        .map(|chunk| chunk as usize)
        .filter(|chunk| *chunk <= asked && padded(*chunk) == *chunk);
    fitting.max().unwrap_or(asked)
}
