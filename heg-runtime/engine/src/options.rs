//! The options of an engine.

use std::path::PathBuf;
use std::sync::Arc;

use heg_exec::ExecutorOptions;
use heg_sched::Observer;
use heg_state::StateFolder;

use crate::baked::StateChoice;
use crate::device_turns::DeviceTurns;
use crate::drafts::Speculation;
use crate::resident::ResidentBudget;

/// The options of an engine.
#[derive(Default)]
pub struct EngineOptions {
    /// The options of each lane's executor. The batch size is the policy's.
    pub exec: ExecutorOptions,
    /// The distribution of kernels over lanes.
    pub lanes: Lanes,
    /// The folder for KV caches of idle flows that make room, as far as the policy grants flash.
    pub flash: Option<PathBuf>,
    /// The folder in which the KV cache of prompts is kept for later processes: of requests with an
    /// [owner](crate::Request::state) there.
    pub state: Option<Arc<StateFolder>>,
    /// The states of the bundle that prompts may go on behind.
    pub baked: StateChoice,
    /// Whether answers are drafted, so that a pass verifies several tokens of one.
    pub speculation: Speculation,
    /// The turns that this engine and others take on the machine's lanes. Kernels that may hang, those of plugins and of
    /// GPUs, take none: their drivers have queues of their own.
    pub turns: DeviceTurns,
    /// The memory that this engine's bundle shares with those of others.
    pub resident: ResidentBudget,
    /// Observers of every step of the scheduler.
    pub observers: Vec<Box<dyn Observer>>,
}

/// The distribution of kernels over lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lanes {
    /// The NPU's static kernels have a lane beside the one with dynamic kernels.
    #[default]
    PerDevice,
    /// One lane runs every kernel on the best device for it.
    Single,
}
