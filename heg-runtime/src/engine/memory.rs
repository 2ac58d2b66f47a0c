//! KV caches of requests, and those that flows keep between calls.
//!
//! A request shares its cache with the lanes that run it. A flow's cache has one owner, the flow or the flash writer: a
//! flow keeps a cache only when no lane holds it any more. Caches that a lane which was given up may still write to
//! wait in quarantine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::ScopeId;
use super::cache::{RequestCache, Sole};
use super::conductor::Message;
use super::flash::Flash;
use super::machine::Machine;
use super::reclaim::Reclaim;
use crate::error::RuntimeError;
use crate::mem::{KvCache, KvShape};
use heg_sched::{Event, FlowId, RequestId, Transfer};

/// Caches by owner.
pub(super) struct Memory {
    shape: KvShape,
    requests: BTreeMap<RequestId, Reserved>,
    flows: BTreeMap<FlowId, Kept>,
    /// Caches of requests that have ended or started over, which a lane still holds.
    quarantine: Vec<(RequestId, Reserved)>,
    flash: Flash,
    machine: Arc<dyn Machine>,
    reclaim: Reclaim,
}

/// A request's cache.
struct Reserved {
    cache: RequestCache,
    /// Tokens that it has room for.
    tokens: u32,
    rows: Rows,
}

/// Whether the rows in a request's cache are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    Good,
    /// A lane that never answered may still write to them, or the rows that the request reuses are missing.
    Spoiled,
}

/// A flow's cache between two calls.
struct Kept {
    /// The owner of the tokens.
    scope: ScopeId,
    cache: Sole,
    /// The tokens whose keys and values are in it.
    tokens: Vec<u32>,
}

/// Why nothing can run on a request's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoCache {
    /// It has no cache.
    Unreserved,
    /// Its rows are not valid.
    Spoiled,
}

impl Memory {
    /// No caches yet; those of idle flows go to files in `flash`, if there is a folder.
    pub(super) fn new(
        shape: KvShape,
        flash: Option<PathBuf>,
        machine: Arc<dyn Machine>,
        reclaim: Reclaim,
        inbox: Sender<Message>,
    ) -> Self {
        Self {
            shape,
            flash: Flash::new(flash, Arc::clone(&machine), inbox),
            machine,
            reclaim,
            requests: BTreeMap::new(),
            flows: BTreeMap::new(),
            quarantine: Vec::new(),
        }
    }

    /// Tokens that a flow's cache has in common with the beginning of a prompt; none where it is another scope's.
    pub(super) fn shared(&self, scope: ScopeId, flow: FlowId, prompt: &[u32]) -> u32 {
        let kept = self.flows.get(&flow).filter(|kept| kept.scope == scope);
        kept.map_or(0, |kept| common(&kept.tokens, prompt))
    }

    /// The flow, of those of a scope that `may` be taken, whose cache has most in common with a prompt; none where
    /// that is less than `least` tokens.
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

    /// Gives a request a cache for `tokens` tokens: its flow's, with the first `reused` tokens in it, or an empty one.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Reserve`]: then the request has none, and its flow keeps nothing.
    pub(super) fn reserve(
        &mut self,
        request: RequestId,
        flow: FlowId,
        (tokens, reused): (u32, u32),
    ) -> Result<(), RuntimeError> {
        self.release(request);
        if reused == 0 {
            self.release_flow(flow);
        }
        let here = |cache: KvCache, kept_tokens: usize| {
            // What the last call had beyond this one's room is in nobody's budget.
            if kept_tokens > tokens as usize {
                cache.discard(tokens as usize);
            }
            RequestCache::Here(Arc::new(cache))
        };
        let mut rows = Rows::Good;
        let cache = match self.flows.remove(&flow).map(Kept::into_parts) {
            Some((Sole::Memory(cache), kept_tokens)) => here(cache, kept_tokens),
            Some((Sole::Parked(parked), kept_tokens)) => match parked.take() {
                Some(cache) => here(cache, kept_tokens),
                None => RequestCache::parked(parked, self.empty(request)?, reused as usize),
            },
            None => {
                if reused > 0 {
                    rows = Rows::Spoiled;
                }
                RequestCache::Here(Arc::new(self.empty(request)?))
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

    fn empty(&self, request: RequestId) -> Result<KvCache, RuntimeError> {
        self.machine.reserve(request, self.shape)
    }

    /// Moves what a flow keeps to flash. Says what came of it where that is known at once; otherwise a message does.
    pub(super) fn offload(&mut self, flow: FlowId, transfer: Transfer) -> Option<Event> {
        let Some(kept) = self.flows.remove(&flow) else {
            return Some(Event::Offloaded(transfer));
        };
        let tokens = kept.tokens.len();
        let park = |cache| match self.flash.park(transfer, cache, tokens) {
            Ok(parked) => (Sole::Parked(parked), None),
            Err(cache) => (Sole::Memory(cache), Some(Event::OffloadFailed(transfer))),
        };
        let (cache, known) = match kept.cache {
            Sole::Memory(cache) => park(cache),
            Sole::Parked(parked) => match parked.take() {
                Some(cache) => park(cache),
                None if parked.is_in_memory() => {
                    (Sole::Parked(parked), Some(Event::OffloadFailed(transfer)))
                }
                None => (Sole::Parked(parked), Some(Event::Offloaded(transfer))),
            },
        };
        self.flows.insert(flow, Kept { cache, ..kept });
        known
    }

    /// The cache of a request.
    pub(super) fn cache(&self, request: RequestId) -> Result<RequestCache, NoCache> {
        match self.requests.get(&request) {
            None => Err(NoCache::Unreserved),
            Some(reserved) if reserved.rows == Rows::Spoiled => Err(NoCache::Spoiled),
            Some(reserved) => Ok(reserved.cache.clone()),
        }
    }

    /// Takes a request's cache away. Where a lane still has it, its memory is nobody else's before that lets go.
    pub(super) fn release(&mut self, request: RequestId) {
        if let Some(reserved) = self.requests.remove(&request) {
            self.dispose(request, reserved);
        }
    }

    fn dispose(&mut self, request: RequestId, reserved: Reserved) {
        // What was written off is its lane's, for as long as that may be.
        match reserved.rows == Rows::Good && reserved.cache.is_shared() {
            true => self.quarantine.push((request, reserved)),
            false => self.reclaim.drop_later(reserved.cache),
        }
    }

    /// A lane has let go of what it had.
    pub(super) fn let_go(&mut self) {
        let free = |(_, reserved): &mut (RequestId, Reserved)| !reserved.cache.is_shared();
        for (_, reserved) in self.quarantine.extract_if(.., free) {
            self.reclaim.drop_later(reserved.cache);
        }
    }

    /// A lane that had these requests' caches never answered, and is waited for no longer.
    pub(super) fn write_off(&mut self, requests: &[RequestId]) {
        for request in requests {
            if let Some(reserved) = self.requests.get_mut(request) {
                reserved.rows = Rows::Spoiled;
            }
        }
        self.quarantine.retain(|(id, _)| !requests.contains(id));
    }

    /// Whether a cache of so many tokens takes at most twice the memory that they are charged with: each half of each
    /// layer takes whole pages.
    pub(super) fn is_worth(&self, tokens: u32) -> bool {
        let tokens = tokens as usize;
        self.shape.resident_bytes(tokens) <= 2 * tokens * self.shape.token_bytes()
    }

    /// Leaves a request's cache, with these tokens in it, to a flow of its scope; false, and nothing is kept, where a
    /// lane has it too or nothing in it counts.
    pub(super) fn keep(
        &mut self,
        request: RequestId,
        (scope, flow): (ScopeId, FlowId),
        tokens: Vec<u32>,
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
            (Rows::Good, cache) => cache.into_sole(),
            (Rows::Spoiled, cache) => Err(cache),
        };
        match sole {
            Ok(cache) => {
                if let Sole::Memory(cache) = &cache {
                    // An earlier call that it took the cache over from may have had more.
                    cache.discard(tokens.len());
                }
                let kept = Kept {
                    scope,
                    cache,
                    tokens,
                };
                self.flows.insert(flow, kept);
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

    /// Bytes that all caches in memory may take, in whole pages.
    pub(super) fn bytes(&self) -> u64 {
        let kept = self.flows.values().filter(|kept| match &kept.cache {
            Sole::Memory(_) => true,
            Sole::Parked(parked) => parked.is_in_memory(),
        });
        let kept = kept.map(|kept| kept.tokens.len());
        let quarantined = self.quarantine.iter().map(|(_, reserved)| reserved);
        let reserved = self.requests.values().chain(quarantined);
        let reserved = reserved.map(|reserved| reserved.tokens as usize);
        kept.chain(reserved)
            .map(|tokens| self.shape.resident_bytes(tokens) as u64)
            .sum()
    }

    /// Whether a flow keeps something.
    pub(super) fn keeps(&self, flow: FlowId) -> bool {
        self.flows.contains_key(&flow)
    }

    /// Flows that keep something.
    pub(super) fn flows_kept(&self) -> usize {
        self.flows.len()
    }
}

impl Kept {
    fn into_parts(self) -> (Sole, usize) {
        (self.cache, self.tokens.len())
    }
}

fn common(a: &[u32], b: &[u32]) -> u32 {
    a.iter().zip(b).take_while(|(a, b)| a == b).count() as u32
}
