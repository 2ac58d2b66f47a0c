//! How often drafted tokens turned out right, by where they came from: what a draft's length is chosen by.
//!
//! A request learns for itself, beside what all requests have taught: summaries repeat their document, chats do not.

use crate::draft::Source;

/// Lengths of matches that are told apart: 1, 2, up to 4, 8, 16, and longer.
const LENGTHS: usize = 6;
const EVIDENCES: usize = 4;
const SOURCES: usize = Source::ALL.len();
/// Chosen: tokens of its own that weigh as much as what all requests have taught.
const PRIOR: f32 = 6.0;
/// Chosen: what is remembered of a class when it is tried again, so that some fifty tries count.
const KEPT: f32 = 0.98;

/// What speaks for a token after a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evidence {
    /// It came in less than half of all cases.
    Seldom,
    /// It came in half of all cases or more.
    Mostly,
    /// It came the only time.
    Once,
    /// It came each of several times.
    Always,
}

/// Drafted tokens that are taken to be right equally often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    source: Source,
    length: u8,
    evidence: Evidence,
}

impl Kind {
    /// The kind of a token that came `count` times of `all` after a match of so many tokens.
    pub(crate) fn of(source: Source, length: u32, count: u32, all: u32) -> Self {
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

    /// What is believed before anything was tried.
    pub(crate) fn guess(self) -> f32 {
        let by_length: [f32; LENGTHS] = [0.25, 0.4, 0.55, 0.7, 0.8, 0.9];
        let length = by_length[usize::from(self.length) % LENGTHS];
        match (self.source, self.evidence) {
            (Source::Forced, _) => 0.95,
            // What a model finds likely of somebody else's words says less of its own.
            (Source::Calibrated, Evidence::Always | Evidence::Once) => 0.7,
            (Source::Calibrated, Evidence::Mostly) => 0.4,
            (Source::Calibrated, Evidence::Seldom) => 0.15,
            // Whoever predicts an answer is mostly right.
            (Source::Prediction, Evidence::Once) => length.sqrt(),
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

/// Rates of acceptance by kind of token.
#[derive(Debug, Clone, Default)]
pub struct Acceptance {
    rates: [[[Rate; EVIDENCES]; LENGTHS]; SOURCES],
}

impl Acceptance {
    /// How likely a token of this kind is right, where `taught` is what others have learnt.
    pub(crate) fn probability(&self, taught: &Acceptance, kind: Kind) -> f32 {
        let all = taught.rate(kind);
        let prior = (all.right + PRIOR * kind.guess()) / (all.tried + PRIOR);
        let own = self.rate(kind);
        (own.right + PRIOR * prior) / (own.tried + PRIOR)
    }

    /// Takes in how a token of this kind turned out.
    pub(crate) fn learn(&mut self, kind: Kind, is_right: bool) {
        let evidence = kind.evidence as usize;
        let rate = &mut self.rates[kind.source as usize][usize::from(kind.length)][evidence];
        rate.tried = rate.tried * KEPT + 1.0;
        rate.right = rate.right * KEPT + f32::from(u8::from(is_right));
    }

    fn rate(&self, kind: Kind) -> Rate {
        self.rates[kind.source as usize][usize::from(kind.length)][kind.evidence as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_sees_soon_weighs_more_than_what_others_saw() {
        let kind = Kind::of(Source::Context, 3, 1, 1);
        let (mut own, mut taught) = (Acceptance::default(), Acceptance::default());
        for _ in 0..1000 {
            taught.learn(kind, true);
        }
        assert!(own.probability(&taught, kind) > 0.9);
        for _ in 0..20 {
            own.learn(kind, false);
        }
        assert!(own.probability(&taught, kind) < 0.3);
    }

    #[test]
    fn longer_matches_and_better_evidence_are_believed_more() {
        let nothing = Acceptance::default();
        let of = |length, count, all| {
            nothing.probability(&nothing, Kind::of(Source::History, length, count, all))
        };
        assert!(of(1, 1, 1) < of(2, 1, 1) && of(16, 1, 1) < of(17, 1, 1));
        assert!(of(4, 1, 3) < of(4, 2, 3) && of(4, 1, 1) < of(4, 3, 3));
    }
}
