//! Figures of the paper (sd.npu, section 4), and the data that stand beside its own.

/// A task: its name in the paper, and data of the same kind.
pub(super) struct Task {
    pub(super) name: &'static str,
    /// Records of the tasks of agent-30m, and of reference answers.
    pub(super) data: [&'static str; 2],
    /// Tokens accepted in a verification, of Qwen2.5-1.5B: PLD, PLD and theirs, SAM, SAM and theirs (table 4).
    pub(super) accepted: [f64; 4],
}

pub(super) const TASKS: [Task; 4] = [
    Task {
        name: "summary",
        data: ["agent-30m/summary", "wikinews"],
        accepted: [2.53, 2.91, 3.60, 4.21],
    },
    Task {
        name: "rag",
        data: ["agent-30m/context_qa", "mtrag_un"],
        accepted: [3.19, 3.73, 4.42, 5.47],
    },
    Task {
        name: "ui",
        data: ["agent-30m/ui_steps", "bfcl"],
        accepted: [2.28, 2.64, 3.56, 4.01],
    },
    Task {
        name: "tweet",
        data: ["agent-30m/auto_reply", "irc_groupchat"],
        accepted: [2.53, 3.17, 3.57, 3.82],
    },
];

/// What theirs gains, over all their devices, models and tasks: the least and the most, in time and in energy (4.2).
pub(super) struct Gain {
    pub(super) against: super::System,
    pub(super) speed: [f64; 2],
    pub(super) energy: [f64; 2],
}

pub(super) const GAINS: [Gain; 4] = [
    Gain {
        against: super::System::Npu,
        speed: [1.14, 3.81],
        energy: [1.35, 4.18],
    },
    Gain {
        against: super::System::Cpu,
        speed: [1.06, 1.78],
        energy: [1.11, 2.50],
    },
    Gain {
        against: super::System::Sam,
        speed: [1.11, 2.53],
        energy: [1.07, 3.07],
    },
    Gain {
        against: super::System::Eagle,
        speed: [1.09, 1.80],
        energy: [1.77, 4.71],
    },
];

/// The steps of the ablation.
pub(super) const STEPS: [&str; 5] = ["NPU", "+G", "+SD", "+G+SD", "all"];

/// Times per token of the ablation, in ms, by model (table 3; Redmi K60 Pro, summaries).
pub(super) const ABLATION: [(&str, [f64; 5]); 3] = [
    ("qwen2.5-0.5b", [24.46, 23.43, 18.75, 18.45, 7.17]),
    ("qwen2.5-1.5b", [57.41, 47.72, 35.04, 25.35, 15.08]),
    ("llama-3.2-3b", [71.71, 70.03, 47.93, 46.25, 41.62]),
];

/// The data of our ablation: documents and questions about them, of about the length of the paper's prompts.
pub(super) const ABLATION_DATA: &str = "mtrag_un";

/// What naive asynchronous switching takes of the time without any (section 1; Qwen2.5-1.5B).
pub(super) const ASYNC: f64 = 1.949;

/// Gains of calibration and reuse in accepted tokens: least and most over all models and tasks (table 4).
pub(super) const ACCEPTANCE_GAINS: [(&str, [f64; 2]); 3] = [
    ("PLD of 10", [1.05, 1.25]),
    // The paper's has a history.
    ("SAM of 16", [1.06, 1.24]),
    ("SAM of 16, history", [1.06, 1.24]),
];

/// Gains of calibration and reuse over prompt look-up and over SAM: least and most (table 4).
pub(super) const CALIBRATION_GAINS: [f64; 2] = [1.05, 1.25];
