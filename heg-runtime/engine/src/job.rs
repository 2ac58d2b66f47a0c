//! Jobs: the work that a lane is given, with the memory to run it in.

use std::ops::Range;

use super::calibration::Slice;
use super::served::{Continued, Member, Prompt};
use heg_exec::{Coming, WarmForms};
use heg_sched::{Class, LayerKernel, RequestId, Segment, Ticket, WarmKernel};

/// One launch of a lane: [`Work`](heg_sched::Work), with the memory that it runs in.
pub(super) enum Job {
    /// One kernel over a segment of a prompt.
    Prefill {
        prompt: Prompt,
        segment: Segment,
        layer: u32,
        kernel: LayerKernel,
    },
    /// The head on a prompt's last row.
    Head {
        prompt: Prompt,
        last: u32,
        /// Rows before it whose logits are needed too, because the lanes of the layers have no head.
        unscored: Vec<u32>,
        /// Whether the prompt keeps its rows, and the keys and values of its last layer with them.
        is_kept: bool,
    },
    /// Layers of a decode iteration, and after the last one the head.
    Decode {
        /// The requests.
        batch: Vec<Continued>,
        layers: Range<u32>,
    },
    /// An iteration of continuous batching.
    Mixed {
        batch: Vec<Continued>,
        /// Parts of prompts, and whether each is its prompt's last.
        prompts: Vec<(Member, Segment, bool)>,
    },
}

impl Job {
    /// Cuts drafts at tokens that grammars refuse, so that no row of them is run; returns the number of tokens cut
    /// per request.
    pub(super) fn cut_drafts(&mut self) -> Vec<(RequestId, u32)> {
        let batch = match self {
            Self::Decode { batch, .. } | Self::Mixed { batch, .. } => batch,
            Self::Prefill { .. } | Self::Head { .. } => return Vec::new(),
        };
        let cut = batch
            .iter_mut()
            .map(|it| (it.member.served.id, it.cut_draft()));
        cut.filter(|(_, tokens)| *tokens > 0).collect()
    }

    /// Returns the work that its launches belong to.
    pub(super) fn coming(&self) -> Coming {
        let prompt = |member: &Member, segment: &Segment| {
            let tokens = member.served.with_tokens(<[u32]>::len);
            let tokens_left = tokens.saturating_sub(segment.position as usize);
            Coming::Prompt { tokens_left }
        };
        match self {
            Self::Prefill {
                prompt: of,
                segment,
                ..
            } => prompt(&of.member, segment),
            Self::Mixed { prompts, .. } => {
                let first = prompts.first();
                first.map_or(Coming::Answers, |(member, segment, _)| {
                    prompt(member, segment)
                })
            }
            Self::Head { .. } | Self::Decode { .. } => Coming::Answers,
        }
    }

    /// The requests that it works for.
    pub(super) fn requests(&self) -> Vec<RequestId> {
        let id = |member: &Member| member.served.id;
        match self {
            Self::Prefill { prompt, .. } | Self::Head { prompt, .. } => vec![id(&prompt.member)],
            Self::Decode { batch, .. } => batch.iter().map(|it| id(&it.member)).collect(),
            Self::Mixed { batch, prompts } => {
                let prompts = prompts.iter().map(|(member, ..)| id(member));
                let batch = batch.iter().map(|it| id(&it.member));
                batch.chain(prompts).collect()
            }
        }
    }
}

/// An order to a lane, which carries out one after the other.
pub(super) enum Order {
    Run(Ticket, Class, Job),
    /// Rows of a prompt to find likely tokens after, until a job comes.
    Calibrate(Slice),
    Adopt(WarmForms),
    Unload(WarmKernel),
}
