//! Errors of serving requests, and the exit status of each.

use std::path::PathBuf;

use heg_exec::{ExecError, ExitStatus, chain};
use heg_text::TextError;
use thiserror::Error;

use crate::history::HistoryError;
use crate::request::AnswerKind;

/// An error of the engine.
#[derive(Debug, Error)]
pub enum EngineError {
    /// A kernel could not be prepared or run, or a request does not fit the model.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// The policy of a single lane cannot be read.
    #[error(transparent)]
    Spec(#[from] heg_spec::SpecError),
    /// A token could not be chosen.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The model gives answers of another kind.
    #[error("the model gives {}, and {} asked for: choose another model", gives.name(), match asked {
        AnswerKind::Tokens => "tokens were",
        AnswerKind::Vector => "the vector of a text was",
        AnswerKind::Score => "the score of a pair of texts was",
    })]
    Output {
        /// The kind that was asked for.
        asked: AnswerKind,
        /// The kind that the model gives.
        gives: AnswerKind,
    },
    /// A policy names a device that the machine has no lane for.
    #[error(
        "policy `{policy}` runs every kernel on the {device:?}, and machine `{soc}` has no such lane: \
         choose a policy for its devices, or another machine"
    )]
    PolicyDevice {
        /// Name of the policy.
        policy: String,
        /// The device that it names.
        device: heg_spec::DeviceClass,
        /// Name of the machine.
        soc: String,
    },
    /// A KV cache cannot be read back from flash.
    #[error("cannot read a KV cache back from flash")]
    Flash {
        /// The cause.
        source: std::io::Error,
    },
    /// A prefix cannot be read from kept state.
    #[error("cannot read a prefix from kept state")]
    KeptState(#[from] heg_state::Miss),
    /// The bundle has no baked state of a name.
    #[error(
        "the bundle has no state `{name}`, expected {}",
        match known[..] {
            [] => "none: `heg bake` makes one".to_owned(),
            _ => format!("one of `{}`", known.join("`, `")),
        }
    )]
    NoState {
        /// The name.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// Finished answers of earlier runs cannot be read or written.
    #[error("cannot use the history `{path}`", path = path.display())]
    History {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: HistoryError,
    },
    /// A lane cannot be used any more.
    #[error("the lane {lane:?} is lost: {why}")]
    LaneLost {
        /// The lane.
        lane: heg_sched::Lane,
        /// The reason that the lane gave.
        why: String,
    },
    /// A kernel ran far longer than expected, and its lane was reset.
    #[error("a kernel on lane {lane:?} did not end in time")]
    Hung {
        /// The lane.
        lane: heg_sched::Lane,
    },
    /// The engine was shut down, or could not prepare its kernels.
    #[error("the engine has stopped")]
    EngineStopped,
    /// The engine's thread panicked.
    #[error("the engine ended early; this is a bug")]
    EngineGone,
    /// An invariant that a check elsewhere keeps was broken.
    #[error(transparent)]
    Bug(#[from] heg_spec::Bug),
    /// The bundle's annotations cannot be read.
    #[error(transparent)]
    Annotations(#[from] heg_profiler::annotation::AnnotationError),
}

impl EngineError {
    /// Returns the error and its causes, on one line.
    pub fn chain(&self) -> String {
        chain(self)
    }

    /// Exit status of a process that ends with this error.
    pub fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Exec(error) => error.exit_status(),
            Self::Spec(_) => ExitStatus::Input,
            Self::History {
                source: HistoryError::File(_),
                ..
            } => ExitStatus::Environment,
            Self::History { .. } => ExitStatus::Input,
            Self::KeptState(_) => ExitStatus::Environment,
            Self::Flash { .. } | Self::Hung { .. } | Self::EngineStopped => ExitStatus::Environment,
            Self::Annotations(_) => ExitStatus::Incompatible,
            Self::PolicyDevice { .. }
            | Self::Output { .. }
            | Self::NoState { .. }
            | Self::Text(_) => ExitStatus::Input,
            Self::EngineGone | Self::LaneLost { .. } | Self::Bug(_) => ExitStatus::Bug,
        }
    }
}
