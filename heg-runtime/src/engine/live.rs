//! A request as the conductor sees it: its listener, its progress, and its times.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::drafts::{Drafting, Fed, RequestDrafts};
use super::machine::Machine;
use super::request::{Ending, FinishReason, Listener, ScopeId, Update};
use super::scores::{PromptScores, Score};
use super::served::{Committed, Follows, NextToken, PromptRows, Served};
use super::waits::Entry;
use crate::error::RuntimeError;
use crate::mem::KvCache;
use heg_draft::Likely;
use heg_sched::{Class, Finish, FlowId};
use heg_text::TokenLogProbs;

/// A live request.
pub(super) struct Live {
    pub(super) class: Class,
    pub(super) scope: ScopeId,
    pub(super) flow: FlowId,
    pub(super) prompt_tokens: u32,
    pub(super) reused_tokens: u32,
    pub(super) served: Arc<Served>,
    /// What its tokens are expected to be, where they are drafted.
    pub(super) drafts: Option<Box<RequestDrafts>>,
    /// Its activations, while it prefills.
    pub(super) prompt: Option<PromptRows>,
    /// Keys and values of the last layer, of a prompt that is to be read again.
    pub(super) last_layer: Option<KvCache>,
    /// What went wrong last.
    pub(super) error: Option<Arc<RuntimeError>>,
    /// Committed tokens that the scheduler has not had emitted yet.
    due: VecDeque<Due>,
    /// Log probabilities of the prompt's tokens, if they are wanted, until its listener has them.
    scores: Option<PromptScores>,
    end: End,
    listener: Listener,
    submitted: Instant,
    entry: Entry,
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    /// Tokens that the listener has.
    generated: u32,
}

/// A committed token.
struct Due {
    token: u32,
    log_probs: Option<Box<TokenLogProbs>>,
}

/// Whether an answer has its last token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Complete,
    /// Its grammar could not be followed further.
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
        (scope, flow): (ScopeId, FlowId),
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
            scope,
            flow,
            prompt_tokens,
            scores: served
                .scores_prompt()
                .then(|| PromptScores::new(prompt_tokens)),
            reused_tokens: 0,
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

    /// Notes the launch of a kernel. For the first one, returns how the request came in and how long it waited.
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

    /// Takes a lane's token into the answer, to be emitted later; says whether the answer goes on.
    pub(super) fn commit(&mut self, next: NextToken) -> Follows {
        match self.served.commit(next) {
            Ok(Committed {
                token,
                log_probs,
                follows,
            }) => {
                self.due.push_back(Due { token, log_probs });
                if follows == Follows::Nothing {
                    self.end = End::Complete;
                }
                follows
            }
            // The others of the batch have their tokens.
            Err(error) => {
                self.error = Some(Arc::new(error));
                self.end = End::Broken;
                Follows::Nothing
            }
        }
    }

    /// Learns how the draft turned out of which `fed` was verified, where the request decoded; and drafts what may
    /// follow the latest tokens of the answer, of which so many were just committed, unless the machine has a draft of its
    /// own. Nothing follows where the answer has its last token.
    pub(super) fn draft(
        &mut self,
        (drafting, machine): (&mut Drafting, &dyn Machine),
        given: u32,
        fed: Option<Fed<'_>>,
    ) -> Arc<[u16]> {
        let Some(drafts) = &mut self.drafts else {
            return Arc::from([]);
        };
        let (scope, served) = (self.scope, &self.served);
        let is_open = self.end == End::Open;
        served.with_forced(|tokens, forced| {
            let given = &tokens[tokens.len().saturating_sub(given as usize)..];
            if let Some(fed) = fed {
                drafting.verified(drafts, given, fed);
            }
            if !is_open || served.is_full(tokens.len()) {
                return Arc::from([]);
            }
            let other = machine.draft(served.id, tokens);
            drafting.next((scope, drafts), (given, forced), other)
        })
    }

    /// Drafts from what the model found likely in the prompt, too.
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

    /// Rows of the prompt whose logits are wanted, and not known.
    pub(super) fn unscored(&self) -> Vec<u32> {
        let scores = self.scores.as_ref();
        scores.map_or(Vec::new(), PromptScores::missing)
    }

    /// Passes the next token on to the listener, after what it wants to know of the prompt.
    pub(super) fn emit(&mut self) {
        let Some(Due { token, log_probs }) = self.due.pop_front() else {
            return;
        };
        if let Some(scores) = self.scores.take().and_then(PromptScores::whole) {
            (self.listener)(Update::Prompt(scores));
        }
        let now = Instant::now();
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.generated += 1;
        (self.listener)(Update::Token {
            id: token,
            log_probs,
        });
    }

    /// The first tokens of its prompt and answer.
    pub(super) fn leading_tokens(&self, count: u32) -> Vec<u32> {
        self.served
            .with_tokens(|tokens| tokens.get(..count as usize).unwrap_or(tokens).to_vec())
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
                (End::Broken, Finish::Complete) => Finish::Failed,
                _ => finish,
            },
            reason: match self.end {
                End::Open => FinishReason::Length,
                End::Complete | End::Broken => FinishReason::Stop,
            },
            error: self.error.take(),
            reused_tokens: self.reused_tokens,
            queued: span(submitted, Some(self.started.unwrap_or(now))),
            ttft: span(submitted, self.first_token),
            decode: span(self.first_token, self.last_token),
            generated: self.generated,
            drafts: self.drafts.as_ref().map(|drafts| drafts.counts()),
        };
        (self.listener)(Update::Finished(ending));
    }
}

/// Tells the listener of a request that never ran why not.
pub(super) fn refuse(mut listener: Listener, finish: Finish, error: Option<Arc<RuntimeError>>) {
    listener(Update::Finished(Ending {
        finish,
        reason: FinishReason::Length,
        error,
        reused_tokens: 0,
        queued: Duration::ZERO,
        ttft: Duration::ZERO,
        decode: Duration::ZERO,
        generated: 0,
        drafts: None,
    }));
}
