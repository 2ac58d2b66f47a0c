//! Tokens that a model found likely within a prompt (sd.npu §3.3): its own words where the prompt has others.
//!
//! After each token of a prompt the model predicts the next one, mostly another than the prompt's. A predicted token
//! that occurs elsewhere in the prompt has predictions of its own there, and so on: a tree over the prompt, which
//! drafts walk lazily and which is never written down.

use std::sync::Arc;

use crate::acceptance::AcceptanceBucket;
use crate::draft::DraftSource;

/// Occurrences of the latest token that are compared with the answer so far: the last ones.
const PLACES: usize = 64;
/// Tokens compared before each occurrence.
const COMPARED: usize = 8;
/// Occurrences that drafts begin at.
const BEGINNINGS: usize = 2;

/// The likeliest tokens after one token of a prompt. 24 bytes, since a table of them is kept with a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Likely {
    tokens: [u32; Self::COUNT],
    /// In units of 1/65535; 0: no token.
    probabilities: [u16; Self::COUNT],
}

impl Likely {
    /// Number of tokens kept.
    pub const COUNT: usize = 4;
    /// No prediction.
    pub const UNKNOWN: Self = Self {
        tokens: [0; Self::COUNT],
        probabilities: [0; Self::COUNT],
    };

    /// Keeps the first [`COUNT`](Self::COUNT) of `likely`: tokens and their probabilities, 0 to 1, likeliest first.
    pub fn new(likely: impl IntoIterator<Item = (u32, f64)>) -> Self {
        let mut kept = Self::UNKNOWN;
        let places = kept.tokens.iter_mut().zip(&mut kept.probabilities);
        for ((place, kept), (token, probability)) in places.zip(likely) {
            *place = token;
            // `as` saturates, and turns NaN into 0.
            *kept = (probability * f64::from(u16::MAX)).round() as u16;
        }
        kept
    }

    /// Whether there is a prediction.
    pub fn is_known(&self) -> bool {
        self.probabilities[0] > 0
    }

    /// Each predicted token with its probability in units of 1/65535 and its acceptance bucket. `read` counts the
    /// tokens before it on this path that are accepted or assumed to be.
    pub(crate) fn tokens(&self, read: u32) -> impl Iterator<Item = (u32, u16, AcceptanceBucket)> {
        let places = self.tokens.iter().zip(&self.probabilities);
        let filled = places.filter(|(_, probability)| **probability > 0);
        filled.map(move |(token, probability)| {
            let twentieths = (20.0 * f32::from(*probability) / f32::from(u16::MAX)).round();
            let bucket = AcceptanceBucket::of(DraftSource::Calibrated, read, twentieths as u32, 20);
            (*token, *probability, bucket)
        })
    }
}

/// A prompt with the model's predictions.
#[derive(Debug, Clone)]
pub(crate) struct Calibrated {
    tokens: Vec<u32>,
    /// One per token; may be shorter than the prompt.
    likely: Arc<[Likely]>,
    /// Positions of the prompt that have a prediction, sorted by their token.
    places: Vec<u32>,
}

/// A position in the prompt to continue from: the first occurrence of `token` at or behind `from`, else the last one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    token: u32,
    from: u32,
}

impl Calibrated {
    pub(crate) fn new(prompt: &[u32], likely: Arc<[Likely]>) -> Self {
        let rows = (0..).zip(likely.iter().zip(prompt));
        let known = rows.filter(|(_, (likely, _))| likely.is_known());
        let mut places: Vec<u32> = known.map(|(place, _)| place).collect();
        places.sort_by_key(|place| (prompt.get(*place as usize), *place));
        Self {
            tokens: prompt.to_vec(),
            likely,
            places,
        }
    }

    /// Places that match the end of the context best, each with the number of tokens that match, its own included.
    pub(crate) fn beginnings(&self, recent: &[u32]) -> Vec<(Place, u32)> {
        let Some((last, before)) = recent.split_last() else {
            return Vec::new();
        };
        let here = self.places_of(*last);
        let latest = &here[here.len().saturating_sub(PLACES)..];
        let mut found: Vec<(u32, u32)> = latest
            .iter()
            .map(|place| (1 + self.equal_before(*place, before), *place))
            .collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.truncate(BEGINNINGS);
        let begin = |(length, from)| (Place { token: *last, from }, length);
        found.into_iter().map(begin).collect()
    }

    /// Each token predicted at a place, with its probability, its bucket and the place to continue from.
    pub(crate) fn after(
        &self,
        place: Place,
        read: u32,
    ) -> impl Iterator<Item = (u32, u16, AcceptanceBucket, Place)> {
        let at = self.resolve(place);
        let likely = at.and_then(|at| self.likely.get(at as usize));
        let from = at.map_or(0, |at| at + 1);
        let tokens = likely.into_iter().flat_map(move |it| it.tokens(read));
        tokens.map(move |(token, probability, bucket)| {
            (token, probability, bucket, Place { token, from })
        })
    }

    fn resolve(&self, place: Place) -> Option<u32> {
        let here = self.places_of(place.token);
        let behind = here.partition_point(|at| *at < place.from);
        here.get(behind).or(here.last()).copied()
    }

    fn places_of(&self, token: u32) -> &[u32] {
        let at = |place: &u32| self.tokens.get(*place as usize).copied();
        let begin = self.places.partition_point(|it| at(it) < Some(token));
        let end = self.places.partition_point(|it| at(it) <= Some(token));
        self.places.get(begin..end).unwrap_or_default()
    }

    /// Number of tokens before a position that match the end of `before`.
    fn equal_before(&self, place: u32, before: &[u32]) -> u32 {
        let here = self.tokens.get(..place as usize).unwrap_or_default();
        let pairs = here.iter().rev().zip(before.iter().rev()).take(COMPARED);
        pairs.take_while(|(a, b)| a == b).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[&[(u32, f64)]]) -> Arc<[Likely]> {
        let likely = |row: &&[(u32, f64)]| Likely::new(row.iter().copied());
        rows.iter().map(likely).collect()
    }

    fn after(calibrated: &Calibrated, place: Place) -> Vec<u32> {
        let after = calibrated.after(place, 1);
        after.map(|(token, ..)| token).collect()
    }

    #[test]
    fn a_row_has_four_tokens_in_24_bytes() {
        assert_eq!(size_of::<Likely>(), 24);
        let likely = Likely::new([(1, 0.5), (2, 0.25), (3, f64::NAN), (4, 2.0), (5, 0.1)]);
        let tokens: Vec<(u32, u16)> = likely.tokens(0).map(|(token, p, _)| (token, p)).collect();
        assert_eq!(tokens, [(1, 32768), (2, 16384), (4, 65535)]);
        assert!(likely.is_known() && !Likely::UNKNOWN.is_known());
    }

    /// The paper's example: "Clinton 's security detail has arrived at", where "arrived" is likely after "Clinton".
    #[test]
    fn what_is_likely_goes_on_where_the_prompt_has_it() {
        let prompt = [10, 11, 12, 13, 14, 15, 16];
        let rows = table(&[
            &[(14, 0.4), (15, 0.3), (11, 0.2)],
            &[(12, 0.9)],
            &[],
            &[],
            &[(15, 0.8)],
            &[(16, 0.9), (99, 0.1)],
        ]);
        let calibrated = Calibrated::new(&prompt, rows);
        let [(begin, length)] = calibrated.beginnings(&[77, 10])[..] else {
            unreachable!("10 stands once");
        };
        assert_eq!((length, after(&calibrated, begin)), (1, vec![14, 15, 11]));
        let next: Vec<Place> = calibrated.after(begin, 1).map(|it| it.3).collect();
        assert_eq!(after(&calibrated, next[1]), [16, 99]);
        // A token that occurs nowhere has no predictions.
        let nowhere = calibrated.after(next[1], 2).last().map(|it| it.3);
        assert_eq!(after(&calibrated, nowhere.unwrap()), [0; 0]);
        assert!(calibrated.beginnings(&[99]).is_empty() && calibrated.beginnings(&[]).is_empty());
    }

    #[test]
    fn drafts_begin_where_most_of_the_context_is_the_same() {
        let prompt = [1, 2, 3, 9, 2, 3, 9, 3];
        let row: &[(u32, f64)] = &[(5, 1.0)];
        let rows = table(&[row; 8]);
        let calibrated = Calibrated::new(&prompt, rows);
        let found = calibrated.beginnings(&[7, 1, 2, 3]);
        let places = found.iter().map(|(it, length)| (it.from, *length));
        assert_eq!(places.collect::<Vec<_>>(), [(2, 3), (5, 2)]);
    }
}
