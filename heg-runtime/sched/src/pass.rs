//! The schedule of a single request: the launches that the executor runs, in order.
//!
//! A [`Launch`] is one kernel of one place in the model, over a batch of rows. A single request needs no policy, so
//! [`launches`] is the whole schedule here: layer by layer, in the order that the bundle's execution graph says, prefill in
//! chunks, decode with all sequences in one batch. No clock, thread or device is known in this module.

use std::ops::Range;

use heg_spec::Group;

use super::order::LayerOrder;

/// One kernel at one place of the model, over the rows of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// The layer; `None` for the head.
    pub layer: Option<u32>,
    /// The op group.
    pub group: Group,
}

/// New tokens of one sequence within a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First row in the activation buffers.
    pub row: usize,
    /// Number of rows.
    pub tokens: usize,
    /// Tokens in the sequence's KV cache before them.
    pub position: usize,
}

/// Returns the launches of one pass over some layers of the model, in order. The head is run only if `logits` asks for
/// it.
pub fn launches(
    order: LayerOrder,
    layers: Range<u32>,
    logits: Logits,
) -> impl Iterator<Item = Launch> {
    let layers = layers.flat_map(move |layer| {
        order.kernels().map(|kernel| Launch {
            layer: Some(layer),
            group: kernel.into(),
        })
    });
    let head = match logits {
        Logits::LastRows => Some(Launch {
            layer: None,
            group: Group::Head,
        }),
        Logits::None => None,
    };
    layers.chain(head)
}

/// Whether a pass ends with the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logits {
    /// On the last row of each span.
    LastRows,
    /// Not at all: a chunk that is not the last of its prompt.
    None,
}

/// Cuts `tokens` prompt tokens into chunks: full ones, then the rest.
pub fn chunks(tokens: usize, chunk_tokens: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let chunk = chunk_tokens.max(1);
    (0..tokens)
        .step_by(chunk)
        .map(move |start| start..(start + chunk).min(tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_visits_each_place_once_and_ends_with_the_head() {
        let pass: Vec<Launch> = launches(LayerOrder::default(), 0..2, Logits::LastRows).collect();
        assert_eq!(pass.len(), 2 * 3 + 1);
        assert_eq!(pass[4].layer, Some(1));
        assert_eq!(pass[4].group, Group::Mha);
        assert_eq!(pass.last().map(|launch| launch.group), Some(Group::Head));
        assert_eq!(
            launches(LayerOrder::default(), 1..3, Logits::None).count(),
            6
        );
    }

    #[test]
    fn chunks_cover_the_prompt() {
        let cut: Vec<_> = chunks(70, 32).collect();
        assert_eq!(cut, [0..32, 32..64, 64..70]);
        assert_eq!(chunks(5, 256).next(), Some(0..5));
        assert_eq!(chunks(0, 7).count(), 0);
    }
}
