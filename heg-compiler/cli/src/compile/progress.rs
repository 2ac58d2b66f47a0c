//! The progress of a compile, on the terminal.

use crate::terminal::note;
use heg_compiler::{Phase, Progress, Unit};
use indicatif::{ProgressBar, ProgressStyle};

/// The compiler's progress on the terminal: one bar, named after the phase.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::new(0);
        Self(bar)
    }

    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Progress for Bar {
    fn begin(&self, phase: Phase, total: u64) {
        let template = match phase.unit() {
            Unit::Bytes => "{msg:<34} {wide_bar} {bytes}/{total_bytes}",
            Unit::Blobs => "{msg:<34} {wide_bar} {pos}/{len} blobs, {eta} left",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.0.set_style(style);
        }
        self.0.set_message(phase.describe());
        self.0.set_length(total);
        self.0.set_position(0);
    }

    fn advance(&self, amount: u64) {
        self.0.inc(amount);
    }

    fn note(&self, text: &str) {
        self.0.suspend(|| note(text));
    }
}
