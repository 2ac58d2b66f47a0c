//! Caches of idle flows on flash, or being written there.

use std::collections::BTreeMap;

use super::{Kept, KvBudget};
use crate::event::{Action, Transfer};
use crate::request::{ClientId, FlowId};

/// Most flows on flash: each is an open file. Chosen: far below the number that a process may have open.
const FLOWS_MAX: usize = 128;

/// The budget and the contents of flash.
#[derive(Debug, Clone)]
pub(super) struct Flash {
    budget: u64,
    stored: BTreeMap<FlowId, Kept>,
    /// Caches that are being written: they still occupy memory, and room on flash already.
    transfers: BTreeMap<Transfer, Leaving>,
    begun: u64,
}

/// A cache that is being written.
#[derive(Debug, Clone, Copy)]
struct Leaving {
    kept: Kept,
    owner: Owner,
}

/// The owner of a cache while it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// The flow that keeps it.
    Flow(FlowId),
    /// A call that took it back, and counts its memory.
    Request,
    /// Nobody: its memory is free as soon as it is written.
    Nobody,
}

/// The owner of the memory of a cache that could not be written.
pub(super) enum Landed {
    /// The flow, which has it back.
    With(FlowId, Kept),
    /// Nobody: this number of tokens is free.
    Free(u64),
}

impl Flash {
    pub(super) fn new(budget: u64) -> Self {
        Self {
            budget,
            stored: BTreeMap::new(),
            transfers: BTreeMap::new(),
            begun: 0,
        }
    }

    /// Tokens in memory that will be free when they are written.
    pub(super) fn leaving(&self) -> u64 {
        let leaving = self.transfers.values();
        leaving.map(Leaving::memory).sum()
    }

    /// Tokens in memory of a flow's cache that will be free when it is written.
    pub(super) fn leaving_of(&self, flow: FlowId) -> u64 {
        self.transfer_of(flow).map_or(0, |(_, it)| it.memory())
    }

    /// Tokens that a flow has here, whether written or in transfer.
    pub(super) fn tokens_of(&self, flow: FlowId) -> Option<u32> {
        let stored = self.stored.get(&flow).map(|kept| kept.tokens);
        stored.or_else(|| self.transfer_of(flow).map(|(_, it)| it.kept.tokens))
    }

    fn transfer_of(&self, flow: FlowId) -> Option<(Transfer, &Leaving)> {
        let mut transfers = self.transfers.iter();
        let found = transfers.find(|(_, leaving)| leaving.owner == Owner::Flow(flow));
        found.map(|(transfer, leaving)| (*transfer, leaving))
    }

    /// Makes room for a cache by dropping others, those of the client that has most first, but not that of `spared`;
    /// returns false if that is not enough.
    pub(super) fn make_room(
        &mut self,
        tokens: u32,
        spared: Option<FlowId>,
        actions: &mut Vec<Action>,
    ) -> bool {
        let transfers = self.transfers.values();
        let written: u64 = transfers.map(|it| u64::from(it.kept.tokens)).sum();
        if written + u64::from(tokens) > self.budget || self.transfers.len() >= FLOWS_MAX {
            return false;
        }
        let is_full = |flash: &Self| {
            let stored = flash.stored.values().map(|kept| u64::from(kept.tokens));
            let flows = flash.stored.len() + flash.transfers.len();
            stored.sum::<u64>() + written + u64::from(tokens) > flash.budget || flows >= FLOWS_MAX
        };
        while is_full(self) {
            let Some(next) = self.next_to_go(spared) else {
                return false;
            };
            self.stored.remove(&next);
            actions.push(Action::ReleaseFlow(next));
        }
        true
    }

    /// Returns the cache to drop next: the oldest one of the client that has most here.
    fn next_to_go(&self, spared: Option<FlowId>) -> Option<FlowId> {
        let others = || {
            self.stored
                .iter()
                .filter(|(flow, _)| Some(**flow) != spared)
        };
        let mut stored: BTreeMap<ClientId, u64> = BTreeMap::new();
        for (_, kept) in others() {
            *stored.entry(kept.client).or_default() += u64::from(kept.tokens);
        }
        let most = stored.into_iter().max_by_key(|(_, tokens)| *tokens);
        let of_most =
            others().filter(|(_, kept)| most.is_some_and(|(most, _)| kept.client == most));
        of_most
            .min_by_key(|(_, kept)| kept.since)
            .map(|(flow, _)| *flow)
    }

    /// Begins to write a cache.
    pub(super) fn begin(&mut self, flow: FlowId, kept: Kept) -> Transfer {
        let transfer = Transfer(self.begun);
        self.begun += 1;
        let owner = Owner::Flow(flow);
        self.transfers.insert(transfer, Leaving { kept, owner });
        transfer
    }

    /// Takes a flow's cache for a call; returns the number of its tokens in memory.
    pub(super) fn take(&mut self, flow: FlowId) -> u64 {
        if self.stored.remove(&flow).is_some() {
            return 0;
        }
        let leaving = self.leaving_of(flow);
        self.disown(flow, Owner::Request);
        leaving
    }

    /// Gives up a flow's cache; returns whether there was any.
    pub(super) fn release(&mut self, flow: FlowId) -> bool {
        self.stored.remove(&flow).is_some() || self.disown(flow, Owner::Nobody)
    }

    fn disown(&mut self, flow: FlowId, owner: Owner) -> bool {
        let found = self.transfer_of(flow).map(|(transfer, _)| transfer);
        let leaving = found.and_then(|transfer| self.transfers.get_mut(&transfer));
        leaving.map(|leaving| leaving.owner = owner).is_some()
    }

    /// Notes that a cache is written; returns the tokens of memory that this frees.
    pub(super) fn written(&mut self, transfer: Transfer) -> u64 {
        let Some(leaving) = self.transfers.remove(&transfer) else {
            return 0;
        };
        if let Owner::Flow(flow) = leaving.owner {
            self.stored.insert(flow, leaving.kept);
        }
        leaving.memory()
    }

    /// Notes that a cache could not be written; returns the owner of its memory.
    pub(super) fn failed(&mut self, transfer: Transfer) -> Option<Landed> {
        let leaving = self.transfers.remove(&transfer)?;
        match leaving.owner {
            Owner::Flow(flow) => Some(Landed::With(flow, leaving.kept)),
            Owner::Request => None,
            Owner::Nobody => Some(Landed::Free(leaving.memory())),
        }
    }
}

impl KvBudget {
    /// Whether memory will be free once caches are on flash.
    pub(crate) fn writes_to_flash(&self) -> bool {
        self.flash.leaving() > 0
    }
}

impl Leaving {
    /// Tokens of memory that are free once it is written.
    fn memory(&self) -> u64 {
        match self.owner {
            Owner::Flow(_) | Owner::Nobody => u64::from(self.kept.tokens),
            Owner::Request => 0,
        }
    }
}
