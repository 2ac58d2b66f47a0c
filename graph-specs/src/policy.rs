//! Policy files: every constant of a scheduler, and which of its mechanisms are on.
//!
//! Sections name Agent.xpu: v2 unless said. An optional mechanism that is `None` is off, which is what
//! ablations do; nothing in the scheduler has a constant of its own.

use serde::Deserialize;

use crate::error::SpecError;
use crate::source::{Problems, Source};
use crate::vocabulary::DeviceClass;

/// How requests share the devices.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Name, e.g. `agent-xpu`.
    pub name: String,
    /// Which scheduler it is for.
    pub scheduler: SchedulerKind,
    /// The device of schedulers that use a single one.
    #[serde(default = "default_device")]
    pub device: DeviceClass,
    /// How prompts are prefilled.
    #[serde(default)]
    pub prefill: PrefillPolicy,
    /// How tokens are decoded.
    #[serde(default)]
    pub decode: DecodePolicy,
    /// How tokens are drafted (sd.npu).
    #[serde(default)]
    pub drafts: DraftPolicy,
    /// Promotion of proactive requests that have waited long (4.5).
    #[serde(default)]
    pub ageing: Option<Ageing>,
    /// Dispatch by memory pressure (v1 6.4).
    #[serde(default)]
    pub pressure: Option<Pressure>,
    /// How two devices run kernels together (HeteroLLM 4). Schedulers of one device have them as that; with the others, each
    /// has its lane, and reactive work of one takes the other's device too while that is idle. None: never.
    #[serde(default)]
    pub pair: Option<Pairing>,
    /// Limits, and what happens at them.
    #[serde(default)]
    pub limits: Limits,
}

/// How two devices run every kernel together (HeteroLLM).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pairing {
    /// What is given to either.
    pub level: PairLevel,
    /// How they wait for each other.
    #[serde(default)]
    pub synchronisation: Synchronisation,
}

/// What is given to either device of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum PairLevel {
    /// Operators: products to the NPU's role, norms and attention to the other (HeteroLLM 4).
    Layer,
    /// Parts of operators, so that both end together (HeteroLLM 4.1).
    Tensor,
}

/// How two devices wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
pub enum Synchronisation {
    /// One sleeps as long as the other is predicted to need, and then polls a flag beside what that computes
    /// (HeteroLLM 4.2).
    #[default]
    Fast,
    /// One sleeps until the other wakes it.
    Plain,
}

/// Schedulers: the paper's, and those it is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub enum SchedulerKind {
    /// Flow-aware coordination of NPU and iGPU (Agent.xpu).
    AgentXpu,
    /// One device, continuous batching, prompts in chunks beside the decode batch (OpenVINO, llama.cpp).
    ContinuousBatching,
    /// One request at a time, its prefill split over NPU and iGPU (HeteroLLM).
    Serial,
    /// One device; a reactive request throws away the prefill of a proactive one (Fig. 6a).
    PreemptRecompute,
    /// One device; a reactive and a proactive stream take turns kernel by kernel (Fig. 6b).
    TimeSharing,
}

/// How prompts are prefilled.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefillPolicy {
    /// Whether reactive requests preempt proactive prefills at kernel boundaries (4.4).
    pub preempt: bool,
    /// Whether token-wise kernels of reactive requests are split over NPU and iGPU while nothing decodes
    /// (4.3, Algorithm 1).
    pub elastic: bool,
    /// Whether they are also split while only proactive requests decode, and for how long that may keep an overdue one
    /// from its next token, in milliseconds: an answer that nobody waits for gives the iGPU to a prompt that somebody
    /// waits for. None: only while nothing decodes.
    #[serde(default)]
    pub split_beside_proactive_ms: Option<u32>,
    /// The same for proactive requests: dynamic load balancing (v1 6.5).
    pub balance: bool,
    /// Time that waiting proactive prompts have to need before `balance` splits one, in milliseconds: a token takes three
    /// times as much energy on the iGPU. None: they always are.
    #[serde(default)]
    pub balance_above_ms: Option<u32>,
    /// Least tokens of a proactive prompt's remainder that runs on the NPU, padded to a chunk, also while the iGPU has
    /// nothing else to do; not while `balance` is asked for. None: remainders run on the iGPU.
    #[serde(default)]
    pub npu_remainder_tokens_min: Option<u32>,
    /// Whether the remainder on the iGPU is put off so that it ends no earlier than the chunks on the NPU
    /// (4.3).
    pub defer_remainder: bool,
    /// Where attention may run besides the iGPU (4.3).
    pub attention: NpuAttention,
    /// Share of the bandwidth that a kernel on the NPU and decoding on the iGPU, of different classes, may want together
    /// (4.3). Above it they exclude each other, the reactive one first. None: they never do.
    pub joint_bandwidth_max: Option<f64>,
    /// Which preempted request goes on first.
    pub resume: Resume,
    /// Reactive prompts in the order of when they came plus this many times their length, the time that they need
    /// from here on: a short one overtakes a long one, also one under way, that came a little earlier. None: as they
    /// came.
    #[serde(default)]
    pub short_prompts_first: Option<f64>,
    /// Whether a waiting reactive prompt shorter than a chunk has the iGPU while the NPU has another reactive one.
    #[serde(default)]
    pub short_prompts_aside: bool,
    /// Whether any other reactive prompt has it, the first that waits, also while reactive requests decode, and for how long
    /// that may keep one from its next token, in milliseconds. None: short ones have it, while no reactive request decodes.
    #[serde(default)]
    pub long_prompts_aside_ms: Option<u32>,
    /// Most tokens of a proactive prompt's chunk: as long as one of its kernels may a person's token wait where one
    /// lane has all kernels. None: those of any chunk.
    #[serde(default)]
    pub proactive_chunk_tokens: Option<u32>,
    /// How kernels that have their weights inside change from prompts to the verification of drafts (sd.npu 3.2).
    #[serde(default)]
    pub switching: Switching,
}

/// How blocks of layers are switched from the graph of prompts to that of verification, where graphs have their weights
/// inside (sd.npu 3.2). Graphs that are given their weights take next to no memory, and nothing is switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
pub enum Switching {
    /// All graphs are loaded all the time.
    #[default]
    Resident,
    /// Loads are hidden behind as much computation as they take, from the last block on.
    Progressive,
    /// A block is loaded as soon as it has computed the last chunk.
    Async,
    /// All blocks are loaded after the prompt.
    Sync,
}

/// Attention on the NPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum NpuAttention {
    /// Never.
    Off,
    /// With kernels compiled for a request while it waits (on-the-fly warm-up).
    WarmUp,
    /// With the static kernels of the bundle, where the iGPU would take longer, its queue included.
    Bundle,
}

/// Order of preempted and waiting requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Resume {
    /// As they came.
    Arrival,
    /// Least estimated time to completion first, overdue ones before all (v1 6.2).
    LeastTimeToCompletion,
}

/// How tokens are decoded.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodePolicy {
    /// Largest batch.
    pub batch_max: u32,
    /// Largest batch while a reactive request decodes, unless there are more reactive ones (4.5,
    /// Algorithm 2). None: classes do not matter.
    pub reactive_batch_max: Option<u32>,
    /// Where one lane has all kernels: most times as long as for the reactive answers alone that an iteration may take
    /// with proactive ones beside them, as costs say; overdue ones are in it anyway. None: any, up to
    /// `reactive_batch_max`.
    #[serde(default)]
    pub reactive_slowdown_max: Option<f64>,
    /// Whether the longest sequences are left out first when the batch is too small for all.
    pub evict_longest: bool,
    /// Whether kernels of a prefill go before those of decoding on the iGPU (4.3).
    pub prefill_first: bool,
    /// Where one lane has all kernels: share of its time that proactive prompts get while reactive requests decode, a
    /// kernel between two iterations, overdue or not. None: nothing, until they are overdue.
    #[serde(default)]
    pub proactive_share: Option<f64>,
    /// Where one lane has all kernels: a reactive answer goes before a reactive prompt that takes more than this many
    /// times as long as the answer's tokens so far. Most answers are short: one that has just begun is the likelier
    /// to end soon. None: prompts first, as with an NPU.
    #[serde(default)]
    pub young_answers_first: Option<f64>,
    /// Where one lane has all kernels: a reactive answer goes before a reactive prompt that takes more than this many
    /// times as long as the tokens that the answer may still have: it is sure to end soon. None: prompts first.
    #[serde(default)]
    pub ending_answers_first: Option<f64>,
    /// Whether a whole layer is one kernel when a single request decodes (4.2).
    pub fused_layer: bool,
    /// Most rows of an iteration that verifies drafted tokens, those of the requests' own tokens included (sd.npu 4.1).
    /// 0: none are verified.
    #[serde(default)]
    pub draft_rows_max: u32,
    /// Whether the NPU verifies the draft of one request while the lane of dynamic kernels decodes others, where costs say
    /// that both together give more.
    #[serde(default)]
    pub second_lane: bool,
}

/// The mechanisms of drafts: what tokens are drafted from, how likely ones are told, and how many are verified. Drafts
/// change how soon an answer comes, and not what it is. The default is what pays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DraftPolicy {
    /// Whether what came after the same tokens of the prompt and the answer so far is drafted (sd.npu 4.1).
    pub context: bool,
    /// The same of earlier answers of the client.
    pub history: bool,
    /// Whether what the client expects the answer to be is drafted.
    pub prediction: bool,
    /// Whether tokens are drafted that the answer's grammar alone allows.
    pub grammar: bool,
    /// Whether what came most often goes first, rather than what came last.
    pub frequencies: bool,
    /// Whether it is learnt how often drafted tokens turn out right, by where they come from.
    pub learning: bool,
    /// Whether several ways to go on are drafted where that is asked for.
    pub trees: bool,
    /// Tokens that are drafted for each request, whatever their rows take. None: as many as pay.
    pub fixed_tokens: Option<u32>,
    /// Whether prompts are read again for what the model found likely in them, on lanes that nothing else runs on, and
    /// drafted from (sd.npu 3.3).
    pub calibration: bool,
    /// Whether the rest of a rejected draft is drafted again where it still made sense to the model (sd.npu 3.4).
    pub reuse: bool,
}

/// When a proactive request is overdue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ageing {
    /// Time in a queue, in milliseconds.
    pub threshold_ms: u32,
    /// From when on a prompt has waited, before it has the iGPU beside a reactive one.
    #[serde(default)]
    pub prompts_from: AgeingStart,
}

/// From when on a proactive prompt has waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum AgeingStart {
    /// Since it came.
    #[default]
    Arrival,
    /// Since no other proactive prompt is before it. Behind those it waits for its own kind, and where more of them come
    /// than the machine can serve, all would be overdue.
    Turn,
}

/// Tiers of memory pressure, as shares of the peak bandwidth (v1 6.4).
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pressure {
    /// From here on, two memory-bound kernels do not run side by side.
    pub medium: f64,
    /// From here on, kernels run one at a time, reactive ones first.
    pub high: f64,
    /// Whether a proactive kernel beside a reactive one must end no later than it (v1 6.3).
    pub duration_bound: bool,
}

/// Limits, and what happens at them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Prompt tokens that a continuous-batching scheduler takes per iteration.
    pub tokens_per_iteration: u32,
    /// Most live requests; above it the youngest proactive one is shed, or the new one if none is proactive.
    pub requests_max: u32,
    /// Memory for KV caches, in MiB; requests wait for room.
    pub kv_mib: u32,
    /// Greatest share of time in which the iGPU works, in percent: it rests after each launch, and graphics has it then
    /// (4.1). None: it never rests.
    #[serde(default)]
    pub igpu_percent_max: Option<u32>,
    /// Power that kernels side by side may draw together, in W, as far as costs know it (v1 6.2). None: any.
    #[serde(default)]
    pub power_watts_max: Option<u32>,
    /// Flash for KV caches that idle flows have to make room with, in MiB; 0 gives them up instead.
    #[serde(default)]
    pub flash_mib: u32,
    /// A kernel hangs when it runs this many times longer than expected …
    pub timeout_factor: u32,
    /// … and at least this long, in milliseconds.
    pub timeout_min_ms: u32,
}

fn default_device() -> DeviceClass {
    DeviceClass::Igpu
}

impl Default for PrefillPolicy {
    /// All off.
    fn default() -> Self {
        Self {
            preempt: false,
            elastic: false,
            split_beside_proactive_ms: None,
            balance: false,
            balance_above_ms: None,
            npu_remainder_tokens_min: None,
            defer_remainder: false,
            attention: NpuAttention::Off,
            joint_bandwidth_max: None,
            resume: Resume::Arrival,
            short_prompts_first: None,
            short_prompts_aside: false,
            long_prompts_aside_ms: None,
            proactive_chunk_tokens: None,
            switching: Switching::Resident,
        }
    }
}

impl Default for DecodePolicy {
    /// Batches of 32, the paper's largest (4.1).
    fn default() -> Self {
        Self {
            batch_max: 32,
            reactive_batch_max: None,
            reactive_slowdown_max: None,
            evict_longest: false,
            prefill_first: false,
            proactive_share: None,
            young_answers_first: None,
            ending_answers_first: None,
            fused_layer: false,
            draft_rows_max: 0,
            second_lane: false,
        }
    }
}

impl Default for DraftPolicy {
    /// All but calibration and reuse, which gain little with the models that we measured.
    fn default() -> Self {
        Self {
            context: true,
            history: true,
            prediction: true,
            grammar: true,
            frequencies: true,
            learning: true,
            trees: true,
            fixed_tokens: None,
            calibration: false,
            reuse: false,
        }
    }
}

impl Limits {
    /// Memory for KV caches, in bytes.
    pub fn kv_bytes(&self) -> u64 {
        u64::from(self.kv_mib) * 1024 * 1024
    }

    /// Flash for KV caches of idle flows, in bytes.
    pub fn flash_bytes(&self) -> u64 {
        u64::from(self.flash_mib) * 1024 * 1024
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            tokens_per_iteration: 512,
            requests_max: 1024,
            kv_mib: 16 * 1024,
            igpu_percent_max: None,
            power_watts_max: None,
            flash_mib: 0,
            timeout_factor: 20,
            timeout_min_ms: 2000,
        }
    }
}

impl Policy {
    /// Parses and checks a policy file.
    pub fn parse(source: Source<'_>) -> Result<Self, SpecError> {
        let policy: Self = source.parse()?;
        let mut problems = Problems::new(source);
        let mut require = |holds: bool, path: &str, expected: &str| {
            if !holds {
                problems.push(path, format!("expected `{path}` to be {expected}"));
            }
        };
        let decode = &policy.decode;
        require(decode.batch_max >= 1, "decode.batch_max", "at least 1");
        let cap = decode.reactive_batch_max;
        require(cap != Some(0), "decode.reactive_batch_max", "at least 1");
        let times = decode.reactive_slowdown_max;
        let valid = times.is_none_or(|times| times >= 1.0 && times.is_finite());
        require(valid, "decode.reactive_slowdown_max", "finite, at least 1");
        let chunk = policy.prefill.proactive_chunk_tokens;
        require(
            chunk != Some(0),
            "prefill.proactive_chunk_tokens",
            "at least 1",
        );
        let share = decode.proactive_share;
        let valid = share.is_none_or(|share| 0.0 < share && share < 1.0);
        let expected = "a share above 0 and below 1";
        require(valid, "decode.proactive_share", expected);
        let factors = [
            ("decode.young_answers_first", decode.young_answers_first),
            ("decode.ending_answers_first", decode.ending_answers_first),
            (
                "prefill.short_prompts_first",
                policy.prefill.short_prompts_first,
            ),
        ];
        for (path, times) in factors {
            let valid = times.is_none_or(|times| times > 0.0 && times.is_finite());
            require(valid, path, "above 0 and finite");
        }
        let share = policy.prefill.joint_bandwidth_max;
        let valid = share.is_none_or(|share| (0.0..=1.0).contains(&share));
        require(valid, "prefill.joint_bandwidth_max", "a share from 0 to 1");
        if let Some(pressure) = policy.pressure {
            let ordered = 0.0 < pressure.medium && pressure.medium <= pressure.high;
            require(ordered, "pressure.medium", "above 0 and at most `high`");
            require(pressure.high.is_finite(), "pressure.high", "a finite share");
        }
        let limits = &policy.limits;
        require(
            limits.requests_max >= 1,
            "limits.requests_max",
            "at least 1",
        );
        require(limits.kv_mib >= 1, "limits.kv_mib", "at least 1");
        let percent = limits.igpu_percent_max;
        let valid = percent.is_none_or(|percent| (1..=100).contains(&percent));
        require(valid, "limits.igpu_percent_max", "from 1 to 100");
        require(
            limits.timeout_factor >= 2,
            "limits.timeout_factor",
            "at least 2",
        );
        let tokens = limits.tokens_per_iteration;
        require(tokens >= 1, "limits.tokens_per_iteration", "at least 1");
        problems.finish(policy)
    }
}
