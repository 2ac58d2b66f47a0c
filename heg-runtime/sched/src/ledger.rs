//! The request ledger (Agent.xpu §4.1): every live request, the progress of its answer, and its room in the cache.
//!
//! Both schedulers keep one. It holds the life of a request that is the same under any policy: it is taken in, gives
//! tokens, starts over, and ends, with its cache kept for its flow or given back. State of a request that only one
//! scheduler needs is its `P`.

use std::collections::BTreeMap;
use std::sync::Arc;

use heg_spec::policy::Limits;

use super::clients::Clients;
use super::costs::ModelShape;
use super::event::{Action, Actions, Finish, Given};
use super::forecast::{Waiting, first_token};
use super::kv::{KvBudget, Refusals};
use super::lanes::LaneSet;
use super::request::{Class, ClientId, FlowId, Micros, RequestId, Submission};

/// A scheduler's view of a request's progress.
pub(super) trait Progress {
    /// Leading tokens whose keys and values are in the cache, in every layer; `context` counts the token that is fed
    /// next, which no kernel has read.
    fn cached(&self, context: u32) -> u32;

    /// Whether its prompt is done.
    fn decodes(&self) -> bool;
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
    /// The probability that each token of its draft is reached, in thousandths.
    pub(super) draft: Arc<[u16]>,
    /// Whether its flow has no further calls.
    pub(super) ends_flow: bool,
    /// The way it will end, as soon as nothing of it runs any more.
    pub(super) ending: Option<Finish>,
    /// Consecutive failures of launches that had only this request.
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

    pub(super) fn client(&self) -> ClientId {
        self.submission.client
    }

    /// Notes that a launch with it succeeded, which clears its failures and refusals.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
        self.refusals = Refusals::default();
    }

    /// Tokens that its answer may still have.
    pub(super) fn tokens_left(&self) -> u32 {
        let most = self.submission.output_tokens_max;
        most.saturating_sub(self.generated)
    }

    /// Returns its draft, cut to its answer and to a context of `context_tokens`; room is left for the model's own
    /// token behind it.
    pub(super) fn draft(&self, context_tokens: u32) -> Arc<[u16]> {
        let answer = self.tokens_left().saturating_sub(1);
        let most = answer.min(context_tokens.saturating_sub(self.context())) as usize;
        match self.draft.get(..most) {
            Some(leading) => Arc::from(leading),
            None => Arc::clone(&self.draft),
        }
    }

    /// Tokens in its cache when it decodes next, including the one that is fed then.
    pub(super) fn context(&self) -> u32 {
        self.submission.prompt_tokens + self.generated
    }

    /// Discards all that was computed for it; its answer so far becomes part of its prompt.
    pub(super) fn start_over(&mut self, actions: &mut Actions) {
        self.prompt_tokens = self.context();
        self.draft = Arc::from([]);
        self.submission.shared_tokens = 0;
        self.submission.kept_tokens = 0;
        actions.push(Action::Restart(self.id()));
    }
}

/// All live requests, and the room for their caches.
#[derive(Debug, Clone)]
pub(super) struct Ledger<P> {
    entries: BTreeMap<RequestId, Entry<P>>,
    clients: Clients,
    submitted: u64,
    context_tokens: u32,
}

/// The results of a launch for its requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outcome<'a> {
    /// The requests that have their last token.
    pub(super) ended: &'a [RequestId],
    /// The results of requests that have several tokens or a draft; the others have one token each.
    pub(super) given: &'a [Given],
}

/// The circumstances under which a request leaves the ledger.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leaving {
    pub(super) finish: Finish,
    /// Lanes that may still write to its memory.
    pub(super) writers: LaneSet,
    pub(super) now: Micros,
}

impl<P: Progress> Ledger<P> {
    /// Makes a ledger for requests of a model.
    pub(super) fn of(model: ModelShape) -> Self {
        Self {
            entries: BTreeMap::new(),
            clients: Clients::default(),
            submitted: 0,
            context_tokens: model.context_tokens,
        }
    }

    /// Returns the same ledger with both classes of one rank, so that their requests take turns with each other.
    pub(super) fn of_one_rank(self) -> Self {
        Self {
            clients: self.clients.of_one_rank(),
            ..self
        }
    }

    /// Takes in a request; returns false if its number is in use. `turn_us` is the time of a client's turn.
    pub(super) fn insert(
        &mut self,
        submission: Submission,
        now: Micros,
        own: P,
        turn_us: f64,
    ) -> bool {
        if self.entries.contains_key(&submission.id) {
            return false;
        }
        let (client, class) = (submission.client, submission.class);
        if self.clients.enter(client, class, turn_us) && !self.has_prompt(client, class) {
            self.clients.catch_up(client, class);
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

    /// Whether a request is well formed, and could run if it had the machine for itself.
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

    /// Gives a request its new tokens, which may be its last.
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
        let entry = self.entries.remove(&id)?;
        self.clients.leave(entry.client(), entry.class());
        Some(entry)
    }

    /// The accounts by which clients take turns.
    pub(super) fn clients(&self) -> &Clients {
        &self.clients
    }

    pub(super) fn clients_mut(&mut self) -> &mut Clients {
        &mut self.clients
    }

    /// Whether a client has an unfinished prompt of a class.
    fn has_prompt(&self, client: ClientId, class: Class) -> bool {
        let mut all = self.entries.values();
        all.any(|it| it.client() == client && it.class() == class && !it.own.decodes())
    }

    /// Closes a request that was taken out: keeps its cache for its flow, or gives its memory back.
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
            // A call that was given up leaves its computed cache to the call that comes instead.
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

    /// Ends a flow. Its calls that are under way still find its cache, and leave none behind.
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

    /// Time to the first token of a request; `waiting` returns the rest of a prompt that has given no token yet.
    pub(super) fn first_token_in(
        &self,
        request: RequestId,
        short_prompts_first: Option<f64>,
        waiting: impl Fn(&Entry<P>) -> Option<Waiting>,
    ) -> Option<Micros> {
        let entry = self.get(request)?;
        let own = waiting(entry)?;
        let client = entry.client();
        let others = self.iter().filter(|(id, _)| *id != request);
        if !self.clients.are_several() {
            let others = others.filter_map(|(_, entry)| waiting(entry));
            return Some(first_token(own, others, short_prompts_first));
        }
        let mut same = Vec::new();
        let mut strangers: BTreeMap<ClientId, f64> = BTreeMap::new();
        for (other, it) in others.filter_map(|(_, entry)| Some((entry, waiting(entry)?))) {
            match other.client() == client {
                true => same.push(it),
                false if it.class <= own.class => {
                    let rest = strangers.entry(other.client()).or_default();
                    *rest += it.prefill_us;
                }
                false => {}
            }
        }
        let alone = first_token(own, same.into_iter(), short_prompts_first);
        let due_us = self.clients.served_us(client, own.class) + alone.0 as f64;
        let before = strangers.into_iter().map(|(other, rest_us)| {
            let lead_us = due_us - self.clients.served_us(other, own.class);
            rest_us.min(lead_us.max(0.0))
        });
        Some(alone + Micros::from_f64(before.sum()))
    }

    /// Time that is left of the prompts of a class, each alone on its lanes; `waiting` as for
    /// [`first_token_in`](Self::first_token_in).
    pub(super) fn prompts_left(
        &self,
        class: Class,
        waiting: impl Fn(&Entry<P>) -> Option<Waiting>,
    ) -> Micros {
        let of_class = self.iter().filter(|(_, entry)| entry.class() == class);
        let waiting = of_class.filter_map(|(_, entry)| waiting(entry));
        Micros::from_f64(waiting.map(|it| it.prefill_us).sum())
    }

    /// Returns the best proactive request to give up for others: the youngest; with several clients, the youngest of
    /// the client that holds most.
    pub(super) fn youngest_proactive(
        &self,
        kv: &KvBudget,
        may: impl Fn(RequestId, &Entry<P>) -> bool,
    ) -> Option<RequestId> {
        let held = |entry: &Entry<P>| match self.clients.are_several() {
            true => self.held_by(entry.client(), kv),
            false => 0,
        };
        self.iter()
            .filter(|(id, entry)| entry.class() == Class::Proactive && may(*id, entry))
            .max_by_key(|(_, entry)| (held(entry), entry.order))
            .map(|(id, _)| id)
    }
}
