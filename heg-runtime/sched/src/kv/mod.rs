//! Room for KV caches: reserved per request, kept per flow, counted in tokens.
//!
//! What is on its way to flash is in memory until it is written (`flash`), and so is what a lane that does not answer
//! may still write to.

mod flash;
mod refusals;

use std::collections::BTreeMap;

use heg_spec::policy::Limits;

use super::costs::ModelShape;
use super::event::{Action, Transfer};
use super::lanes::LaneSet;
use super::request::{FlowId, Lane, Micros, RequestId, Submission};
use flash::{Flash, Landed};
pub(super) use refusals::Refusals;

/// The budget, and who has how much of it.
#[derive(Debug, Clone)]
pub(super) struct KvBudget {
    budget: u64,
    used: u64,
    requests: BTreeMap<RequestId, u32>,
    /// Flows whose caches are in memory, and stay there until somebody needs the room.
    flows: BTreeMap<FlowId, Kept>,
    flash: Flash,
    /// Memory that was released while a lane that is to stop may still write to it.
    held: Vec<(LaneSet, u64)>,
    /// Lanes that have not answered in time: what they hold may never be free.
    silent: LaneSet,
    /// Counts how often memory became free.
    releases: u64,
}

/// The cache of a flow between two calls.
#[derive(Debug, Clone, Copy)]
struct Kept {
    tokens: u32,
    since: Micros,
    /// Whether flash would not take it.
    refused: bool,
}

/// What came of asking for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// It is the request's, with so many leading tokens that are there already.
    Reserved(u32),
    /// It will be there when caches that are on their way to flash are written.
    Soon,
    /// There is none, and nothing was given up for it.
    Full,
}

impl KvBudget {
    /// Room for what a policy grants a model.
    pub(super) fn of(limits: &Limits, model: ModelShape) -> Self {
        let token = model.kv_bytes_per_token.max(1);
        Self::new(limits.kv_bytes() / token, limits.flash_bytes() / token)
    }

    /// Room for `tokens` tokens, and for `flash` on flash.
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

    /// Whether a request of so many tokens could ever run, as far as lanes that do not answer leave room.
    pub(super) fn could_fit(&self, tokens: u32) -> bool {
        u64::from(tokens) + self.held() <= self.budget
    }

    /// Tokens that lanes may write to which do not answer.
    pub(super) fn held(&self) -> u64 {
        let held = self.held.iter();
        let silent = held.filter(|(lanes, _)| !lanes.and(self.silent).is_empty());
        silent.map(|(_, tokens)| tokens).sum()
    }

    /// Tokens that a request has reserved.
    pub(super) fn reserved(&self, request: RequestId) -> u64 {
        self.requests.get(&request).copied().map_or(0, u64::from)
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

    /// Reserves room for a request, with caches of idle flows given up if need be, the longest idle first.
    pub(super) fn reserve(
        &mut self,
        request: &Submission,
        tokens: u32,
        actions: &mut Vec<Action>,
    ) -> Room {
        let own = request.flow;
        let reused = self.reusable(request);
        // Only a cache that is reused becomes the request's while it is written.
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
            let idle = self.flows.iter().filter(|(flow, _)| Some(**flow) != own);
            let Some((oldest, _)) = idle.min_by_key(|(_, kept)| kept.since) else {
                return Room::Full;
            };
            self.offload(*oldest, own, actions);
        }
        if free(self) < wanted {
            return Room::Soon;
        }
        if let Some(flow) = own {
            self.take_back(flow, reused, actions);
        }
        self.used += wanted;
        self.requests.insert(request.id, tokens);
        actions.push(Action::Reserve {
            request: request.id,
            tokens,
            reused,
        });
        Room::Reserved(reused)
    }

    /// Leading tokens of a request that its flow has, in memory or on flash. The last token of the prompt is always
    /// run: its logits are wanted.
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

    /// A call takes what its flow kept; where it reuses nothing of it, a cache that is being written stays with the
    /// writer until that has done.
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
        if let Some(tokens) = self.requests.remove(&request) {
            self.give_back(u64::from(tokens));
            actions.push(Action::Release(request));
        }
    }

    /// The room that a request was given does not exist.
    pub(super) fn unreserved(&mut self, request: RequestId) -> bool {
        let tokens = self.requests.remove(&request);
        self.used -= tokens.map_or(0, u64::from);
        tokens.is_some()
    }

    /// Gives up a request's room, which is free once these lanes have answered, at once if there are none.
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

    /// As [`KvBudget::release`], of memory that is free only when all these lanes have answered.
    pub(super) fn release_after(
        &mut self,
        lanes: LaneSet,
        request: RequestId,
        actions: &mut Vec<Action>,
    ) {
        if let Some(tokens) = self.requests.remove(&request) {
            self.held.push((lanes, u64::from(tokens)));
            actions.push(Action::Release(request));
        }
    }

    /// A lane has not answered in time.
    pub(super) fn is_silent(&mut self, lane: Lane) {
        self.silent.insert(lane);
    }

    /// A lane has answered: it writes nothing that it was told before.
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
        // Two calls of one flow at once: the later one to end has the longer history.
        self.release_flow(flow, actions);
        let tokens = tokens.min(reserved);
        self.give_back(u64::from(reserved - tokens));
        let kept = Kept {
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

    /// Gives up what a flow kept. What is being written is free when the writer has done.
    pub(super) fn release_flow(&mut self, flow: FlowId, actions: &mut Vec<Action>) {
        let kept = self.flows.remove(&flow);
        if let Some(kept) = kept {
            self.give_back(u64::from(kept.tokens));
        }
        if kept.is_some() || self.flash.release(flow) {
            actions.push(Action::ReleaseFlow(flow));
        }
    }

    /// Begins to move what a flow kept to flash, where what `own` has stays; gives it up if flash does not take it.
    fn offload(&mut self, flow: FlowId, own: Option<FlowId>, actions: &mut Vec<Action>) {
        let Some(kept) = self.flows.get(&flow).copied() else {
            return;
        };
        if kept.refused || !self.flash.make_room(kept.tokens, own, actions) {
            return self.release_flow(flow, actions);
        }
        self.flows.remove(&flow);
        let transfer = self.flash.begin(flow, kept);
        actions.push(Action::Offload { flow, transfer });
    }

    /// A cache is on flash: the memory that it had is free.
    pub(super) fn offloaded(&mut self, transfer: Transfer) {
        let memory = self.flash.written(transfer);
        if memory > 0 {
            self.give_back(memory);
        }
    }

    /// A cache could not be written: its flow keeps it in memory, and gives it up when somebody needs that.
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

    /// Gives up what all flows keep in memory; says whether there was anything. Memory that is short now cannot wait
    /// for flash.
    pub(super) fn release_flows(&mut self, actions: &mut Vec<Action>) -> bool {
        let flows: Vec<FlowId> = self.flows.keys().copied().collect();
        for flow in &flows {
            self.release_flow(*flow, actions);
        }
        !flows.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Class, PromptLogits};

    fn call(id: u64, flow: Option<u64>, prompt: u32, shared: u32) -> Submission {
        Submission {
            id: RequestId(id),
            flow: flow.map(FlowId),
            class: Class::Proactive,
            prompt_tokens: prompt,
            shared_tokens: shared,
            output_tokens_max: 1,
            deadline: None,
            prompt_logits: PromptLogits::LastRow,
        }
    }

    /// A budget with a flow for each (id, time), of 100 tokens each.
    fn with_flows(tokens: u64, flash: u64, flows: &[(u64, u64)]) -> KvBudget {
        let mut kv = KvBudget::new(tokens, flash);
        let mut actions = Vec::new();
        for (id, at) in flows {
            kv.reserve(&call(*id, Some(*id), 100, 0), 100, &mut actions);
            kv.keep(RequestId(*id), FlowId(*id), 100, Micros(*at), &mut actions);
        }
        kv
    }

    fn offload(flow: u64, transfer: u64) -> Action {
        Action::Offload {
            flow: FlowId(flow),
            transfer: Transfer(transfer),
        }
    }

    #[test]
    fn a_flow_goes_on_where_it_was() {
        let mut kv = KvBudget::new(1000, 0);
        let mut actions = Vec::new();
        let first = kv.reserve(&call(1, Some(9), 100, 0), 150, &mut actions);
        assert_eq!(first, Room::Reserved(0));
        kv.keep(RequestId(1), FlowId(9), 120, Micros(5), &mut actions);
        assert_eq!(kv.used, 120);
        let next = kv.reserve(&call(2, Some(9), 200, 110), 250, &mut actions);
        assert_eq!(next, Room::Reserved(110));
        assert_eq!(kv.used, 250);
        kv.release(RequestId(2), &mut actions);
        assert_eq!(kv.used, 0);
    }

    #[test]
    fn the_longest_idle_flow_makes_room() {
        let mut kv = with_flows(300, 0, &[(1, 20), (2, 10)]);
        let mut actions = Vec::new();
        let room = kv.reserve(&call(3, None, 200, 0), 200, &mut actions);
        assert_eq!(room, Room::Reserved(0));
        assert_eq!(actions[0], Action::ReleaseFlow(FlowId(2)));
        let room = kv.reserve(&call(4, None, 150, 0), 150, &mut actions);
        assert_eq!(room, Room::Full);
        assert!(
            kv.flows.contains_key(&FlowId(1)),
            "nothing is given up in vain"
        );
    }

    #[test]
    fn memory_is_free_when_what_it_had_is_on_flash_and_not_before() {
        let mut kv = with_flows(300, 250, &[(1, 10), (2, 20)]);
        let mut actions = Vec::new();
        let third = call(3, None, 300, 0);
        assert_eq!(kv.reserve(&third, 300, &mut actions), Room::Soon);
        assert_eq!(actions, [offload(1, 0), offload(2, 1)]);
        assert_eq!(kv.used, 200);
        assert_eq!(kv.reserve(&third, 300, &mut actions), Room::Soon);
        assert_eq!(actions.len(), 2, "once is enough");
        kv.offloaded(Transfer(0));
        assert_eq!(kv.reserve(&third, 300, &mut actions), Room::Soon);
        kv.offloaded(Transfer(1));
        assert_eq!(kv.used, 0);
        assert_eq!(kv.reserve(&third, 300, &mut actions), Room::Reserved(0));
        kv.release(RequestId(3), &mut actions);
        let again = |id, flow| call(id, Some(flow), 200, 90);
        for (id, flow) in [(4, 1), (5, 2)] {
            let room = kv.reserve(&again(id, flow), 150, &mut actions);
            assert_eq!(room, Room::Reserved(90));
        }
        assert_eq!(kv.used, 300);
    }

    #[test]
    fn a_cache_that_flash_does_not_take_stays_until_somebody_needs_its_room() {
        let mut kv = with_flows(300, 250, &[(1, 10), (2, 20)]);
        let mut actions = Vec::new();
        let third = call(3, None, 200, 0);
        assert_eq!(kv.reserve(&third, 200, &mut actions), Room::Soon);
        kv.offload_failed(Transfer(0));
        assert_eq!(kv.used, 200);
        actions.clear();
        // The longest idle one, which flash refused, goes.
        assert_eq!(kv.reserve(&third, 200, &mut actions), Room::Reserved(0));
        assert_eq!(actions[0], Action::ReleaseFlow(FlowId(1)));
        assert_eq!(kv.used, 300);
    }

    #[test]
    fn what_flash_has_no_room_for_is_given_up() {
        let mut kv = with_flows(300, 150, &[(1, 10), (2, 20)]);
        let mut actions = Vec::new();
        let room = kv.reserve(&call(3, None, 300, 0), 300, &mut actions);
        assert_eq!(room, Room::Soon);
        // Room on flash is taken from the start: the second one finds none.
        assert_eq!(actions, [offload(1, 0), Action::ReleaseFlow(FlowId(2))]);
        kv.offloaded(Transfer(0));
        kv.reserve(&call(3, None, 300, 0), 300, &mut actions);
        kv.release(RequestId(3), &mut actions);
        kv.reserve(&call(4, Some(4), 100, 0), 100, &mut actions);
        kv.keep(RequestId(4), FlowId(4), 100, Micros(30), &mut actions);
        actions.clear();
        // What is there for longest makes room for what comes.
        kv.reserve(&call(5, None, 300, 0), 300, &mut actions);
        assert_eq!(actions, [Action::ReleaseFlow(FlowId(1)), offload(4, 1)]);
    }

    #[test]
    fn a_cache_is_taken_back_while_it_is_written() {
        let mut kv = with_flows(300, 300, &[(1, 10), (2, 20)]);
        let mut actions = Vec::new();
        kv.reserve(&call(3, None, 200, 0), 200, &mut actions);
        let taken = kv.reserve(&call(4, Some(1), 120, 80), 150, &mut actions);
        assert_eq!(taken, Room::Reserved(80));
        assert_eq!(kv.used, 250);
        kv.offloaded(Transfer(0));
        assert_eq!(kv.used, 250, "its memory was the request's already");
        // One that nobody wants any more is in memory until the writer lets go of it.
        kv.release(RequestId(4), &mut actions);
        kv.reserve(&call(5, None, 300, 0), 300, &mut actions);
        kv.release_flow(FlowId(2), &mut actions);
        assert_eq!(kv.used, 100);
        kv.offload_failed(Transfer(1));
        assert_eq!(kv.used, 0);
        assert_eq!(kv.flash.leaving(), 0);
    }

    #[test]
    fn a_silent_lane_holds_what_it_may_write_to() {
        let mut kv = KvBudget::new(100, 0);
        let mut actions = Vec::new();
        kv.reserve(&call(1, None, 100, 0), 100, &mut actions);
        let igpu = LaneSet::of(|lane| lane == Lane::Igpu);
        kv.release_after(igpu, RequestId(1), &mut actions);
        assert_eq!(actions.last(), Some(&Action::Release(RequestId(1))));
        let second = call(2, None, 50, 0);
        assert_eq!(kv.reserve(&second, 50, &mut actions), Room::Full);
        kv.answered(Lane::Npu);
        assert_eq!(kv.reserve(&second, 50, &mut actions), Room::Full);
        kv.answered(Lane::Igpu);
        assert_eq!(kv.reserve(&second, 50, &mut actions), Room::Reserved(0));
    }

    #[test]
    fn the_last_token_is_never_reused() {
        let mut kv = with_flows(300, 0, &[(1, 0)]);
        let mut actions = Vec::new();
        let room = kv.reserve(&call(2, Some(1), 100, 100), 120, &mut actions);
        assert_eq!(room, Room::Reserved(99));
    }
}
