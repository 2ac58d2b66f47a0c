//! The request ledger (Agent.xpu §4.1): every live request, how far its answer is, and the room that it has.
//!
//! Both schedulers keep one. What a request goes through under any policy stands here once: it is taken in, gives
//! tokens, starts over, and ends, with its cache kept for its flow or given back. What only one scheduler knows of a
//! request is its `P`.

use std::collections::BTreeMap;
use std::sync::Arc;

use heg_spec::policy::Limits;

use super::costs::ModelShape;
use super::event::{Action, Actions, Finish, Given};
use super::forecast::{Waiting, first_token};
use super::kv::{KvBudget, Refusals};
use super::lanes::LaneSet;
use super::request::{Class, FlowId, Micros, RequestId, Submission};

/// What a scheduler knows of a request's progress.
pub(super) trait Progress {
    /// Leading tokens whose keys and values are in the cache, in every layer; `context` counts the token that is fed
    /// next, which no kernel has read.
    fn cached(&self, context: u32) -> u32;
}

/// A live request.
#[derive(Debug, Clone)]
pub(super) struct Entry<P> {
    pub(super) submission: Submission,
    /// Number of requests that came before it.
    pub(super) order: u64,
    /// Time of its arrival or of its last token. Neither a pause nor a restart takes anything off its age.
    pub(super) waits_since: Micros,
    /// Tokens to prefill: the prompt, and after a restart the answer so far.
    pub(super) prompt_tokens: u32,
    /// Tokens of the answer so far.
    pub(super) generated: u32,
    /// How likely each token of its draft is reached, in thousandths.
    pub(super) draft: Arc<[u16]>,
    /// Whether its flow has no further calls.
    pub(super) ends_flow: bool,
    /// How it will end, as soon as nothing of it runs any more.
    pub(super) ending: Option<Finish>,
    /// Failures in a row of launches with it alone.
    pub(super) failures: u32,
    /// Refused reservations of its memory.
    pub(super) refusals: Refusals,
    /// The scheduler's own view of it.
    pub(super) own: P,
}

impl<P> Entry<P> {
    pub(super) fn id(&self) -> RequestId {
        self.submission.id
    }

    pub(super) fn class(&self) -> Class {
        self.submission.class
    }

    /// A launch with it succeeded: it was neither the launch's fault nor its memory's.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
        self.refusals = Refusals::default();
    }

    /// Tokens that its answer may still have.
    pub(super) fn tokens_left(&self) -> u32 {
        let most = self.submission.output_tokens_max;
        most.saturating_sub(self.generated)
    }

    /// Its draft, as far as its answer and a context of so many tokens go: the model's own token comes behind it.
    pub(super) fn draft(&self, context_tokens: u32) -> Arc<[u16]> {
        let answer = self.tokens_left().saturating_sub(1);
        let most = answer.min(context_tokens.saturating_sub(self.context())) as usize;
        match self.draft.get(..most) {
            Some(leading) => Arc::from(leading),
            None => Arc::clone(&self.draft),
        }
    }

    /// Tokens in its cache when it decodes next, the one that is fed then included.
    pub(super) fn context(&self) -> u32 {
        self.submission.prompt_tokens + self.generated
    }

    /// Nothing that was computed for it counts any more; its answer so far becomes part of its prompt.
    pub(super) fn start_over(&mut self, actions: &mut Actions) {
        self.prompt_tokens = self.context();
        self.draft = Arc::from([]);
        self.submission.shared_tokens = 0;
        actions.push(Action::Restart(self.id()));
    }
}

/// All live requests, and the room for their caches.
#[derive(Debug, Clone)]
pub(super) struct Ledger<P> {
    entries: BTreeMap<RequestId, Entry<P>>,
    submitted: u64,
    context_tokens: u32,
}

/// What a launch gave to its requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outcome<'a> {
    /// Those that have their last token.
    pub(super) ended: &'a [RequestId],
    /// What those have that have more than one token, or a draft; the others have one token.
    pub(super) given: &'a [Given],
}

/// How a request leaves the ledger.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leaving {
    pub(super) finish: Finish,
    /// Lanes that may still write to its memory.
    pub(super) writers: LaneSet,
    pub(super) now: Micros,
}

impl<P: Progress> Ledger<P> {
    /// A ledger for requests of a model.
    pub(super) fn of(model: ModelShape) -> Self {
        Self {
            entries: BTreeMap::new(),
            submitted: 0,
            context_tokens: model.context_tokens,
        }
    }

    /// Takes in a request; false if its number is in use.
    pub(super) fn insert(&mut self, submission: Submission, now: Micros, own: P) -> bool {
        if self.entries.contains_key(&submission.id) {
            return false;
        }
        let entry = Entry {
            submission,
            order: self.submitted,
            waits_since: now,
            prompt_tokens: submission.prompt_tokens,
            generated: 0,
            draft: Arc::from([]),
            ends_flow: false,
            ending: None,
            failures: 0,
            refusals: Refusals::default(),
            own,
        };
        self.submitted += 1;
        self.entries.insert(submission.id, entry);
        true
    }

    /// Whether a request says what it wants, and could run if it had the machine for itself.
    pub(super) fn could_serve(&self, submission: &Submission, kv: &KvBudget) -> bool {
        let tokens = self.room_of(submission);
        submission.prompt_tokens > 0
            && submission.output_tokens_max > 0
            && tokens <= self.context_tokens
            && kv.could_fit(tokens)
    }

    /// Room that a request needs in the KV cache, in tokens.
    pub(super) fn room_of(&self, submission: &Submission) -> u32 {
        submission.tokens_max(self.context_tokens)
    }

    /// Whether there are more requests than a policy allows.
    pub(super) fn is_over(&self, limits: &Limits) -> bool {
        self.entries.len() > limits.requests_max as usize
    }

    /// A request has its new tokens, which may be its last.
    pub(super) fn emit(&mut self, id: RequestId, outcome: Outcome<'_>, actions: &mut Actions) {
        let context_tokens = self.context_tokens;
        let Some(entry) = self.get_mut(id).filter(|entry| entry.ending.is_none()) else {
            return;
        };
        let given = outcome.given.iter().find(|given| given.request == id);
        let tokens = given.map_or(1, |given| given.tokens);
        entry.draft = given.map_or_else(|| Arc::from([]), |given| Arc::clone(&given.draft));
        for _ in 0..tokens.min(entry.tokens_left()) {
            entry.generated += 1;
            actions.push(Action::Emit(id));
        }
        let full = entry.tokens_left() == 0 || entry.context() > context_tokens;
        if outcome.ended.contains(&id) || full {
            entry.ending = Some(Finish::Complete);
        }
    }

    /// Takes a request out, to be closed.
    pub(super) fn remove(&mut self, id: RequestId) -> Option<Entry<P>> {
        self.entries.remove(&id)
    }

    /// Lets a request go that was taken out: its flow keeps its cache, or its memory is given back.
    pub(super) fn close(
        &mut self,
        entry: Entry<P>,
        leaving: Leaving,
        kv: &mut KvBudget,
        actions: &mut Actions,
    ) {
        let id = entry.id();
        let flow = entry.submission.flow;
        let cached = match leaving.writers.is_empty() {
            true => entry.own.cached(entry.context()),
            false => 0,
        };
        match (leaving.finish, flow) {
            // A call that was given up leaves what it has computed to the one that comes instead.
            (Finish::Complete | Finish::Cancelled | Finish::Deadline, Some(flow)) if cached > 0 => {
                kv.keep(id, flow, cached, leaving.now, actions);
            }
            _ => kv.release_from(leaving.writers, id, actions),
        }
        if let Some(flow) = flow.filter(|_| entry.ends_flow) {
            self.end_flow(flow, kv, actions);
        }
        actions.push(Action::Finish(id, leaving.finish));
    }

    /// A flow has no further calls. Those that are under way still find its cache, and leave none behind.
    pub(super) fn end_flow(&mut self, flow: FlowId, kv: &mut KvBudget, actions: &mut Actions) {
        let mut live = false;
        for entry in self.entries.values_mut() {
            if entry.submission.flow == Some(flow) {
                entry.ends_flow = true;
                live = true;
            }
        }
        if !live {
            kv.release_flow(flow, actions);
        }
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&Entry<P>> {
        self.entries.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: RequestId) -> Option<&mut Entry<P>> {
        self.entries.get_mut(&id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestId, &Entry<P>)> {
        self.entries.iter().map(|(id, entry)| (*id, entry))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (RequestId, &mut Entry<P>)> {
        self.entries.iter_mut().map(|(id, entry)| (*id, entry))
    }

    /// Time to the first token of a request, where `waiting` says what is left of a prompt that has given none.
    pub(super) fn first_token_in(
        &self,
        request: RequestId,
        short_prompts_first: Option<f64>,
        waiting: impl Fn(&Entry<P>) -> Option<Waiting>,
    ) -> Option<Micros> {
        let own = waiting(self.get(request)?)?;
        let others = self.iter().filter(|(id, _)| *id != request);
        let others = others.filter_map(|(_, entry)| waiting(entry));
        Some(first_token(own, others, short_prompts_first))
    }

    /// The proactive request that is best given up for others: the youngest.
    pub(super) fn youngest_proactive(
        &self,
        may: impl Fn(RequestId, &Entry<P>) -> bool,
    ) -> Option<RequestId> {
        self.iter()
            .filter(|(id, entry)| entry.class() == Class::Proactive && may(*id, entry))
            .max_by_key(|(_, entry)| entry.order)
            .map(|(id, _)| id)
    }
}
