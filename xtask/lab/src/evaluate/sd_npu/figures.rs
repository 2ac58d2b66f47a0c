//! Figures of the paper (sd.npu, section 4) for comparison with ours, and the data compared with its own.
//! `papers/sd-npu.ron` describes each figure.

use super::super::cited::{self, Cited};
use super::System;
use anyhow::Result;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Figures {
    pub(super) accepted: Cited<BTreeMap<String, [f64; 4]>>,
    pub(super) gains: Cited<Vec<Gain>>,
    pub(super) decoding: Cited<[f64; 2]>,
    pub(super) ablation: Cited<BTreeMap<String, [f64; STEPS.len()]>>,
    pub(super) added_by_switching: Cited<(String, f64)>,
    pub(super) calibration_gains: Cited<[f64; 2]>,
}

/// Gains over a system, in time and in energy: the smallest and the largest.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Gain {
    pub(super) against: System,
    pub(super) speed: [f64; 2],
    pub(super) energy: [f64; 2],
}

/// The paper's figures.
pub(super) fn figures() -> Result<Figures> {
    cited::read("sd.npu", include_str!("../../../papers/sd-npu.ron"))
}

/// A task: its name in the paper, and data of the same kind.
pub(super) struct Task {
    pub(super) name: &'static str,
    /// Names of the task's records from agent-30m, and from reference answers.
    pub(super) data: [&'static str; 2],
}

pub(super) const TASKS: [Task; 4] = [
    Task {
        name: "summary",
        data: ["agent-30m/summary", "wikinews"],
    },
    Task {
        name: "rag",
        data: ["agent-30m/context_qa", "mtrag_un"],
    },
    Task {
        name: "ui",
        data: ["agent-30m/ui_steps", "bfcl"],
    },
    Task {
        name: "tweet",
        data: ["agent-30m/auto_reply", "irc_groupchat"],
    },
];

/// The steps of the ablation.
pub(super) const STEPS: [&str; 5] = ["NPU", "+G", "+SD", "+G+SD", "all"];

/// The data of our ablation: documents and questions about them, of roughly the length of the paper's prompts.
pub(super) const ABLATION_DATA: &str = "mtrag_un";
