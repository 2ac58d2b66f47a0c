//! The lanes' view of a request: its tokens, and the choice of the next one.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cache::RequestCache;
use super::drafts::DraftTokens;
use super::request::{EndTokens, Request};
use super::row_ring::RowRing;
use super::scores::Score;
use crate::error::EngineError;
use heg_artifacts::manifest::TextVectors;
use heg_exec::TokenRun;
use heg_exec::mem::ActivationRows;
use heg_sched::RequestId;
use heg_text::{Choice, GrammarState, Sampler, TextError, TokenLogProbs, log_probabilities};

/// A request that the conductor shares with the lanes that run parts of it: lanes read it, only the conductor adds
/// tokens.
pub(super) struct Served {
    pub(super) id: RequestId,
    /// Tokens that end the answer.
    eos_ids: Vec<u32>,
    prompt_tokens: u32,
    /// Most tokens of prompt and answer.
    tokens_max: usize,
    /// Most likely tokens to report with each token of the answer, if its log probabilities are wanted.
    log_probs: Option<u32>,
    /// Most likely tokens to report with each token of the prompt, if their log probabilities are wanted.
    prompt_log_probs: Option<u32>,
    /// Position at which the second text of its prompt begins, if that is a pair.
    second_at: Option<usize>,
    /// The way to the vector of its prompt, if that is wanted in place of tokens.
    pub(super) vectors: Option<TextVectors>,
    answer: Mutex<Answer>,
}

struct Answer {
    /// The tokens of prompt and answer.
    tokens: Vec<u32>,
    sampler: Sampler,
    /// The number of tokens at which the grammar was last asked about a draft, and the number of draft tokens that it
    /// admits.
    admitted: Option<(usize, usize)>,
}

/// The token that a lane chose after a request's logits, or the reason why there is none. It is not part of the
/// answer before the conductor commits it: the report of a lane that was given up meanwhile is dropped.
#[derive(Debug)]
pub(super) struct NextToken {
    choice: Result<Choice, TextError>,
    log_probs: Option<Box<TokenLogProbs>>,
}

/// A token that has become part of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Committed {
    pub(super) token: u32,
    pub(super) log_probs: Option<Box<TokenLogProbs>>,
    pub(super) follows: Follows,
}

/// Whether more tokens follow a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Follows {
    More,
    /// No token follows: this one is an end-of-sequence token, or completes the answer's grammar.
    Nothing,
}

impl Served {
    /// Makes the shared part of a request; `eos_ids` are the model's end-of-sequence tokens, and `vectors` say how a vector
    /// is made, if the request wants one.
    pub(super) fn new(
        id: RequestId,
        request: Request,
        (eos_ids, vectors): (&[u32], Option<TextVectors>),
    ) -> Result<Self, EngineError> {
        let sampler = Sampler::new(request.sampling, &request.prompt)?;
        let sampler = sampler.biased(request.logit_bias)?;
        Ok(Self {
            id,
            eos_ids: match request.end_tokens {
                EndTokens::End => eos_ids.to_vec(),
                EndTokens::Ignored => Vec::new(),
            },
            prompt_tokens: u32::try_from(request.prompt.len()).unwrap_or(u32::MAX),
            tokens_max: request
                .prompt
                .len()
                .saturating_add(request.tokens_max as usize),
            log_probs: request.log_probs,
            prompt_log_probs: request.prompt_log_probs,
            second_at: request.second_at.map(|at| at as usize),
            vectors,
            answer: Mutex::new(Answer {
                sampler: sampler.restricted(request.restriction),
                tokens: request.prompt,
                admitted: None,
            }),
        })
    }

    /// Returns tokens of it to embed; the first stands at `position`.
    pub(super) fn run_of<'a>(&self, tokens: &'a [u32], position: usize) -> TokenRun<'a> {
        TokenRun {
            tokens,
            position,
            second_at: self.second_at,
        }
    }

    fn answer(&self) -> MutexGuard<'_, Answer> {
        // A lane that panicked changed neither tokens nor sampler.
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an answer with `tokens` tokens, including those of its prompt, has all that were asked for.
    pub(super) fn is_full(&self, tokens: usize) -> bool {
        tokens >= self.tokens_max
    }

    /// Gives the tokens so far to `read`.
    pub(super) fn with_tokens<T>(&self, read: impl FnOnce(&[u32]) -> T) -> T {
        read(&self.answer().tokens)
    }

    /// Lets the answer's grammar look ahead, for drafts.
    pub(super) fn look_ahead(&self) {
        self.answer().sampler.look_ahead();
    }

    /// Gives `read` the tokens so far, and the only tokens that may come next, as far as the answer's grammar knows
    /// them.
    pub(super) fn with_forced<T>(&self, read: impl FnOnce(&[u32], &[u32]) -> T) -> T {
        let answer = self.answer();
        read(&answer.tokens, answer.sampler.forced())
    }

    /// Returns the number of leading tokens of a draft that the answer's grammar admits, as far as it knows without
    /// delay. The result is the same for any draft until a token is committed: an iteration that was stopped
    /// continues with its rows.
    pub(super) fn admitted(&self, draft: &[u32]) -> usize {
        let mut answer = self.answer();
        let Answer {
            tokens,
            sampler,
            admitted,
        } = &mut *answer;
        let admitted = match *admitted {
            Some((behind, known)) if behind == tokens.len() => known,
            _ => {
                let known = match sampler.admitted(draft) {
                    all if all >= draft.len() => usize::MAX,
                    some => some,
                };
                *admitted = Some((tokens.len(), known));
                known
            }
        };
        admitted.min(draft.len())
    }

    /// Chooses the next token after logits of V values; called by the lane. The same logits give the same token
    /// again until one is committed.
    pub(super) fn choose(&self, logits: &mut [f32]) -> NextToken {
        self.chosen(logits, Sampler::choose)
    }

    fn chosen(
        &self,
        logits: &mut [f32],
        choose: impl FnOnce(&mut Sampler, &mut [f32]) -> Result<Choice, TextError>,
    ) -> NextToken {
        // Sampling changes the logits.
        let of_model = self.log_probs.map(|top| (top, logits.to_vec()));
        let choice = choose(&mut self.answer().sampler, logits);
        let log_probs = match (of_model, &choice) {
            (Some((top, of_model)), Ok(choice)) => Some(Box::new(log_probabilities(
                &of_model,
                choice.token(),
                top as usize,
            ))),
            _ => None,
        };
        NextToken { choice, log_probs }
    }

    /// Chooses the token after the latest one that was chosen, from the logits of a draft's row.
    pub(super) fn choose_next(&self, logits: &mut [f32]) -> NextToken {
        self.chosen(logits, Sampler::choose_next)
    }

    /// Returns a chosen token if others may follow it.
    pub(super) fn goes_on(&self, next: &NextToken) -> Option<u32> {
        let choice = next.choice.as_ref().ok()?;
        let token = choice.token();
        let is_open = choice.said() == GrammarState::Open && !self.eos_ids.contains(&token);
        is_open.then_some(token)
    }

    /// Whether logits are wanted for every row of the prompt.
    pub(super) fn scores_prompt(&self) -> bool {
        self.prompt_log_probs.is_some()
    }

    /// The rows of a run, by position, whose logits are wanted: those before another token of the prompt.
    pub(super) fn scored_rows(&self, from: u32, tokens: u32) -> Range<u32> {
        let end = match self.scores_prompt() {
            true => self.prompt_tokens.saturating_sub(1),
            false => 0,
        };
        from..from.saturating_add(tokens).min(end).max(from)
    }

    /// Returns the log probabilities of the prompt's token behind a row, from that row's logits.
    pub(super) fn score(&self, row: u32, logits: &[f32]) -> Option<Score> {
        let top = self.prompt_log_probs?;
        let behind = |tokens: &[u32]| tokens.get(row as usize + 1).copied();
        let token = self.with_tokens(behind)?;
        Some((row, log_probabilities(logits, token, top as usize)))
    }

    /// Takes a lane's token into the answer; called by the conductor.
    ///
    /// # Errors
    ///
    /// Fails if the answer's grammar allows no token, or cannot be followed further.
    pub(super) fn commit(&self, next: NextToken) -> Result<Committed, EngineError> {
        let choice = next.choice?;
        let token = choice.token();
        let mut answer = self.answer();
        let grammar = answer.sampler.commit(choice)?;
        answer.tokens.push(token);
        let is_last = grammar == GrammarState::Complete || self.eos_ids.contains(&token);
        let follows = match is_last {
            true => Follows::Nothing,
            false => Follows::More,
        };
        Ok(Committed {
            token,
            log_probs: next.log_probs,
            follows,
        })
    }
}

/// A request with its KV cache.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) served: Arc<Served>,
    pub(super) cache: RequestCache,
}

/// A request that decodes.
pub(super) struct Continued {
    pub(super) member: Member,
    /// Tokens in its cache, including the last one of its answer, which is fed now.
    pub(super) context: u32,
    /// Tokens that are fed behind that one, to be verified.
    pub(super) draft: DraftTokens,
}

impl Continued {
    /// Cuts a chain of drafted tokens at the first that the answer's grammar refuses; returns the number of tokens
    /// cut.
    pub(super) fn cut_draft(&mut self) -> u32 {
        match self.draft.chain() {
            Some(chain) if !chain.is_empty() => {
                let admitted = self.member.served.admitted(chain);
                self.draft.cut(admitted)
            }
            _ => 0,
        }
    }
}

/// The activations of a request that prefills: its own, so that it can be preempted without a copy.
#[derive(Clone)]
pub(super) struct PromptRows {
    pub(super) rows: Arc<ActivationRows>,
    /// Position of the first row.
    pub(super) first: u32,
    pub(super) ring: RowRing,
}

impl PromptRows {
    /// The row of the token at a position.
    pub(super) fn row_of(&self, position: u32) -> usize {
        self.ring.row_of(position.saturating_sub(self.first))
    }
}

/// A request that prefills.
pub(super) struct Prompt {
    pub(super) member: Member,
    pub(super) rows: PromptRows,
}
