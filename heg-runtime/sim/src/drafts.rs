//! How drafts turn out: drawn from what was recorded where real texts were drafted for.
//!
//! The simulator has no tokens, so it cannot draft. A [`DraftRecord`] says how often drafts of which length were accepted
//! how far, over the answers of a data set; [`SimulatedDrafts`] draws from it. What a request draws depends on the seed, the
//! request and its tokens so far alone, so that it is the same under every scheduler. Draws are independent of each other,
//! while real drafts are good and bad in runs.

mod drawn;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use drawn::SimulatedDrafts;

/// The records that ship.
const SHIPPED: &str = include_str!("drafts/recorded.json");

/// Records, as `cargo xtask bench-drafts --records` writes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftRecords {
    /// What was drafted for, and by which command.
    pub source: String,
    /// One for each data set and way to draft.
    pub records: Vec<DraftRecord>,
}

/// How drafts turned out over a data set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftRecord {
    /// The data set, e.g. `mtrag_un`, or a part of it, e.g. `agent-30m/summary`.
    pub data: String,
    /// The way to draft, e.g. `chain of 16`.
    pub method: String,
    /// Number of answers.
    pub answers: u32,
    /// Mean tokens of a prompt.
    pub prompt_tokens: u32,
    /// Mean tokens of an answer.
    pub answer_tokens: u32,
    /// All verifications.
    pub steps: Vec<DraftedSteps>,
}

/// Verifications of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "[u32; 4]", into = "[u32; 4]")]
pub struct DraftedSteps {
    /// Tokens that were drafted.
    pub drafted: u32,
    /// Tokens of them that the drafter expected to be right, rounded down to a power of two; 0 below one.
    pub expected: u32,
    /// Tokens of them that were right, one after the other.
    pub accepted: u32,
    /// How many such verifications there were.
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
    /// The text is no JSON of this form.
    #[error("not the records of drafts")]
    Syntax(#[source] serde_json::Error),
    /// More tokens are said to be right than were drafted.
    #[error("`{data}`, `{method}`: {accepted} of {drafted} drafted tokens cannot be right")]
    Impossible {
        /// The data set.
        data: String,
        /// The way to draft.
        method: String,
        /// Tokens that were right.
        accepted: u32,
        /// Tokens that were drafted.
        drafted: u32,
    },
}

impl DraftRecords {
    /// Reads records.
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

    /// The records that ship: the answers of the project's trained models' evaluation, and reference answers of the shared
    /// workloads by SmolLM2's tokenizer.
    pub fn shipped() -> Result<Self, DraftRecordError> {
        Self::parse(SHIPPED)
    }

    /// The record of a data set and a way to draft.
    pub fn find(&self, data: &str, method: &str) -> Option<&DraftRecord> {
        let mut records = self.records.iter();
        records.find(|record| (record.data.as_str(), record.method.as_str()) == (data, method))
    }
}

impl DraftRecord {
    /// Tokens that a verification gave on average, the model's own included; NaN without any.
    pub fn tokens_per_verification(&self) -> f64 {
        self.mean(|steps| 1 + steps.accepted)
    }

    /// Tokens that were drafted for a verification on average; NaN without any.
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
