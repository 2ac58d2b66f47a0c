//! Room for KV caches: reserved per request, kept per flow, counted in tokens.
//!
//! A cache stays counted as in memory until it is written to flash (`flash`), and so does memory that a lane which
//! does not answer may still write to.

mod flash;
mod refusals;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use heg_spec::bug;
use heg_spec::policy::Limits;

use super::costs::ModelShape;
use super::event::{Action, Transfer};
use super::lanes::LaneSet;
use super::prefill::PromptWindow;
use super::request::{ClientId, FlowId, Lane, Micros, RequestId, Submission};
use flash::{Flash, Landed};
pub(super) use refusals::Refusals;

/// The budget, and its users.
#[derive(Debug, Clone)]
pub(super) struct KvBudget {
    budget: u64,
    used: u64,
    requests: BTreeMap<RequestId, Reserved>,
    /// Flows whose caches are in memory, and stay there until the room is needed.
    flows: BTreeMap<FlowId, Kept>,
    flash: Flash,
    /// Memory that was released while a lane that is to stop may still write to it.
    held: Vec<(LaneSet, u64)>,
    /// Lanes that have not answered in time: memory that they hold may never be free.
    silent: LaneSet,
    /// Number of times that memory became free.
    releases: u64,
}

/// The room of a request.
#[derive(Debug, Clone, Copy)]
struct Reserved {
    tokens: u32,
    client: ClientId,
}

/// The cache of a flow between two calls.
#[derive(Debug, Clone, Copy)]
struct Kept {
    /// The client whose request left it.
    client: ClientId,
    tokens: u32,
    since: Micros,
    /// Whether flash refused the cache.
    refused: bool,
}

/// The result of asking for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// The room is the request's; this number of leading tokens is in the cache already.
    Reserved(u32),
    /// The room will be free once caches are written to flash.
    Soon,
    /// There is no room, and nothing was given up for it.
    Full,
}

impl KvBudget {
    /// Makes the budget that a policy grants a model.
    pub(super) fn of(limits: &Limits, model: ModelShape) -> Self {
        let token = model.kv_bytes_per_token.max(1);
        Self::new(limits.kv_bytes() / token, limits.flash_bytes() / token)
    }

    /// Makes a budget of `tokens` tokens in memory, and `flash` on flash.
    pub(super) fn new(tokens: u64, flash: u64) -> Self {
        Self {
            budget: tokens,
            flash: Flash::new(flash),
            used: 0,
            requests: BTreeMap::new(),
            flows: BTreeMap::new(),
            held: Vec::new(),
            silent: LaneSet::default(),
            releases: 0,
        }
    }

    /// Whether a request of this many tokens could ever run, given the memory that silent lanes hold.
    pub(super) fn could_fit(&self, tokens: u32) -> bool {
        u64::from(tokens) + self.held() <= self.budget
    }

    /// Tokens of memory held by lanes that do not answer.
    pub(super) fn held(&self) -> u64 {
        let held = self.held.iter();
        let silent = held.filter(|(lanes, _)| !lanes.and(self.silent).is_empty());
        silent.map(|(_, tokens)| tokens).sum()
    }

    /// Tokens that a request has reserved.
    pub(super) fn reserved(&self, request: RequestId) -> u64 {
        let reserved = self.requests.get(&request);
        reserved.map_or(0, |reserved| u64::from(reserved.tokens))
    }

    /// Number of tokens in the whole budget.
    pub(super) fn budget(&self) -> u64 {
        self.budget
    }

    /// Tokens that are free, kept by flows, or about to be free.
    pub(super) fn reclaimable(&self) -> u64 {
        self.free() + self.idle(None) + self.flash.leaving()
    }

    fn free(&self) -> u64 {
        self.budget.saturating_sub(self.used)
    }

    /// Tokens in memory that flows other than `own` keep.
    fn idle(&self, own: Option<FlowId>) -> u64 {
        let others = self.flows.iter().filter(|(flow, _)| Some(**flow) != own);
        others.map(|(_, kept)| u64::from(kept.tokens)).sum()
    }

    fn give_back(&mut self, tokens: u64) {
        self.used -= tokens;
        self.releases += 1;
    }

    /// Tokens that a client has in memory, including those of its idle flows.
    fn held_by(&self, client: ClientId) -> u64 {
        let own = self.requests.values().filter(|it| it.client == client);
        let kept = self.flows.values().filter(|it| it.client == client);
        let reserved: u64 = own.map(|it| u64::from(it.tokens)).sum();
        reserved + kept.map(|it| u64::from(it.tokens)).sum::<u64>()
    }

    /// Returns the idle flow whose cache is given up next: the longest idle one of the client that has most in
    /// memory.
    fn next_to_go(&self, own: Option<FlowId>) -> Option<FlowId> {
        let idle = || self.flows.iter().filter(|(flow, _)| Some(**flow) != own);
        let clients: BTreeSet<ClientId> = idle().map(|(_, kept)| kept.client).collect();
        let most = match clients.len() {
            0 | 1 => None,
            _ => clients
                .into_iter()
                .max_by_key(|client| self.held_by(*client)),
        };
        let of_most = idle().filter(|(_, kept)| most.is_none_or(|most| kept.client == most));
        of_most
            .min_by_key(|(_, kept)| kept.since)
            .map(|(flow, _)| *flow)
    }

    /// Reserves room for a request whose prompt goes through the layers chunk by chunk, as
    /// [`reserve_within`](Self::reserve_within) does.
    pub(super) fn reserve(
        &mut self,
        request: &Submission,
        tokens: u32,
        actions: &mut Vec<Action>,
    ) -> Room {
        self.reserve_within(PromptWindow::WHOLE, request, tokens, actions)
    }

    /// Reserves room for a request. If need be, caches of idle flows are given up: those of the client that has most
    /// first, the longest idle one first.
    pub(super) fn reserve_within(
        &mut self,
        window: PromptWindow,
        request: &Submission,
        tokens: u32,
        actions: &mut Vec<Action>,
    ) -> Room {
        let own = request.flow;
        let reused = self.reusable(request);
        let kept = request.kept_tokens;
        let kept = kept.min(request.prompt_tokens.saturating_sub(1));
        // A cache becomes the request's while it is being written only if it is reused.
        let leaving = own.map_or(0, |flow| self.flash.leaving_of(flow));
        let there = own.and_then(|flow| self.flows.get(&flow)).copied();
        let mut own_tokens = there.map_or(0, |kept| u64::from(kept.tokens));
        if reused > 0 {
            own_tokens += leaving;
        }
        let free = |kv: &Self| kv.free() + own_tokens;
        let coming = |kv: &Self| kv.flash.leaving() - if reused > 0 { leaving } else { 0 };
        let wanted = u64::from(tokens);
        if free(self) + coming(self) + self.idle(own) < wanted {
            return Room::Full;
        }
        while free(self) + coming(self) < wanted {
            let Some(flow) = self.next_to_go(own) else {
                return Room::Full;
            };
            self.offload(flow, own, actions);
        }
        if free(self) < wanted {
            return Room::Soon;
        }
        if let Some(flow) = own {
            self.take_back(flow, reused, actions);
        }
        self.used += wanted;
        let client = request.client;
        self.requests
            .insert(request.id, Reserved { tokens, client });
        actions.push(Action::Reserve {
            request: request.id,
            tokens,
            reused: reused.max(kept),
            window,
        });
        Room::Reserved(reused.max(kept))
    }

    /// Leading tokens of a request that its flow has, in memory or on flash. The last token of the prompt is always
    /// run, since its logits are needed.
    fn reusable(&self, request: &Submission) -> u32 {
        let kept = |flow: FlowId| {
            let here = self.flows.get(&flow).map(|kept| kept.tokens);
            here.or_else(|| self.flash.tokens_of(flow))
        };
        let there = request.flow.and_then(kept).unwrap_or(0);
        there
            .min(request.shared_tokens)
            .min(request.prompt_tokens.saturating_sub(1))
    }

    /// Takes a flow's cache for a call. If the call reuses none of it, a cache that is being written stays with the
    /// writer until it is written.
    fn take_back(&mut self, flow: FlowId, reused: u32, actions: &mut Vec<Action>) {
        if let Some(kept) = self.flows.remove(&flow) {
            self.used -= u64::from(kept.tokens);
        } else if reused > 0 {
            self.used -= self.flash.take(flow);
        } else if self.flash.release(flow) {
            actions.push(Action::ReleaseFlow(flow));
        }
    }

    /// Gives up a request's room, if it has any.
    pub(super) fn release(&mut self, request: RequestId, actions: &mut Vec<Action>) {
        if let Some(Reserved { tokens, .. }) = self.requests.remove(&request) {
            self.give_back(u64::from(tokens));
            actions.push(Action::Release(request));
        }
    }

    /// Takes back the room of a request, since its memory does not exist; returns whether it had any.
    pub(super) fn unreserved(&mut self, request: RequestId) -> bool {
        let reserved = self.requests.remove(&request);
        self.used -= reserved.map_or(0, |it| u64::from(it.tokens));
        reserved.is_some()
    }

    /// Gives up a request's room, which is free once `writers` have answered; at once if there are none.
    pub(super) fn release_from(
        &mut self,
        writers: LaneSet,
        request: RequestId,
        actions: &mut Vec<Action>,
    ) {
        match writers.is_empty() {
            true => self.release(request, actions),
            false => self.release_after(writers, request, actions),
        }
    }

    /// Gives up a request's room like [`KvBudget::release`], but it is free only when all these lanes have answered.
    pub(super) fn release_after(
        &mut self,
        lanes: LaneSet,
        request: RequestId,
        actions: &mut Vec<Action>,
    ) {
        if let Some(Reserved { tokens, .. }) = self.requests.remove(&request) {
            self.held.push((lanes, u64::from(tokens)));
            actions.push(Action::Release(request));
        }
    }

    /// Notes that a lane has not answered in time.
    pub(super) fn is_silent(&mut self, lane: Lane) {
        self.silent.insert(lane);
    }

    /// Notes that a lane has answered: it writes nothing of its earlier work any more.
    pub(super) fn answered(&mut self, lane: Lane) {
        self.silent.remove(lane);
        for (lanes, _) in &mut self.held {
            lanes.remove(lane);
        }
        let free = self.held.extract_if(.., |(lanes, _)| lanes.is_empty());
        let tokens: u64 = free.map(|(_, tokens)| tokens).sum();
        if tokens > 0 {
            self.give_back(tokens);
        }
    }

    /// Leaves the first `tokens` tokens of a request to its flow.
    pub(super) fn keep(
        &mut self,
        request: RequestId,
        flow: FlowId,
        tokens: u32,
        now: Micros,
        actions: &mut Vec<Action>,
    ) {
        let Some(reserved) = self.requests.remove(&request) else {
            return;
        };
        // With two calls of one flow at once, the one that ends later has the longer history.
        self.release_flow(flow, actions);
        let tokens = tokens.min(reserved.tokens);
        self.give_back(u64::from(reserved.tokens - tokens));
        let kept = Kept {
            client: reserved.client,
            tokens,
            since: now,
            refused: false,
        };
        self.flows.insert(flow, kept);
        actions.push(Action::Keep {
            request,
            flow,
            tokens,
        });
    }

    /// Gives up the cache that a flow kept. Memory that is being written is free once the writer is done.
    pub(super) fn release_flow(&mut self, flow: FlowId, actions: &mut Vec<Action>) {
        let kept = self.flows.remove(&flow);
        if let Some(kept) = kept {
            self.give_back(u64::from(kept.tokens));
        }
        if kept.is_some() || self.flash.release(flow) {
            actions.push(Action::ReleaseFlow(flow));
        }
    }

    /// Begins to move a flow's cache to flash, without dropping the cache of `own` there; gives it up if flash does
    /// not take it.
    fn offload(&mut self, flow: FlowId, own: Option<FlowId>, actions: &mut Vec<Action>) {
        let Some(kept) = self.flows.get(&flow).copied() else {
            bug!("a flow is to go that keeps nothing");
            return;
        };
        if kept.refused || !self.flash.make_room(kept.tokens, own, actions) {
            return self.release_flow(flow, actions);
        }
        self.flows.remove(&flow);
        let transfer = self.flash.begin(flow, kept);
        actions.push(Action::Offload { flow, transfer });
    }

    /// Notes that a cache is on flash, which frees its memory.
    pub(super) fn offloaded(&mut self, transfer: Transfer) {
        let memory = self.flash.written(transfer);
        if memory > 0 {
            self.give_back(memory);
        }
    }

    /// Notes that a cache could not be written: its flow keeps it in memory, and gives it up when the room is needed.
    pub(super) fn offload_failed(&mut self, transfer: Transfer) {
        match self.flash.failed(transfer) {
            Some(Landed::With(flow, kept)) => {
                let refused = true;
                self.flows.insert(flow, Kept { refused, ..kept });
                // It can be given up now.
                self.releases += 1;
            }
            Some(Landed::Free(memory)) => self.give_back(memory),
            None => {}
        }
    }

    /// Gives up all caches that flows keep in memory; returns whether there were any. A shortage of memory now
    /// cannot wait for flash.
    pub(super) fn release_flows(&mut self, actions: &mut Vec<Action>) -> bool {
        let flows: Vec<FlowId> = self.flows.keys().copied().collect();
        for flow in &flows {
            self.release_flow(*flow, actions);
        }
        !flows.is_empty()
    }
}
