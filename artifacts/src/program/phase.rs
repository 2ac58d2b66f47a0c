//! Phases: steps that threads may be at together.
//!
//! Threads share out the rows of a call for steps on single rows, and each runs all of these that follow each other on
//! the rows that it took; products and attention are phases of their own, and one begins when all of the one before is
//! done. While one thread still reads a row in one step of
//! a phase, another may be writing in a later one, so buffers of one phase have places of their own.

use std::ops::Range;

use super::{Program, Step};

/// Steps that are begun when all before them are done.
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
    /// Its steps.
    pub fn steps(&self) -> Range<usize> {
        match self {
            Self::Rows(steps) => steps.clone(),
            Self::Product(step) | Self::Attention(step) => *step..step.saturating_add(1),
        }
    }
}

impl Program {
    /// Its steps in phases, in order.
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

    /// The phase of each step.
    pub fn phase_of_steps(&self) -> Vec<usize> {
        let phases = self.phases().into_iter().enumerate();
        phases
            .flat_map(|(index, phase)| phase.steps().map(move |_| index))
            .collect()
    }
}
