//! Finished answers to draft from: the youngest ones, up to a number of tokens.
//!
//! Nothing can be taken out of an automaton, so answers are gathered in segments of an eighth of the limit, and the
//! oldest segment goes as a whole.

use std::collections::VecDeque;

use crate::automaton::{Automaton, Match};

/// Segments that a full history has.
const SEGMENTS: usize = 8;
/// Tokens of a prompt's end that are kept with its answer.
pub const PROMPT_END: usize = 4;
/// Latest tokens of a context that are compared with a segment that is new to it: no longer match is told apart.
pub(crate) const REREAD: usize = 64;

/// Finished answers.
#[derive(Debug)]
pub struct History {
    segments: VecDeque<Segment>,
    tokens_max: usize,
    begun: u64,
}

#[derive(Debug)]
struct Segment {
    /// Never given twice.
    id: u64,
    texts: usize,
    answers: Automaton,
}

impl History {
    /// An empty history for at most so many tokens; for none, it stays empty.
    pub fn new(tokens_max: usize) -> Self {
        Self {
            segments: VecDeque::new(),
            tokens_max,
            begun: 0,
        }
    }

    /// Takes in a finished answer, and the last tokens of its prompt, by which the beginnings of answers are found. One
    /// that is longer than the history is left out.
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
                    id: self.begun,
                    texts: 0,
                    answers: Automaton::default(),
                });
                self.begun += 1;
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

    /// Tokens of all answers in it.
    pub fn tokens(&self) -> usize {
        let segments = self.segments.iter();
        segments.map(|segment| segment.answers.tokens()).sum()
    }

    /// Memory that it takes.
    pub fn bytes(&self) -> usize {
        let segments = self.segments.iter();
        segments.map(|segment| segment.answers.bytes()).sum()
    }
}

/// What of a context stands in each segment of a history.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reader {
    places: Vec<Place>,
}

#[derive(Debug, Clone)]
struct Place {
    segment: u64,
    /// Answers that the segment had when it was last read from the start.
    texts: usize,
    at: Match,
}

impl Reader {
    /// Reads the latest token of a context, the last of `recent`.
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

    /// The matches, with what they are matches in.
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
