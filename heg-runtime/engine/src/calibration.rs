//! Reads prompts again, while lanes are idle, for the tokens that the model found likely in them (sd.npu §3.3).
//!
//! In the last layer a prompt's earlier segments end with their keys and values, since only the last row's logits are
//! needed before the first token. Their residual stream and queries are still in the prompt's rows then. These rows
//! are kept instead of being freed, with the keys and values of that one layer; these are the request's own and may
//! be overwritten. From there a slice of rows needs only attention and FFN of one layer, and the head; the copy of
//! one layer's keys and values is the only cost to the time to the first token.
//!
//! The likely tokens are kept for the flow, as far as its next call begins with the same tokens. They take 24 B per
//! token.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::served::PromptRows;
use heg_draft::Likely;
use heg_exec::mem::KvCache;
use heg_sched::{FlowId, Lane, RequestId, Segment};

/// Rows of a slice: those of the smallest chunk of an NPU's kernels.
const SLICE_ROWS: u32 = 32;
/// Most memory of waiting prompts. Chosen: two thousand tokens of a 1B model.
const BYTES_MAX: usize = 64 << 20;
/// Idle time of the lanes before a slice runs. Chosen: calls of an agent follow each other within it.
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
    /// Memory that it takes, in bytes.
    pub(super) bytes: usize,
}

/// Rows of a prompt after which a lane is to find the likely tokens.
pub(super) struct Slice {
    pub(super) request: RequestId,
    pub(super) prompt: PromptRows,
    pub(super) cache: Arc<KvCache>,
    pub(super) segment: Segment,
}

/// A prompt of which some rows have been read again.
struct Pending {
    request: RequestId,
    flow: FlowId,
    prompt: PromptRows,
    cache: Arc<KvCache>,
    tokens: u32,
    bytes: usize,
    /// The likely tokens known so far, by position; the next slice begins at the end.
    likely: Vec<Likely>,
}

/// The likely tokens of a whole prompt.
pub(super) struct Table {
    pub(super) request: RequestId,
    pub(super) likely: Arc<[Likely]>,
}

/// The prompts that wait to be read again, and the likely tokens found in others.
pub(super) struct Calibrations {
    is_on: bool,
    pending: VecDeque<Pending>,
    /// The lane that a slice runs on.
    running: Option<Lane>,
    tables: BTreeMap<FlowId, Arc<[Likely]>>,
    /// The last time at which a request needed a lane.
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

    /// Whether a prompt that takes `bytes` of memory is kept.
    pub(super) fn takes(&self, bytes: usize) -> bool {
        self.is_on && bytes <= BYTES_MAX
    }

    /// Notes that a request has its memory, with `reused` tokens of its flow's cache: likely tokens of later
    /// positions belong to another text.
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

    /// Keeps a prompt; the oldest ones make room. Returns the likely tokens known of its beginning.
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

    /// Forgets prompts and likely tokens of flows for which `is_kept` does not hold.
    pub(super) fn forget(&mut self, is_kept: impl Fn(FlowId) -> bool) {
        self.pending.retain(|it| is_kept(it.flow));
        self.tables.retain(|flow, _| is_kept(*flow));
    }

    /// Notes that a request needs a lane.
    pub(super) fn wait(&mut self) {
        self.wanted = Instant::now();
    }

    /// The time at which the next slice may run; `None` if no prompt waits, or a slice runs.
    pub(super) fn due(&self) -> Option<Instant> {
        let waits = !self.pending.is_empty() && self.running.is_none();
        waits.then(|| self.wanted + QUIET)
    }

    /// Returns the next slice, which runs on a lane from now on.
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

    /// Notes that a lane has read rows of a prompt, or has given up on it. Returns the prompt's table if it is
    /// complete now.
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

    /// Notes that a lane is gone.
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
