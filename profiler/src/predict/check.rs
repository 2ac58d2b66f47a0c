//! Predictions against measurements on calls that are not in the profile.
//!
//! The bounds are the project's own: a median error of at most 10 %, a 95th percentile of at most 25 %.

use std::fmt;

use super::{CallShape, LatencyTable};
use crate::measure::quantile;

/// One prediction beside its measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Name of the kernel, with the device if there are several.
    pub kernel: String,
    /// The call.
    pub call: CallShape,
    /// The measured latency, in µs.
    pub measured_us: f64,
    /// The predicted latency, in µs.
    pub predicted_us: f64,
    /// The prediction of the roofline alone, in µs.
    pub roofline_us: Option<f64>,
}

/// The prediction whose error is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PredictionSource {
    /// The prediction in use.
    Predicted,
    /// The roofline alone, for comparison.
    Roofline,
}

impl Comparison {
    /// |predicted − measured| / measured.
    pub fn error(&self) -> f64 {
        (self.predicted_us - self.measured_us).abs() / self.measured_us
    }

    fn error_of(&self, source: PredictionSource) -> Option<f64> {
        let predicted_us = match source {
            PredictionSource::Predicted => Some(self.predicted_us),
            PredictionSource::Roofline => self.roofline_us,
        };
        predicted_us.map(|us| (us - self.measured_us).abs() / self.measured_us)
    }
}

/// All comparisons of a check.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Check {
    /// The comparisons in the order of printing: kernel by kernel.
    pub comparisons: Vec<Comparison>,
}

impl Check {
    /// Largest median error that passes.
    pub const MEDIAN_MAX: f64 = 0.10;
    /// Largest 95th percentile of the error that passes.
    pub const P95_MAX: f64 = 0.25;

    /// Median and 95th percentile of the error, for one kernel or for all; `None` without comparisons.
    pub fn errors(&self, kernel: Option<&str>, source: PredictionSource) -> Option<(f64, f64)> {
        let of_kernel = |one: &&Comparison| kernel.is_none_or(|kernel| one.kernel == kernel);
        let comparisons = self.comparisons.iter().filter(of_kernel);
        let mut errors: Vec<f64> = comparisons.filter_map(|one| one.error_of(source)).collect();
        errors.sort_by(f64::total_cmp);
        Some((quantile(&errors, 0.5)?, quantile(&errors, 0.95)?))
    }

    /// Whether all kernels, each by itself and together, are within the bounds.
    pub fn passes(&self) -> bool {
        let within = |kernel| {
            self.errors(kernel, PredictionSource::Predicted)
                .is_some_and(|(median, p95)| median <= Self::MEDIAN_MAX && p95 <= Self::P95_MAX)
        };
        within(None)
            && self
                .kernels()
                .into_iter()
                .all(|kernel| within(Some(kernel)))
    }

    /// Names of the kernels, each once, in order.
    pub fn kernels(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for comparison in &self.comparisons {
            if names.last() != Some(&comparison.kernel.as_str()) {
                names.push(&comparison.kernel);
            }
        }
        names
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<10} {:>6} {:>7} {:>13} {:>13} {:>7}",
            "kernel", "c", "n", "measured", "predicted", "error"
        )?;
        for one in &self.comparisons {
            let context = match one.call.context {
                0 => "-".to_owned(),
                context => context.to_string(),
            };
            writeln!(
                f,
                "{:<10} {:>6} {:>7} {:>10.0} µs {:>10.0} µs {:>6.1}%",
                one.kernel,
                one.call.tokens,
                context,
                one.measured_us,
                one.predicted_us,
                100.0 * one.error()
            )?;
        }
        writeln!(
            f,
            "\n{:<10} {:>6} {:>9} {:>9}   {:>20}",
            "kernel", "calls", "median", "p95", "roofline alone"
        )?;
        for kernel in self.kernels() {
            self.summary(f, kernel, Some(kernel))?;
        }
        self.summary(f, "all", None)?;
        writeln!(
            f,
            "{:<10} {:>6} {:>8.1}% {:>8.1}%",
            "bound",
            "",
            100.0 * Self::MEDIAN_MAX,
            100.0 * Self::P95_MAX
        )
    }
}

impl Check {
    fn summary(&self, f: &mut fmt::Formatter<'_>, name: &str, kernel: Option<&str>) -> fmt::Result {
        let Some((median, p95)) = self.errors(kernel, PredictionSource::Predicted) else {
            return Ok(());
        };
        let of_kernel = |one: &&Comparison| kernel.is_none_or(|kernel| one.kernel == kernel);
        let calls = self.comparisons.iter().filter(of_kernel).count();
        let alone = match self.errors(kernel, PredictionSource::Roofline) {
            Some((median, p95)) => format!("{:>8.1}% {:>8.1}%", 100.0 * median, 100.0 * p95),
            None => "-".to_owned(),
        };
        writeln!(
            f,
            "{name:<10} {calls:>6} {:>8.1}% {:>8.1}%   {alone:>20}",
            100.0 * median,
            100.0 * p95
        )
    }
}

/// Up to `count` calls within a table's range whose c, and n if it has one, are not in it: spread evenly over the
/// magnitudes, so that small calls count as much as large ones. `seed` shifts them. n are not rounded to a step: a
/// scheduler asks for any n.
pub fn held_out(table: &LatencyTable, count: u32, seed: u64) -> Vec<CallShape> {
    let entries = table.entries();
    let range = |size: fn(&CallShape) -> u32| {
        let sizes = entries.iter().map(|(call, _)| size(call));
        (
            sizes.clone().min().unwrap_or(1).max(1),
            sizes.max().unwrap_or(1),
        )
    };
    let (tokens, contexts) = (range(|call| call.tokens), range(|call| call.context));
    let shift = |step: f64| (seed as f64 * 0.381_966 + step).fract();
    let mut calls = Vec::new();
    for index in 0..count {
        // Two low-discrepancy sequences: the golden ratio's and the plastic number's.
        let share = |step: f64| (f64::from(index) * step + shift(step)).fract();
        let wanted_context = match contexts.1 {
            0 => 0,
            _ => between(contexts, share(0.754_877)),
        };
        let most = if wanted_context == 0 {
            tokens.1
        } else {
            tokens.1.min(wanted_context)
        };
        let wanted = between((tokens.0, most), share(0.618_034));
        let known =
            |size: u32, of: fn(&CallShape) -> u32| entries.iter().any(|entry| of(&entry.0) == size);
        let free_tokens = (wanted..=most).chain((tokens.0..wanted).rev());
        let found = free_tokens
            .into_iter()
            .find(|c| !known(*c, |call| call.tokens));
        let context = match wanted_context {
            0 => Some(0),
            n => (n..=contexts.1).find(|n| !known(*n, |call| call.context)),
        };
        let (Some(tokens), Some(context)) = (found, context) else {
            continue;
        };
        let call = CallShape { tokens, context };
        if !calls.contains(&call) {
            calls.push(call);
        }
    }
    calls.sort();
    calls
}

/// The number at a share of the way between the ends of a range, on a logarithmic scale.
fn between((low, high): (u32, u32), share: f64) -> u32 {
    let (low, high) = (f64::from(low), f64::from(high.max(low)));
    (low * (high / low).powf(share)).round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(tokens: &[u32], contexts: &[u32]) -> LatencyTable {
        let calls = tokens.iter().flat_map(|tokens| {
            contexts.iter().map(|context| CallShape {
                tokens: *tokens,
                context: *context,
            })
        });
        LatencyTable::new(calls.map(|call| (call, 1.0)).collect()).unwrap()
    }

    #[test]
    fn held_out_calls_are_within_the_table_and_not_in_it() {
        let (tokens, contexts) = ([1, 2, 4, 8, 64, 256], [32, 128, 512, 4096]);
        let calls = held_out(&table(&tokens, &contexts), 40, 7);
        assert!(calls.len() > 30);
        for call in calls {
            assert!(!tokens.contains(&call.tokens) && !contexts.contains(&call.context));
            assert!((1..=256).contains(&call.tokens) && (32..=4096).contains(&call.context));
            assert!(call.tokens <= call.context, "{call:?}");
        }
        let token_wise = held_out(&table(&tokens, &[0]), 20, 7);
        assert!(token_wise.len() > 10 && token_wise.iter().all(|call| call.context == 0));
        assert_ne!(token_wise, held_out(&table(&tokens, &[0]), 20, 8));
        assert_eq!(held_out(&table(&[1, 2, 3], &[0]), 20, 7), []);
    }

    fn comparison(kernel: &str, tokens: u32, measured_us: f64, predicted_us: f64) -> Comparison {
        Comparison {
            kernel: kernel.to_owned(),
            call: CallShape {
                tokens,
                context: if kernel == "mha" { 100 } else { 0 },
            },
            measured_us,
            predicted_us,
            roofline_us: (kernel == "ffn").then_some(predicted_us * 2.0),
        }
    }

    #[test]
    fn one_bad_kernel_fails_the_check() {
        let good = vec![
            comparison("ffn", 3, 100.0, 105.0),
            comparison("ffn", 5, 100.0, 91.0),
        ];
        let mut check = Check { comparisons: good };
        assert!(check.passes());
        for tokens in 0..20 {
            check
                .comparisons
                .push(comparison("mha", tokens, 100.0, 101.0));
        }
        assert!(check.passes());
        check.comparisons.push(comparison("head", 3, 100.0, 130.0));
        assert!(!check.passes());
        assert!(!Check::default().passes());
    }

    #[test]
    fn the_report_is_a_table() {
        let check = Check {
            comparisons: vec![
                comparison("ffn", 3, 1500.0, 1545.0),
                comparison("ffn", 200, 34_000.0, 33_000.0),
                comparison("mha", 3, 250.0, 260.0),
            ],
        };
        insta::assert_snapshot!(check);
    }
}
