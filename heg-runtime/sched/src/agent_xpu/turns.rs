//! Turns of prompts and answers on the lane of dynamic kernels.

/// The turns so far.
///
/// - Answers are next from a prompt's kernel until decoding goes before prompts.
/// - The time that prompts had is counted from the last iteration that ended.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    answers_are_next: bool,
    prompts_us: f64,
    iteration_us: f64,
}

impl Turns {
    /// Notes that a prompt's kernel has the lane.
    pub(super) fn prompt_goes(&mut self) {
        self.answers_are_next = true;
    }

    /// Notes that decoding has the lane before prompts.
    pub(super) fn answers_go(&mut self) {
        self.answers_are_next = false;
    }

    /// Whether decoding is next, because a prompt had the last turn.
    pub(super) fn answers_are_next(&self) -> bool {
        self.answers_are_next
    }

    /// Counts the time of a prompt's work, in µs.
    pub(super) fn prompt_ran(&mut self, us: f64) {
        self.prompts_us += us;
    }

    /// Notes that an iteration ended whose launch took `us` µs.
    pub(super) fn iteration_ran(&mut self, us: f64) {
        self.prompts_us = 0.0;
        self.iteration_us = us;
    }

    /// Whether prompts have had as much time as the last iteration since it ended.
    pub(super) fn prompts_had_an_iteration(&self) -> bool {
        self.prompts_us >= self.iteration_us
    }
}
