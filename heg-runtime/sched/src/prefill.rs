//! Progress of one prompt: its segments, each on its way through the layers.
//!
//! A prompt is cut into full chunks and a remainder. Within a layer a segment's attention needs the keys and
//! values of the segments before it, and nothing else connects segments: while the iGPU attends one, the NPU
//! projects the next. So a prompt moves through the model as a wave front, not layer by layer, and stopping
//! costs nothing: progress is a counter per segment.
//! The wave is no longer than the window of the prompt: segments take turns in its rows of activations.
//! In the last layer only the last row is needed, unless the request wants all: segments before the last one end with
//! the kernel that fills their part of the cache.

use super::costs::ModelShape;
use super::event::{LayerKernel, Segment};
use super::order::LayerOrder;
use super::request::PromptLogits;

/// A kernel of a segment that may run now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    /// Index of the segment.
    pub(super) part: usize,
    pub(super) segment: Segment,
    pub(super) layer: u32,
    pub(super) kernel: LayerKernel,
    /// Kernels that the segment has completed.
    pub(super) done: u32,
}

/// The segments of a prompt that are on their way through the layers at once. One begins only when all but this number
/// before it are through, so that its activations may have their rows (Agent.xpu 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptWindow {
    /// Tokens of a full segment, at least 1.
    pub chunk_tokens: u32,
    /// Number of segments, at least 1.
    pub segments: u32,
}

impl PromptWindow {
    /// No bound: every token has a row of its own.
    pub const WHOLE: Self = Self {
        chunk_tokens: 1,
        segments: u32::MAX,
    };

    /// The window of prompts of class-sized chunks, `tokens` long at most unless all rows have logits.
    pub(super) fn new(chunk_tokens: u32, tokens: u32, logits: PromptLogits) -> Self {
        let chunk_tokens = chunk_tokens.max(1);
        let segments = match logits {
            PromptLogits::LastRow => (tokens / chunk_tokens).max(1),
            PromptLogits::AllRows | PromptLogits::WholePrompt => u32::MAX,
        };
        Self {
            chunk_tokens,
            segments,
        }
    }
}

/// The progress of one prompt.
#[derive(Debug, Clone)]
pub(super) struct Prefill {
    layers: u32,
    order: LayerOrder,
    parts: Vec<Part>,
    /// Number of full chunks among the segments; a segment after them is the remainder.
    chunks: usize,
    /// Segments on their way through the layers at once, at most.
    segments_max: usize,
    logits: PromptLogits,
    head: Head,
}

#[derive(Debug, Clone, Copy)]
struct Part {
    segment: Segment,
    /// Kernels completed, over all layers.
    done: u32,
    running: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Head {
    Waiting,
    Running,
}

impl Prefill {
    /// Cuts the tokens at [cached, prompt) of a request into chunks of `chunk`. There is at least one segment.
    pub(super) fn new(model: ModelShape, cached: u32, prompt: u32, chunk: u32) -> Self {
        let chunk = chunk.max(1);
        let new = prompt.saturating_sub(cached).max(1);
        let first = prompt.saturating_sub(new);
        let count = new.div_ceil(chunk);
        let part = |index: u32| Part {
            segment: Segment {
                position: first + index * chunk,
                tokens: chunk.min(new - index * chunk),
            },
            done: 0,
            running: false,
        };
        Self {
            layers: model.layers,
            order: model.order,
            parts: (0..count).map(part).collect(),
            chunks: (new / chunk) as usize,
            segments_max: usize::MAX,
            logits: PromptLogits::LastRow,
            head: Head::Waiting,
        }
    }

    /// Returns the same prompt with the rows that the request wants logits of.
    pub(super) fn wanting(self, logits: PromptLogits) -> Self {
        Self { logits, ..self }
    }

    /// Returns the same prompt with no more segments on their way at once than in the window.
    pub(super) fn within(self, window: PromptWindow) -> Self {
        let segments_max = usize::try_from(window.segments).unwrap_or(usize::MAX);
        Self {
            segments_max,
            ..self
        }
    }

    /// Returns the kernels that may run now, the segment that is furthest behind first.
    ///
    /// A segment whose attention runs, or waits for the attention of an earlier one, holds up only the segments
    /// behind it.
    pub(super) fn ready(&self) -> impl Iterator<Item = Step> {
        let mut steps: Vec<Step> = Vec::new();
        // Fewest layers of keys and values among the segments before this one.
        let mut cached_layers = u32::MAX;
        let through = self.through();
        let on_their_way = self.parts.iter().enumerate();
        let on_their_way = on_their_way.take(through.saturating_add(self.segments_max));
        for (index, part) in on_their_way {
            let (layer, kernel) = self.order.after(part.done);
            let sees_all = kernel != self.order.reads_cache() || layer < cached_layers;
            if !part.running && part.done < self.end(index) && sees_all {
                steps.push(Step {
                    part: index,
                    segment: part.segment,
                    layer,
                    kernel,
                    done: part.done,
                });
            }
            cached_layers = cached_layers.min(self.order.cached_layers(part.done));
        }
        steps.sort_by_key(|step| (step.done, step.part));
        steps.into_iter()
    }

    /// Number of leading segments that no kernel comes back to.
    fn through(&self) -> usize {
        let parts = self.parts.iter().enumerate();
        let through = parts.take_while(|(index, part)| part.done == self.end(*index));
        through.count()
    }

    /// Whether only the head is left, and is not running yet.
    pub(super) fn head_is_ready(&self) -> bool {
        self.head == Head::Waiting && self.wanted_is_through()
    }

    fn wanted_is_through(&self) -> bool {
        let first = match self.logits.is_of_all_rows() {
            false => self.parts.len().saturating_sub(1),
            true => 0,
        };
        let mut wanted = self.parts.iter().enumerate().skip(first);
        wanted.all(|(index, part)| part.done == self.end(index))
    }

    /// Whether a kernel of it is running.
    pub(super) fn is_running(&self) -> bool {
        self.head == Head::Running || self.parts.iter().any(|part| part.running)
    }

    pub(super) fn start(&mut self, part: usize) {
        if let Some(part) = self.parts.get_mut(part) {
            part.running = true;
        }
    }

    pub(super) fn start_head(&mut self) {
        self.head = Head::Running;
    }

    /// Marks the running kernel of a segment as done.
    pub(super) fn complete(&mut self, position: u32) {
        if let Some(part) = self.at(position) {
            part.done += 1;
            part.running = false;
        }
    }

    /// Marks the running kernel of a segment as failed; it may run again.
    pub(super) fn undo(&mut self, position: u32) {
        if let Some(part) = self.at(position) {
            part.running = false;
        }
    }

    /// Does the same as [`Prefill::undo`] for the head.
    pub(super) fn undo_head(&mut self) {
        self.head = Head::Waiting;
    }

    fn at(&mut self, position: u32) -> Option<&mut Part> {
        let mut parts = self.parts.iter_mut();
        parts.find(|part| part.segment.position == position)
    }

    /// Number of full chunks.
    pub(super) fn chunks(&self) -> usize {
        self.chunks
    }

    /// Tokens of the remainder; 0 if there is none.
    pub(super) fn remainder(&self) -> u32 {
        let rest = self.parts.get(self.chunks);
        rest.map_or(0, |part| part.segment.tokens)
    }

    /// Leading tokens whose keys and values are in the cache, in every layer.
    pub(super) fn cached(&self) -> u32 {
        let mut through = self.parts.iter().map_while(|part| {
            let is_cached = self.order.cached_layers(part.done) >= self.layers;
            is_cached.then(|| part.segment.context())
        });
        let first = self.parts.first().map_or(0, |part| part.segment.position);
        through.by_ref().last().unwrap_or(first)
    }

    /// Full chunks that have not yet completed the kernel with number `kernel`.
    pub(super) fn chunks_behind(&self, kernel: u32) -> usize {
        let chunks = self.parts.iter().take(self.chunks);
        chunks.filter(|part| part.done <= kernel).count()
    }

    /// Returns all segments.
    pub(super) fn segments(&self) -> impl Iterator<Item = Segment> {
        self.parts.iter().map(|part| part.segment)
    }

    /// Kernels that are left, as (segment, kernel, count).
    pub(super) fn remaining(&self) -> impl Iterator<Item = (Segment, LayerKernel, u32)> {
        self.parts.iter().enumerate().flat_map(|(index, part)| {
            let end = self.end(index);
            // Of the kernels numbered done..end, every third is of this kind.
            self.order
                .kernels()
                .into_iter()
                .zip(0..3)
                .map(move |(kernel, offset)| {
                    let until = |kernels: u32| (kernels + 2 - offset) / 3;
                    (part.segment, kernel, until(end) - until(part.done))
                })
        })
    }

    /// Total number of kernels of a segment.
    fn end(&self, part: usize) -> u32 {
        if part + 1 == self.parts.len() || self.logits.is_of_all_rows() {
            self.order.kernels_of(self.layers)
        } else {
            self.order.kernels_to_cache(self.layers)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(layers: u32) -> ModelShape {
        ModelShape {
            layers,
            order: LayerOrder::default(),
            chunk_tokens: 256,
            context_tokens: 4096,
            kv_bytes_per_token: 1,
        }
    }

    /// Runs all kernels, one at a time, and returns their order.
    fn run(mut prefill: Prefill, pick: impl Fn(usize) -> usize) -> Vec<Step> {
        let mut order = Vec::new();
        loop {
            let ready: Vec<Step> = prefill.ready().collect();
            if ready.is_empty() {
                break;
            }
            let step = ready[pick(order.len()) % ready.len()];
            prefill.start(step.part);
            prefill.complete(step.segment.position);
            order.push(step);
        }
        assert!(prefill.head_is_ready());
        assert!(prefill.remaining().all(|(_, _, count)| count == 0));
        order
    }

    #[test]
    fn the_remainder_is_what_chunks_leave() {
        let prefill = Prefill::new(model(2), 100, 700, 256);
        let cut: Vec<_> = prefill.segments().map(|s| (s.position, s.tokens)).collect();
        assert_eq!(cut, [(100, 256), (356, 256), (612, 88)]);
        assert_eq!((prefill.chunks(), prefill.remainder()), (2, 88));
        let whole = Prefill::new(model(2), 0, 512, 256);
        assert_eq!((whole.chunks(), whole.remainder()), (2, 0));
        // A prompt that is entirely in the cache runs its last token again.
        let again = Prefill::new(model(2), 512, 512, 256);
        assert_eq!(
            again.segments().next().map(|s| (s.position, s.tokens)),
            Some((511, 1))
        );
    }

    #[test]
    fn attention_waits_for_the_keys_before_it_in_any_order() {
        for seed in 0..50 {
            let order = run(Prefill::new(model(3), 0, 1000, 256), |at| at * 7 + seed);
            let place = |part, layer, kernel| {
                let mut steps = order.iter();
                steps.position(|s| (s.part, s.layer, s.kernel) == (part, layer, kernel))
            };
            for step in order.iter().filter(|step| step.kernel == LayerKernel::Mha) {
                for before in 0..=step.part {
                    let keys = place(before, step.layer, LayerKernel::Qkv);
                    assert!(keys < place(step.part, step.layer, LayerKernel::Mha));
                }
            }
            // Three kernels per layer for each of four segments, less two for three segments in the last layer.
            assert_eq!(order.len(), 3 * 3 * 4 - 2 * 3);
        }
    }

    #[test]
    fn where_all_rows_are_wanted_every_segment_runs_all_layers() {
        for seed in 0..50 {
            let prefill = Prefill::new(model(3), 0, 1000, 256).wanting(PromptLogits::AllRows);
            let order = run(prefill, |at| at * 7 + seed);
            assert_eq!(order.len(), 3 * 3 * 4);
        }
        let mut prefill = Prefill::new(model(1), 0, 512, 256).wanting(PromptLogits::AllRows);
        for _ in 0..3 {
            prefill.start(1);
            prefill.complete(256);
        }
        assert!(!prefill.head_is_ready(), "the first rows are missing");
    }

    #[test]
    fn a_segment_runs_one_kernel_at_a_time() {
        let mut prefill = Prefill::new(model(1), 0, 512, 256);
        prefill.start(0);
        assert_eq!(prefill.ready().map(|s| s.part).collect::<Vec<_>>(), [1]);
        prefill.undo(0);
        assert_eq!(prefill.ready().count(), 2);
    }

    #[test]
    fn what_remains_counts_every_kernel_once() {
        let mut prefill = Prefill::new(model(4), 0, 300, 256);
        let total = |p: &Prefill| p.remaining().map(|(_, _, count)| count).sum::<u32>();
        assert_eq!(total(&prefill), 3 * 4 * 2 - 2);
        for kernels in 1..=5 {
            prefill.start(0);
            prefill.complete(0);
            assert_eq!(total(&prefill), 3 * 4 * 2 - 2 - kernels);
        }
    }
}
