//! A request in the form in which a caller submits it, and the updates that its caller receives.

use std::sync::Arc;
use std::time::Duration;

use super::drafts::{DraftCounts, DraftTexts, Speculation};
use super::prefix::KeptPrompt;
use crate::error::EngineError;
use heg_sched::{Class, Finish, FlowId};
use heg_state::StateOwner;
use heg_text::{Restriction, SamplingParams, TokenLogProbs};

/// The owner of a request. Requests of one scope never find KV caches that another scope left, unless both allow it,
/// and are never drafted from another scope's answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ScopeId(pub u64);

/// A prompt, with the options of its answer.
///
/// [`reactive`](Self::reactive) and [`proactive`](Self::proactive) fill in the defaults; change fields from there:
///
/// ```
/// # use heg_engine::Request;
/// let request = Request { tokens_max: 32, ..Request::reactive(vec![1, 15, 27]) };
/// ```
pub struct Request {
    /// The owner, a client of the scheduler: it takes turns with others and has its share of memory. Callers that
    /// trust each other share one scope.
    pub scope: ScopeId,
    /// The scope within which KV caches of prompts are found and left, if it is not the owner's own: for callers that
    /// may know each other's prompts, but not their answers.
    pub prefixes: Option<ScopeId>,
    /// The owner of its KV cache in kept state, where it is found by later requests of the same owner, in later
    /// processes too. `None` if nothing of it may be kept, nor anything that was kept be found.
    pub state: Option<StateOwner>,
    /// Its kept prefix, if [`Engine::find_kept`](super::Engine::find_kept) looked for it beforehand; `None` to have it
    /// looked for when the request is submitted.
    pub kept: Option<KeptPrompt>,
    /// The urgency of the request.
    pub class: Class,
    /// Token ids of the whole prompt, including the part that its flow has in the KV cache already.
    pub prompt: Vec<u32>,
    /// Position at which the second text of the prompt begins, if that is a pair of texts, as rerankers take them.
    pub second_at: Option<u32>,
    /// The kind of answer.
    pub kind: AnswerKind,
    /// Most tokens of the answer, at least 1. The scheduler reserves room in the KV cache for all of them.
    pub tokens_max: u32,
    /// Whether end-of-sequence tokens end the answer.
    pub end_tokens: EndTokens,
    /// The parameters by which tokens are chosen.
    pub sampling: SamplingParams,
    /// Values that are added to the logits of tokens, each from -100 (bans it) to 100 (forces it). A token outside
    /// the vocabulary is ignored.
    pub logit_bias: Vec<(u32, f32)>,
    /// Number of most likely tokens to report with each token of the answer, all with their log probabilities: those
    /// of the model, before biases, penalties, temperature and grammar. `None` if no log probabilities are wanted.
    pub log_probs: Option<u32>,
    /// Number of most likely tokens to report with each token of the prompt but the first, as with `log_probs`. No
    /// part of the prompt is taken from a KV cache then, and the head runs on all of its rows.
    pub prompt_log_probs: Option<u32>,
    /// The grammar that the answer follows; the answer ends when the grammar is complete.
    pub restriction: Option<Box<dyn Restriction>>,
    /// Whether its answer is drafted; `None` for the engine's default. An engine that does not draft never drafts for
    /// it either.
    pub speculation: Option<Speculation>,
    /// The expected answer, to draft from; empty if there is none. It changes the speed of the answer, and not its
    /// content. Tokens from the first one outside the vocabulary on are not used.
    pub prediction: Vec<u32>,
    /// The texts to draft from, including prompt and prediction, if
    /// [`Engine::draft_texts`](super::Engine::draft_texts) made them beforehand; `None` to have them made when the
    /// request is submitted.
    pub draft_texts: Option<DraftTexts>,
    /// The flow that it continues. Calls of one flow run one after the other, and each reuses the KV cache that the
    /// last one left.
    pub flow: Option<FlowId>,
    /// Time from submission after which the answer is of no use; the request is dropped then.
    pub deadline: Option<Duration>,
}

/// The kind of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AnswerKind {
    /// Tokens that go on behind the prompt.
    #[default]
    Tokens,
    /// The vector of the prompt.
    Vector,
    /// The score of the prompt, which is a pair of texts: a vector of one element.
    Score,
}

impl AnswerKind {
    /// Name in messages, in the plural.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Vector => "vectors of texts",
            Self::Score => "scores of pairs of texts",
        }
    }
}

/// The effect of end-of-sequence tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EndTokens {
    /// The end-of-sequence tokens of the model end the answer.
    #[default]
    End,
    /// The answer continues after them.
    Ignored,
}

impl Request {
    /// Makes a request that a person waits for: greedy, at most 256 tokens, on a flow of its own.
    pub fn reactive(prompt: Vec<u32>) -> Self {
        Self::new(Class::Reactive, prompt)
    }

    /// Makes a request of background work, with the same defaults, which gives way to reactive requests.
    pub fn proactive(prompt: Vec<u32>) -> Self {
        Self::new(Class::Proactive, prompt)
    }

    /// Makes a request of either class, with the same defaults.
    pub fn new(class: Class, prompt: Vec<u32>) -> Self {
        Self {
            scope: ScopeId::default(),
            prefixes: None,
            state: None,
            kept: None,
            class,
            prompt,
            second_at: None,
            kind: AnswerKind::default(),
            tokens_max: TOKENS_MAX,
            end_tokens: EndTokens::default(),
            sampling: SamplingParams::default(),
            logit_bias: Vec::new(),
            log_probs: None,
            prompt_log_probs: None,
            restriction: None,
            speculation: None,
            prediction: Vec::new(),
            draft_texts: None,
            flow: None,
            deadline: None,
        }
    }

    /// Makes a request for the vector of a text, on a model that gives vectors. It is background work of a flow of its
    /// own, whose cache is freed at its end.
    pub fn vector(text: Vec<u32>) -> Self {
        Self {
            kind: AnswerKind::Vector,
            tokens_max: 1,
            speculation: Some(Speculation::Off),
            ..Self::proactive(text)
        }
    }

    /// Makes a request for the score of a pair of texts, on a model that gives scores; the second text begins at
    /// `second_at`. In all else it is as [`vector`](Self::vector) makes it.
    pub fn score(pair: Vec<u32>, second_at: u32) -> Self {
        Self {
            kind: AnswerKind::Score,
            second_at: Some(second_at),
            ..Self::vector(pair)
        }
    }

    /// Whether it needs every row of its prompt, so that no part of that is taken from a KV cache.
    pub(super) fn wants_all_rows(&self) -> bool {
        self.prompt_log_probs.is_some() || self.kind != AnswerKind::Tokens
    }

    /// The scope within which its KV cache may be continued.
    pub(super) fn prefix_scope(&self) -> ScopeId {
        self.prefixes.unwrap_or(self.scope)
    }
}

/// Most tokens of an answer if its request sets no limit. Chosen: a paragraph or two.
const TOKENS_MAX: u32 = 256;

/// An update on a request, in this order: `Accepted`, tokens, `Finished`; with `Prompt` before the first token if it
/// is asked for. A request that is refused gets only the last.
#[derive(Debug, Clone)]
pub enum Update {
    /// The scheduler has the request.
    Accepted {
        /// Predicted time from now to the first token.
        predicted_ttft: Duration,
    },
    /// The log probabilities of each token of the prompt but the first.
    Prompt(Vec<TokenLogProbs>),
    /// The next token of the answer, including the one that ends it.
    Token {
        /// The token.
        id: u32,
        /// The log probabilities of the token, if they are asked for.
        log_probs: Option<Box<TokenLogProbs>>,
    },
    /// The vector of the prompt, or its score as the only element, in place of tokens.
    Vector(Vec<f32>),
    /// The request is over.
    Finished(Ending),
}

/// The outcome of a request, and its times.
#[derive(Debug, Clone)]
pub struct Ending {
    /// The way in which the scheduler finished it.
    pub finish: Finish,
    /// For [`Finish::Complete`]: whether the answer was complete or ran out of room.
    pub reason: FinishReason,
    /// The error, if there was one. Requests of one batch may share it.
    pub error: Option<Arc<EngineError>>,
    /// Tokens of the prompt that were in the KV cache already, in kept state, or in the bundle.
    pub reused_tokens: u32,
    /// Tokens of the prompt that came from kept state.
    pub kept_tokens: u32,
    /// Tokens of the prompt that came from a state of the bundle.
    pub baked_tokens: u32,
    /// Time from submission to the first kernel.
    pub queued: Duration,
    /// Time from submission to the first token.
    pub ttft: Duration,
    /// Time from the first token to the last.
    pub decode: Duration,
    /// Tokens of the answer.
    pub generated: u32,
    /// Counts of its drafts; `None` if it was not drafted.
    pub drafts: Option<DraftCounts>,
}

/// The reason why a complete answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, a stop text was met, or its grammar is complete.
    Stop,
    /// It has the asked number of tokens, or the context is full.
    Length,
}

impl FinishReason {
    /// Name in OpenAI's interface.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// The receiver of a request's updates.
pub(super) type Listener = Box<dyn FnMut(Update) + Send>;

/// Tells the listener of a request that never ran the reason why.
pub(super) fn refuse(mut listener: Listener, finish: Finish, error: Option<Arc<EngineError>>) {
    listener(Update::Finished(Ending {
        finish,
        reason: FinishReason::Length,
        error,
        reused_tokens: 0,
        kept_tokens: 0,
        baked_tokens: 0,
        queued: Duration::ZERO,
        ttft: Duration::ZERO,
        decode: Duration::ZERO,
        generated: 0,
        drafts: None,
    }));
}
