//! The report of quality: a table for each model, and whether the default is as accurate as GenAI's.

use super::measure::{DEVICES, GENAI};
use crate::goal::Goal;
use crate::precision::Precision;
use crate::table::{self, Column};
use heg_runtime::score::{Scores, Tally};
use serde::Serialize;
use serde_json::{Value, json};

/// A form on a device, or GenAI.
#[derive(Serialize)]
pub(super) struct Entry {
    pub(super) form: String,
    pub(super) device: &'static str,
    pub(super) prefill: Distance,
    pub(super) decode: Distance,
}

/// How far a form is from f32.
#[derive(Serialize)]
pub(super) struct Distance {
    /// Means over all positions.
    #[serde(flatten)]
    scores: Scores,
    /// Sum of KL over each passage.
    #[serde(skip)]
    kl_sums: Vec<f64>,
}

impl Distance {
    /// The distance over all passages, given each one's.
    pub(super) fn of(passages: &[Tally]) -> Self {
        Self {
            scores: passages.iter().copied().sum::<Tally>().scores(),
            kl_sums: passages.iter().map(Tally::kl_sum).collect(),
        }
    }
}

/// A ratio of two KL over the same passages.
#[derive(Clone, Copy, Serialize)]
struct Ratio {
    kl_ratio: f64,
    /// Standard error, were the passages drawn at random; NaN with fewer than two.
    standard_error: f64,
    goal_met: bool,
}

impl Ratio {
    /// `None` if a side has no KL. The error is that of a ratio estimator (Cochran, Sampling Techniques, section 6.3):
    /// positions of a passage depend on each other, passages do not.
    fn of(ours: &Distance, theirs: &Distance) -> Option<Self> {
        let kl_ratio = ours.scores.kl? / theirs.scores.kl?;
        let pairs = ours.kl_sums.iter().zip(&theirs.kl_sums);
        let squares: f64 = pairs.map(|(a, b)| (a - kl_ratio * b).powi(2)).sum();
        let (count, sum) = (
            theirs.kl_sums.len() as f64,
            theirs.kl_sums.iter().sum::<f64>(),
        );
        Some(Self {
            kl_ratio,
            standard_error: (squares * count / (count - 1.0)).sqrt() / sum,
            goal_met: GOAL.is_met(kl_ratio),
        })
    }

    fn verdict(self) -> String {
        let Self {
            kl_ratio,
            standard_error,
            ..
        } = self;
        let verdict = GOAL.verdict(kl_ratio);
        format!("{kl_ratio:.2} ± {standard_error:.2} ({verdict})")
    }
}

/// All figures of a model.
pub(crate) struct Report {
    pub(super) model: String,
    /// The weights that the goal is about, on the first device.
    pub(super) precision: Precision,
    pub(super) passages: usize,
    pub(super) positions: usize,
    pub(super) entries: Vec<Entry>,
    /// Settings that the plugin chose for GenAI's model on this machine.
    pub(super) genai_settings: Value,
}

impl Report {
    /// KL of the weights that the goal is about: prefill rows, decode rows. `None` if it was not measured.
    pub(crate) fn judged_kl(&self) -> Option<[f64; 2]> {
        let entry = self.entry(&self.precision.to_string(), DEVICES[0])?;
        Some([entry.prefill.scores.kl?, entry.decode.scores.kl?])
    }

    fn entry(&self, form: &str, device: &str) -> Option<&Entry> {
        let mut entries = self.entries.iter();
        entries.find(|entry| (entry.form.as_str(), entry.device) == (form, device))
    }

    /// Its KL divided by GenAI's: prefill rows, decode rows. `None` if a side was not measured.
    fn ratios(&self) -> Option<[Ratio; 2]> {
        let ours = self.entry(&self.precision.to_string(), DEVICES[0])?;
        let theirs = self.entry(self.precision.of_genai(), GENAI)?;
        let prefill = Ratio::of(&ours.prefill, &theirs.prefill)?;
        Some([prefill, Ratio::of(&ours.decode, &theirs.decode)?])
    }

    /// Whether it is no further from f32 than GenAI, in prefill and decode rows; `None` if a side was not measured.
    pub(super) fn is_met(&self) -> Option<bool> {
        Some(self.ratios()?.iter().all(|ratio| ratio.goal_met))
    }

    /// All figures, and the goal, as a table.
    pub(crate) fn table(&self) -> String {
        let mut table = format!(
            "{}, {} positions in {} passages, against f32 on host-cpu-f32\n\n",
            self.model, self.positions, self.passages
        );
        table += &table::line(&GROUPS, ["", "prefill rows", "decode rows"]);
        let names = ["KL", "top-1", "perplexity"];
        let names = ["", ""].into_iter().chain(names).chain(names);
        table += &table::line(&COLUMNS, names);
        for entry in &self.entries {
            let form = [entry.form.clone(), entry.device.to_owned()];
            let figures = [&entry.prefill, &entry.decode].map(|distance| cells(&distance.scores));
            let figures = figures.into_iter().flatten();
            table += &table::line(&COLUMNS, form.into_iter().chain(figures));
        }
        let verdict = match self.ratios() {
            Some([prefill, decode]) => format!(
                "prefill rows {}, decode rows {}",
                prefill.verdict(),
                decode.verdict()
            ),
            None => "not measured".to_owned(),
        };
        let (form, device) = (self.precision, DEVICES[0]);
        table.push_str(&format!("KL of {form} on {device} / GenAI's: {verdict}\n"));
        table
    }

    /// All figures, and the goal, as JSON.
    pub(crate) fn json(&self) -> Value {
        let ratios = self.ratios();
        let over_genai =
            ratios.map(|[prefill, decode]| json!({ "prefill": prefill, "decode": decode }));
        json!({
            "model": self.model,
            "passages": self.passages,
            "positions": self.positions,
            "entries": self.entries,
            "genai_settings": self.genai_settings,
            "default_over_genai": over_genai,
        })
    }
}

/// The columns of the lines, and of the names above them.
const COLUMNS: [Column; 8] = [
    Column::left(0, 9),
    Column::left(1, 13),
    Column::right(1, 9),
    Column::right(0, 8),
    Column::right(0, 12),
    Column::right(2, 9),
    Column::right(0, 8),
    Column::right(0, 12),
];

const GROUPS: [Column; 3] = [
    Column::left(0, 24),
    Column::right(0, 21),
    Column::right(0, 30),
];

/// Scores of a kind of rows.
fn cells(figures: &Scores) -> [String; 3] {
    let (kl, top1) = (
        figures.kl.unwrap_or(f64::NAN),
        figures.top1.unwrap_or(f64::NAN),
    );
    // Below 0 only by rounding; without a sign, which a rounded -0 would keep.
    let kl = if kl < 5e-7 { 0.0 } else { kl };
    let perplexity = figures.perplexity;
    [
        format!("{kl:.6}"),
        format!("{top1:.4}"),
        format!("{perplexity:.4}"),
    ]
}

pub(super) fn tables(reports: &[Report]) -> String {
    let tables: Vec<String> = reports.iter().map(Report::table).collect();
    format!("{}{NOTES}", tables.join("\n"))
}

pub(super) fn json(reports: &[Report]) -> Value {
    json!({ "models": reports.iter().map(Report::json).collect::<Vec<_>>() })
}

/// The goal: the CPU's default is no less accurate than GenAI's default.
const GOAL: Goal = Goal::AtMost(1.0);

const NOTES: &str = "
KL(f32 || form) in nats a token; top-1: share of positions with the same most likely token. int8 and int4 of GenAI:
asymmetric 8-bit rows or groups of 4-bit columns as optimum-cli exports them, run without any property. Behind ±: the
ratio's standard error over passages; more of them (--prompts) make it smaller.
";

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(kl: f64) -> Distance {
        Distance {
            scores: Scores {
                tokens: 797,
                nll: 0.69351,
                perplexity: 2.00073,
                top1: Some(0.96110),
                kl: Some(kl),
            },
            kl_sums: [0.4, 0.6].map(|share| share * kl * 797.0).to_vec(),
        }
    }

    fn report(decode_kl: f64) -> Report {
        let entry = |form: &str, device, prefill, decode| Entry {
            form: form.to_owned(),
            device,
            prefill: figures(prefill),
            decode: figures(decode),
        };
        Report {
            model: "smollm2-135m-instruct".to_owned(),
            precision: Precision::EIGHT_BITS,
            passages: 20,
            positions: 797,
            entries: vec![
                entry("f32", "host-cpu-f32", 0.0, 3e-9),
                entry("w8a16", "host-cpu", 0.007979, decode_kl),
                entry("int8", GENAI, 0.008230, 0.008329),
            ],
            genai_settings: Value::Null,
        }
    }

    #[test]
    fn the_table_says_whether_the_goal_is_met() {
        insta::assert_snapshot!(tables(&[report(0.007979), report(0.009)]));
    }

    #[test]
    fn one_kind_of_rows_that_misses_the_goal_is_enough() {
        assert_eq!(report(0.008329).is_met(), Some(true));
        assert_eq!(report(0.008330).is_met(), Some(false));
        assert_eq!(report(f64::NAN).is_met(), Some(false));
    }

    #[test]
    fn without_genai_nothing_is_met() {
        let mut alone = report(0.008);
        alone.entries.pop();
        assert_eq!(alone.is_met(), None);
        assert!(alone.table().ends_with("/ GenAI's: not measured\n"));
        assert_eq!(alone.json()["default_over_genai"], Value::Null);
    }

    #[test]
    fn the_error_of_a_ratio_is_that_of_its_passages() {
        let distance = |kl_sums: [f64; 3]| Distance {
            kl_sums: kl_sums.to_vec(),
            ..figures(kl_sums.iter().sum::<f64>() / 797.0)
        };
        let error = |ours, theirs| {
            Ratio::of(&distance(ours), &distance(theirs))
                .unwrap()
                .standard_error
        };
        assert!(error([0.5, 1.0, 1.5], [1.0, 2.0, 3.0]) < 1e-12);
        // A ratio of one, from which the passages differ by 0.1, −0.1 and 0.
        let found = error([1.1, 0.9, 1.0], [1.0; 3]);
        assert!(
            (found - (0.02_f64 * 1.5).sqrt() / 3.0).abs() < 1e-12,
            "{found}"
        );
        // Of one passage nothing is known.
        let alone = Distance {
            kl_sums: vec![1.0],
            ..figures(0.008)
        };
        assert!(Ratio::of(&alone, &alone).unwrap().standard_error.is_nan());
    }

    #[test]
    fn json_has_both_ratios() {
        let json = json(&[report(0.009)]);
        let found = &json["models"][0]["default_over_genai"];
        assert_eq!(found["prefill"]["goal_met"], true);
        assert_eq!(found["decode"]["goal_met"], false);
        assert_eq!(json["models"][0]["entries"][2]["prefill"]["kl"], 0.008230);
    }
}
