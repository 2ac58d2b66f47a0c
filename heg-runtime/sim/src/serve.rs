//! A platform to simulate: a model on a machine, under any policy.

use heg_profiler::annotation::{SocAnnotation, of_data_sheet};
use heg_spec::policy::SchedulerKind;
use heg_spec::{Policy, Soc};

use super::engine::{Machine, Run, SimulationError, simulate};
use super::memory::DramModel;
use super::power::PowerModel;
use super::sheet::ModelSheet;
use heg_costs::AnnotatedCosts;
use heg_sched::{AgentXpu, CachedCosts, Costs, Micros, Observed, Observer, Scheduler, SingleLane};
use heg_workload::Trace;

/// Time that a lane takes to reset. Chosen; nothing fails in an evaluation.
const RESET: Micros = Micros(100_000);

/// A model on a machine.
#[derive(Debug, Clone)]
pub struct Platform {
    /// Name of the SoC file.
    pub soc: String,
    /// Name of the model.
    pub model: String,
    /// The costs of kernels.
    pub costs: AnnotatedCosts,
    /// Memory and power.
    pub machine: Machine,
}

impl Platform {
    /// `sheet`'s model on the machine of a SoC file, prefilling in chunks of `chunk_tokens`. The sheet's
    /// annotations of the machine are kept; ceilings are those of the SoC file.
    ///
    /// Errors: those of [`of_data_sheet`].
    pub fn new(
        soc: &Soc,
        sheet: &ModelSheet,
        chunk_tokens: u32,
    ) -> Result<Self, heg_profiler::annotation::AnnotationError> {
        let own = of_data_sheet(soc)?;
        let mut annotated: SocAnnotation = own.clone();
        if let Some(known) = sheet.annotations.soc(&soc.name) {
            annotated = known.clone();
            annotated.overlay(own);
        }
        let costs = AnnotatedCosts::new(
            &sheet.model,
            sheet.layers,
            &sheet.kernels,
            &annotated,
            chunk_tokens,
        );
        Ok(Self {
            soc: soc.name.clone(),
            model: sheet.model.name.clone(),
            machine: Machine {
                memory: DramModel::of(&annotated),
                power: PowerModel::of(soc),
                reset: RESET,
                ..Machine::default()
            },
            costs,
        })
    }

    /// Simulates a trace under a policy.
    pub fn serve(
        &self,
        policy: &Policy,
        trace: &Trace,
        timeline: bool,
    ) -> Result<Run, SimulationError> {
        let costs = CachedCosts::new(&self.costs);
        let machine = Machine {
            timeline,
            ..self.machine.clone()
        };
        simulate(&mut scheduler_of(policy, &costs), &costs, &machine, trace)
    }

    /// The same under an observer's eyes.
    pub fn observe(
        &self,
        policy: &Policy,
        trace: &Trace,
        observer: impl Observer,
    ) -> Result<Run, SimulationError> {
        let costs = CachedCosts::new(&self.costs);
        let mut observed = Observed::new(scheduler_of(policy, &costs), observer);
        simulate(&mut observed, &costs, &self.machine, trace)
    }
}

/// The scheduler that a policy asks for.
fn scheduler_of<'c, C: Costs>(policy: &Policy, costs: &'c C) -> Box<dyn Scheduler + 'c> {
    let policy = policy.clone();
    match policy.scheduler {
        SchedulerKind::AgentXpu | SchedulerKind::Serial => Box::new(AgentXpu::new(policy, costs)),
        SchedulerKind::ContinuousBatching
        | SchedulerKind::PreemptRecompute
        | SchedulerKind::TimeSharing => Box::new(SingleLane::new(policy, costs)),
    }
}
