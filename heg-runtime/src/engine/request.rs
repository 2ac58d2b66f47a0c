//! A request as a caller hands it in, and what its caller hears of it.

use std::sync::Arc;
use std::time::Duration;

use super::drafts::{DraftCounts, Speculation};
use crate::error::RuntimeError;
use heg_sched::{Class, Finish, FlowId};
use heg_text::{Restriction, SamplingParams, TokenLogProbs};

/// The owner of a request. Requests of one scope never find what another scope left in KV caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ScopeId(pub u64);

/// A prompt, and how it is to be answered.
///
/// [`reactive`](Self::reactive) and [`proactive`](Self::proactive) fill in the defaults; change fields from there:
///
/// ```
/// # use heg_runtime::engine::Request;
/// let request = Request { tokens_max: 32, ..Request::reactive(vec![1, 15, 27]) };
/// ```
pub struct Request {
    /// The owner; callers that trust each other share one scope.
    pub scope: ScopeId,
    /// How urgent it is.
    pub class: Class,
    /// Token ids of the whole prompt, including the part that its flow has in the KV cache already.
    pub prompt: Vec<u32>,
    /// Most tokens of the answer, at least 1. The scheduler reserves room in the KV cache for all of them.
    pub tokens_max: u32,
    /// Whether end-of-sequence tokens end the answer.
    pub end_tokens: EndTokens,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// What is added to the logits of tokens, each from -100 (bans it) to 100 (forces it). A token outside the vocabulary is
    /// passed over.
    pub logit_bias: Vec<(u32, f32)>,
    /// Number of most likely tokens that come with each token of the answer, all with their log probabilities: those of
    /// the model, before biases, penalties, temperature and grammar. None where nothing of it is to be computed.
    pub log_probs: Option<u32>,
    /// The same for each token of the prompt but the first. Nothing of the prompt is taken from a KV cache then, and the
    /// head runs on all of its rows.
    pub prompt_log_probs: Option<u32>,
    /// The grammar that the answer follows; the answer ends where the grammar is complete.
    pub restriction: Option<Box<dyn Restriction>>,
    /// Whether its answer is drafted; as the engine does it where this does not say. An engine that drafts none drafts none
    /// for it either.
    pub speculation: Option<Speculation>,
    /// What the answer is expected to be, to draft it from; empty where nothing is expected. It changes how soon the answer
    /// comes, and not what it is. Nothing is drafted from a token outside of the vocabulary on.
    pub prediction: Vec<u32>,
    /// The flow that it continues. Calls of one flow run one after the other, and each reuses what the last one left in
    /// the KV cache.
    pub flow: Option<FlowId>,
    /// Time from submission after which the answer is of no use; the request is dropped then.
    pub deadline: Option<Duration>,
}

/// What end-of-sequence tokens do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EndTokens {
    /// The end-of-sequence tokens of the model end the answer.
    #[default]
    End,
    /// The answer continues after them.
    Ignored,
}

impl Request {
    /// A request that a person waits for: greedy, at most 256 tokens, on a flow of its own.
    pub fn reactive(prompt: Vec<u32>) -> Self {
        Self::new(Class::Reactive, prompt)
    }

    /// The same as background work, which gives way to reactive requests.
    pub fn proactive(prompt: Vec<u32>) -> Self {
        Self::new(Class::Proactive, prompt)
    }

    /// The same of either class.
    pub fn new(class: Class, prompt: Vec<u32>) -> Self {
        Self {
            scope: ScopeId::default(),
            class,
            prompt,
            tokens_max: TOKENS_MAX,
            end_tokens: EndTokens::default(),
            sampling: SamplingParams::default(),
            logit_bias: Vec::new(),
            log_probs: None,
            prompt_log_probs: None,
            restriction: None,
            speculation: None,
            prediction: Vec::new(),
            flow: None,
            deadline: None,
        }
    }
}

/// Most tokens of an answer whose request does not say. Chosen: a paragraph or two.
const TOKENS_MAX: u32 = 256;

/// One step of a request, in this order: `Accepted`, tokens, `Finished`, with `Prompt` before the first token where that
/// is asked for. A request that is refused hears only the last.
#[derive(Debug, Clone)]
pub enum Update {
    /// The scheduler has the request.
    Accepted {
        /// Predicted time from now to the first token.
        predicted_ttft: Duration,
    },
    /// How likely the model finds each token of the prompt but the first.
    Prompt(Vec<TokenLogProbs>),
    /// The next token of the answer, including the one that ends it.
    Token {
        /// The token.
        id: u32,
        /// How likely the model finds it, where that is asked for.
        log_probs: Option<Box<TokenLogProbs>>,
    },
    /// The request is over.
    Finished(Ending),
}

/// How a request ended, and how long it took.
#[derive(Debug, Clone)]
pub struct Ending {
    /// How the scheduler finished it.
    pub finish: Finish,
    /// For [`Finish::Complete`]: whether the answer was complete or ran out of room.
    pub reason: FinishReason,
    /// What went wrong, if something did. Requests of one batch may share it.
    pub error: Option<Arc<RuntimeError>>,
    /// Tokens of the prompt that were in the KV cache already.
    pub reused_tokens: u32,
    /// Time from submission to the first kernel.
    pub queued: Duration,
    /// Time from submission to the first token.
    pub ttft: Duration,
    /// Time from the first token to the last.
    pub decode: Duration,
    /// Tokens of the answer.
    pub generated: u32,
    /// How its tokens were drafted; none where they were not.
    pub drafts: Option<DraftCounts>,
}

/// Why a complete answer ended.
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
