//! The operands of launches, and announcements of launches to come.

use heg_sched::{Launch, Span};
use heg_spec::Group;

use crate::mem::{ActivationRows, KvCache};

/// The memory that a launch works on: consecutive rows of activations, and the KV cache of each span.
pub struct Batch<'a> {
    /// Rows of activations; those of a span begin at its row.
    pub rows: &'a ActivationRows,
    /// The cache of each span.
    pub caches: &'a [&'a KvCache],
    /// New tokens of each sequence.
    pub spans: &'a [Span],
    /// For spans whose tokens are a tree: for each token but the first, the earlier one that it follows. See
    /// [`Executor::takes_trees`](crate::Executor::takes_trees). No entry is needed behind the last tree.
    pub trees: &'a [Option<&'a [u16]>],
}

impl<'a> Batch<'a> {
    /// The tree of a span's tokens; `None` if they follow one after the other.
    pub(crate) fn tree(&self, span: usize) -> Option<&'a [u16]> {
        self.trees.get(span).copied().flatten()
    }

    /// The positions of all tokens in the text, row by row: a tree's are their depths behind its first one.
    pub(crate) fn positions(&self) -> impl Iterator<Item = usize> {
        let spans = self.spans.iter().enumerate();
        spans.flat_map(|(index, span)| {
            let depths = match self.tree(index) {
                Some(follows) => depths(follows),
                None => (0..span.tokens).collect(),
            };
            depths.into_iter().map(|depth| span.position + depth)
        })
    }

    /// The first row.
    pub(crate) fn first(&self) -> usize {
        self.spans.first().map_or(0, |span| span.row)
    }

    /// Number of rows that the spans fill.
    pub(crate) fn tokens(&self) -> usize {
        self.spans.iter().map(|span| span.tokens).sum()
    }

    /// Rows of a call of an op group, and rows of the longest cache that it reads; 0 if it reads none.
    pub(crate) fn size_for(&self, group: Group) -> (usize, usize) {
        match group {
            Group::Head => (self.spans.len(), 0),
            Group::Mha => (self.tokens(), self.longest_context()),
            Group::Qkv | Group::Ffn => (self.tokens(), 0),
        }
    }

    /// Cuts the spans into runs of at most `rows` rows; each part has the index of its sequence.
    pub(crate) fn cut(&self, rows: usize) -> Vec<Vec<(usize, Span)>> {
        let mut runs = vec![Vec::new()];
        let mut room = rows;
        for (sequence, span) in self.spans.iter().enumerate() {
            let mut done = 0;
            while done < span.tokens {
                if room == 0 {
                    runs.push(Vec::new());
                    room = rows;
                }
                let tokens = room.min(span.tokens - done);
                let part = Span {
                    row: span.row + done,
                    tokens,
                    position: span.position + done,
                };
                if let Some(run) = runs.last_mut() {
                    run.push((sequence, part));
                }
                (done, room) = (done + tokens, room - tokens);
            }
        }
        runs
    }

    /// Rows of the longest cache that a span sees.
    pub(crate) fn longest_context(&self) -> usize {
        let visible = self.spans.iter().map(|span| span.position + span.tokens);
        visible.max().unwrap_or(0)
    }
}

/// The depth of each token in its tree.
pub(crate) fn depths(follows: &[u16]) -> Vec<usize> {
    let mut depths = vec![0; follows.len() + 1];
    for (at, before) in follows.iter().enumerate() {
        depths[at + 1] = depths
            .get(usize::from(*before))
            .map_or(0, |depth| depth + 1);
    }
    depths
}

/// Decides, while a launch ends, whether the given one is to follow.
pub type GoesOn<'a> = dyn Fn(Launch) -> bool + Sync + 'a;

/// The work that the launches to come belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coming {
    /// Tokens of answers, and drafts of them.
    Answers,
    /// A chunk of a prompt.
    Prompt {
        /// Tokens of the prompt that are left, including those of the chunk.
        tokens_left: usize,
    },
}
