//! The plan of a machine's lanes, settled before anything is loaded.

use std::sync::Arc;

use heg_exec::{Duty, Executor, ExecutorOptions, Loader, padded, rows_step};
use heg_sched::{Lane, MachineFacts, MachineLanes, NoLane, for_machine, prefill_tokens_max};
use heg_spec::Policy;

use super::device_turns::EngineTurns;
use super::drafts::Speculation;
use super::machine::Machine;
use super::options::{EngineOptions, Lanes};
use super::vectors::is_whole;
use crate::error::EngineError;

/// The lanes of a machine, with the policy and the sizes that fit it.
pub(super) struct LanePlan {
    /// The policy as it applies to the machine.
    pub(super) policy: Policy,
    /// Tokens of a prefill chunk.
    pub(super) chunk_tokens: usize,
    /// Options of every lane's executor.
    pub(super) exec: ExecutorOptions,
    /// Each lane with the calls that it runs; the one that runs any shape comes last.
    pub(super) duties: Vec<(Lane, Duty)>,
    /// Whether a kernel may never end.
    pub(super) kernels_hang: bool,
}

impl LanePlan {
    /// The plan for a loader's machine.
    pub(super) fn of(
        loader: &Loader,
        policy: Policy,
        options: &EngineOptions,
        machine: &dyn Machine,
    ) -> Result<Self, EngineError> {
        let manifest = loader.bundle().manifest();
        let step = rows_step(policy.prefill.switching);
        // A text that is not cut needs rows for all of it.
        let whole_tokens = match manifest.vectors {
            Some(vectors) if is_whole(vectors) => manifest.model.context_tokens as usize,
            _ => 0,
        };
        let asked = chunk_tokens(loader, options.exec.chunk_tokens, step);
        let chunk_tokens = asked.max(whole_tokens);
        let facts = MachineFacts {
            lanes: loader.lanes(),
            flash: options.flash.is_some(),
            kernels_hang: loader.may_hang() || machine.hangs_on_cpu(),
        };
        let policy = policy_for(policy, &facts, loader)?;
        // The head gives logits of every row that is verified, and of texts that are pooled many rows.
        let head_rows = match options.speculation {
            _ if manifest.vectors.is_some() => POOLED_ROWS,
            Speculation::Off => 0,
            Speculation::Chain | Speculation::Tree => policy.decode.draft_rows_max,
        };
        let exec = ExecutorOptions {
            chunk_tokens: prefill_tokens_max(&policy, chunk_tokens).max(whole_tokens),
            batch: policy.decode.batch_max.max(head_rows) as usize,
            switching: policy.prefill.switching,
            ..options.exec
        };
        Ok(Self {
            policy,
            chunk_tokens,
            exec,
            duties: duties(facts.lanes, options.lanes),
            kernels_hang: facts.kernels_hang,
        })
    }

    /// The turns that lanes take on the machine's devices: none where kernels may hang, since the time in which one waits for
    /// its turn would be taken for one in which it hangs.
    pub(super) fn turns(&self, of_machine: EngineTurns) -> EngineTurns {
        match self.kernels_hang {
            true => EngineTurns::default(),
            false => of_machine,
        }
    }

    /// Begins to prepare the kernels of every lane.
    pub(super) fn executors(
        &self,
        loader: &Arc<Loader>,
    ) -> Result<Vec<(Lane, Executor)>, EngineError> {
        let lanes = self.duties.iter();
        let executors = lanes.map(|(lane, duty)| {
            let executor = Executor::with_duty(Arc::clone(loader), *duty, self.exec)?;
            Ok((*lane, executor))
        });
        executors.collect()
    }
}

/// Rows of texts that the head norms at a time. Chosen: a launch costs little beside them, and their outputs are small.
const POOLED_ROWS: u32 = 128;

/// Returns the calls that each lane's executor runs: a single lane runs every call.
fn duties(machine: MachineLanes, lanes: Lanes) -> Vec<(Lane, Duty)> {
    if !machine.npu || lanes == Lanes::Single {
        return vec![(machine.dynamic, Duty::All)];
    }
    vec![(Lane::Npu, Duty::Static), (machine.dynamic, Duty::Dynamic)]
}

/// Returns the policy as it applies to the loader's machine.
fn policy_for(
    policy: Policy,
    facts: &MachineFacts,
    loader: &Loader,
) -> Result<Policy, EngineError> {
    let name = policy.name.clone();
    for_machine(policy, facts).map_err(|NoLane(device)| EngineError::PolicyDevice {
        policy: name,
        device,
        soc: loader.soc().name.clone(),
    })
}

/// Tokens of a prefill chunk: as many as asked for, or the next smaller number that the NPU has kernels for. Chunks
/// are never padded: the padding would overwrite rows of the next chunk, which may be in progress.
fn chunk_tokens(loader: &Loader, asked: usize, step: usize) -> usize {
    let asked = match asked.max(1) {
        few if few < step => few,
        many => many - many % step,
    };
    if !loader.lanes().npu {
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
