//! Vectors and scores of texts: pools the rows of a text's tokens, in f32 and in the order of the text.

use heg_artifacts::manifest::TextVectors;
use heg_sched::{RequestId, Span};
use heg_spec::{Pooling, ScoreForm, Sight, VectorLength};

/// Whether a text runs in one piece: its tokens see all of it, or rows of several tokens are pooled.
pub(super) fn is_whole(vectors: TextVectors) -> bool {
    vectors.sight == Sight::Whole || vectors.pooling != Pooling::Last
}

/// The rows of a text that its vector is pooled from.
pub(super) struct PooledText {
    pub(super) id: RequestId,
    pub(super) vectors: TextVectors,
    /// One for each row.
    pub(super) spans: Vec<Span>,
}

impl PooledText {
    /// The rows of a text of `tokens` tokens; `span_of` finds that of a token.
    pub(super) fn new(
        id: RequestId,
        vectors: TextVectors,
        tokens: usize,
        span_of: impl Fn(usize) -> Span,
    ) -> Self {
        Self {
            id,
            vectors,
            spans: wanted(vectors.pooling, tokens).map(span_of).collect(),
        }
    }
}

/// The tokens of a text of `tokens` tokens that are pooled.
fn wanted(pooling: Pooling, tokens: usize) -> std::ops::Range<usize> {
    match pooling {
        Pooling::Mean => 0..tokens,
        Pooling::First => 0..tokens.min(1),
        Pooling::Last => tokens.saturating_sub(1)..tokens,
    }
}

/// A vector that rows are added to.
pub(super) struct Pool {
    vectors: TextVectors,
    sum: Vec<f32>,
    rows: u32,
}

impl Pool {
    /// Without any rows.
    pub(super) fn new(vectors: TextVectors) -> Self {
        Self {
            vectors,
            sum: Vec::new(),
            rows: 0,
        }
    }

    /// Adds the next row.
    pub(super) fn add(&mut self, row: &[f32]) {
        self.sum.resize(row.len(), 0.0);
        for (sum, x) in self.sum.iter_mut().zip(row) {
            *sum += x;
        }
        self.rows += 1;
    }

    /// The vector.
    pub(super) fn vector(self) -> Vec<f32> {
        let mut vector = self.sum;
        let rows = self.rows.max(1) as f32;
        vector.iter_mut().for_each(|x| *x /= rows);
        if self.vectors.length == VectorLength::Unit {
            to_unit(&mut vector);
        }
        if self.vectors.scores == Some(ScoreForm::Probability) {
            vector.iter_mut().for_each(|x| *x = probability(*x));
        }
        vector
    }
}

/// The logistic function, rounded once.
fn probability(logit: f32) -> f32 {
    (1.0 / (1.0 + libm::exp(-f64::from(logit)))) as f32
}

/// Divides a vector by its length; one without a length stays.
pub fn to_unit(vector: &mut [f32]) {
    let square: f32 = vector.iter().map(|x| x * x).sum();
    let length = square.sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x /= length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(pooling: Pooling, length: VectorLength) -> Vec<f32> {
        let mut pool = Pool::new(TextVectors {
            pooling,
            length,
            sight: Sight::Whole,
            scores: None,
        });
        let rows = [[3.0, 8.0], [5.0, 0.0], [1.0, 4.0]];
        for row in &rows[wanted(pooling, rows.len())] {
            pool.add(row);
        }
        pool.vector()
    }

    #[test]
    fn rows_are_pooled_by_their_place() {
        let length = VectorLength::Pooled;
        assert_eq!(pooled(Pooling::Mean, length), [3.0, 4.0]);
        assert_eq!(pooled(Pooling::First, length), [3.0, 8.0]);
        assert_eq!(pooled(Pooling::Last, length), [1.0, 4.0]);
        assert_eq!(pooled(Pooling::Mean, VectorLength::Unit), [0.6, 0.8]);
    }

    #[test]
    fn scores_are_logits_or_probabilities() {
        let score = |form, logit: f32| {
            let mut pool = Pool::new(TextVectors {
                pooling: Pooling::First,
                length: VectorLength::Pooled,
                sight: Sight::Whole,
                scores: Some(form),
            });
            pool.add(&[logit]);
            pool.vector()
        };
        assert_eq!(score(ScoreForm::Logit, -11.25), [-11.25]);
        assert_eq!(score(ScoreForm::Probability, 0.0), [0.5]);
        assert_eq!(score(ScoreForm::Probability, -200.0), [0.0]);
        assert_eq!(score(ScoreForm::Probability, 200.0), [1.0]);
        assert_eq!(score(ScoreForm::Probability, 2.0), [0.880_797_1]);
    }

    #[test]
    fn a_vector_without_a_length_stays() {
        let mut none = [0.0, 0.0];
        to_unit(&mut none);
        assert_eq!(none, [0.0, 0.0]);
    }

    #[test]
    fn only_a_causal_text_with_its_last_row_is_cut() {
        let of = |pooling, sight| {
            is_whole(TextVectors {
                pooling,
                length: VectorLength::Unit,
                sight,
                scores: None,
            })
        };
        assert!(!of(Pooling::Last, Sight::Causal));
        assert!(of(Pooling::Mean, Sight::Causal));
        assert!(of(Pooling::Last, Sight::Whole));
    }
}
