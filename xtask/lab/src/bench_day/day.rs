//! A day, drawn from a seed: the same questions, documents and background work for each system.

use crate::words;
use heg_spec::Seeded;
use serde::Serialize;
use std::ops::Range;

/// The sizes of a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Sizes {
    pub(super) agents: usize,
    /// Questions of the person, to one agent after the other in no order.
    pub(super) turns: usize,
    /// Tokens of each agent's instructions and tools.
    pub(super) instructions: usize,
    pub(super) seed: u64,
}

/// A person's day with agents, and what works in the background meanwhile. Token ids are those of any vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Day {
    /// The instructions of each agent, with which all its prompts begin.
    pub(super) instructions: Vec<Vec<u32>>,
    pub(super) turns: Vec<Turn>,
    /// The turn before which the system is killed and started again.
    pub(super) restart: usize,
    /// Texts that are summed up in the background, again and again from the first one.
    pub(super) digests: Vec<Vec<u32>>,
    /// Batches of passages that get vectors in the background, again and again.
    pub(super) passages: Vec<Vec<String>>,
    /// Tokens of a tool's call, of an answer to the person, and of a digest.
    pub(super) call: usize,
    pub(super) answer: usize,
    pub(super) digest: usize,
}

/// A question to an agent. It looks for documents, has a tool called, reads the tool's result, and answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Turn {
    pub(super) agent: usize,
    /// The text that documents are looked for by.
    pub(super) query: String,
    /// The documents that a reranker puts in order.
    pub(super) documents: Vec<String>,
    pub(super) question: Vec<u32>,
    pub(super) result: Vec<u32>,
}

impl Day {
    pub(super) fn draw(sizes: Sizes) -> Self {
        let mut seeded = Seeded::new(sizes.seed);
        let texts = words::different(TEXTS);
        let instructions = (0..sizes.agents)
            .map(|_| ids(&mut seeded, sizes.instructions))
            .collect();
        let turns = (0..sizes.turns)
            .map(|_| Turn {
                agent: seeded.below(sizes.agents),
                query: pick(&mut seeded, &texts),
                documents: picks(&mut seeded, &texts, DOCUMENTS),
                question: within(&mut seeded, QUESTION),
                result: within(&mut seeded, RESULT),
            })
            .collect();
        Self {
            instructions,
            turns,
            restart: sizes.turns / 2,
            digests: (0..DIGESTS)
                .map(|_| within(&mut seeded, DIGESTED))
                .collect(),
            passages: (0..BATCHES)
                .map(|_| picks(&mut seeded, &texts, PASSAGES))
                .collect(),
            call: CALL,
            answer: ANSWER,
            digest: DIGEST,
        }
    }

    /// The part of the day before the restart.
    pub(super) fn before_restart(&self) -> Self {
        let turns = self.turns.get(..self.restart).unwrap_or(&self.turns);
        Self {
            turns: turns.to_vec(),
            ..self.clone()
        }
    }

    /// The part behind the restart. Its instructions are all that an agent has read and said before: `said` has the token ids
    /// of a call and an answer for each turn until then.
    pub(super) fn after_restart<'s>(&self, said: impl Iterator<Item = &'s [u32]>) -> Self {
        let (before, after) = self.turns.split_at(self.restart.min(self.turns.len()));
        let mut instructions = self.instructions.clone();
        for (turn, said) in before.iter().zip(said) {
            let (call, answer) = said.split_at(self.call.min(said.len()));
            if let Some(conversation) = instructions.get_mut(turn.agent) {
                conversation.extend([&turn.question, call, &turn.result, answer].concat());
            }
        }
        Self {
            instructions,
            turns: after.to_vec(),
            restart: 0,
            ..self.clone()
        }
    }

    /// The longest prompt and its answer, in tokens, that an agent can come to.
    pub(super) fn context(&self) -> usize {
        let of_agent = |agent: usize| {
            let turns = self.turns.iter().filter(|turn| turn.agent == agent);
            let said =
                turns.map(|it| it.question.len() + it.result.len() + self.call + self.answer);
            self.instructions.get(agent).map_or(0, Vec::len) + said.sum::<usize>()
        };
        let agents = 0..self.instructions.len();
        agents.map(of_agent).max().unwrap_or(0)
    }

    /// The longest text of the background and its digest, in tokens.
    pub(super) fn digest_context(&self) -> usize {
        let longest = self.digests.iter().map(Vec::len).max();
        longest.unwrap_or(0) + self.digest
    }
}

fn ids(seeded: &mut Seeded, count: usize) -> Vec<u32> {
    (0..count)
        .map(|_| (IDS.start + seeded.below(IDS.len())) as u32)
        .collect()
}

fn within(seeded: &mut Seeded, counts: Range<usize>) -> Vec<u32> {
    let count = seeded.within(counts);
    ids(seeded, count)
}

fn picks(seeded: &mut Seeded, texts: &[String], count: usize) -> Vec<String> {
    (0..count).map(|_| pick(seeded, texts)).collect()
}

fn pick(seeded: &mut Seeded, texts: &[String]) -> String {
    texts
        .get(seeded.below(texts.len()))
        .cloned()
        .unwrap_or_default()
}

/// Token ids that each vocabulary has, without its special ones.
const IDS: Range<usize> = 1000..4000;

/// Chosen, as what agents of an editor say to each other.
const QUESTION: Range<usize> = 24..80;
const RESULT: Range<usize> = 150..400;
const CALL: usize = 32;
const ANSWER: usize = 96;
const DOCUMENTS: usize = 8;

/// Chosen: mails and pages that are summed up as they come.
const DIGESTED: Range<usize> = 600..1500;
const DIGEST: usize = 96;
const DIGESTS: usize = 32;

/// Chosen: an index that is made of a folder.
const PASSAGES: usize = 16;
const BATCHES: usize = 16;
/// Different texts of questions, documents and passages.
const TEXTS: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes {
        agents: 3,
        turns: 12,
        instructions: 500,
        seed: 1,
    };

    #[test]
    fn a_seed_is_a_day() {
        let day = Day::draw(SIZES);
        assert_eq!(day, Day::draw(SIZES));
        assert_ne!(day, Day::draw(Sizes { seed: 2, ..SIZES }));
        assert_eq!((day.turns.len(), day.restart), (12, 6));
        assert!(day.turns.iter().all(|turn| turn.agent < 3));
        assert!(day.passages.iter().flatten().all(|text| !text.is_empty()));
    }

    #[test]
    fn the_evening_goes_on_where_the_morning_ended() {
        let day = Day::draw(SIZES);
        let said = vec![7; CALL + ANSWER];
        let (morning, evening) = (
            day.before_restart(),
            day.after_restart([said.as_slice(); 6].into_iter()),
        );
        assert_eq!([morning.turns, evening.turns.clone()].concat(), day.turns);
        let lengths = evening.instructions.iter().map(Vec::len).sum::<usize>();
        let heard = day.turns[..6]
            .iter()
            .map(|it| it.question.len() + it.result.len());
        assert_eq!(lengths, 3 * 500 + heard.sum::<usize>() + 6 * said.len());
        assert_eq!(evening.context(), day.context());
    }

    #[test]
    fn the_longest_conversation_is_known_before_it_is_held() {
        let day = Day::draw(SIZES);
        let mut lengths = [500; 3];
        for turn in &day.turns {
            lengths[turn.agent] += turn.question.len() + CALL + turn.result.len() + ANSWER;
        }
        assert_eq!(Some(day.context()), lengths.into_iter().max());
    }
}
