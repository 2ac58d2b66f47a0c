//! Runs the kernels of a bundle: assigns them to devices, makes their forms, and manages their memory.
//!
//! A [`Loader`] finds the devices and descends the ladder; an [`Executor`] prepares the kernels of a lane and runs
//! launches over rows of [`mem`]. [`diagnose`] tests every form of every kernel, [`LoneKernel`] runs one alone, for
//! [`profile`] to measure. This crate knows neither requests nor the order in which they run.

mod answers;
mod backend;
mod batch;
mod child;
mod descents;
mod doctor;
mod duty;
mod embedding;
mod error;
mod every_row;
mod executor;
mod executor_options;
mod form;
mod gpu_examiner;
mod gpu_process;
mod gpu_report;
mod gpu_verdict;
mod kernels;
mod known_cuts;
mod ladder;
mod loader;
mod lone;
pub mod mem;
mod npu;
mod orders;
mod padding;
mod pair_ways;
mod parts;
mod place;
#[allow(unsafe_code, reason = "advice on memory mappings")]
mod platform;
mod prepared;
pub mod profile;
mod recheck;
mod soc;
mod stage_orders;
mod state_form;
mod table;
mod unchanged;
mod verdict_file;
pub mod verdicts;
mod warm;

pub use backend::{
    CutCounts, HandOvers, LoadPermit, MovedCaches, PairLanes, PairedRoles, Partition, WorkItem,
};
pub use batch::{Batch, Coming, GoesOn};
pub use descents::Descents;
pub use doctor::{Diagnosis, Examined, TestOutcome, clear_quarantine, diagnose};
pub use duty::Duty;
pub use embedding::TokenRun;
pub use error::{ExecError, ExitStatus, Loss, chain};
pub use executor::{Executor, Sequence};
pub use executor_options::ExecutorOptions;
pub use gpu_examiner::{GpuExaminer, examine};
pub use gpu_process::GpuProcess;
pub use gpu_report::{GpuFailure, GpuReport};
pub use gpu_verdict::GpuVerdict;
pub use ladder::{
    Descent, DescentStep, DeviceFacts, GpuFacts, Misfit, NpuFacts, Reason, Rung, RungSource,
    summary,
};
pub use loader::Loader;
#[cfg(test)]
pub(crate) use loader::core_or_skip;
pub use lone::LoneKernel;
pub use npu::{BlobFit, NpuReport};
pub use padding::{padded, rows_step};
pub use pair_ways::PairWay;
pub use place::Place;
pub use stage_orders::StageOrders;
pub use warm::{WarmForms, Warmer};
