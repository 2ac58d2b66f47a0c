//! Policy files: all constants of a scheduler, and which of its mechanisms are on.
//!
//! Section numbers are those of Agent.xpu v2 unless another paper is named. An optional mechanism that is `None` is
//! off, which is how ablations remove it; the scheduler has no constants of its own.

use serde::Deserialize;

use crate::error::SpecError;
use crate::source::{Problems, Source};
use crate::vocabulary::DeviceClass;

/// The rules by which requests share the devices.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Name, e.g. `agent-xpu`.
    pub name: String,
    /// The scheduler that the policy is for.
    pub scheduler: SchedulerKind,
    /// The device of a single-device scheduler.
    #[serde(default = "default_device")]
    pub device: DeviceClass,
    /// Prefill of prompts.
    #[serde(default)]
    pub prefill: PrefillPolicy,
    /// Decoding of tokens.
    #[serde(default)]
    pub decode: DecodePolicy,
    /// Drafting of tokens (sd.npu).
    #[serde(default)]
    pub drafts: DraftPolicy,
    /// Promotion of proactive requests that have waited long (4.5).
    #[serde(default)]
    pub ageing: Option<Ageing>,
    /// Dispatch by memory pressure (v1 6.4).
    #[serde(default)]
    pub pressure: Option<Pressure>,
    /// Running kernels on two devices together (HeteroLLM 4). A single-device scheduler has the pair as its device;
    /// with the others each device has its lane, and reactive work on one also takes the other device while that is
    /// idle. `None`: never.
    #[serde(default)]
    pub pair: Option<Pairing>,
    /// Limits, and what happens at them.
    #[serde(default)]
    pub limits: Limits,
}

/// Settings for running every kernel on two devices together (HeteroLLM).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pairing {
    /// Granularity of the division of work.
    pub level: PairLevel,
    /// The way the two wait for each other.
    #[serde(default)]
    pub synchronisation: Synchronisation,
}

/// The granularity at which work is divided between the devices of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum PairLevel {
    /// Whole operators: products to the NPU's role, norms and attention to the other (HeteroLLM 4).
    Layer,
    /// Parts of operators, cut so that both devices finish together (HeteroLLM 4.1).
    Tensor,
}

/// The way two devices wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
pub enum Synchronisation {
    /// One sleeps for the predicted time of the other and then polls a flag stored beside the result (HeteroLLM 4.2).
    #[default]
    Fast,
    /// One sleeps until the other wakes it.
    Plain,
}

/// Schedulers. Those used only for comparison are in `heg-sim`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub enum SchedulerKind {
    /// Flow-aware coordination of NPU and iGPU (Agent.xpu).
    AgentXpu,
    /// One device, continuous batching, prompts in chunks beside the decode batch (OpenVINO, llama.cpp).
    ContinuousBatching,
    /// The same, and an iteration serves one class: while requests of people wait, they alone are in it.
    PriorityBatching,
}

/// Settings for prefill.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefillPolicy {
    /// Whether reactive requests preempt proactive prefills at kernel boundaries (4.4).
    pub preempt: bool,
    /// Whether token-wise kernels of reactive requests are split over NPU and iGPU while nothing decodes
    /// (4.3, Algorithm 1).
    pub elastic: bool,
    /// Whether these kernels are also split while only proactive requests decode, and the longest time in milliseconds
    /// that this may delay an overdue one's next token: proactive answers yield the iGPU to reactive prompts. `None`:
    /// only while nothing decodes.
    #[serde(default)]
    pub split_beside_proactive_ms: Option<u32>,
    /// Whether token-wise kernels of proactive requests are split: dynamic load balancing (v1 6.5).
    pub balance: bool,
    /// Whether the remainder on the iGPU is delayed so that it ends no earlier than the chunks on the NPU (4.3).
    pub defer_remainder: bool,
    /// Whether, and with which kernels, attention may run on the NPU besides the iGPU (4.3).
    pub attention: NpuAttention,
    /// Largest share of the bandwidth that a kernel on the NPU and decoding on the iGPU, of different classes, may want
    /// together (4.3). Above it they exclude each other, the reactive one first. `None`: they never do.
    pub joint_bandwidth_max: Option<f64>,
    /// Order in which preempted requests resume.
    pub resume: Resume,
    /// Orders reactive prompts by arrival time plus this factor times their remaining prefill time: a short prompt
    /// overtakes a long one that came a little earlier, even if that has begun. `None`: by arrival.
    #[serde(default)]
    pub short_prompts_first: Option<f64>,
    /// Whether a waiting reactive prompt shorter than a chunk runs on the iGPU while the NPU runs another reactive
    /// prompt.
    #[serde(default)]
    pub short_prompts_aside: bool,
    /// Longest time, in milliseconds, for which a second reactive prompt of any length may delay reactive decoding on
    /// the iGPU. `None`: only short prompts run there, while no reactive request decodes.
    #[serde(default)]
    pub long_prompts_aside_ms: Option<u32>,
    /// Most tokens in a chunk of a proactive prompt. It bounds how long a reactive token waits for one of its kernels
    /// if one lane runs all kernels. `None`: as for any chunk.
    #[serde(default)]
    pub proactive_chunk_tokens: Option<u32>,
    /// Most tokens of a prompt that are on their way through the layers at once, in whole chunks and at least one: as many
    /// rows of activations does it take, however long it is (4.1). All rows are kept where all have logits.
    #[serde(default = "window_tokens")]
    pub window_tokens: u32,
    /// Schedule by which kernels that contain their weights are switched from prefill to the verification of drafts
    /// (sd.npu 3.2).
    #[serde(default)]
    pub switching: Switching,
}

/// Schedules for switching blocks of layers from the prefill graph to the verification graph, if graphs contain their
/// weights (sd.npu 3.2). Graphs whose weights are inputs take almost no memory, and nothing is switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
pub enum Switching {
    /// All graphs are loaded all the time.
    #[default]
    Resident,
    /// Loads are hidden behind as much computation as they take, from the last block on.
    Progressive,
}

/// The kernels for attention on the NPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum NpuAttention {
    /// Never.
    Off,
    /// With kernels compiled for a request while it waits (on-the-fly warm-up).
    WarmUp,
}

/// Order of preempted and waiting requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Resume {
    /// By arrival.
    Arrival,
    /// Overdue ones first, then by least estimated time to completion (v1 6.2).
    LeastTimeToCompletion,
}

/// Settings for decoding.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodePolicy {
    /// Largest batch.
    pub batch_max: u32,
    /// Largest batch while a reactive request decodes, unless there are more reactive ones (4.5, Algorithm 2). `None`:
    /// classes do not matter.
    pub reactive_batch_max: Option<u32>,
    /// If one lane runs all kernels: the largest factor by which proactive answers may lengthen an iteration of the
    /// reactive answers, as costs predict; overdue ones always take part. `None`: any factor, up to
    /// `reactive_batch_max`.
    #[serde(default)]
    pub reactive_slowdown_max: Option<f64>,
    /// Whether the longest sequences are left out first if the batch is too small for all.
    pub evict_longest: bool,
    /// Whether kernels of a prefill go before those of decoding on the iGPU (4.3).
    pub prefill_first: bool,
    /// If one lane runs all kernels: the share of its time that proactive prompts get while reactive requests decode,
    /// one kernel between two iterations, overdue or not. `None`: no time until they are overdue.
    #[serde(default)]
    pub proactive_share: Option<f64>,
    /// If one lane runs all kernels: a reactive answer goes before a reactive prompt that takes more than this many
    /// times as long as the answer's tokens so far. Most answers are short, so one that has just begun is likely to end
    /// soon. `None`: prompts first, as with an NPU.
    #[serde(default)]
    pub young_answers_first: Option<f64>,
    /// If one lane runs all kernels: a reactive answer goes before a reactive prompt that takes more than this many
    /// times as long as the tokens left to the answer, which is sure to end soon. `None`: prompts first.
    #[serde(default)]
    pub ending_answers_first: Option<f64>,
    /// Whether a whole layer is one kernel when a single request decodes (4.2).
    pub fused_layer: bool,
    /// Most rows of an iteration that verifies drafted tokens, the rows of the requests' own tokens included (sd.npu
    /// 4.1). 0: no drafts are verified.
    #[serde(default)]
    pub draft_rows_max: u32,
    /// Whether the NPU verifies the draft of one request while the lane of dynamic kernels decodes others, if costs
    /// predict a higher throughput together.
    #[serde(default)]
    pub second_lane: bool,
}

/// The mechanisms of drafts: the sources of drafted tokens, the estimates of their likelihood, and the number that is
/// verified. Drafts change the speed of an answer, not its content. The default enables the mechanisms that pay off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DraftPolicy {
    /// Whether to draft the tokens that followed the same tokens earlier in the prompt and the answer (sd.npu 4.1).
    pub context: bool,
    /// Whether to draft from earlier answers of the client in the same way.
    pub history: bool,
    /// Whether to draft from the answer that the client predicts.
    pub prediction: bool,
    /// Whether to draft tokens that are the only ones the answer's grammar allows.
    pub grammar: bool,
    /// Whether the most frequent continuation goes first, rather than the latest.
    pub frequencies: bool,
    /// Whether acceptance rates of drafted tokens are learnt, by the tokens' source.
    pub learning: bool,
    /// Tokens that are drafted for each request, whatever the cost of their rows. `None`: as many as pay off.
    pub fixed_tokens: Option<u32>,
    /// Whether idle lanes find out what the model thinks likely after each row of a prompt, to draft from it (sd.npu 3.3).
    pub calibration: bool,
    /// Whether the rest of a rejected draft is drafted again if the model still found it plausible (sd.npu 3.4).
    pub reuse: bool,
}

/// Settings for overdue proactive requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ageing {
    /// Time in a queue until a request is overdue, in milliseconds.
    pub threshold_ms: u32,
    /// Start of the wait after which a prompt gets the iGPU beside a reactive one.
    #[serde(default)]
    pub prompts_from: AgeingStart,
}

/// Start of a proactive prompt's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum AgeingStart {
    /// The prompt's arrival.
    #[default]
    Arrival,
    /// The moment when no other proactive prompt is ahead. Until then the prompt waits for its own class; under
    /// overload all prompts would be overdue if that time counted.
    Turn,
}

/// Tiers of memory pressure, as shares of the peak bandwidth (v1 6.4).
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pressure {
    /// Share from which on two memory-bound kernels do not run side by side.
    pub medium: f64,
    /// Share from which on kernels run one at a time, reactive ones first.
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
    /// Greatest share of time that the iGPU works, in percent: it rests after each launch to leave time for graphics
    /// (4.1). `None`: it never rests.
    #[serde(default)]
    pub igpu_percent_max: Option<u32>,
    /// Power that kernels side by side may draw together, in W, as far as costs know it (v1 6.2). `None`: no limit.
    #[serde(default)]
    pub power_watts_max: Option<u32>,
    /// Flash for the KV caches of idle flows that have to make room, in MiB; with 0, such caches are dropped.
    #[serde(default)]
    pub flash_mib: u32,
    /// A kernel counts as hung when it runs this many times longer than expected …
    pub timeout_factor: u32,
    /// … and at least this long, in milliseconds.
    pub timeout_min_ms: u32,
}

fn default_device() -> DeviceClass {
    DeviceClass::Igpu
}

/// The size of the paper's activation buffer (4.1).
const fn window_tokens() -> u32 {
    4096
}

impl Default for PrefillPolicy {
    /// All mechanisms off.
    fn default() -> Self {
        Self {
            preempt: false,
            elastic: false,
            split_beside_proactive_ms: None,
            balance: false,
            defer_remainder: false,
            attention: NpuAttention::Off,
            joint_bandwidth_max: None,
            resume: Resume::Arrival,
            short_prompts_first: None,
            short_prompts_aside: false,
            long_prompts_aside_ms: None,
            proactive_chunk_tokens: None,
            window_tokens: window_tokens(),
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
    /// All mechanisms but calibration and reuse, which gain little with the models that we measured.
    fn default() -> Self {
        Self {
            context: true,
            history: true,
            prediction: true,
            grammar: true,
            frequencies: true,
            learning: true,
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
        let window = policy.prefill.window_tokens;
        require(window >= 1, "prefill.window_tokens", "at least 1");
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
