//! Finished answers to draft from: the latest, up to a number of tokens.
//!
//! An automaton cannot forget, so answers are gathered in segments of an eighth of the limit, and the oldest segment is
//! dropped as a whole.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::automaton::{Automaton, Match};

/// Segments of a full history.
const SEGMENTS: usize = 8;
/// Last tokens of a prompt that are kept with its answer.
pub const PROMPT_END: usize = 4;
/// Latest tokens of a context that are matched against a segment new to it; longer matches are not told apart.
pub(crate) const REREAD: usize = 64;

/// Number of segments begun so far, in this process.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// Finished answers.
#[derive(Debug)]
pub struct History {
    segments: VecDeque<Segment>,
    tokens_max: usize,
}

#[derive(Debug)]
struct Segment {
    /// Unique in the process, since a reader may outlive the history that it read.
    id: u64,
    texts: usize,
    answers: Automaton,
}

impl History {
    /// An empty history of at most `tokens_max` tokens; of 0, it stays empty.
    pub fn new(tokens_max: usize) -> Self {
        Self {
            segments: VecDeque::new(),
            tokens_max,
        }
    }

    /// Adds a finished answer behind the last [`PROMPT_END`] tokens of its prompt, by which the beginning of an answer
    /// is found. An answer longer than the whole history is left out.
    pub fn add(&mut self, prompt: &[u32], answer: &[u32]) {
        let prompt = &prompt[prompt.len().saturating_sub(PROMPT_END)..];
        let tokens = prompt.len() + answer.len();
        if answer.is_empty() || tokens > self.tokens_max {
            return;
        }
        while self.tokens() + tokens > self.tokens_max {
            self.segments.pop_front();
        }
        let full = self.tokens_max.div_ceil(SEGMENTS);
        match self.segments.back_mut() {
            Some(open) if open.answers.tokens() < full => {}
            closed => {
                if let Some(closed) = closed {
                    closed.answers.shrink();
                }
                self.segments.push_back(Segment {
                    id: BEGUN.fetch_add(1, Ordering::Relaxed),
                    texts: 0,
                    answers: Automaton::default(),
                });
            }
        }
        if let Some(open) = self.segments.back_mut() {
            for token in prompt.iter().chain(answer) {
                open.answers.push(*token);
            }
            open.answers.end_text();
            open.texts += 1;
        }
    }

    /// Number of tokens in all segments.
    pub fn tokens(&self) -> usize {
        let segments = self.segments.iter();
        segments.map(|segment| segment.answers.tokens()).sum()
    }

    /// Memory of the history, in bytes.
    pub fn bytes(&self) -> usize {
        let segments = self.segments.iter();
        segments.map(|segment| segment.answers.bytes()).sum()
    }
}

/// The matches of one context in each segment of a history.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reader {
    places: Vec<Place>,
}

#[derive(Debug, Clone)]
struct Place {
    segment: u64,
    /// Answers in the segment when it was last read from the start.
    texts: usize,
    at: Match,
}

impl Reader {
    /// Reads the latest token of a context, the last of `recent`. Segments that are new or have grown are matched
    /// against all of `recent`.
    pub(crate) fn read(&mut self, history: &History, recent: &[u32]) {
        let recent = &recent[recent.len().saturating_sub(REREAD)..];
        let mut before = std::mem::take(&mut self.places);
        for segment in &history.segments {
            let known = before
                .iter()
                .position(|place| (place.segment, place.texts) == (segment.id, segment.texts));
            let (at, unread) = match known {
                Some(at) => (
                    before.swap_remove(at).at,
                    &recent[recent.len().saturating_sub(1)..],
                ),
                None => (Match::NONE, recent),
            };
            let read = |at, token: &u32| segment.answers.advance(at, *token);
            self.places.push(Place {
                segment: segment.id,
                texts: segment.texts,
                at: unread.iter().fold(at, read),
            });
        }
    }

    /// Each match, with the automaton that it is a match in.
    pub(crate) fn matches<'a>(
        &'a self,
        history: &'a History,
    ) -> impl Iterator<Item = (&'a Automaton, Match)> {
        self.places.iter().filter_map(|place| {
            let mut segments = history.segments.iter();
            let segment = segments.find(|segment| segment.id == place.segment)?;
            Some((&segment.answers, place.at))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_answers_go_by_the_segment() {
        let mut history = History::new(80);
        for answer in 0..30 {
            history.add(&[], &[answer, answer + 1, answer + 2, answer + 3]);
            assert!(history.tokens() <= 80);
        }
        assert!(history.tokens() >= 70, "{}", history.tokens());
        let oldest = history.segments.front().unwrap();
        assert_eq!(oldest.answers.advance(Match::NONE, 5), Match::NONE);
    }

    #[test]
    fn too_long_answers_and_a_history_of_nothing_keep_nothing() {
        let mut history = History::new(0);
        history.add(&[], &[1, 2, 3]);
        assert_eq!(history.tokens(), 0);
        let mut history = History::new(2);
        history.add(&[], &[1, 2, 3]);
        assert_eq!(history.tokens(), 0);
    }

    #[test]
    fn answers_that_come_meanwhile_are_found() {
        let mut history = History::new(1000);
        history.add(&[], &[1, 2]);
        let mut reader = Reader::default();
        reader.read(&history, &[5]);
        reader.read(&history, &[5, 6]);
        history.add(&[], &[4, 5, 6, 7, 8]);
        reader.read(&history, &[5, 6, 7]);
        let lengths: Vec<u32> = reader.matches(&history).map(|(_, at)| at.length).collect();
        assert_eq!(lengths, [3]);
    }
}
