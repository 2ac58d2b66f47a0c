//! KV caches of requests, and those that flows keep between calls.
//!
//! A request shares its cache with the lanes that run it. A flow's cache has one owner, the flow or the flash writer:
//! a flow keeps a cache only when no lane holds it any more. Caches that a lane may still write to after it was given
//! up wait in quarantine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::ScopeId;
use super::cache::{AtRest, RequestCache, Shelf, Sole};
use super::flash::{Flash, Outbox, Parked};
use super::kept::Keeper;
use super::live::Owner;
use super::machine::Machine;
use super::prefix::PrefixRows;
use super::reclaim::Reclaim;
use crate::error::EngineError;
use heg_exec::mem::{KvCache, KvRoom};
use heg_sched::{Class, Event, FlowId, RequestId, Transfer};

/// Caches by owner.
pub(super) struct Memory {
    room: KvRoom,
    requests: BTreeMap<RequestId, Reserved>,
    flows: BTreeMap<FlowId, Kept>,
    /// Caches of requests that have ended or started over, which a lane still holds.
    quarantine: Vec<(RequestId, Reserved)>,
    flash: Flash,
    /// The writer of kept state, if there is any.
    keeper: Option<Keeper>,
    machine: Arc<dyn Machine>,
    reclaim: Reclaim,
}

/// A request's cache.
struct Reserved {
    cache: RequestCache,
    /// Number of tokens that it has room for.
    tokens: u32,
    rows: RowBuffer,
}

/// Whether the rows in a request's cache are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowBuffer {
    Good,
    /// A lane that never answered may still write to them, or the rows that the request reuses are missing.
    Spoiled,
}

/// A flow's cache between two calls.
struct Kept {
    /// The owner of the tokens.
    scope: ScopeId,
    cache: AtRest,
    /// The tokens whose keys and values are in it.
    tokens: Vec<u32>,
}

/// The reason why nothing can run on a request's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoCache {
    /// The request has no cache.
    Unreserved,
    /// The rows of its cache are not valid.
    Spoiled,
}

impl Memory {
    /// Starts without caches; those of idle flows go to files in `flash`, if there is a folder.
    pub(super) fn new(
        room: KvRoom,
        flash: Option<PathBuf>,
        keeper: Option<Keeper>,
        machine: Arc<dyn Machine>,
        reclaim: Reclaim,
        outbox: Outbox,
    ) -> Self {
        Self {
            room,
            keeper,
            flash: Flash::new(flash, Arc::clone(&machine), outbox),
            machine,
            reclaim,
            requests: BTreeMap::new(),
            flows: BTreeMap::new(),
            quarantine: Vec::new(),
        }
    }

    /// Tokens that a flow's cache has in common with the beginning of a prompt; 0 if it is another scope's.
    pub(super) fn shared(&self, scope: ScopeId, flow: FlowId, prompt: &[u32]) -> u32 {
        let kept = self.flows.get(&flow).filter(|kept| kept.scope == scope);
        kept.map_or(0, |kept| common(&kept.tokens, prompt))
    }

    /// Returns the flow, of those of a scope that `may` be taken, whose cache has most in common with a prompt;
    /// `None` if that is less than `least` tokens.
    pub(super) fn most_shared(
        &self,
        scope: ScopeId,
        prompt: &[u32],
        least: u32,
        may: impl Fn(FlowId) -> bool,
    ) -> Option<(FlowId, u32)> {
        let own = self.flows.iter().filter(|(_, kept)| kept.scope == scope);
        let candidates = own.filter(|(flow, _)| may(**flow));
        candidates
            .map(|(flow, kept)| (*flow, common(&kept.tokens, prompt)))
            .filter(|(_, shared)| *shared >= least)
            .max_by_key(|(_, shared)| *shared)
    }

    /// Gives a request a cache for `tokens` tokens, with the first `reused` tokens in it: its flow's or, if it has
    /// some, from kept state. Without any, the cache is empty.
    ///
    /// # Errors
    ///
    /// [`EngineError::Exec`]: then the request has no cache, and its flow keeps none.
    pub(super) fn reserve(
        &mut self,
        request: RequestId,
        flow: FlowId,
        kept: Option<PrefixRows>,
        tokens: u32,
        reused: u32,
    ) -> Result<(), EngineError> {
        self.release(request);
        if reused == 0 || kept.is_some() {
            self.release_flow(flow);
        }
        let here = |cache: KvCache, kept_tokens: usize| {
            // Rows of the last call beyond this one's room are in no budget.
            if kept_tokens > tokens as usize {
                cache.discard(tokens as usize);
            }
            let cache = match self.room.holds(&cache, tokens as usize) {
                true => cache,
                false => self.room.moved(&cache, reused as usize, tokens as usize)?,
            };
            Ok::<_, EngineError>(RequestCache::Here(Arc::new(cache)))
        };
        let mut rows = RowBuffer::Good;
        let parked = kept.map(|rows| Arc::new(Parked::kept(rows)));
        let of_flow = self.flows.remove(&flow).and_then(Kept::take);
        let cache = match (parked.map(Taken::Parked), of_flow) {
            (Some(taken), _) | (None, Some(taken)) => match taken {
                Taken::Memory(cache, kept_tokens) => here(cache, kept_tokens)?,
                Taken::Parked(parked) => {
                    let empty = self.empty(request, tokens)?;
                    RequestCache::parked(parked, empty, reused as usize)
                }
            },
            (None, None) => {
                if reused > 0 {
                    rows = RowBuffer::Spoiled;
                }
                RequestCache::Here(Arc::new(self.empty(request, tokens)?))
            }
        };
        let reserved = Reserved {
            cache,
            tokens,
            rows,
        };
        self.requests.insert(request, reserved);
        Ok(())
    }

    fn empty(&self, request: RequestId, tokens: u32) -> Result<KvCache, EngineError> {
        let tokens = tokens as usize;
        Ok(self.machine.reserve(request, &self.room, tokens)?)
    }

    /// Moves a flow's cache to flash. Returns the outcome if it is known at once; otherwise a message reports it.
    pub(super) fn offload(&mut self, flow: FlowId, transfer: Transfer) -> Option<Event> {
        let Some(kept) = self.flows.remove(&flow) else {
            return Some(Event::Offloaded(transfer));
        };
        let tokens = kept.tokens.len();
        let park = |cache| match self.flash.park(transfer, cache, tokens) {
            Ok(parked) => (AtRest::Parked(parked), None),
            Err(cache) => {
                let cache = AtRest::Memory(Shelf::new(cache));
                (cache, Some(Event::OffloadFailed(transfer)))
            }
        };
        let (cache, known) = match kept.cache {
            AtRest::Memory(shelf) => match shelf.take() {
                Some(cache) => park(cache),
                None => return Some(Event::Offloaded(transfer)),
            },
            AtRest::Parked(parked) => match parked.take() {
                Some(cache) => park(cache),
                None if parked.is_in_memory() => {
                    (AtRest::Parked(parked), Some(Event::OffloadFailed(transfer)))
                }
                None => (AtRest::Parked(parked), Some(Event::Offloaded(transfer))),
            },
        };
        self.flows.insert(flow, Kept { cache, ..kept });
        known
    }

    /// The cache of a request.
    pub(super) fn cache(&self, request: RequestId) -> Result<RequestCache, NoCache> {
        match self.requests.get(&request) {
            None => Err(NoCache::Unreserved),
            Some(reserved) if reserved.rows == RowBuffer::Spoiled => Err(NoCache::Spoiled),
            Some(reserved) => Ok(reserved.cache.clone()),
        }
    }

    /// Releases a request's cache. Memory that a lane still holds is quarantined until the lane lets go of it.
    pub(super) fn release(&mut self, request: RequestId) {
        if let Some(reserved) = self.requests.remove(&request) {
            self.dispose(request, reserved);
        }
    }

    fn dispose(&mut self, request: RequestId, reserved: Reserved) {
        // Rows that were written off stay with their lane, for however long that holds them.
        match reserved.rows == RowBuffer::Good && reserved.cache.is_shared() {
            true => self.quarantine.push((request, reserved)),
            false => self.reclaim.drop_later(reserved.cache),
        }
    }

    /// Frees quarantined caches that lanes have let go of.
    pub(super) fn let_go(&mut self) {
        let free = |(_, reserved): &mut (RequestId, Reserved)| !reserved.cache.is_shared();
        for (_, reserved) in self.quarantine.extract_if(.., free) {
            self.reclaim.drop_later(reserved.cache);
        }
    }

    /// Writes off these requests' caches: a lane that had them never answered, and is waited for no longer.
    pub(super) fn write_off(&mut self, requests: &[RequestId]) {
        for request in requests {
            if let Some(reserved) = self.requests.get_mut(request) {
                reserved.rows = RowBuffer::Spoiled;
            }
        }
        self.quarantine.retain(|(id, _)| !requests.contains(id));
    }

    /// Whether a cache of `tokens` tokens takes at most twice the memory that they are charged with: each half of
    /// each layer takes whole pages.
    pub(super) fn is_worth(&self, tokens: u32) -> bool {
        let tokens = tokens as usize;
        let shape = self.room.shape();
        shape.resident_bytes(tokens) <= 2 * tokens * shape.token_bytes()
    }

    /// Leaves a request's cache, with these tokens in it, to its flow, and has them written to kept state if they have
    /// an owner there. Returns false, and keeps nothing, if a lane has it too or its rows are not valid.
    pub(super) fn keep(
        &mut self,
        request: RequestId,
        owner: Owner,
        tokens: Vec<u32>,
        class: Class,
    ) -> bool {
        let Some(reserved) = self.requests.remove(&request) else {
            return false;
        };
        let Reserved {
            cache,
            tokens: room,
            rows,
        } = reserved;
        let sole = match (rows, cache) {
            (RowBuffer::Good, cache) => cache.into_sole(),
            (RowBuffer::Spoiled, cache) => Err(cache),
        };
        match sole {
            Ok(cache) => {
                let cache = match cache {
                    Sole::Memory(cache) => {
                        // An earlier call whose cache it continued may have had more rows.
                        cache.discard(tokens.len());
                        let shelf = Shelf::new(self.room.at_rest(cache, tokens.len()));
                        if let Some((keeper, state)) = self.keeper.as_ref().zip(owner.state) {
                            keeper.keep(shelf.view(), state, &tokens, class);
                        }
                        AtRest::Memory(shelf)
                    }
                    Sole::Parked(parked) => AtRest::Parked(parked),
                };
                let kept = Kept {
                    scope: owner.prefixes,
                    cache,
                    tokens,
                };
                self.flows.insert(owner.flow, kept);
                true
            }
            Err(cache) => {
                let tokens = room;
                self.dispose(
                    request,
                    Reserved {
                        cache,
                        tokens,
                        rows,
                    },
                );
                false
            }
        }
    }

    pub(super) fn release_flow(&mut self, flow: FlowId) {
        if let Some(kept) = self.flows.remove(&flow) {
            self.reclaim.drop_later(kept.cache);
        }
    }

    /// Drops what flows keep.
    pub(super) fn release_flows(&mut self) {
        for (_, kept) in std::mem::take(&mut self.flows) {
            self.reclaim.drop_later(kept.cache);
        }
    }

    /// Lets the writer of kept state finish what waits for it, for at most this long. Nothing is kept from then on.
    pub(super) fn settle(&mut self, patience: Duration) {
        if let Some(keeper) = self.keeper.take() {
            keeper.finish(patience);
        }
    }

    /// Bytes that all caches in memory may take, in whole pages.
    pub(super) fn bytes(&self) -> u64 {
        let kept = self.flows.values().filter(|kept| match &kept.cache {
            AtRest::Memory(_) => true,
            AtRest::Parked(parked) => parked.is_in_memory(),
        });
        let kept = kept.map(|kept| kept.tokens.len());
        let quarantined = self.quarantine.iter().map(|(_, reserved)| reserved);
        let reserved = self.requests.values().chain(quarantined);
        let reserved = reserved.map(|reserved| reserved.tokens as usize);
        let shape = self.room.shape();
        kept.chain(reserved)
            .map(|tokens| shape.resident_bytes(tokens) as u64)
            .sum()
    }

    /// Whether a flow keeps a cache.
    pub(super) fn keeps(&self, flow: FlowId) -> bool {
        self.flows.contains_key(&flow)
    }

    /// Number of flows that keep a cache.
    pub(super) fn flows_kept(&self) -> usize {
        self.flows.len()
    }
}

/// A flow's cache on its way to a request.
enum Taken {
    /// In memory, with this number of tokens.
    Memory(KvCache, usize),
    /// To be read.
    Parked(Arc<Parked>),
}

impl Kept {
    /// Takes the cache; `None` if it is lost.
    fn take(self) -> Option<Taken> {
        let tokens = self.tokens.len();
        match self.cache {
            AtRest::Memory(shelf) => Some(Taken::Memory(shelf.take()?, tokens)),
            AtRest::Parked(parked) => Some(match parked.take() {
                Some(cache) => Taken::Memory(cache, tokens),
                None => Taken::Parked(parked),
            }),
        }
    }
}

fn common(a: &[u32], b: &[u32]) -> u32 {
    a.iter().zip(b).take_while(|(a, b)| a == b).count() as u32
}
