//! The conductor's view of a request: its listener, its progress, and its times.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::drafts::{Drafting, Fed, RequestDrafts};
use super::machine::Machine;
use super::prefix::PrefixRows;
use super::request::{Ending, FinishReason, Listener, ScopeId, Update};
use super::scores::{PromptScores, Score};
use super::served::{Committed, Follows, NextToken, PromptRows, Served};
use super::waits::Entry;
use crate::error::EngineError;
use heg_draft::Likely;
use heg_exec::mem::KvCache;
use heg_sched::{Class, Finish, FlowId};
use heg_state::StateOwner;
use heg_text::TokenLogProbs;

/// A live request.
pub(super) struct Live {
    pub(super) class: Class,
    pub(super) owner: Owner,
    pub(super) prompt_tokens: u32,
    pub(super) reused_tokens: u32,
    /// Tokens that came from kept state.
    pub(super) kept_tokens: u32,
    /// Tokens of the prompt that came from a state of the bundle.
    pub(super) baked_tokens: u32,
    /// The rows of its prompt in kept state, until it starts over.
    pub(super) kept: Option<PrefixRows>,
    pub(super) served: Arc<Served>,
    /// The drafts of its answer, if it is drafted.
    pub(super) drafts: Option<Box<RequestDrafts>>,
    /// Its activations, while it prefills.
    pub(super) prompt: Option<PromptRows>,
    /// Keys and values of the last layer of its prompt, if that keeps its rows.
    pub(super) last_layer: Option<KvCache>,
    /// The latest error of its work.
    pub(super) error: Option<Arc<EngineError>>,
    /// Committed tokens that the scheduler has not emitted yet.
    due: VecDeque<Due>,
    /// Log probabilities of the prompt's tokens, if they are wanted, until the listener has them.
    scores: Option<PromptScores>,
    end: End,
    listener: Listener,
    submitted: Instant,
    entry: Entry,
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    /// Number of tokens that the listener has.
    generated: u32,
}

/// The owners of a request and of its KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    /// The scope of its answer.
    pub(super) scope: ScopeId,
    /// The scope within which its KV cache may be continued.
    pub(super) prefixes: ScopeId,
    /// The owner of its KV cache in kept state, if any of it is to be kept.
    pub(super) state: Option<StateOwner>,
    pub(super) flow: FlowId,
}

/// A part of an answer that is yet to be emitted.
enum Due {
    /// A committed token.
    Token {
        token: u32,
        log_probs: Option<Box<TokenLogProbs>>,
    },
    /// The vector of the prompt.
    Vector(Vec<f32>),
}

/// Whether an answer has its last token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Complete,
    /// It cannot go on: its grammar could not be followed further, or nothing is left to run it on.
    Broken,
}

/// The stage that a request is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Queued,
    Prefilling,
    Decoding,
}

impl Live {
    pub(super) fn new(
        class: Class,
        owner: Owner,
        (served, drafts): (Served, Option<Box<RequestDrafts>>),
        listener: Listener,
        (submitted, entry): (Instant, Entry),
    ) -> Self {
        let prompt_tokens = served.with_tokens(<[u32]>::len) as u32;
        if drafts.is_some() {
            served.look_ahead();
        }
        Self {
            class,
            owner,
            prompt_tokens,
            scores: served
                .scores_prompt()
                .then(|| PromptScores::new(prompt_tokens)),
            reused_tokens: 0,
            kept_tokens: 0,
            baked_tokens: 0,
            kept: None,
            served: Arc::new(served),
            drafts,
            prompt: None,
            last_layer: None,
            error: None,
            due: VecDeque::new(),
            end: End::Open,
            listener,
            submitted,
            entry,
            started: None,
            first_token: None,
            last_token: None,
            generated: 0,
        }
    }

    pub(super) fn phase(&self) -> Phase {
        match (self.started, self.first_token) {
            (_, Some(_)) => Phase::Decoding,
            (Some(_), None) => Phase::Prefilling,
            (None, None) => Phase::Queued,
        }
    }

    /// Notes the launch of a kernel. For the first one, returns the state at its arrival and the time that it waited.
    pub(super) fn start(&mut self) -> Option<(Entry, Duration)> {
        if self.started.is_some() {
            return None;
        }
        let now = Instant::now();
        self.started = Some(now);
        Some((self.entry, now.saturating_duration_since(self.submitted)))
    }

    pub(super) fn accepted(&mut self, predicted_ttft: Duration) {
        (self.listener)(Update::Accepted { predicted_ttft });
    }

    /// Takes a lane's token into the answer, to be emitted later; returns whether the answer goes on.
    pub(super) fn commit(&mut self, next: NextToken) -> Follows {
        match self.served.commit(next) {
            Ok(Committed {
                token,
                log_probs,
                follows,
            }) => {
                self.due.push_back(Due::Token { token, log_probs });
                if follows == Follows::Nothing {
                    self.end = End::Complete;
                }
                follows
            }
            // The other requests of the batch have their tokens.
            Err(error) => {
                self.error = Some(Arc::new(error));
                self.end = End::Broken;
                Follows::Nothing
            }
        }
    }

    /// Takes the vector of the prompt, which is the whole answer, to be emitted later.
    pub(super) fn complete(&mut self, vector: Vec<f32>) {
        self.due.push_back(Due::Vector(vector));
        self.end = End::Complete;
    }

    /// Updates the acceptance statistics from the last verification, `fed`, if the request decoded; then drafts the
    /// tokens that may follow its latest `given` tokens, unless the machine has a draft of its own. The draft is
    /// empty if the answer has its last token.
    pub(super) fn draft(
        &mut self,
        (drafting, machine): (&mut Drafting, &dyn Machine),
        given: u32,
        fed: Option<Fed<'_>>,
    ) -> Arc<[u16]> {
        let Some(drafts) = &mut self.drafts else {
            return Arc::from([]);
        };
        let (scope, served) = (self.owner.scope, &self.served);
        let is_open = self.end == End::Open;
        served.with_forced(|tokens, forced| {
            let given = &tokens[tokens.len().saturating_sub(given as usize)..];
            if let Some(fed) = fed {
                drafting.verified(scope, drafts, given, fed);
            }
            if !is_open || served.is_full(tokens.len()) {
                return Arc::from([]);
            }
            let other = machine.draft(served.id, tokens);
            drafting.next((scope, drafts), (given, forced), other)
        })
    }

    /// Uses the tokens that the model found likely in the prompt for drafts, too.
    pub(super) fn calibrate(&mut self, likely: Arc<[Likely]>) {
        let Some(drafts) = &mut self.drafts else {
            return;
        };
        let prompt_tokens = self.prompt_tokens as usize;
        self.served.with_tokens(|tokens| {
            drafts.calibrate(tokens.get(..prompt_tokens).unwrap_or(tokens), likely);
        });
    }

    /// Takes in log probabilities of the prompt's tokens.
    pub(super) fn scored(&mut self, scores: Vec<Score>) {
        if let Some(known) = &mut self.scores {
            known.add(scores);
        }
    }

    /// Rows of the prompt whose logits are wanted and not known yet.
    pub(super) fn unscored(&self) -> Vec<u32> {
        let scores = self.scores.as_ref();
        scores.map_or(Vec::new(), PromptScores::missing)
    }

    /// Passes the next token on to the listener, after the log probabilities of the prompt if they are wanted.
    pub(super) fn emit(&mut self) {
        // A token that could not be chosen was counted, and is not there.
        let Some(due) = self.due.pop_front() else {
            return;
        };
        if let Some(scores) = self.scores.take().and_then(PromptScores::whole) {
            (self.listener)(Update::Prompt(scores));
        }
        let now = Instant::now();
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.generated += 1;
        (self.listener)(match due {
            Due::Token { token, log_probs } => Update::Token {
                id: token,
                log_probs,
            },
            Due::Vector(vector) => Update::Vector(vector),
        });
    }

    /// Returns the first tokens of its prompt and answer.
    pub(super) fn leading_tokens(&self, count: u32) -> Vec<u32> {
        self.served
            .with_tokens(|tokens| tokens.get(..count as usize).unwrap_or(tokens).to_vec())
    }

    /// Breaks the answer off for a reason, which its ending will have.
    pub(super) fn break_off(&mut self, error: Arc<EngineError>) {
        self.end = End::Broken;
        self.error = Some(error);
    }

    /// Tells the listener that the request is over.
    pub(super) fn finish(mut self, finish: Finish) {
        let now = Instant::now();
        let span = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), Some(to)) => to.saturating_duration_since(from),
            _ => Duration::ZERO,
        };
        let submitted = Some(self.submitted);
        let ending = Ending {
            finish: match (self.end, finish) {
                (End::Broken, Finish::Complete | Finish::Cancelled) => Finish::Failed,
                _ => finish,
            },
            reason: match self.end {
                End::Open => FinishReason::Length,
                End::Complete | End::Broken => FinishReason::Stop,
            },
            error: self.error.take(),
            reused_tokens: self.reused_tokens,
            kept_tokens: self.kept_tokens,
            baked_tokens: self.baked_tokens,
            queued: span(submitted, Some(self.started.unwrap_or(now))),
            ttft: span(submitted, self.first_token),
            decode: span(self.first_token, self.last_token),
            generated: self.generated,
            drafts: self.drafts.as_ref().map(|drafts| drafts.counts()),
        };
        (self.listener)(Update::Finished(ending));
    }
}
