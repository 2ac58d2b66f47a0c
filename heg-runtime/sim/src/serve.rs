//! A platform to simulate: a model on a machine, under any policy.

use heg_profiler::annotation::{SocAnnotation, of_data_sheet};
use heg_spec::Soc;

use super::engine::{Machine, Run, SimulationError, simulate};
use super::memory::DramModel;
use super::power::PowerModel;
use super::rivals::Contender;
use super::sheet::ModelSheet;
use heg_costs::AnnotatedCosts;
use heg_sched::{CachedCosts, Micros, Observed, Observer};
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
    /// The memory and power of the machine.
    pub machine: Machine,
}

impl Platform {
    /// Creates a platform of `sheet`'s model on the machine of a SoC file, prefilling in chunks of `chunk_tokens`. The
    /// sheet's annotations of the machine are kept; ceilings are those of the SoC file.
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
                memory: DramModel::of(&annotated).measured(costs.slowdowns().copied()),
                power: PowerModel::of(soc),
                reset: RESET,
                ..Machine::default()
            },
            costs,
        })
    }

    /// Simulates a trace under a contender's policy.
    pub fn serve(
        &self,
        contender: &Contender,
        trace: &Trace,
        timeline: bool,
    ) -> Result<Run, SimulationError> {
        let costs = CachedCosts::new(&self.costs);
        let machine = Machine {
            timeline,
            ..self.machine.clone()
        };
        simulate(&mut contender.scheduler(&costs), &costs, &machine, trace)
    }

    /// Simulates a trace as above, with an observer.
    pub fn observe(
        &self,
        contender: &Contender,
        trace: &Trace,
        observer: impl Observer,
    ) -> Result<Run, SimulationError> {
        let costs = CachedCosts::new(&self.costs);
        let mut observed = Observed::new(contender.scheduler(&costs), observer);
        simulate(&mut observed, &costs, &self.machine, trace)
    }
}
