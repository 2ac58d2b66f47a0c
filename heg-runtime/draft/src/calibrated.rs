//! What a model found likely within a prompt (sd.npu §3.3): its own words where the prompt has others.
//!
//! After each token of a prompt the model has an opinion of the next one, which the prompt's own mostly is not. A likely
//! token that stands elsewhere in the prompt has likely ones of its own there, and so on: a tree over the prompt, which
//! is walked as drafts need it and never written down.

use std::sync::Arc;

use crate::acceptance::Kind;
use crate::draft::Source;

/// Places at which the latest token stands that are compared with the answer so far: the last ones.
const PLACES: usize = 64;
/// Latest tokens that are compared.
const COMPARED: usize = 8;
/// Places that drafts begin at.
const BEGINNINGS: usize = 2;

/// The likeliest tokens after one of a prompt: 24 B, since a table of them is kept with a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Likely {
    tokens: [u32; Self::COUNT],
    /// In 65535ths; 0 where there is no such token.
    probabilities: [u16; Self::COUNT],
}

impl Likely {
    /// Tokens that are kept.
    pub const COUNT: usize = 4;
    /// After a token of which nothing is known.
    pub const UNKNOWN: Self = Self {
        tokens: [0; Self::COUNT],
        probabilities: [0; Self::COUNT],
    };

    /// The first of these tokens, with their probabilities.
    pub fn new(likely: impl IntoIterator<Item = (u32, f64)>) -> Self {
        let mut kept = Self::UNKNOWN;
        let places = kept.tokens.iter_mut().zip(&mut kept.probabilities);
        for ((place, kept), (token, probability)) in places.zip(likely) {
            *place = token;
            // `as` saturates, and makes 0 of NaN.
            *kept = (probability * f64::from(u16::MAX)).round() as u16;
        }
        kept
    }

    /// Whether something is known.
    pub fn is_known(&self) -> bool {
        self.probabilities[0] > 0
    }

    /// The tokens that have a probability, with the kind of token that they are after `read` that turned out right, or
    /// are assumed to.
    pub(crate) fn tokens(&self, read: u32) -> impl Iterator<Item = (u32, u16, Kind)> {
        let likely = self.tokens.iter().zip(&self.probabilities);
        let likely = likely.filter(|(_, probability)| **probability > 0);
        likely.map(move |(token, probability)| {
            let twentieths = (20.0 * f32::from(*probability) / f32::from(u16::MAX)).round();
            let kind = Kind::of(Source::Calibrated, read, twentieths as u32, 20);
            (*token, *probability, kind)
        })
    }
}

/// A prompt, with what was found likely in it.
#[derive(Debug, Clone)]
pub(crate) struct Calibrated {
    tokens: Vec<u32>,
    /// One for each token, as far as they go.
    likely: Arc<[Likely]>,
    /// Places in the prompt of which something is known, by the token there.
    places: Vec<u32>,
}

/// A place in the prompt to go on from: the first one behind `from` at which a token stands, else the last one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    token: u32,
    from: u32,
}

impl Calibrated {
    pub(crate) fn new(prompt: &[u32], likely: Arc<[Likely]>) -> Self {
        let known = (0..).zip(likely.iter().zip(prompt));
        let known = known.filter(|(_, (likely, _))| likely.is_known());
        let mut places: Vec<u32> = known.map(|(place, _)| place).collect();
        places.sort_by_key(|place| (prompt.get(*place as usize), *place));
        Self {
            tokens: prompt.to_vec(),
            likely,
            places,
        }
    }

    /// Places after which the answer may go on as the model would have, each with the number of tokens before it, itself
    /// included, that are the latest ones of the context.
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

    /// What is likely after a token, and where the prompt goes on with each.
    pub(crate) fn after(
        &self,
        place: Place,
        read: u32,
    ) -> impl Iterator<Item = (u32, u16, Kind, Place)> {
        let at = self.resolve(place);
        let likely = at.and_then(|at| self.likely.get(at as usize));
        let from = at.map_or(0, |at| at + 1);
        let tokens = likely.into_iter().flat_map(move |it| it.tokens(read));
        tokens.map(move |(token, probability, kind)| {
            (token, probability, kind, Place { token, from })
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

    /// Tokens before a place that are the last ones of `before`.
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
        // Nothing is known of what stands nowhere.
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
        let found: Vec<(u32, u32)> = found
            .iter()
            .map(|(it, length)| (it.from, *length))
            .collect();
        assert_eq!(found, [(2, 3), (5, 2)]);
    }
}
