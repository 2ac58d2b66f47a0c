//! The table of answers with and without drafts.

use super::{Side, Spent};
use crate::output;
use crate::table::{self, Column, shown};
use anyhow::Result;
use serde_json::json;
use std::collections::BTreeMap;

/// All measurements.
#[derive(Default)]
pub(super) struct Report {
    pub(super) data_sets: Vec<DataSet>,
}

/// The costs of a data set's questions.
#[derive(Default)]
pub(super) struct DataSet {
    pub(super) name: String,
    pub(super) questions: usize,
    sides: BTreeMap<Side, Spent>,
}

impl DataSet {
    /// Adds the cost of an answer by a side.
    pub(super) fn add(&mut self, side: Side, spent: Spent) {
        let sum = self.sides.entry(side).or_default();
        *sum += spent;
    }

    fn side(&self, side: Side) -> Option<Spent> {
        self.sides.get(&side).copied()
    }

    /// The speedup of `side` over `than`: the seconds of `than` divided by those of `side`.
    fn faster(&self, side: Side, than: Side) -> Option<f64> {
        Some(self.side(than)?.seconds / self.side(side)?.seconds)
    }

    /// The speedup of `side` over no drafts, for the time after the first token.
    fn decodes_faster(&self, side: Side) -> Option<f64> {
        Some(self.side(Side::Plain)?.decode_seconds / self.side(side)?.decode_seconds)
    }

    /// The speedup of the better of HEG's drafts over GenAI's better way.
    fn to_genai(&self) -> Option<f64> {
        let seconds = |side| self.side(side).map(|spent| spent.seconds);
        let genai = seconds(Side::GenAi)?.min(seconds(Side::GenAiLookup)?);
        Some(genai / seconds(Side::Chain)?.min(seconds(Side::Tree)?))
    }
}

/// Tokens per decode iteration; the first token of an answer comes with its prompt.
pub(super) fn a_step(spent: Spent, answers: usize) -> f64 {
    f64::from(spent.tokens.saturating_sub(answers as u32)) / f64::from(spent.steps.max(1))
}

impl Report {
    pub(super) fn table(&self, model: &str) -> String {
        let mut text =
            format!("{model}: seconds an answer, all sides in turn at every question\n\n");
        let names = [
            "data set",
            "questions",
            "tokens",
            "plain",
            "chain",
            "tree",
            "a step, c",
            "a step, t",
            "chain",
            "tree",
            "decode, c",
            "decode, t",
            "GenAI",
            "look-up",
            "to GenAI",
        ];
        text += &table::line(&COLUMNS, names);
        for set in &self.data_sets {
            let answers = set.questions.max(1) as f64;
            let seconds = |side| set.side(side).map(|spent| spent.seconds / answers);
            let a_step = |side| set.side(side).map(|spent| a_step(spent, set.questions));
            let tokens = set.side(Side::Plain).map_or(0, |spent| spent.tokens);
            let cells = [
                set.name.clone(),
                set.questions.to_string(),
                tokens.to_string(),
                shown(seconds(Side::Plain), 3),
                shown(seconds(Side::Chain), 3),
                shown(seconds(Side::Tree), 3),
                shown(a_step(Side::Chain), 2),
                shown(a_step(Side::Tree), 2),
                times(set.faster(Side::Chain, Side::Plain)),
                times(set.faster(Side::Tree, Side::Plain)),
                times(set.decodes_faster(Side::Chain)),
                times(set.decodes_faster(Side::Tree)),
                shown(seconds(Side::GenAi), 3),
                shown(seconds(Side::GenAiLookup), 3),
                times(set.to_genai()),
            ];
            text += &table::line(&COLUMNS, cells);
        }
        text.push_str(ABOUT);
        text
    }

    pub(super) fn json_lines(&self) -> Result<String> {
        let line = |set: &DataSet| {
            let seconds = |side| set.side(side).map(|spent| spent.seconds);
            let drafts = |side| {
                set.side(side).map(|spent| {
                    json!({
                        "steps": spent.steps,
                        "drafted_tokens": spent.drafted,
                        "accepted_tokens": spent.accepted,
                        "tokens_a_step": a_step(spent, set.questions),
                    })
                })
            };
            json!({
                "name": set.name,
                "questions": set.questions,
                "tokens": set.side(Side::Plain).map(|spent| spent.tokens),
                "plain_s": seconds(Side::Plain),
                "chain_s": seconds(Side::Chain),
                "tree_s": seconds(Side::Tree),
                "genai_s": seconds(Side::GenAi),
                "genai_lookup_s": seconds(Side::GenAiLookup),
                "chain": drafts(Side::Chain),
                "tree": drafts(Side::Tree),
                "chain_to_plain": set.faster(Side::Chain, Side::Plain),
                "tree_to_plain": set.faster(Side::Tree, Side::Plain),
                "chain_decode_to_plain": set.decodes_faster(Side::Chain),
                "tree_decode_to_plain": set.decodes_faster(Side::Tree),
                "to_genai": set.to_genai(),
            })
        };
        output::json_lines(self.data_sets.iter().map(line))
    }
}

const COLUMNS: [Column; 15] = [
    Column::left(0, 16),
    Column::right(1, 9),
    Column::right(1, 7),
    Column::right(1, 7),
    Column::right(1, 7),
    Column::right(1, 7),
    Column::right(1, 9),
    Column::right(1, 9),
    Column::right(1, 8),
    Column::right(1, 8),
    Column::right(1, 9),
    Column::right(1, 9),
    Column::right(1, 8),
    Column::right(1, 8),
    Column::right(1, 9),
];

fn times(ratio: Option<f64>) -> String {
    ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}×"))
}

const ABOUT: &str = "
Plain, chain and tree are HEG without drafts and with them, and gave the same tokens. `a step` are tokens of a decode
iteration, the first of an answer aside; `decode` is the gain without the time of prompts. GenAI, and GenAI with
prompt look-up, gave as many tokens; `to GenAI` is its better way divided by HEG's better drafts.
";

#[cfg(test)]
mod tests {
    use super::*;

    fn spent(seconds: f64, steps: u32) -> Spent {
        Spent {
            seconds,
            decode_seconds: seconds / 2.0 - 0.25,
            tokens: 102,
            steps,
            drafted: 150,
            accepted: 100 - steps,
        }
    }

    #[test]
    fn tables_tell_all_sides_apart() {
        let mut both = DataSet {
            name: "bfcl".to_owned(),
            questions: 2,
            ..DataSet::default()
        };
        both.add(Side::Plain, spent(2.0, 100));
        both.add(Side::Chain, spent(1.25, 50));
        both.add(Side::Tree, spent(1.0, 40));
        let mut alone = DataSet {
            name: "qmsum".to_owned(),
            ..DataSet::default()
        };
        alone.questions = 2;
        alone.sides = both.sides.clone();
        both.add(Side::GenAi, spent(4.0, 0));
        both.add(Side::GenAiLookup, spent(3.0, 0));
        let report = Report {
            data_sets: vec![both, alone],
        };
        insta::assert_snapshot!(format!(
            "{}\n{}",
            report.table("m"),
            report.json_lines().unwrap()
        ));
    }
}
