//! Turns between clients on one device: room in the cache, prompts in an iteration, and memory to give back.
//!
//! The first prompt of a client that had no request for a while is part of the next iteration, and its answer has a
//! row in each one from then on, unless there are more clients than rows: if an iteration has room for a chunk beside
//! its rows, the first token comes after the iteration in progress and as many as the prompt needs. Schemes that
//! distinguish classes have turns in each class.

use std::collections::BTreeMap;

use super::progress::Entry;
use super::{Iteration, SingleLane};
use crate::costs::{Call, Costs};
use crate::event::{Actions, LayerKernel, Segment};
use crate::forecast::prefill_us;
use crate::kv::Room;
use crate::mechanism::Mechanism;
use crate::request::{Class, ClientId, RequestId};
use heg_spec::bug;

impl<C: Costs> SingleLane<C> {
    /// The time that a client may be behind others when it arrives: the time of a full chunk.
    pub(super) fn turn_us(&self) -> f64 {
        prefill_us(&self.costs, self.lane, 0, self.model.chunk_tokens)
    }

    /// The due time of a request: its client's served time plus the rest of its prompt, in µs.
    fn due_us(&self, entry: &Entry) -> f64 {
        let left_us = self.waiting_of(entry).map_or(0.0, |it| it.prefill_us);
        let served_us = self
            .ledger
            .clients()
            .served_us(entry.client(), entry.class());
        served_us + left_us
    }

    /// Sorts prompts by their clients' turns.
    pub(super) fn sort_by_turn(&self, prompts: &mut [&Entry]) {
        if self.ledger.clients().are_several() {
            prompts.sort_by(|one, other| self.due_us(one).total_cmp(&self.due_us(other)));
        }
    }

    /// Returns the first waiting request of each client, in the order of their turns.
    pub(super) fn heads(&self, only: Option<Class>) -> Vec<RequestId> {
        let mut first: BTreeMap<ClientId, &Entry> = BTreeMap::new();
        for entry in self.waiting.iter().filter_map(|id| self.ledger.get(*id)) {
            if only.is_none_or(|only| only == entry.class()) {
                first.entry(entry.client()).or_insert(entry);
            }
        }
        let mut heads: Vec<&Entry> = first.into_values().collect();
        heads.sort_by_key(|entry| entry.order);
        self.sort_by_turn(&mut heads);
        heads.into_iter().map(Entry::id).collect()
    }

    /// Whether two requests are of different clients.
    pub(super) fn are_strangers(&self, one: RequestId, other: RequestId) -> bool {
        let client = |id| self.ledger.get(id).map(Entry::client);
        client(one) != client(other)
    }

    /// Moves requests for which there is room from the queue into the batch, clients in turn. A request that lacks
    /// room lets only those pass that keep within their client's share.
    pub(super) fn admit_in_turn(&mut self, actions: &mut Actions) {
        while let Some(id) = self.admit_next(actions) {
            if self.waiting.front() != Some(&id) {
                self.tally.note(Mechanism::ClientTurns);
            }
            self.waiting.retain(|other| *other != id);
            self.running.push(id);
        }
    }

    fn admit_next(&mut self, actions: &mut Actions) -> Option<RequestId> {
        let mut lacks_room = false;
        for id in self.heads(self.exclusive_class()) {
            let Some(entry) = self.ledger.get(id) else {
                bug!("a request has a turn that is over");
                continue;
            };
            let submission = entry.submission;
            let waits = entry.refusals.wait_for(&self.kv);
            if waits || (lacks_room && !self.ledger.is_within_share(&submission, &self.kv)) {
                lacks_room = true;
                continue;
            }
            let tokens = self.ledger.room_of(&submission);
            let mut room = self.kv.reserve(&submission, tokens, actions);
            while room == Room::Full && self.claim_room(id, actions) {
                room = self.kv.reserve(&submission, tokens, actions);
            }
            if let Room::Reserved(reused) = room {
                if let Some(entry) = self.ledger.get_mut(id) {
                    entry.reach(reused);
                }
                return Some(id);
            }
            lacks_room = true;
        }
        None
    }

    /// Takes memory for a request that keeps within its client's share from a client that is beyond its own.
    fn claim_room(&mut self, id: RequestId, actions: &mut Actions) -> bool {
        let Some(claim) = self.ledger.claimed(id, &self.kv, |_, _| true) else {
            return false;
        };
        self.tally.note(Mechanism::ClientTurns);
        self.kv.release(claim.from, actions);
        self.requeue(claim.from, actions);
        let again = self.ledger.get(claim.from);
        let again_us = again.map_or(0.0, |it| {
            prefill_us(&self.costs, self.lane, 0, it.prompt_tokens)
        });
        self.ledger.note_claim(claim, again_us);
        true
    }

    /// Charges an iteration to its clients.
    pub(super) fn charge(&mut self, iteration: &Iteration) {
        if !self.ledger.clients().are_counted() {
            return;
        }
        let layers = f64::from(self.model.layers);
        let rows = iteration.batch.len().max(1) as f64;
        let row_us = self.latency_us(Call::layer(&iteration.batch, false)) * layers / rows;
        let members = iteration.batch.iter().map(|it| (it.request, row_us));
        let prompts = iteration.prompts.iter();
        let prompts = prompts.map(|(id, segment)| (*id, self.segment_us(*segment) * layers));
        let parts: Vec<(RequestId, f64)> = members.chain(prompts).collect();
        for (id, us) in parts {
            if let Some((client, class)) = self.ledger.get(id).map(|it| (it.client(), it.class())) {
                self.ledger.clients_mut().charge(client, class, us);
            }
        }
    }

    pub(super) fn latency_us(&self, call: Call) -> f64 {
        let cost = self.costs.cost(self.lane, call);
        cost.map_or(0.0, |cost| cost.latency_us)
    }

    /// Time of the kernels of a part of a prompt in one layer.
    fn segment_us(&self, segment: Segment) -> f64 {
        let kernels = self.model.order.kernels();
        let us = kernels.map(|kernel| self.latency_us(kernel_of(kernel, segment)));
        us.iter().sum()
    }
}

/// Returns the call of a kernel over a part of a prompt.
pub(super) fn kernel_of(kernel: LayerKernel, segment: Segment) -> Call {
    Call::Prefill {
        kernel,
        tokens: segment.tokens,
        context: segment.context(),
    }
}
