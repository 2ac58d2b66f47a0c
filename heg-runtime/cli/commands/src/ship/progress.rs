//! The progress of a transfer: a bar on standard error for a person, or lines of JSON on standard output.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use heg_artifacts::plain::escape;
use heg_ship::{Amounts, TransferProgress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

/// The form of a command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// Text for people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Output {
    pub(crate) fn of(json: bool) -> Self {
        if json { Self::Json } else { Self::Text }
    }
}

/// Shows a transfer.
pub(crate) struct Shown {
    output: Output,
    bar: ProgressBar,
    arrived_bytes: AtomicU64,
    told: Mutex<Instant>,
}

impl Shown {
    /// A transfer that begins. `verb` is what happens, e.g. `fetching`.
    pub(crate) fn new(output: Output, verb: &'static str) -> Self {
        let template = format!(
            "{verb:<9} {{bar:30}} {{bytes}}/{{total_bytes}}  {{bytes_per_sec}}, {{eta}} left"
        );
        let style = ProgressStyle::with_template(&template);
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self {
            output,
            bar,
            arrived_bytes: AtomicU64::new(0),
            told: Mutex::new(Instant::now()),
        }
    }

    /// Ends the bar.
    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

impl TransferProgress for Shown {
    fn planned(&self, amounts: &Amounts) {
        match self.output {
            Output::Json => println!(
                "{}",
                json!({"event": "planned", "bundle_bytes": amounts.bundle_bytes,
                       "here_bytes": amounts.here_bytes, "fetch_bytes": amounts.fetch_bytes})
            ),
            Output::Text => {
                self.bar.set_length(amounts.fetch_bytes);
                self.bar.reset();
                self.bar.set_draw_target(ProgressDrawTarget::stderr());
            }
        }
    }

    fn arrived(&self, bytes: u64) {
        self.bar.inc(bytes);
        let arrived = self.arrived_bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.output == Output::Json {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.elapsed() > TELL_EVERY {
                *told = Instant::now();
                println!(
                    "{}",
                    json!({"event": "arrived", "bytes": arrived.saturating_add(bytes)})
                );
            }
        }
    }

    fn say(&self, text: &str) {
        self.bar.suspend(|| eprintln!("note: {}", escape(text)));
    }
}

/// Time between two lines of progress. Chosen.
const TELL_EVERY: Duration = Duration::from_millis(250);

/// A number of bytes for people, in units of ten.
pub(crate) fn bytes(count: u64) -> String {
    let (unit, divisor) = match count {
        0..1000 => return format!("{count} B"),
        1000..1_000_000 => ("kB", 1e3),
        1_000_000..1_000_000_000 => ("MB", 1e6),
        _ => ("GB", 1e9),
    };
    format!("{:.2} {unit}", count as f64 / divisor)
}

/// A span of time for people.
pub(crate) fn span(took: Duration) -> String {
    match took.as_secs() {
        0..60 => format!("{:.1} s", took.as_secs_f64()),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}
