//! Replays answers: drafts, compares with the answer, and counts.

use super::data::DataSet;
use heg_draft::Likely;
use heg_sim::{DraftRecord, DraftedSteps};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// A drafting method.
pub(super) trait Method {
    /// Name in tables.
    fn name(&self) -> String;

    /// Starts an answer to `prompt`.
    fn begin(&mut self, prompt: &[u32]);

    /// Provides the tokens that a model finds likely after each token of the prompt.
    fn calibrate(&mut self, _prompt: &[u32], _likely: &Arc<[Likely]>) {}

    /// Continues the answer with these tokens: the accepted part of the last draft, and one more.
    fn read(&mut self, given: &[u32]);

    /// Drafts the next tokens.
    fn draft(&mut self) -> Proposal;

    /// Ends the answer.
    fn end(&mut self, _prompt: &[u32], _answer: &[u32]) {}

    /// Memory of its history per token, if it has one.
    fn bytes_per_history_token(&self) -> Option<f64> {
        None
    }
}

/// Drafted tokens.
#[derive(Default)]
pub(super) struct Proposal {
    /// Each token with the index of the one that it follows; `None` follows the answer so far.
    pub(super) tokens: Vec<(u32, Option<usize>)>,
    /// Expected number of accepted tokens, according to the method.
    pub(super) expected: f64,
}

impl Proposal {
    /// A chain: each token follows the one before.
    pub(super) fn chain(tokens: &[u32]) -> Self {
        let tokens = tokens.iter().enumerate();
        Self {
            tokens: tokens
                .map(|(at, token)| (*token, at.checked_sub(1)))
                .collect(),
            expected: 0.0,
        }
    }

    /// Number of leading drafted tokens, along one path, that equal the next tokens.
    fn accepted(&self, next: &[u32]) -> usize {
        let mut last = None;
        for (count, token) in next.iter().enumerate() {
            match self.tokens.iter().position(|it| *it == (*token, last)) {
                Some(at) => last = Some(at),
                None => return count,
            }
        }
        next.len()
    }
}

/// The results of a method over a data set.
pub(super) struct Replay {
    /// Counts by the part of the data set; without parts, one entry without a name.
    parts: BTreeMap<Option<String>, Counts>,
    /// Times to learn from a verification and to draft the next tokens, in µs, ascending.
    draft_us: Vec<f64>,
}

#[derive(Clone, Default)]
struct Counts {
    answers: u64,
    prompt_tokens: u64,
    answer_tokens: u64,
    /// Number of verifications, by drafted, expected and accepted tokens.
    steps: BTreeMap<[u32; 3], u32>,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.answers += other.answers;
        self.prompt_tokens += other.prompt_tokens;
        self.answer_tokens += other.answer_tokens;
        for (kind, count) in &other.steps {
            *self.steps.entry(*kind).or_default() += count;
        }
    }

    fn record(&self, data: String, method: &str) -> DraftRecord {
        let mean = |tokens: u64| (tokens as f64 / self.answers.max(1) as f64).round() as u32;
        let steps = self.steps.iter();
        DraftRecord {
            data,
            method: method.to_owned(),
            answers: self.answers as u32,
            prompt_tokens: mean(self.prompt_tokens),
            answer_tokens: mean(self.answer_tokens),
            steps: steps
                .map(|([drafted, expected, accepted], count)| {
                    DraftedSteps::from([*drafted, *expected, *accepted, *count])
                })
                .collect(),
        }
    }
}

impl Replay {
    /// The records of the whole data set and of its parts.
    pub(super) fn records(&self, data: &str, method: &str) -> Vec<DraftRecord> {
        let mut whole = Counts::default();
        self.parts.values().for_each(|part| whole.add(part));
        let mut records = vec![whole.record(data.to_owned(), method)];
        for (part, counts) in &self.parts {
            if let Some(part) = part {
                records.push(counts.record(format!("{data}/{part}"), method));
            }
        }
        records
    }

    /// A percentile of the drafting times, in µs; NaN without any.
    pub(super) fn draft_us(&self, percent: usize) -> f64 {
        let at = self.draft_us.len().saturating_sub(1) * percent / 100;
        self.draft_us.get(at).copied().unwrap_or(f64::NAN)
    }
}

/// Replays a data set.
pub(super) fn replay(data: &DataSet, method: &mut dyn Method) -> Replay {
    let mut parts: BTreeMap<Option<String>, Counts> = BTreeMap::new();
    let mut draft_us = Vec::new();
    for exchange in &data.exchanges {
        // The first token comes with the prompt.
        let Some((first, mut next)) = exchange.answer.split_first() else {
            continue;
        };
        let counts = parts.entry(exchange.part.clone()).or_default();
        counts.answers += 1;
        counts.prompt_tokens += exchange.prompt.len() as u64;
        counts.answer_tokens += exchange.answer.len() as u64;
        method.begin(&exchange.prompt);
        if let Some(likely) = &exchange.likely {
            method.calibrate(&exchange.prompt, likely);
        }
        let mut given = std::slice::from_ref(first);
        while !next.is_empty() {
            let begin = Instant::now();
            method.read(given);
            let proposal = method.draft();
            draft_us.push(begin.elapsed().as_secs_f64() * 1e6);
            // The answer's last token may be a drafted one, with none after it.
            let accepted = proposal.accepted(next).min(next.len() - 1);
            let drafted = proposal.tokens.len() as u32;
            let kind = [drafted, magnitude(proposal.expected), accepted as u32];
            *counts.steps.entry(kind).or_default() += 1;
            (given, next) = next.split_at(accepted + 1);
        }
        method.end(&exchange.prompt, &exchange.answer);
    }
    draft_us.sort_by(f64::total_cmp);
    Replay { parts, draft_us }
}

/// Rounds down to a power of two; 0 below one.
fn magnitude(tokens: f64) -> u32 {
    // `as` saturates.
    match tokens as u32 {
        0 => 0,
        tokens => 1 << tokens.ilog2(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::data::Exchange;
    use super::*;

    /// Always drafts the same tokens.
    struct Always(Vec<u32>);

    impl Method for Always {
        fn name(&self) -> String {
            "always".to_owned()
        }

        fn begin(&mut self, _prompt: &[u32]) {}

        fn read(&mut self, _given: &[u32]) {}

        fn draft(&mut self) -> Proposal {
            Proposal::chain(&self.0)
        }
    }

    #[test]
    fn a_verification_gives_what_is_right_and_one_more() {
        let exchange = |answer: &[u32], part: &str| Exchange {
            prompt: vec![0; 4],
            answer: answer.to_vec(),
            part: Some(part.to_owned()),
            likely: None,
        };
        let data = DataSet {
            name: "data".to_owned(),
            exchanges: vec![
                // 0 comes with the prompt; then 1 2 and 9; 8; 1 2, the end of the answer.
                exchange(&[0, 1, 2, 9, 8, 1, 2], "a"),
                exchange(&[0], "b"),
                exchange(&[0, 1], "b"),
            ],
        };
        let replay = replay(&data, &mut Always(vec![1, 2, 3]));
        let records = replay.records("data", "always");
        let names: Vec<&str> = records.iter().map(|it| it.data.as_str()).collect();
        assert_eq!(names, ["data", "data/a", "data/b"]);
        let steps = |at: usize| -> Vec<[u32; 4]> {
            records[at].steps.iter().map(|it| (*it).into()).collect()
        };
        assert_eq!(steps(1), [[3, 0, 0, 1], [3, 0, 1, 1], [3, 0, 2, 1]]);
        assert_eq!(steps(2), [[3, 0, 0, 1]]);
        assert_eq!((records[2].answers, records[2].answer_tokens), (2, 2));
        assert_eq!(records[0].tokens_per_verification(), 7.0 / 4.0);
        assert!(replay.draft_us(50) <= replay.draft_us(99));
    }

    #[test]
    fn a_tree_is_followed_along_its_branches() {
        let tree = Proposal {
            tokens: vec![
                (1, None),
                (2, None),
                (3, Some(0)),
                (3, Some(1)),
                (4, Some(3)),
            ],
            expected: 0.0,
        };
        assert_eq!(tree.accepted(&[2, 3, 4, 5]), 3);
        assert_eq!(tree.accepted(&[1, 3, 4]), 2);
        assert_eq!(tree.accepted(&[3]), 0);
        assert_eq!([0.0, 0.9, 1.0, 3.9, 4.0].map(magnitude), [0, 0, 1, 2, 4]);
    }
}
