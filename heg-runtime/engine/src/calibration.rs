//! The tokens that the model found likely in a prompt, from the rows of its prefill (sd.npu §3.3).
//!
//! In the last layer a prompt's earlier segments end with their keys and values, since only the last row's logits are
//! needed before the first token. Their residual stream and queries are still in the prompt's rows then, and nothing
//! else needs these. From there a slice of rows needs only attention and FFN of one layer, and the head.
//!
//! Slices run in bubbles of the lane that has the head. While a prompt is in progress, that is the time in which the
//! other lane runs a kernel that ends later than the slice does, by prediction: nothing can wait for the lane before. A
//! request that comes meanwhile waits for one kernel of a few rows at most. Rows for which there was no bubble before the
//! first token are kept, with a copy of the last layer's keys and values, until the lanes have rested for a moment: on a
//! machine with one lane these are all rows. The copy is the only cost to the time to the first token.
//!
//! The answer is drafted from the likely tokens found so far. They are kept for the flow, as far as its next call begins
//! with the same tokens, and take 24 B per token.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::served::PromptRows;
use heg_draft::Likely;
use heg_exec::mem::{ActivationRows, KvCache};
use heg_sched::{FlowId, Lane, RequestId, Segment};

/// Rows of a slice: those of the smallest chunk of an NPU's kernels.
pub(super) const SLICE_ROWS: u32 = 32;
/// Most memory of prompts that have their first token. Chosen: two thousand tokens of a 1B model.
const BYTES_MAX: usize = 64 << 20;
/// Idle time of the lanes before a slice runs. Chosen: calls of an agent follow each other within it.
const QUIET: Duration = Duration::from_millis(10);

/// A prompt in progress, some of whose rows are through.
pub(super) struct Begun {
    pub(super) request: RequestId,
    pub(super) flow: FlowId,
    pub(super) prompt: PromptRows,
    /// Tokens of the prompt.
    pub(super) tokens: u32,
}

/// A prompt that has its first token, and keeps its rows.
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
    /// Rows of its own to compute in: kernels may pad a call, and behind a slice there are rows of kernels that run.
    pub(super) room: Arc<ActivationRows>,
}

/// A prompt of which some rows have likely tokens.
struct Pending {
    request: RequestId,
    flow: FlowId,
    prompt: PromptRows,
    source: Source,
    tokens: u32,
    /// The likely tokens known so far, by position; the next slice begins at the end.
    likely: Vec<Likely>,
}

/// Where the last layer's keys and values of a prompt are.
enum Source {
    /// In the cache of its request, which is in progress: those up to the end of the first of these segments that is not
    /// joined to the others.
    Request(Vec<Segment>),
    /// In a copy, all of them.
    Copy {
        cache: Arc<KvCache>,
        /// Memory that cache and rows take, in bytes.
        bytes: usize,
    },
}

impl Pending {
    /// The end of the rows that a slice may have.
    fn ready(&self) -> u32 {
        match &self.source {
            Source::Copy { .. } => self.tokens,
            Source::Request(through) => {
                let mut end = self.prompt.first;
                while let Some(next) = through.iter().find(|it| it.position == end) {
                    end = next.context();
                }
                end
            }
        }
    }

    /// Rows without likely tokens.
    fn left(&self) -> u32 {
        self.tokens.saturating_sub(self.likely.len() as u32)
    }

    fn is_ready(&self) -> bool {
        self.ready() as usize > self.likely.len()
    }
}

/// The prompts whose rows wait for a bubble, and the likely tokens found in others.
pub(super) struct Calibrations {
    is_on: bool,
    pending: VecDeque<Pending>,
    /// The lane that a slice runs on.
    running: Option<Lane>,
    tables: BTreeMap<FlowId, Arc<[Likely]>>,
    /// The last time at which a request needed a lane.
    wanted: Instant,
    /// The time before which a lane could do nothing for a slice.
    paused: Instant,
    counts: CalibrationCounts,
}

/// Numbers of rows since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct CalibrationCounts {
    /// Rows with likely tokens.
    pub(super) rows: u64,
    /// Those of them whose prompt was still in progress.
    pub(super) early_rows: u64,
    /// Rows that were given up without likely tokens.
    pub(super) dropped_rows: u64,
}

impl Calibrations {
    pub(super) fn new(is_on: bool) -> Self {
        Self {
            is_on,
            pending: VecDeque::new(),
            running: None,
            tables: BTreeMap::new(),
            wanted: Instant::now(),
            paused: Instant::now(),
            counts: CalibrationCounts::default(),
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
            && let Some(known) = self.drop_at(at)
        {
            self.tables.insert(flow, known.into());
        }
        if let Some(table) = self.tables.remove(&flow) {
            let known = table.get(..reused as usize).unwrap_or(&table);
            if !known.is_empty() {
                self.tables.insert(flow, known.into());
            }
        }
    }

    /// Notes that a segment of a prompt in progress has its last keys and values, and that no kernel of the request comes
    /// back to its rows.
    pub(super) fn is_through(&mut self, begun: Begun, segment: Segment) {
        if !self.is_on {
            return;
        }
        let mut all = self.pending.iter_mut();
        let known = all.find(|it| it.request == begun.request);
        match known.map(|it| &mut it.source) {
            Some(Source::Request(through)) => through.push(segment),
            Some(Source::Copy { .. }) => {}
            None => {
                let likely = self.known_before(begun.flow, begun.prompt.first);
                self.pending.push_back(Pending {
                    request: begun.request,
                    flow: begun.flow,
                    prompt: begun.prompt,
                    source: Source::Request(vec![segment]),
                    tokens: begun.tokens,
                    likely,
                });
            }
        }
    }

    /// The table of a flow, for the rows before `first`.
    fn known_before(&self, flow: FlowId, first: u32) -> Vec<Likely> {
        let known = self.tables.get(&flow);
        let mut likely = known.map_or(Vec::new(), |known| known.to_vec());
        likely.resize(first as usize, Likely::UNKNOWN);
        likely
    }

    /// Keeps a prompt that has its first token; the oldest ones make room.
    pub(super) fn keep(&mut self, kept: Kept) {
        let early = self
            .pending
            .iter()
            .position(|it| it.request == kept.request);
        let early = early.and_then(|at| self.pending.remove(at));
        let likely = early.map(|early| early.likely);
        let likely = likely.unwrap_or_else(|| self.known_before(kept.flow, kept.prompt.first));
        self.pending.push_back(Pending {
            request: kept.request,
            flow: kept.flow,
            prompt: kept.prompt,
            source: Source::Copy {
                cache: Arc::new(kept.cache),
                bytes: kept.bytes,
            },
            tokens: kept.tokens,
            likely,
        });
        while self.bytes() > BYTES_MAX {
            let oldest = self.pending.iter().position(|it| bytes_of(it) > 0);
            if oldest.and_then(|at| self.drop_at(at)).is_none() {
                break;
            }
        }
    }

    /// Gives up a prompt in progress: it starts over, ends, or keeps no rows. Its likely tokens stay with its flow.
    pub(super) fn leave(&mut self, request: RequestId) {
        let is_it = |it: &Pending| it.request == request && bytes_of(it) == 0;
        let Some(at) = self.pending.iter().position(is_it) else {
            return;
        };
        let flow = self.pending.get(at).map(|it| it.flow);
        if let (Some(flow), Some(likely)) = (flow, self.drop_at(at)) {
            self.tables.insert(flow, likely.into());
        }
    }

    /// Gives up the rows that are left of a prompt; returns its likely tokens.
    fn drop_at(&mut self, at: usize) -> Option<Vec<Likely>> {
        let known = self.pending.remove(at)?;
        self.counts.dropped_rows += u64::from(known.left());
        Some(known.likely)
    }

    /// Forgets prompts and likely tokens of flows for which `is_kept` does not hold.
    pub(super) fn forget(&mut self, is_kept: impl Fn(FlowId) -> bool) {
        let dropped = self.pending.iter().filter(|it| !is_kept(it.flow));
        self.counts.dropped_rows += dropped.map(|it| u64::from(it.left())).sum::<u64>();
        self.pending.retain(|it| is_kept(it.flow));
        self.tables.retain(|flow, _| is_kept(*flow));
    }

    /// Notes that a request needs a lane.
    pub(super) fn wait(&mut self) {
        self.wanted = Instant::now();
    }

    /// The time at which the next slice may run without a bubble; `None` if no rows wait, or a slice runs.
    pub(super) fn due(&self) -> Option<Instant> {
        Some(self.since()? + QUIET)
    }

    /// The time from which the next slice may run in a bubble; `None` if no rows wait, or a slice runs.
    pub(super) fn since(&self) -> Option<Instant> {
        let waits = self.running.is_none() && self.pending.iter().any(Pending::is_ready);
        waits.then_some(self.wanted.max(self.paused))
    }

    /// The rows of the next slice.
    pub(super) fn next(&self) -> Option<Segment> {
        Some(segment_of(self.pending.get(self.next_at()?)?))
    }

    /// The prompt whose rows are next: one whose answer is to come goes first.
    fn next_at(&self) -> Option<usize> {
        let ready = || (0..).zip(&self.pending).filter(|(_, it)| it.is_ready());
        let early = ready().find(|(_, it)| matches!(it.source, Source::Request(_)));
        early.or_else(|| ready().next()).map(|(at, _)| at)
    }

    /// Returns the next slice, which runs on a lane from now on. `cache` has the cache of a request in progress.
    pub(super) fn start(
        &mut self,
        lane: Lane,
        room: Arc<ActivationRows>,
        cache: impl FnOnce(RequestId) -> Option<Arc<KvCache>>,
    ) -> Option<Slice> {
        let at = self.next_at()?;
        let next = self.pending.get(at)?;
        let cache = match &next.source {
            Source::Copy { cache, .. } => Some(Arc::clone(cache)),
            Source::Request(_) => cache(next.request),
        };
        let Some(cache) = cache else {
            self.drop_at(at);
            return None;
        };
        let slice = Slice {
            request: next.request,
            prompt: next.prompt.clone(),
            cache,
            segment: segment_of(next),
            room,
        };
        self.running = Some(lane);
        Some(slice)
    }

    /// Notes that a lane has read the rows of a prompt from `position` on, or has given up on it; returns whether there are
    /// more likely tokens now.
    pub(super) fn ended(
        &mut self,
        (request, position): (RequestId, u32),
        likely: Option<Vec<Likely>>,
    ) -> bool {
        self.running = None;
        let is_it = |it: &Pending| it.request == request && it.likely.len() == position as usize;
        let Some(at) = self.pending.iter().position(is_it) else {
            return false;
        };
        let Some(likely) = likely else {
            self.drop_at(at);
            return false;
        };
        if likely.is_empty() {
            self.paused = Instant::now() + QUIET;
        }
        let Some(known) = self.pending.get_mut(at).filter(|_| !likely.is_empty()) else {
            return false;
        };
        self.counts.rows += likely.len() as u64;
        if matches!(known.source, Source::Request(_)) {
            self.counts.early_rows += likely.len() as u64;
        }
        known.likely.extend(likely);
        true
    }

    /// The likely tokens known of a request's prompt, if there are any. The rows of a prompt of which all are known go.
    pub(super) fn table(&mut self, request: RequestId) -> Option<Arc<[Likely]>> {
        let at = self.pending.iter().position(|it| it.request == request)?;
        let known = self.pending.get(at)?;
        let likely: Arc<[Likely]> = known.likely.as_slice().into();
        if known.left() == 0 {
            self.tables.insert(known.flow, Arc::clone(&likely));
            self.pending.remove(at);
        }
        likely.iter().any(Likely::is_known).then_some(likely)
    }

    /// Notes that a lane is gone.
    pub(super) fn lose(&mut self, lane: Lane) {
        self.running.take_if(|running| *running == lane);
    }

    /// Rows since the start.
    pub(super) fn counts(&self) -> CalibrationCounts {
        self.counts
    }

    /// Rows that wait.
    pub(super) fn waiting(&self) -> u32 {
        self.pending.iter().map(Pending::left).sum()
    }

    fn bytes(&self) -> usize {
        self.pending.iter().map(bytes_of).sum()
    }
}

/// Whether a lane stays idle for `needed` while others run launches that take so much longer; `None` where that is not
/// known. What the lane is to do next is not known before one of them ends; if there is none it waits for something else.
pub(super) fn is_bubble(
    others: impl IntoIterator<Item = Option<Duration>>,
    needed: Duration,
) -> bool {
    let mut others = others.into_iter().peekable();
    others.peek().is_some() && others.all(|left| left.is_some_and(|left| left > needed))
}

/// Memory that a prompt keeps beyond its first token.
fn bytes_of(pending: &Pending) -> usize {
    match pending.source {
        Source::Copy { bytes, .. } => bytes,
        Source::Request(_) => 0,
    }
}

/// The rows of a prompt's next slice.
fn segment_of(next: &Pending) -> Segment {
    let position = next.likely.len() as u32;
    Segment {
        position,
        tokens: next.ready().saturating_sub(position).min(SLICE_ROWS),
    }
}

#[cfg(test)]
mod tests;
