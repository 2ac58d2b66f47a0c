//! One request after the other on one system, in the simulator.

use super::hardware::{Decoder, Hardware, LONG_TOKENS, ModelShapes, OneStream, SHORT_TOKENS};
use anyhow::{Context, Result};
use heg_sched::{CachedCosts, Class, ClientId, Lane, Micros, SingleLane};
use heg_sim::{
    DraftRecord, DraftRecords, DraftedSteps, Machine, Metrics, PowerModel, SimulatedDrafts,
    simulate,
};
use heg_spec::{DeviceClass, shipped};
use heg_workload::{Arrival, Trace, TraceRequest};
use serde::Deserialize;
use xtask::fail::Fail;

/// The system that decodes. Prefill runs on the NPU in all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) enum System {
    /// The NPU decodes, one token at a time.
    Npu,
    /// The CPU decodes.
    Cpu,
    /// The NPU verifies drafts of suffix automata over context and history.
    Sam,
    /// The NPU verifies drafts of a draft model, which also runs on it: simulated as in the paper.
    Eagle,
    /// The NPU verifies our drafts, as chains of up to 16: the shipped policy `sd-npu`.
    NpuChains,
    /// The NPU verifies our drafts, as trees of 32 on its static chunk: no shipped policy.
    NpuTrees,
    /// The iGPU verifies our drafts, as chains of up to 16: HEG's scheduler under its other policies.
    Ours,
}

impl System {
    pub(super) const ALL: [Self; 7] = [
        Self::Npu,
        Self::Cpu,
        Self::Sam,
        Self::Eagle,
        Self::NpuChains,
        Self::NpuTrees,
        Self::Ours,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Npu => "NPU",
            Self::Cpu => "CPU",
            Self::Sam => "SAM-style",
            Self::Eagle => "EAGLE-style",
            Self::NpuChains => "sd-npu",
            Self::NpuTrees => "trees on the NPU",
            Self::Ours => "ours",
        }
    }

    fn decoder(self) -> Decoder {
        let of = |lane, rows| Decoder {
            lane,
            rows,
            draft_passes: 0,
        };
        match self {
            Self::Npu => of(Lane::Npu, Some(1)),
            Self::Cpu => of(Lane::Cpu, None),
            Self::Ours => of(Lane::Igpu, None),
            Self::Sam | Self::NpuChains | Self::NpuTrees => of(Lane::Npu, Some(SHORT_TOKENS)),
            Self::Eagle => Decoder {
                draft_passes: EAGLE_PASSES,
                ..of(Lane::Npu, Some(SHORT_TOKENS))
            },
        }
    }

    /// The acceptance record of its drafts.
    fn drafts(self, records: &DraftRecords, data: &str) -> Result<Option<DraftRecord>> {
        let method = match self {
            Self::Npu | Self::Cpu => return Ok(None),
            Self::Eagle => return Ok(Some(eagle())),
            Self::Sam => "SAM of 16, history",
            Self::NpuTrees => "tree of 32",
            Self::NpuChains | Self::Ours => "chain of 16",
        };
        recorded(records, data, method).map(|record| Some(record.clone()))
    }
}

/// Passes of EAGLE's draft model per verification: as many as give the tokens that the paper assumes to be accepted.
const EAGLE_PASSES: u32 = 5;

/// The paper's assumption: 5.5 tokens per verification, whatever the task (4.1).
fn eagle() -> DraftRecord {
    DraftRecord {
        data: "assumed".to_owned(),
        method: "EAGLE-2".to_owned(),
        answers: 1,
        prompt_tokens: 0,
        answer_tokens: 0,
        steps: [[5, 4, 4, 1], [5, 4, 5, 1]]
            .map(DraftedSteps::from)
            .to_vec(),
    }
}

/// The record of a data set and a drafting method.
pub(super) fn recorded<'r>(
    records: &'r DraftRecords,
    data: &str,
    method: &str,
) -> Result<&'r DraftRecord> {
    let found = records.find(data, method);
    found.with_context(|| Fail::input(format!("no record of `{method}` on `{data}`")))
}

/// The cost of a data set's requests on a system.
#[derive(Debug, Clone, Copy)]
pub(super) struct Served {
    pub(super) prompt_tokens: u32,
    pub(super) answer_tokens: u32,
    /// Time from a request's arrival to its last token, per token of its answer.
    pub(super) ms_per_token: f64,
    /// Time from the first token to the last, per token.
    pub(super) decode_ms_per_token: f64,
    /// Energy per token; `None` if the machine's file does not state the decoder's power.
    pub(super) joules_per_token: Option<f64>,
}

/// Number of requests, each with its own drafts.
const REQUESTS: u64 = 32;
const SEED: u64 = 17;

/// Serves requests of a data set's mean lengths.
pub(super) fn serve(
    hardware: &Hardware,
    model: ModelShapes,
    system: System,
    records: &DraftRecords,
    data: &str,
) -> Result<Served> {
    let lengths = recorded(records, data, "chain of 16")?;
    let decoder = system.decoder();
    let costs = OneStream {
        machine: hardware.costs(model),
        decoder,
    };
    let costs = CachedCosts::new(costs);
    let drafts = system.drafts(records, data)?;
    let mut policy = shipped::policy("igpu-continuous-batching")?;
    policy.device = DeviceClass::Npu;
    policy.limits.tokens_per_iteration = LONG_TOKENS;
    policy.decode.draft_rows_max = drafts.as_ref().map_or(0, |_| SHORT_TOKENS);
    let mut power = PowerModel::default();
    let (prefill, decode) = (hardware.power(Lane::Npu), hardware.power(decoder.lane));
    if let (Some(prefill), Some(decode)) = (prefill, decode) {
        power.lanes[Lane::Npu as usize] = heg_sim::StagePower {
            prefill_watts: prefill.prefill_watts,
            decode_watts: decode.decode_watts,
        };
    }
    let machine = Machine {
        power,
        drafts: drafts.map(|record| SimulatedDrafts::new(&record, SEED)),
        ..Machine::default()
    };
    let trace = trace(lengths);
    let mut scheduler = SingleLane::new(policy, &costs);
    let refuse = || {
        let (soc, model) = (hardware.name(), model.name);
        Fail::check(format!("{} with `{model}` on `{soc}`", system.name()))
    };
    let run = simulate(&mut scheduler, &costs, &machine, &trace).with_context(refuse)?;
    let metrics = Metrics::of(&run);
    let tokens = f64::from(lengths.answer_tokens) * REQUESTS as f64;
    let known = prefill.is_some() && decode.is_some();
    Ok(Served {
        prompt_tokens: lengths.prompt_tokens,
        answer_tokens: lengths.answer_tokens,
        ms_per_token: 1e3 * metrics.all.latency_secs_mean / f64::from(lengths.answer_tokens),
        decode_ms_per_token: 1e3 * metrics.all.tpot_secs_mean,
        joules_per_token: known.then(|| run.usage.energy_joules / tokens),
    })
}

/// Requests that each arrive when the previous answer has ended.
fn trace(lengths: &DraftRecord) -> Trace {
    let request = |index: u64| TraceRequest {
        client: ClientId::default(),
        arrival: match index.checked_sub(1) {
            None => Arrival::At(Micros(0)),
            Some(request) => Arrival::After {
                request,
                pause: Micros(0),
                not_before: Micros(0),
            },
        },
        class: Class::Reactive,
        flow: None,
        ends_flow: false,
        prompt_tokens: lengths.prompt_tokens.max(1),
        shared_tokens: 0,
        output_tokens: lengths.answer_tokens.max(1),
        // The scheduler does not know where an answer will end.
        output_tokens_max: 512.max(lengths.answer_tokens),
        deadline_after: None,
        cancel_after: None,
    };
    Trace {
        requests: (0..REQUESTS).map(request).collect(),
    }
}
