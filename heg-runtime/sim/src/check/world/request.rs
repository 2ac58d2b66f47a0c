//! A request in the checker's world: its phase, its memory, and the progress of its prompt.

use heg_sched::{Class, LayerKernel, Micros, ModelShape, Segment, Submission};

/// The phase of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::check) enum Phase {
    /// Without memory yet.
    Queued,
    /// With memory, before its first token.
    Prefill,
    /// After its first token.
    Decode,
}

/// A segment of a prompt.
#[derive(Debug, Clone, Copy)]
pub(in crate::check) struct Part {
    pub(in crate::check) segment: Segment,
    /// Number of completed kernels, three a layer.
    pub(in crate::check) done: u32,
    pub(in crate::check) running: bool,
}

/// A live request.
#[derive(Debug, Clone)]
pub(in crate::check) struct Seen {
    pub(in crate::check) submission: Submission,
    /// Number of tokens of a full segment of its prompt.
    pub(in crate::check) chunk_tokens: u32,
    pub(in crate::check) phase: Phase,
    /// Number of tokens to prefill; a restart adds the answer so far.
    pub(in crate::check) prompt_tokens: u32,
    /// Number of prompt tokens that the cache had already.
    pub(in crate::check) reused: u32,
    /// Number of reserved tokens of memory, if any.
    pub(in crate::check) reserved: Option<u32>,
    /// Number of segments of its prompt that may be on their way at once.
    pub(in crate::check) segments_max: u32,
    /// Segments in order of position, without those of which nothing ran.
    pub(in crate::check) parts: Vec<Part>,
    /// Number of emitted tokens.
    pub(in crate::check) emitted: u32,
    /// Number of tokens computed and not emitted yet.
    pub(in crate::check) due: u32,
    /// Number of tokens of its draft.
    pub(in crate::check) draft: u32,
    /// Number of leading rows of its memory that were written or are being written, including those of drafted tokens.
    /// Rows of rejected tokens hold nothing that counts.
    pub(in crate::check) written: u32,
    /// Whether a launch reported the last token.
    pub(in crate::check) ended: bool,
    /// Whether it is not cancelled, not past its deadline, and always had a lane.
    pub(in crate::check) wanted: bool,
    /// Whether a launch with it failed.
    pub(in crate::check) failed: bool,
    /// Number of failures in a row of launches with only this request.
    pub(in crate::check) failed_alone: u32,
    /// Whether no lane could do its work for too long.
    pub(in crate::check) doomed: bool,
    /// Number of times in a row that it did not get its reserved memory.
    pub(in crate::check) refused: u32,
    /// Time of its arrival, or of its last token.
    pub(in crate::check) since: Micros,
    /// Whether it is proactive and has once waited for a token as long as the policy allows.
    pub(in crate::check) overdue: bool,
    /// Start of its first kernel.
    pub(in crate::check) begun: Option<Micros>,
    /// Whether it is overdue, and its prompt has certainly waited long enough for a lane beside a reactive one.
    pub(in crate::check) presses: bool,
}

impl Seen {
    pub(in crate::check) fn class(&self) -> Class {
        self.submission.class
    }

    /// Returns the number of tokens that an iteration with the request sees, including the one that it feeds.
    pub(in crate::check) fn context(&self) -> u32 {
        self.submission.prompt_tokens + self.emitted
    }

    /// Returns whether an iteration may verify `drafted` tokens after the one that it feeds.
    pub(in crate::check) fn admits(&self, drafted: u32) -> bool {
        let left = self.submission.output_tokens_max;
        let left = left.saturating_sub(self.emitted);
        let rows = self.context().saturating_add(drafted);
        drafted == 0
            || drafted <= self.draft
                && drafted < left
                && self.reserved.is_some_and(|reserved| rows <= reserved)
    }

    /// Returns the number of tokens of the prompt and the longest answer.
    pub(in crate::check) fn tokens_max(&self, context_tokens: u32) -> u32 {
        let asked = self.submission.prompt_tokens;
        let all = asked.saturating_add(self.submission.output_tokens_max);
        all.min(context_tokens).max(asked)
    }

    /// Returns whether its prompt occupies an activation buffer.
    pub(in crate::check) fn is_under_way(&self) -> bool {
        self.phase == Phase::Prefill && self.parts.iter().any(|part| part.running || part.done > 0)
    }

    /// Returns the number of leading tokens whose keys and values of all layers are in the cache.
    pub(in crate::check) fn computed(&self, layers: u32) -> u32 {
        match self.phase {
            Phase::Queued => 0,
            Phase::Decode => self.context().saturating_sub(1),
            Phase::Prefill => {
                let mut at = self.reused.min(self.prompt_tokens.saturating_sub(1));
                for part in &self.parts {
                    if part.segment.position != at || part.done.div_ceil(3) < layers {
                        break;
                    }
                    at = part.segment.context();
                }
                at
            }
        }
    }

    /// Returns the number of layers, at least, for which all tokens before `position` have their keys.
    pub(in crate::check) fn keys_before(&self, position: u32) -> u32 {
        let mut at = self.reused;
        let mut layers = u32::MAX;
        for part in &self.parts {
            if part.segment.position >= position {
                break;
            }
            if part.segment.position != at {
                return 0;
            }
            layers = layers.min(part.done.div_ceil(3));
            at = part.segment.context();
        }
        if at == position { layers } else { 0 }
    }

    /// Segments of the prompt as cut by the chunk size, with the progress of each.
    pub(in crate::check) fn cut(&self) -> impl Iterator<Item = Part> {
        let chunk = self.chunk_tokens;
        let new = self.prompt_tokens.saturating_sub(self.reused).max(1);
        let first = self.prompt_tokens - new;
        (0..new.div_ceil(chunk)).map(move |index| {
            let position = first + index * chunk;
            let segment = Segment {
                position,
                tokens: chunk.min(self.prompt_tokens - position),
            };
            let known = self.parts.iter().find(|p| p.segment.position == position);
            known.copied().unwrap_or(Part {
                segment,
                done: 0,
                running: false,
            })
        })
    }

    /// Segments that may be on their way, with those before them: those behind them wait for rows of activations.
    pub(in crate::check) fn in_window(&self, layers: u32) -> impl Iterator<Item = Part> {
        let end = self.end_of(layers);
        let through = self.cut().take_while(|part| part.done == end(part)).count();
        self.cut().take(through + self.segments_max as usize)
    }

    /// Number of kernels of a segment.
    fn end_of(&self, layers: u32) -> impl Fn(&Part) -> u32 {
        let (tokens, logits) = (self.prompt_tokens, self.submission.prompt_logits);
        move |part| {
            let last = part.segment.context() == tokens;
            let whole = last || logits.is_of_all_rows();
            3 * layers - if whole { 0 } else { 2 }
        }
    }

    /// Returns the kernels that may run now, as (segment, layer, kernel).
    pub(in crate::check) fn ready(
        &self,
        model: ModelShape,
    ) -> impl Iterator<Item = (Segment, LayerKernel)> {
        let open = self.phase == Phase::Prefill && self.wanted;
        let parts = self.in_window(model.layers).filter(move |_| open);
        let end = self.end_of(model.layers);
        parts.filter_map(move |part| {
            let (layer, kernel) = (part.done / 3, KERNELS[(part.done % 3) as usize]);
            let keys =
                kernel != LayerKernel::Mha || layer < self.keys_before(part.segment.position);
            (!part.running && part.done < end(&part) && keys).then_some((part.segment, kernel))
        })
    }
}

/// The kernels of a layer in order.
pub(in crate::check) const KERNELS: [LayerKernel; 3] =
    [LayerKernel::Qkv, LayerKernel::Mha, LayerKernel::Ffn];
