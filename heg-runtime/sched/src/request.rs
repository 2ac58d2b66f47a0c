//! Names and properties of requests.

use std::fmt;
use std::ops::{Add, Sub};

use heg_spec::DeviceClass;
use serde::{Deserialize, Serialize};

/// A point in time, or a span of it, in whole microseconds. Points count from any fixed start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Micros(pub u64);

impl Micros {
    /// Returns the nearest whole microsecond; 0 for negative values and NaN.
    pub fn from_f64(micros: f64) -> Self {
        // `as` saturates, and turns NaN into 0.
        Self(micros.round() as u64)
    }

    /// Converts milliseconds.
    pub fn from_millis(millis: u32) -> Self {
        Self(u64::from(millis) * 1000)
    }

    /// Returns the time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time in seconds.
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl Add for Micros {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Micros {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.since(other)
    }
}

/// A request. The caller chooses the number; it may not be used again while the request lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A flow: calls of one agent that build on each other, whose KV cache outlives the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub u64);

/// A client: requests of one rank take turns between clients, each of which has its share of time and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ClientId(pub u64);

/// The urgency of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// A person waits for it.
    Reactive,
    /// Background work.
    Proactive,
}

/// A device in the role that it plays; each runs one kernel at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// Static kernels.
    Npu,
    /// Dynamic kernels.
    Igpu,
    /// Dynamic kernels if there is no iGPU, and the compilation of kernels while the other lanes run.
    Cpu,
}

impl Lane {
    /// All lanes.
    pub const ALL: [Self; 3] = [Self::Npu, Self::Igpu, Self::Cpu];
}

impl From<DeviceClass> for Lane {
    /// Returns the lane of a device in the role that a policy names.
    fn from(class: DeviceClass) -> Self {
        match class {
            DeviceClass::Npu => Self::Npu,
            DeviceClass::Igpu => Self::Igpu,
            DeviceClass::Cpu => Self::Cpu,
        }
    }
}

/// The rows of a prompt whose logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PromptLogits {
    /// The last one, for the first token of the answer.
    #[default]
    LastRow,
    /// Every row, to compute the prompt's likelihood: every segment passes the whole last layer.
    AllRows,
    /// Every row of a prompt that runs in one segment: its tokens see each other, or one result is made of all its rows.
    WholePrompt,
}

impl PromptLogits {
    /// Whether every segment passes the whole last layer.
    pub fn is_of_all_rows(self) -> bool {
        match self {
            Self::LastRow => false,
            Self::AllRows | Self::WholePrompt => true,
        }
    }
}

/// A request as it is submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submission {
    /// The request.
    pub id: RequestId,
    /// The client whose turn it takes.
    pub client: ClientId,
    /// The flow that it continues, if any.
    pub flow: Option<FlowId>,
    /// The urgency of the request.
    pub class: Class,
    /// Tokens of the prompt, including those that the flow has in its cache; at least 1.
    pub prompt_tokens: u32,
    /// Leading tokens of the prompt that are the same as in the flow's last call, answer included.
    pub shared_tokens: u32,
    /// Leading tokens of the prompt that can be read from kept state, whatever its flow has.
    pub kept_tokens: u32,
    /// Most tokens of the answer; at least 1. The scheduler has no better estimate of its length.
    pub output_tokens_max: u32,
    /// The time after which the answer is worthless.
    pub deadline: Option<Micros>,
    /// The rows of the prompt that have to pass the last layer. If it is all of them, no estimate includes the time
    /// of the head on them.
    pub prompt_logits: PromptLogits,
}

impl Submission {
    /// Leading tokens of the prompt that need not be computed, as far as the submission says.
    pub(super) fn known_tokens(&self) -> u32 {
        self.shared_tokens.max(self.kept_tokens)
    }

    /// Room that it needs in the KV cache, in tokens: for the prompt and the longest answer.
    pub(super) fn tokens_max(&self, context_tokens: u32) -> u32 {
        self.prompt_tokens
            .saturating_add(self.output_tokens_max)
            .min(context_tokens)
            .max(self.prompt_tokens)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}", self.0)
    }
}
