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
    /// Promotion of proactive requests that have waited long (4.5).
    #[serde(default)]
    pub ageing: Option<Ageing>,
    /// Dispatch by memory pressure (v1 6.4).
    #[serde(default)]
    pub pressure: Option<Pressure>,
    /// Limits, and what happens at them.
    #[serde(default)]
    pub limits: Limits,
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
    /// The same for proactive requests: dynamic load balancing (v1 6.5).
    pub balance: bool,
    /// Whether the remainder on the iGPU is put off so that it ends no earlier than the chunks on the NPU
    /// (4.3).
    pub defer_remainder: bool,
    /// Where attention may run besides the iGPU (4.3).
    pub attention: NpuAttention,
    /// Whether memory-bound kernels on the NPU and decoding on the iGPU, of different classes, exclude each
    /// other, the reactive one first (4.3); above this share of the bandwidth a kernel is memory-bound.
    pub defer_memory_bound: Option<f64>,
    /// Which preempted request goes on first.
    pub resume: Resume,
    /// Reactive prompts in the order of when they came plus this many times their length, the time that they need
    /// from here on: a short one overtakes a long one, also one under way, that came a little earlier. None: as they
    /// came.
    #[serde(default)]
    pub short_prompts_first: Option<f64>,
    /// Most tokens of a proactive prompt's chunk: as long as one of its kernels may a person's token wait where one
    /// lane has all kernels. None: those of any chunk.
    #[serde(default)]
    pub proactive_chunk_tokens: Option<u32>,
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
}

/// When a proactive request is overdue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ageing {
    /// Time in a queue, in milliseconds.
    pub threshold_ms: u32,
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
            balance: false,
            defer_remainder: false,
            attention: NpuAttention::Off,
            defer_memory_bound: None,
            resume: Resume::Arrival,
            short_prompts_first: None,
            proactive_chunk_tokens: None,
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
        let share = policy.prefill.defer_memory_bound;
        let valid = share.is_none_or(|share| (0.0..=1.0).contains(&share));
        require(valid, "prefill.defer_memory_bound", "a share from 0 to 1");
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
