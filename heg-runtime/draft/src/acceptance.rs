//! Acceptance rates of drafted tokens by where they came from. They set the length of a draft.
//!
//! A request learns its own rates on top of those learnt for its client: summaries repeat their document, chats do not.

use crate::draft::DraftSource;

/// Buckets of match length: 1, 2, up to 4, 8, 16, and longer.
const LENGTHS: usize = 6;
const EVIDENCES: usize = 4;
const SOURCES: usize = DraftSource::ALL.len();
/// Chosen: number of own tokens that weigh as much as the prior.
const PRIOR: f32 = 6.0;
/// Chosen: decay per try, so that the latest fifty or so count.
const KEPT: f32 = 0.98;

/// Consistency with which a token followed a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evidence {
    /// In less than half of the occurrences.
    Seldom,
    /// In at least half of the occurrences.
    Mostly,
    /// In the only occurrence.
    Once,
    /// In each of several occurrences.
    Always,
}

/// Bucket of drafted tokens that share one acceptance rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AcceptanceBucket {
    source: DraftSource,
    length: u8,
    evidence: Evidence,
}

impl AcceptanceBucket {
    /// The bucket of a token that followed a match of `length` tokens in `count` of `all` occurrences.
    pub(crate) fn of(source: DraftSource, length: u32, count: u32, all: u32) -> Self {
        let evidence = match (count, all) {
            (count, all) if count >= all && all > 1 => Evidence::Always,
            (count, all) if count >= all => Evidence::Once,
            (count, all) if count >= all - count => Evidence::Mostly,
            _ => Evidence::Seldom,
        };
        let length = length.max(1).next_power_of_two().ilog2();
        Self {
            source,
            length: length.min(LENGTHS as u32 - 1) as u8,
            evidence,
        }
    }

    pub(crate) fn source(self) -> DraftSource {
        self.source
    }

    /// Acceptance probability before any observation.
    pub(crate) fn guess(self) -> f32 {
        let by_length: [f32; LENGTHS] = [0.25, 0.4, 0.55, 0.7, 0.8, 0.9];
        let length = by_length[usize::from(self.length) % LENGTHS];
        match (self.source, self.evidence) {
            (DraftSource::Forced, _) => 0.95,
            // Likely continuations of the prompt's words predict the model's own less well.
            (DraftSource::Calibrated, Evidence::Always | Evidence::Once) => 0.7,
            (DraftSource::Calibrated, Evidence::Mostly) => 0.4,
            (DraftSource::Calibrated, Evidence::Seldom) => 0.15,
            // Clients that predict an answer are mostly right.
            (DraftSource::Prediction, Evidence::Once) => length.sqrt(),
            (_, Evidence::Seldom) => length * 0.35,
            (_, Evidence::Mostly) => length * 0.8,
            (_, Evidence::Once) => length,
            (_, Evidence::Always) => length.sqrt(),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Rate {
    tried: f32,
    right: f32,
}

/// Acceptance rates by bucket.
#[derive(Debug, Clone, Default)]
pub struct Acceptance {
    rates: [[[Rate; EVIDENCES]; LENGTHS]; SOURCES],
}

impl Acceptance {
    /// Acceptance probability of a token of this bucket; `taught` are the rates of the same client's other requests.
    pub(crate) fn probability(&self, taught: &Acceptance, bucket: AcceptanceBucket) -> f32 {
        let all = taught.rate(bucket);
        let prior = (all.right + PRIOR * bucket.guess()) / (all.tried + PRIOR);
        let own = self.rate(bucket);
        (own.right + PRIOR * prior) / (own.tried + PRIOR)
    }

    /// Records whether a token of this bucket was accepted.
    pub(crate) fn learn(&mut self, bucket: AcceptanceBucket, is_right: bool) {
        let evidence = bucket.evidence as usize;
        let rate = &mut self.rates[bucket.source as usize][usize::from(bucket.length)][evidence];
        rate.tried = rate.tried * KEPT + 1.0;
        rate.right = rate.right * KEPT + f32::from(u8::from(is_right));
    }

    fn rate(&self, bucket: AcceptanceBucket) -> Rate {
        self.rates[bucket.source as usize][usize::from(bucket.length)][bucket.evidence as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_sees_soon_weighs_more_than_what_others_saw() {
        let bucket = AcceptanceBucket::of(DraftSource::Context, 3, 1, 1);
        let (mut own, mut taught) = (Acceptance::default(), Acceptance::default());
        for _ in 0..1000 {
            taught.learn(bucket, true);
        }
        assert!(own.probability(&taught, bucket) > 0.9);
        for _ in 0..20 {
            own.learn(bucket, false);
        }
        assert!(own.probability(&taught, bucket) < 0.3);
    }

    #[test]
    fn longer_matches_and_better_evidence_are_believed_more() {
        let nothing = Acceptance::default();
        let of = |length, count, all| {
            nothing.probability(
                &nothing,
                AcceptanceBucket::of(DraftSource::History, length, count, all),
            )
        };
        assert!(of(1, 1, 1) < of(2, 1, 1) && of(16, 1, 1) < of(17, 1, 1));
        assert!(of(4, 1, 3) < of(4, 2, 3) && of(4, 1, 1) < of(4, 3, 3));
    }
}
