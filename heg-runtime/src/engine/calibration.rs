//! Prompts that are read again for what the model found likely in them (sd.npu §3.3), while lanes have nothing to do.
//!
//! In the last layer a prompt's earlier segments end with their keys and values, since only the last row's logits are
//! wanted before the first token. Their residual stream and queries are still in the prompt's rows then. Those are kept
//! in place of being freed, with the keys and values of that one layer, which are the request's and may be overwritten.
//! From there a slice of rows takes attention and FFN of one layer, and the head; the time to the first token has only the
//! copy of one layer's keys and values.
//!
//! What was found is kept for the flow, as far as its next call goes on with the same tokens. It takes 24 B a token.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::served::PromptRows;
use crate::mem::KvCache;
use heg_draft::Likely;
use heg_sched::{FlowId, Lane, RequestId, Segment};

/// Rows of a slice: those of the smallest chunk of an NPU's kernels.
const SLICE_ROWS: u32 = 32;
/// Memory that prompts wait in. Chosen: two thousand tokens of a 1B model.
const BYTES_MAX: usize = 64 << 20;
/// Time that lanes have had nothing to do for. Chosen: calls of an agent follow each other within it.
const QUIET: Duration = Duration::from_millis(10);

/// A prompt that is to be read again.
pub(super) struct Kept {
    pub(super) request: RequestId,
    pub(super) flow: FlowId,
    pub(super) prompt: PromptRows,
    /// Keys and values of its last layer.
    pub(super) cache: KvCache,
    /// Tokens of the prompt.
    pub(super) tokens: u32,
    /// Memory that it takes.
    pub(super) bytes: usize,
}

/// Rows of a prompt for a lane to find likely tokens after.
pub(super) struct Slice {
    pub(super) request: RequestId,
    pub(super) prompt: PromptRows,
    pub(super) cache: Arc<KvCache>,
    pub(super) segment: Segment,
}

/// A prompt of which some rows have been read.
struct Pending {
    request: RequestId,
    flow: FlowId,
    prompt: PromptRows,
    cache: Arc<KvCache>,
    tokens: u32,
    bytes: usize,
    /// What is known, by position; the next slice begins where it ends.
    likely: Vec<Likely>,
}

/// What is likely in a prompt, whole.
pub(super) struct Table {
    pub(super) request: RequestId,
    pub(super) likely: Arc<[Likely]>,
}

/// Prompts to be read again, and what came of others.
pub(super) struct Calibrations {
    is_on: bool,
    pending: VecDeque<Pending>,
    /// The lane that a slice runs on.
    running: Option<Lane>,
    tables: BTreeMap<FlowId, Arc<[Likely]>>,
    /// When a request last wanted something of a lane.
    wanted: Instant,
    /// Rows read so far.
    rows: u64,
}

impl Calibrations {
    pub(super) fn new(is_on: bool) -> Self {
        Self {
            is_on,
            pending: VecDeque::new(),
            running: None,
            tables: BTreeMap::new(),
            wanted: Instant::now(),
            rows: 0,
        }
    }

    /// Whether a prompt is kept that takes so much memory.
    pub(super) fn takes(&self, bytes: usize) -> bool {
        self.is_on && bytes <= BYTES_MAX
    }

    /// A request has got its memory, and `reused` tokens of its flow's cache: what is known of later ones is of another
    /// text.
    pub(super) fn reserved(&mut self, flow: FlowId, reused: u32) {
        if let Some(at) = self.pending.iter().position(|it| it.flow == flow)
            && let Some(known) = self.pending.remove(at)
        {
            self.tables.insert(flow, known.likely.into());
        }
        if let Some(table) = self.tables.remove(&flow) {
            let known = table.get(..reused as usize).unwrap_or(&table);
            if !known.is_empty() {
                self.tables.insert(flow, known.into());
            }
        }
    }

    /// Keeps a prompt; the oldest ones make room. Returns what is known of its beginning.
    pub(super) fn keep(&mut self, kept: Kept) -> Option<Arc<[Likely]>> {
        let known = self.tables.get(&kept.flow).cloned();
        let mut likely = known.as_deref().unwrap_or_default().to_vec();
        likely.resize(kept.prompt.first as usize, Likely::UNKNOWN);
        self.pending.push_back(Pending {
            request: kept.request,
            flow: kept.flow,
            prompt: kept.prompt,
            cache: Arc::new(kept.cache),
            tokens: kept.tokens,
            bytes: kept.bytes,
            likely,
        });
        while self.bytes() > BYTES_MAX {
            self.pending.pop_front();
        }
        known
    }

    /// Forgets what belongs to flows that nobody goes on with.
    pub(super) fn forget(&mut self, is_kept: impl Fn(FlowId) -> bool) {
        self.pending.retain(|it| is_kept(it.flow));
        self.tables.retain(|flow, _| is_kept(*flow));
    }

    /// A request wants something of a lane.
    pub(super) fn wait(&mut self) {
        self.wanted = Instant::now();
    }

    /// When a slice may run, if there is one that waits.
    pub(super) fn due(&self) -> Option<Instant> {
        let waits = !self.pending.is_empty() && self.running.is_none();
        waits.then(|| self.wanted + QUIET)
    }

    /// The next slice, which runs on a lane from now on.
    pub(super) fn start(&mut self, lane: Lane) -> Option<Slice> {
        let next = self.pending.front()?;
        let position = next.likely.len() as u32;
        self.running = Some(lane);
        Some(Slice {
            request: next.request,
            prompt: next.prompt.clone(),
            cache: Arc::clone(&next.cache),
            segment: Segment {
                position,
                tokens: next.tokens.saturating_sub(position).min(SLICE_ROWS),
            },
        })
    }

    /// A lane has read rows of a prompt, or has given up on it. Returns the table that is whole now.
    pub(super) fn ended(
        &mut self,
        request: RequestId,
        likely: Option<Vec<Likely>>,
    ) -> Option<Table> {
        self.running = None;
        let at = self.pending.iter().position(|it| it.request == request)?;
        let Some(likely) = likely else {
            self.pending.remove(at);
            return None;
        };
        self.rows += likely.len() as u64;
        let known = self.pending.get_mut(at)?;
        known.likely.extend(likely);
        if known.likely.len() < known.tokens as usize {
            return None;
        }
        let known = self.pending.remove(at)?;
        let likely: Arc<[Likely]> = known.likely.into();
        self.tables.insert(known.flow, Arc::clone(&likely));
        Some(Table { request, likely })
    }

    /// A lane is gone.
    pub(super) fn lose(&mut self, lane: Lane) {
        self.running.take_if(|running| *running == lane);
    }

    /// Rows read so far, and rows that wait.
    pub(super) fn rows(&self) -> (u64, u32) {
        let left = |it: &Pending| it.tokens.saturating_sub(it.likely.len() as u32);
        (self.rows, self.pending.iter().map(left).sum())
    }

    fn bytes(&self) -> usize {
        self.pending.iter().map(|it| it.bytes).sum()
    }
}

#[cfg(test)]
mod tests;
