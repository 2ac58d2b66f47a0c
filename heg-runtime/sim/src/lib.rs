//! Simulates schedulers in virtual time: what would this policy do with these requests on that machine?
//!
//! A [`Trace`](heg_workload::Trace) of requests, a [`Scheduler`](heg_sched::Scheduler), its [`Costs`](heg_sched::Costs) and a
//! [`Machine`] go into [`simulate`]; a [`Run`] comes out, and [`Metrics`] of it. Kernels take the time that
//! their costs say, stretched when devices compete for the memory ([`DramModel`]). Nothing depends on the clock,
//! on threads or on the order of a hash map: equal input gives equal output.
//!
//! [`Checked`] watches any scheduler and reports every violated [`SchedulerInvariant`].

mod analytic;
mod check;
mod drafts;
mod duration;
mod engine;
mod fault;
mod memory;
mod meter;
mod metrics;
mod power;
mod serve;
mod sheet;

pub use analytic::{AnalyticCosts, DevicePeak, Dimensions};
pub use check::{Checked, Rules, SchedulerInvariant, Violation};
pub use drafts::{DraftRecord, DraftRecordError, DraftRecords, DraftedSteps, SimulatedDrafts};
pub use duration::duration;
pub use engine::{LaunchSpan, Machine, Run, SimulationError, simulate};
pub use fault::{Faults, Flaw, Interruption, LaunchFault};
pub use memory::DramModel;
pub use meter::{RequestRecord, ResourceUsage};
pub use metrics::{ClassMetrics, Metrics};
pub use power::{PowerModel, StagePower};
pub use serve::Platform;
pub use sheet::{ModelSheet, SheetError};
