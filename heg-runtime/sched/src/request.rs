//! What requests are known by.

use std::fmt;
use std::ops::{Add, Sub};

use heg_spec::DeviceClass;
use serde::{Deserialize, Serialize};

/// A point in time, or a span of it, in whole microseconds. Points count from any fixed start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Micros(pub u64);

impl Micros {
    /// The nearest whole microsecond; 0 for what is below, or no number.
    pub fn from_f64(micros: f64) -> Self {
        // `as` saturates, and takes NaN to 0.
        Self(micros.round() as u64)
    }

    /// So many milliseconds.
    pub fn from_millis(millis: u32) -> Self {
        Self(u64::from(millis) * 1000)
    }

    /// Time since `earlier`; zero if that is later.
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// In seconds.
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

/// How urgent a request is.
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
    /// Dynamic kernels where there is no iGPU, and what has to be compiled while the others run.
    Cpu,
}

impl Lane {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Npu, Self::Igpu, Self::Cpu];
}

impl From<DeviceClass> for Lane {
    /// The lane of a device in the role that a policy names.
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
    /// Every row, to know how likely the prompt is: none of them leaves out a part of the last layer.
    AllRows,
}

/// A request on its way in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submission {
    /// The request.
    pub id: RequestId,
    /// The flow that it goes on with, if any.
    pub flow: Option<FlowId>,
    /// How urgent it is.
    pub class: Class,
    /// Tokens of the prompt, those that the flow has in its cache included; at least 1.
    pub prompt_tokens: u32,
    /// Leading tokens of the prompt that are the same as in the flow's last call, answer included.
    pub shared_tokens: u32,
    /// Most tokens of the answer; at least 1. The scheduler knows no better when it will end.
    pub output_tokens_max: u32,
    /// When the answer is worth nothing any more.
    pub deadline: Option<Micros>,
    /// The rows of the prompt that have to pass the last layer. Where it is all of them, the time that the lanes take to
    /// run the head on them is in no estimate.
    pub prompt_logits: PromptLogits,
}

impl Submission {
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
