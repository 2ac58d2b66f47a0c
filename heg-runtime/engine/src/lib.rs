//! The engine: a scheduler on real devices, serving many requests at once.
//!
//! One thread, the *conductor*, owns the scheduler, the clock and all memory: it turns requests, reports and time
//! into the scheduler's events and carries out its actions. Each lane is a thread of its own with an executor; it
//! runs one launch at a time and reports back, with the tokens that it chose. Requests come in through [`Engine`],
//! which any number of threads may hold, and each reports its tokens to the listener that came with it.
//!
//! This crate does not decide what runs next: [`heg_sched`] does.

mod baked;
#[cfg(feature = "faults")]
mod beliefs;
mod cache;
mod calibration;
mod conductor;
mod correction;
mod descents;
mod device_turns;
mod drafts;
mod engine;
mod error;
#[cfg(feature = "faults")]
mod faults;
mod flash;
mod generation;
mod health;
mod held;
pub mod history;
mod job;
mod kept;
mod lane;
mod lane_plan;
mod learnt;
mod live;
mod machine;
mod memory;
mod message;
mod options;
mod pace;
#[cfg(feature = "faults")]
mod platform;
mod prefix;
mod program_hash;
mod reclaim;
mod report;
mod request;
mod resident;
mod row_ring;
mod scores;
mod served;
mod serving;
mod shared_prompts;
mod single;
mod speeds;
mod status;
mod stopwatch;
mod successor;
mod thread;
mod touching;
mod vectors;
mod waits;
mod warming;
mod worker;

pub use baked::{BakedStatus, StateChoice, state_model};
pub use device_turns::DeviceTurns;
pub use drafts::{DraftCounts, DraftTexts, SourceCounts, Speculation};
pub use engine::Engine;
pub use error::EngineError;
#[cfg(feature = "faults")]
pub use faults::{Fault, FaultPlan, Rule, Victim};
pub use generation::Generation;
pub use health::{Health, LostLane};
pub use heg_draft::DraftSource;
#[cfg(feature = "faults")]
pub use heg_draft::Likely;
pub use kept::KeptStatus;
pub use options::{EngineOptions, Lanes};
pub use prefix::KeptPrompt;
pub use request::{AnswerKind, EndTokens, Ending, FinishReason, Request, ScopeId, Update};
pub use resident::{ResidentBudget, Stay};
pub use speeds::{annotations, executor_options};
pub use status::{IterationStatus, LaneStatus, PairStatus, PartStatus, Phases, Status};
pub use vectors::to_unit;
pub use waits::{Entry, WaitStatus};
