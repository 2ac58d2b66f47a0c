//! Simulates schedulers in virtual time: the behaviour of a policy with given requests on a given machine.
//!
//! A [`Trace`](heg_workload::Trace) of requests, a [`Scheduler`](heg_sched::Scheduler), its [`Costs`](heg_sched::Costs)
//! and a [`Machine`] go into [`simulate`]; a [`Run`] comes out, with its [`Metrics`]. Kernels take the time that their
//! costs predict, stretched when devices compete for the memory ([`DramModel`]). Nothing depends on the clock, on
//! threads or on the order of a hash map: equal input gives equal output.
//!
//! [`Checked`] watches any scheduler and reports every violated [`SchedulerInvariant`].
//!
//! ```
//! use heg_sched::{AgentXpu, CachedCosts, Class, Micros};
//! use heg_sim::{AnalyticCosts, Dimensions, Machine, Metrics, simulate};
//! use heg_workload::{Arrival, Trace, TraceRequest};
//!
//! // A person asks while a background prompt of 4,000 tokens is computed.
//! let lone = |class, at, tokens| TraceRequest::lone(class, Arrival::At(Micros(at)), tokens, 20);
//! let trace = Trace {
//!     requests: vec![lone(Class::Proactive, 0, 4000), lone(Class::Reactive, 500_000, 200)],
//! };
//! let costs = CachedCosts::new(AnalyticCosts::core_ultra_5_125h(Dimensions::llama_3b()));
//! let ttft_secs = |policy| {
//!     let mut scheduler = AgentXpu::new(policy, &costs);
//!     let run = simulate(&mut scheduler, &costs, &Machine::default(), &trace)?;
//!     Ok::<f64, heg_sim::SimulationError>(Metrics::of(&run).reactive.ttft_secs_mean)
//! };
//! let shipped = heg_spec::shipped::policy("agent-xpu")?;
//! let mut patient = shipped.clone();
//! patient.prefill.preempt = false;
//! assert!(ttft_secs(shipped)? < ttft_secs(patient)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod analytic;
mod bound;
mod check;
mod drafts;
mod drift;
mod duration;
mod engine;
mod fault;
mod memory;
mod meter;
mod metrics;
mod power;
mod rivals;
mod serve;
mod sheet;

pub use analytic::{AnalyticCosts, DevicePeak, Dimensions};
pub use bound::{DecodeKernels, Division, LatencyBound, TraceExtent};
pub use check::{Checked, Rules, SchedulerInvariant, Violation};
pub use drafts::{DraftRecord, DraftRecordError, DraftRecords, DraftedSteps, SimulatedDrafts};
pub use drift::SpeedDrift;
pub use duration::duration;
pub use engine::{LaunchSpan, Machine, Run, SimulationError, simulate};
pub use fault::{Faults, Flaw, Interruption, LaunchFault};
pub use memory::DramModel;
pub use meter::{RequestRecord, ResourceUsage};
pub use metrics::{ClassMetrics, Metrics};
pub use power::{PowerModel, StagePower};
pub use rivals::{Contender, Rival};
pub use serve::Platform;
pub use sheet::{ModelSheet, SheetError};
