//! Drafting methods: ours, and three for comparison.

use super::ablation::{self, Length, Variant};
use super::replay::{Method, Proposal};
use heg_draft::{
    Acceptance, Automaton, Draft, DraftSources, Drafter, History, Likely, Match, Shape, Verified,
};
use std::sync::Arc;

/// All methods, the simplest first.
pub(super) fn methods() -> Vec<Box<dyn Method>> {
    vec![
        Box::new(PromptLookup::default()),
        Box::new(Automata::over_context()),
        Box::new(Automata::with_history()),
        Box::new(Ours::new(Variant::new(Shape::Chain, 16))),
        Box::new(Ours::new(Variant::new(Shape::Tree, 32))),
    ]
}

/// Prompt look-up decoding (Saxena 2023): drafts the continuation of the first match of the context's last tokens.
#[derive(Default)]
struct PromptLookup {
    context: Vec<u32>,
}

impl PromptLookup {
    /// Longest run of tokens to match.
    const NGRAM_MAX: usize = 3;
    const TOKENS: usize = 10;
}

impl Method for PromptLookup {
    fn name(&self) -> String {
        format!("PLD of {}", Self::TOKENS)
    }

    fn begin(&mut self, prompt: &[u32]) {
        self.context = prompt.to_vec();
    }

    fn read(&mut self, given: &[u32]) {
        self.context.extend(given);
    }

    fn draft(&mut self) -> Proposal {
        let context = &self.context;
        for ngram in (1..=Self::NGRAM_MAX.min(context.len())).rev() {
            let last = &context[context.len() - ngram..];
            let first = context.windows(ngram).position(|run| run == last);
            // If no token follows the match, this is the end of the context.
            let after = first.map_or(context.len(), |at| at + ngram);
            if after < context.len() {
                let end = context.len().min(after + Self::TOKENS);
                return Proposal::chain(&context[after..end]);
            }
        }
        Proposal::default()
    }
}

/// A suffix automaton over the context, and optionally another one over earlier answers (SAM-Decoding, Hu et al. 2024):
/// drafts the most frequent continuation of the longest suffix that occurred before, from the context if both are
/// equally long.
struct Automata {
    context: Automaton,
    history: Option<Automaton>,
    /// The present match of the context in the history.
    at: Match,
}

impl Automata {
    const TOKENS: usize = 16;

    fn over_context() -> Self {
        Self {
            context: Automaton::default(),
            history: None,
            at: Match::NONE,
        }
    }

    fn with_history() -> Self {
        Self {
            history: Some(Automaton::default()),
            ..Self::over_context()
        }
    }
}

impl Method for Automata {
    fn name(&self) -> String {
        let history = match self.history {
            Some(_) => ", history",
            None => "",
        };
        format!("SAM of {}{history}", Self::TOKENS)
    }

    fn begin(&mut self, prompt: &[u32]) {
        self.context = Automaton::default();
        self.at = Match::NONE;
        self.read(prompt);
    }

    fn read(&mut self, given: &[u32]) {
        for token in given {
            self.context.push(*token);
            if let Some(history) = &self.history {
                self.at = history.advance(self.at, *token);
            }
        }
    }

    fn draft(&mut self) -> Proposal {
        let mut tokens = Vec::new();
        let repeated = self.context.repeated();
        let (texts, mut at) = match &self.history {
            Some(history) if self.at.length > repeated.length => (history, self.at),
            _ => (&self.context, repeated),
        };
        while tokens.len() < Self::TOKENS {
            let came = texts.continuations(at);
            let Some(next) = came.max_by_key(|came| (came.count, came.seen)) else {
                break;
            };
            tokens.push(next.token);
            at = next.after(at);
        }
        Proposal::chain(&tokens)
    }

    fn end(&mut self, _prompt: &[u32], answer: &[u32]) {
        if let Some(history) = &mut self.history {
            answer.iter().for_each(|token| history.push(*token));
            history.end_text();
        }
    }

    fn bytes_per_history_token(&self) -> Option<f64> {
        let history = self.history.as_ref()?;
        let tokens = history.tokens();
        (tokens > 0).then(|| history.bytes() as f64 / tokens as f64)
    }
}

/// Our method: context and history, with learnt acceptance rates of both.
pub(super) struct Ours {
    variant: Variant,
    history: History,
    taught: Acceptance,
    drafter: Drafter,
    draft: Draft,
}

impl Ours {
    /// More tokens than any data set has.
    const HISTORY_TOKENS: usize = 1_000_000;

    pub(super) fn new(variant: Variant) -> Self {
        Self {
            variant,
            history: History::new(Self::HISTORY_TOKENS),
            taught: Acceptance::default(),
            drafter: Drafter::new(&[]),
            draft: Draft::default(),
        }
    }
}

impl Method for Ours {
    fn name(&self) -> String {
        self.variant.name()
    }

    fn begin(&mut self, prompt: &[u32]) {
        self.drafter = Drafter::new(prompt).under(self.variant.policy);
        self.draft = Draft::default();
    }

    fn calibrate(&mut self, prompt: &[u32], likely: &Arc<[Likely]>) {
        self.drafter.calibrate(prompt, Arc::clone(likely));
    }

    fn read(&mut self, given: &[u32]) {
        let verified = Verified {
            draft: &self.draft,
            given,
            likeliest: &[],
        };
        self.drafter.verified(verified, &mut self.taught);
        for token in given {
            self.drafter.push(*token, &self.history);
        }
    }

    fn draft(&mut self) -> Proposal {
        let sources = DraftSources {
            history: &self.history,
            taught: &self.taught,
            forced: &[],
        };
        let Variant { shape, tokens, .. } = self.variant;
        self.draft = self.drafter.draft(shape, tokens, &sources);
        if self.variant.length == Length::ByCost {
            self.draft = self.draft.leading(ablation::worth(&self.draft));
        }
        let tokens = self.draft.tokens().iter();
        Proposal {
            tokens: tokens
                .map(|drafted| (drafted.token, drafted.parent.map(usize::from)))
                .collect(),
            expected: self.draft.expected_tokens() - 1.0,
        }
    }

    fn end(&mut self, prompt: &[u32], answer: &[u32]) {
        self.history.add(prompt, answer);
    }

    fn bytes_per_history_token(&self) -> Option<f64> {
        let tokens = self.history.tokens();
        (tokens > 0).then(|| self.history.bytes() as f64 / tokens as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafted(method: &mut dyn Method, context: &[u32]) -> Vec<u32> {
        let (last, prompt) = context.split_last().unwrap();
        method.begin(prompt);
        method.read(&[*last]);
        let proposal = method.draft();
        proposal.tokens.iter().map(|(token, _)| *token).collect()
    }

    #[test]
    fn prompt_look_up_takes_the_first_place_of_the_longest_run() {
        let mut method = PromptLookup::default();
        // 1 2 3 is followed by 4; 2 3 alone was followed by 9 earlier.
        let context = [2, 3, 9, 1, 2, 3, 4, 5, 1, 2, 3, 6, 1, 2, 3];
        let found = drafted(&mut method, &context);
        assert_eq!(found, [4, 5, 1, 2, 3, 6, 1, 2, 3]);
        assert_eq!(drafted(&mut method, &[1, 2, 3]), [0; 0]);
        assert_eq!(drafted(&mut method, &[7]), [0; 0]);
        assert_eq!(drafted(&mut method, &[7, 7]), [7]);
    }

    #[test]
    fn the_automaton_goes_on_with_what_came_most_often() {
        let mut method = Automata::over_context();
        let context = [1, 2, 3, 8, 1, 2, 4, 8, 1, 2, 4, 9, 1, 2];
        assert_eq!(drafted(&mut method, &context)[..1], [4]);
        assert_eq!(drafted(&mut method, &[1, 2, 3]), [0; 0]);
    }

    #[test]
    fn the_longer_match_of_two_automata_wins() {
        let mut method = Automata::with_history();
        method.end(&[], &[7, 8, 1, 2, 50, 51]);
        assert_eq!(drafted(&mut method, &[1, 2, 3, 8, 1, 2]), [50, 51]);
        assert_eq!(drafted(&mut method, &[1, 2, 3, 9, 1, 2])[..1], [3]);
    }

    #[test]
    fn ours_drafts_from_earlier_answers_too() {
        let mut method = Ours::new(Variant::new(Shape::Chain, 16));
        method.end(&[5], &[1, 2, 3, 4]);
        assert_eq!(drafted(&mut method, &[9, 1, 2]), [3, 4]);
        assert!(method.bytes_per_history_token() > Some(0.0));
    }
}
