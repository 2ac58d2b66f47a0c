//! Outcomes of drafts, drawn from records of real drafts for real texts.
//!
//! The simulator has no tokens, so it cannot draft. A [`DraftRecord`] counts, over the answers of a data set, how many
//! tokens of drafts of each length were accepted; [`SimulatedDrafts`] draws from it. A draw depends only on the seed,
//! the request and the length of its answer so far, so that it is the same under every scheduler. Draws are independent
//! of each other, while real drafts are good and bad in runs.

mod drawn;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use drawn::SimulatedDrafts;

/// The shipped records.
const SHIPPED: &str = include_str!("drafts/recorded.json");

/// Records, as written by `cargo xtask bench-drafts --records`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftRecords {
    /// The texts that were drafted for, and the command.
    pub source: String,
    /// A record for each data set and drafting method.
    pub records: Vec<DraftRecord>,
}

/// The outcomes of drafts over a data set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftRecord {
    /// The data set, e.g. `mtrag_un`, or a part of it, e.g. `agent-30m/summary`.
    pub data: String,
    /// The drafting method, e.g. `chain of 16`.
    pub method: String,
    /// Number of answers.
    pub answers: u32,
    /// Mean number of tokens of a prompt.
    pub prompt_tokens: u32,
    /// Mean number of tokens of an answer.
    pub answer_tokens: u32,
    /// All verifications, counted by kind.
    pub steps: Vec<DraftedSteps>,
}

/// Verifications with the same counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "[u32; 4]", into = "[u32; 4]")]
pub struct DraftedSteps {
    /// Number of drafted tokens.
    pub drafted: u32,
    /// Number of tokens that the drafter expected to be right, rounded down to a power of two; 0 below one.
    pub expected: u32,
    /// Number of leading tokens that were right.
    pub accepted: u32,
    /// Number of such verifications.
    pub count: u32,
}

impl From<[u32; 4]> for DraftedSteps {
    fn from([drafted, expected, accepted, count]: [u32; 4]) -> Self {
        Self {
            drafted,
            expected,
            accepted,
            count,
        }
    }
}

impl From<DraftedSteps> for [u32; 4] {
    fn from(steps: DraftedSteps) -> Self {
        let DraftedSteps {
            drafted,
            expected,
            accepted,
            count,
        } = steps;
        [drafted, expected, accepted, count]
    }
}

/// The reason why records cannot be read.
#[derive(Debug, Error)]
pub enum DraftRecordError {
    /// The text is not JSON of this form.
    #[error("not the records of drafts")]
    Syntax(#[source] serde_json::Error),
    /// More tokens are said to be right than were drafted.
    #[error("`{data}`, `{method}`: {accepted} of {drafted} drafted tokens cannot be right")]
    Impossible {
        /// The data set.
        data: String,
        /// The drafting method.
        method: String,
        /// Number of tokens that were right.
        accepted: u32,
        /// Number of drafted tokens.
        drafted: u32,
    },
}

impl DraftRecords {
    /// Parses records.
    pub fn parse(text: &str) -> Result<Self, DraftRecordError> {
        let records: Self = serde_json::from_str(text).map_err(DraftRecordError::Syntax)?;
        for record in &records.records {
            let impossible = record.steps.iter().find(|it| it.accepted > it.drafted);
            if let Some(steps) = impossible {
                return Err(DraftRecordError::Impossible {
                    data: record.data.clone(),
                    method: record.method.clone(),
                    accepted: steps.accepted,
                    drafted: steps.drafted,
                });
            }
        }
        Ok(records)
    }

    /// Returns the shipped records: those of the answers in the evaluation of the project's trained models, and of
    /// reference answers of the shared workloads by SmolLM2's tokenizer.
    pub fn shipped() -> Result<Self, DraftRecordError> {
        Self::parse(SHIPPED)
    }

    /// Returns the record of a data set and a drafting method.
    pub fn find(&self, data: &str, method: &str) -> Option<&DraftRecord> {
        let mut records = self.records.iter();
        records.find(|record| (record.data.as_str(), record.method.as_str()) == (data, method))
    }
}

impl DraftRecord {
    /// Returns the mean number of tokens that a verification gave, the model's own included; NaN if there are none.
    pub fn tokens_per_verification(&self) -> f64 {
        self.mean(|steps| 1 + steps.accepted)
    }

    /// Returns the mean number of tokens that were drafted for a verification; NaN if there are none.
    pub fn drafted_per_verification(&self) -> f64 {
        self.mean(|steps| steps.drafted)
    }

    fn mean(&self, figure: impl Fn(&DraftedSteps) -> u32) -> f64 {
        let (mut sum, mut count) = (0.0, 0.0);
        for steps in &self.steps {
            sum += f64::from(figure(steps)) * f64::from(steps.count);
            count += f64::from(steps.count);
        }
        sum / count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_records_are_whole() {
        let records = DraftRecords::shipped().unwrap();
        assert!(records.source.contains("bench-drafts"));
        for data in ["agent-30m/summary", "mtrag_un"] {
            for method in [
                "PLD of 10",
                "SAM of 16, history",
                "chain of 16",
                "tree of 32",
            ] {
                let record = records.find(data, method).unwrap();
                let tokens = record.tokens_per_verification();
                assert!((1.0..6.0).contains(&tokens), "{data}, {method}: {tokens}");
            }
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let refused = |text: &str| DraftRecords::parse(text).unwrap_err().to_string();
        assert_eq!(refused("{}"), "not the records of drafts");
        let text = r#"{"source":"","records":[{"data":"d","method":"m","answers":1,"prompt_tokens":1,
            "answer_tokens":1,"steps":[[1,0,2,3]]}]}"#;
        assert_eq!(
            refused(text),
            "`d`, `m`: 2 of 1 drafted tokens cannot be right"
        );
    }
}
