//! Phases: steps that threads may run at the same time.
//!
//! Threads divide the rows of a call among them for steps on single rows, and each thread runs all consecutive such
//! steps on its rows; products and attention are phases of their own, and a phase begins when the one before is done.
//! While one thread still reads a row in one step of a phase, another may be writing in a later one, so buffers of one
//! phase have separate places.

use std::ops::Range;

use super::{Program, Step};

/// A group of steps that begins when all steps before it are done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepPhase {
    /// Steps on single rows, one after the other on the same thread.
    Rows(Range<usize>),
    /// A product, whose outputs the threads share.
    Product(usize),
    /// Attention, whose heads and rows the threads share.
    Attention(usize),
}

impl StepPhase {
    /// The steps of the phase.
    pub fn steps(&self) -> Range<usize> {
        match self {
            Self::Rows(steps) => steps.clone(),
            Self::Product(step) | Self::Attention(step) => *step..step.saturating_add(1),
        }
    }
}

impl Program {
    /// Returns the program's steps in phases, in order.
    pub fn phases(&self) -> Vec<StepPhase> {
        let mut phases = Vec::new();
        for (index, step) in self.steps.iter().enumerate() {
            let next = index.saturating_add(1);
            match (step, phases.last_mut()) {
                (Step::Product { .. }, _) => phases.push(StepPhase::Product(index)),
                (Step::Attention { .. }, _) => phases.push(StepPhase::Attention(index)),
                (_, Some(StepPhase::Rows(steps))) => steps.end = next,
                (_, _) => phases.push(StepPhase::Rows(index..next)),
            }
        }
        phases
    }

    /// Returns the phase of each step.
    pub fn phase_of_steps(&self) -> Vec<usize> {
        let phases = self.phases().into_iter().enumerate();
        phases
            .flat_map(|(index, phase)| phase.steps().map(move |_| index))
            .collect()
    }
}
