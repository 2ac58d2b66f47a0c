//! KV caches of requests, and those that flows keep between calls.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::ScopeId;
use super::flash::{Back, Flash, Parked, Unread};
use super::reclaim::Reclaim;
use crate::error::RuntimeError;
use crate::mem::{KvCache, KvShape};
use crate::sched::{FlowId, RequestId};

/// Caches by owner.
pub(super) struct Memory {
    shape: KvShape,
    /// With the tokens that it has room for.
    requests: BTreeMap<RequestId, (Arc<KvCache>, u32)>,
    flows: BTreeMap<FlowId, Kept>,
    flash: Flash,
    reclaim: Reclaim,
}

/// What a flow keeps.
struct Kept {
    /// Whose tokens they are.
    scope: ScopeId,
    cache: At,
    /// The tokens whose keys and values are in it.
    tokens: Vec<u32>,
}

enum At {
    Memory(Arc<KvCache>),
    Flash(Arc<Parked>),
}

/// The cache of a request, as it is at first.
pub(super) struct Reserved {
    pub(super) cache: Arc<KvCache>,
    /// What is still to be read into it.
    pub(super) unread: Option<Arc<Unread>>,
}

impl Memory {
    /// With files of caches in `flash`, if anywhere.
    pub(super) fn new(shape: KvShape, flash: Option<PathBuf>, reclaim: Reclaim) -> Self {
        Self {
            shape,
            flash: Flash::new(flash),
            reclaim,
            requests: BTreeMap::new(),
            flows: BTreeMap::new(),
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
    pub(super) fn reserve(
        &mut self,
        request: RequestId,
        flow: FlowId,
        (tokens, reused): (u32, u32),
    ) -> Result<Reserved, RuntimeError> {
        if reused == 0 {
            self.release_flow(flow);
        }
        let kept = self.flows.remove(&flow);
        let back = kept.and_then(|kept| match kept.cache {
            At::Memory(cache) => {
                // What the last call had beyond this one's room is in nobody's budget.
                if kept.tokens.len() > tokens as usize {
                    cache.discard(tokens as usize);
                }
                Some(Back::Memory(cache))
            }
            At::Flash(parked) => parked.take(),
        });
        let (cache, unread) = match back {
            Some(Back::Memory(cache)) => (cache, None),
            Some(Back::File(unread)) => (self.empty()?, Some(Arc::new(unread))),
            None => (self.empty()?, None),
        };
        self.requests.insert(request, (Arc::clone(&cache), tokens));
        Ok(Reserved { cache, unread })
    }

    fn empty(&self) -> Result<Arc<KvCache>, RuntimeError> {
        Ok(Arc::new(KvCache::reserve(self.shape)?))
    }

    /// Moves what a flow keeps to flash.
    pub(super) fn offload(&mut self, flow: FlowId) {
        if let Some(kept) = self.flows.get_mut(&flow)
            && let At::Memory(cache) = &kept.cache
        {
            kept.cache = At::Flash(self.flash.park(Arc::clone(cache), kept.tokens.len()));
        }
    }

    /// The cache of a request.
    pub(super) fn cache(&self, request: RequestId) -> Option<&Arc<KvCache>> {
        self.requests.get(&request).map(|(cache, _)| cache)
    }

    pub(super) fn release(&mut self, request: RequestId) {
        if let Some((cache, _)) = self.requests.remove(&request) {
            self.reclaim.drop_later(cache);
        }
    }

    /// Leaves a request's cache, with these tokens in it, to a flow of its scope.
    pub(super) fn keep(
        &mut self,
        request: RequestId,
        (scope, flow): (ScopeId, FlowId),
        tokens: Vec<u32>,
    ) {
        if let Some((cache, _)) = self.requests.remove(&request) {
            // An earlier call that it took the cache over from may have had more.
            cache.discard(tokens.len());
            let cache = At::Memory(cache);
            let kept = Kept {
                scope,
                cache,
                tokens,
            };
            self.flows.insert(flow, kept);
        }
    }

    pub(super) fn release_flow(&mut self, flow: FlowId) {
        if let Some(kept) = self.flows.remove(&flow) {
            self.reclaim.drop_later(kept.cache);
        }
    }

    /// Tokens that all caches have room for.
    pub(super) fn tokens(&self) -> u64 {
        let here = |kept: &&Kept| matches!(kept.cache, At::Memory(_));
        let kept = self.flows.values().filter(here);
        let kept = kept.map(|kept| kept.tokens.len() as u64);
        kept.sum::<u64>()
            + self
                .requests
                .values()
                .map(|(_, tokens)| u64::from(*tokens))
                .sum::<u64>()
    }

    /// Flows that keep something.
    pub(super) fn flows_kept(&self) -> usize {
        self.flows.len()
    }
}

fn common(a: &[u32], b: &[u32]) -> u32 {
    a.iter().zip(b).take_while(|(a, b)| a == b).count() as u32
}
