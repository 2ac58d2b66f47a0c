//! Room for KV caches: reserved per request, kept per flow, counted in tokens.

use std::collections::BTreeMap;

use heg_spec::policy::Limits;

use super::costs::ModelShape;
use super::event::Action;
use super::request::{FlowId, Micros, RequestId, Submission};

/// The budget, and who has how much of it.
#[derive(Debug, Clone)]
pub(super) struct KvBudget {
    budget: u64,
    used: u64,
    requests: BTreeMap<RequestId, u32>,
    flows: BTreeMap<FlowId, Kept>,
    flash_budget: u64,
    /// Flows whose caches are on flash.
    flash: BTreeMap<FlowId, Kept>,
}

/// Flows on flash, at most: each is an open file. Chosen: far below what a process may have open.
const FLASH_FLOWS_MAX: usize = 128;

/// The cache of a flow between two calls.
#[derive(Debug, Clone, Copy)]
struct Kept {
    tokens: u32,
    since: Micros,
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
            flash_budget: flash,
            flash: BTreeMap::new(),
            used: 0,
            requests: BTreeMap::new(),
            flows: BTreeMap::new(),
        }
    }

    /// Whether a request of so many tokens could ever run.
    pub(super) fn could_fit(&self, tokens: u32) -> bool {
        u64::from(tokens) <= self.budget
    }

    /// Tokens that a request has reserved.
    pub(super) fn reserved(&self, request: RequestId) -> u64 {
        self.requests.get(&request).copied().map_or(0, u64::from)
    }

    /// Tokens that are free, or kept by flows.
    pub(super) fn reclaimable(&self) -> u64 {
        let kept: u64 = self.flows.values().map(|kept| u64::from(kept.tokens)).sum();
        self.budget.saturating_sub(self.used) + kept
    }

    /// Reserves room for a request, with caches of idle flows given up if need be, the longest idle first.
    /// Says how many leading tokens are there already; `None` if there is no room.
    pub(super) fn reserve(
        &mut self,
        request: &Submission,
        tokens: u32,
        actions: &mut Vec<Action>,
    ) -> Option<u32> {
        let own = request.flow.filter(|flow| self.flows.contains_key(flow));
        let kept = own.and_then(|flow| self.flows.get(&flow)).copied();
        let kept_tokens = kept.map_or(0, |kept| kept.tokens);
        let free = |kv: &Self| kv.budget.saturating_sub(kv.used) + u64::from(kept_tokens);
        let reclaimable: u64 = self.flows.values().map(|kept| u64::from(kept.tokens)).sum();
        let others = reclaimable - u64::from(kept_tokens);
        if free(self) + others < u64::from(tokens) {
            return None;
        }
        while free(self) < u64::from(tokens) {
            let idle = self.flows.iter().filter(|(flow, _)| Some(**flow) != own);
            let oldest = idle.min_by_key(|(_, kept)| kept.since)?.0;
            self.offload(*oldest, actions);
        }
        if let Some(flow) = own {
            self.flows.remove(&flow);
            self.used -= u64::from(kept_tokens);
        }
        let flow = request.flow.filter(|_| own.is_none());
        let flashed = flow.and_then(|flow| self.flash.remove(&flow));
        let there = kept_tokens.max(flashed.map_or(0, |kept| kept.tokens));
        // The last token of the prompt is always run: its logits are wanted.
        let reused = there
            .min(request.shared_tokens)
            .min(request.prompt_tokens.saturating_sub(1));
        self.used += u64::from(tokens);
        self.requests.insert(request.id, tokens);
        actions.push(Action::Reserve {
            request: request.id,
            tokens,
            reused,
        });
        Some(reused)
    }

    /// Gives up a request's room, if it has any.
    pub(super) fn release(&mut self, request: RequestId, actions: &mut Vec<Action>) {
        if let Some(tokens) = self.requests.remove(&request) {
            self.used -= u64::from(tokens);
            actions.push(Action::Release(request));
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
        self.used -= u64::from(reserved - tokens);
        self.flows.insert(flow, Kept { tokens, since: now });
        actions.push(Action::Keep {
            request,
            flow,
            tokens,
        });
    }

    /// Gives up what a flow kept.
    pub(super) fn release_flow(&mut self, flow: FlowId, actions: &mut Vec<Action>) {
        let kept = self.flows.remove(&flow);
        self.used -= kept.map_or(0, |kept| u64::from(kept.tokens));
        if kept.or_else(|| self.flash.remove(&flow)).is_some() {
            actions.push(Action::ReleaseFlow(flow));
        }
    }

    /// Moves what a flow kept to flash, where that which was kept there for longest makes room; gives it up if there is
    /// not enough flash for it alone.
    fn offload(&mut self, flow: FlowId, actions: &mut Vec<Action>) {
        let Some(kept) = self.flows.get(&flow).copied() else {
            return;
        };
        let tokens = u64::from(kept.tokens);
        if tokens > self.flash_budget {
            return self.release_flow(flow, actions);
        }
        let is_full = |kv: &Self| {
            let used: u64 = kv.flash.values().map(|kept| u64::from(kept.tokens)).sum();
            used + tokens > kv.flash_budget || kv.flash.len() >= FLASH_FLOWS_MAX
        };
        while is_full(self) {
            let oldest = self.flash.iter().min_by_key(|(_, kept)| kept.since);
            let Some(oldest) = oldest.map(|(flow, _)| *flow) else {
                break;
            };
            self.release_flow(oldest, actions);
        }
        self.flows.remove(&flow);
        self.used -= tokens;
        self.flash.insert(flow, kept);
        actions.push(Action::Offload(flow));
    }

    /// Frees the memory of what all flows kept; says whether there was anything.
    pub(super) fn release_flows(&mut self, actions: &mut Vec<Action>) -> bool {
        let flows: Vec<FlowId> = self.flows.keys().copied().collect();
        for flow in &flows {
            self.offload(*flow, actions);
        }
        !flows.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::Class;

    fn call(id: u64, flow: Option<u64>, prompt: u32, shared: u32) -> Submission {
        Submission {
            id: RequestId(id),
            flow: flow.map(FlowId),
            class: Class::Proactive,
            prompt_tokens: prompt,
            shared_tokens: shared,
            output_tokens_max: 1,
            deadline: None,
        }
    }

    #[test]
    fn a_flow_goes_on_where_it_was() {
        let mut kv = KvBudget::new(1000, 0);
        let mut actions = Vec::new();
        assert_eq!(
            kv.reserve(&call(1, Some(9), 100, 0), 150, &mut actions),
            Some(0)
        );
        kv.keep(RequestId(1), FlowId(9), 120, Micros(5), &mut actions);
        assert_eq!(kv.used, 120);
        assert_eq!(
            kv.reserve(&call(2, Some(9), 200, 110), 250, &mut actions),
            Some(110)
        );
        assert_eq!(kv.used, 250);
        kv.release(RequestId(2), &mut actions);
        assert_eq!(kv.used, 0);
    }

    #[test]
    fn the_longest_idle_flow_makes_room() {
        let mut kv = KvBudget::new(300, 0);
        let mut actions = Vec::new();
        for (id, at) in [(1, 20), (2, 10)] {
            kv.reserve(&call(id, Some(id), 100, 0), 100, &mut actions)
                .unwrap();
            kv.keep(RequestId(id), FlowId(id), 100, Micros(at), &mut actions);
        }
        actions.clear();
        assert_eq!(
            kv.reserve(&call(3, None, 200, 0), 200, &mut actions),
            Some(0)
        );
        assert_eq!(actions[0], Action::ReleaseFlow(FlowId(2)));
        assert_eq!(kv.reserve(&call(4, None, 150, 0), 150, &mut actions), None);
        assert!(
            kv.flows.contains_key(&FlowId(1)),
            "nothing is given up in vain"
        );
    }

    #[test]
    fn flash_takes_what_memory_cannot_hold_and_gives_it_back() {
        let mut kv = KvBudget::new(300, 150);
        let mut actions = Vec::new();
        for (id, at) in [(1, 10), (2, 20)] {
            kv.reserve(&call(id, Some(id), 100, 0), 100, &mut actions)
                .unwrap();
            kv.keep(RequestId(id), FlowId(id), 100, Micros(at), &mut actions);
        }
        actions.clear();
        kv.reserve(&call(3, None, 300, 0), 300, &mut actions)
            .unwrap();
        // The second one to go leaves no room for the first.
        assert_eq!(
            actions[..3],
            [
                Action::Offload(FlowId(1)),
                Action::ReleaseFlow(FlowId(1)),
                Action::Offload(FlowId(2)),
            ]
        );
        kv.release(RequestId(3), &mut actions);
        let again = |id, flow| call(id, Some(flow), 200, 90);
        assert_eq!(kv.reserve(&again(4, 2), 200, &mut actions), Some(90));
        assert_eq!(kv.reserve(&again(5, 1), 100, &mut actions), Some(0));
        assert!(kv.flash.is_empty());
        assert_eq!(kv.used, 300);
    }

    #[test]
    fn the_last_token_is_never_reused() {
        let mut kv = KvBudget::new(300, 0);
        let mut actions = Vec::new();
        kv.reserve(&call(1, Some(1), 100, 0), 100, &mut actions)
            .unwrap();
        kv.keep(RequestId(1), FlowId(1), 100, Micros(0), &mut actions);
        assert_eq!(
            kv.reserve(&call(2, Some(1), 100, 100), 120, &mut actions),
            Some(99)
        );
    }
}
