//! Calls of one form side by side: a request for each, on streams of a thread each.
//!
//! Attention of a batch of single tokens is many short, independent calls. Run one after the other on all threads, each
//! costs more to start and to join than to compute: 481 µs for 8 sequences of 32 tokens instead of 160 µs (1B model,
//! two cores), with identical results. Rows of prompts, and single tokens, are faster on all threads at once.

use std::sync::atomic::AtomicBool;

use heg_openvino::{CompiledModel, InferRequest, TensorType};

use super::launch::finish;
use crate::error::{RuntimeError, openvino};
use crate::mem::Rows;

/// A form compiled for calls side by side.
pub(super) struct Streams {
    compiled: CompiledModel,
    count: usize,
    /// One for each call of the largest batch so far.
    slots: Vec<Slot>,
}

/// The request that one of several calls runs on.
pub(super) struct Slot {
    pub(super) request: InferRequest,
    /// Position of its first token.
    pub(super) position: Rows,
}

impl Streams {
    /// Streams over a model compiled for `count` of them.
    pub(super) fn new(compiled: CompiledModel, count: usize) -> Self {
        Self {
            compiled,
            count,
            slots: Vec::new(),
        }
    }

    /// Whether attention over these contexts ends sooner side by side than one after the other.
    pub(super) fn suit(&self, contexts: &[usize]) -> bool {
        pays(contexts, self.count)
    }

    /// Starts one call after the other, each as soon as `bind` has bound its tensors, and waits for all of them. After
    /// an error too: nothing runs any more when this returns the first one.
    pub(super) fn run<C>(
        &mut self,
        calls: &[C],
        bind: impl Fn(&C, &mut Slot) -> Result<(), RuntimeError>,
        cancel: Option<&AtomicBool>,
    ) -> Result<(), RuntimeError> {
        while self.slots.len() < calls.len() {
            self.slots.push(Slot::new(&self.compiled)?);
        }
        let start = |call: &C, slot: &mut Slot| {
            bind(call, slot)?;
            slot.request.start().map_err(openvino(DOING))
        };
        let (mut outcome, mut started) = (Ok(()), 0);
        for (call, slot) in calls.iter().zip(&mut self.slots) {
            outcome = start(call, slot);
            if outcome.is_err() {
                break;
            }
            started += 1;
        }
        for slot in &mut self.slots[..started] {
            let ended = finish(&mut slot.request, cancel).map_err(openvino(DOING));
            outcome = outcome.and(ended);
        }
        outcome
    }
}

impl Slot {
    fn new(compiled: &CompiledModel) -> Result<Self, RuntimeError> {
        Ok(Self {
            request: compiled.request().map_err(openvino(DOING))?,
            position: Rows::new(1, 1, TensorType::I64)?,
        })
    }
}

/// Whether no sequence is so long that the other streams would wait for its end.
fn pays(contexts: &[usize], streams: usize) -> bool {
    let longest = contexts.iter().copied().max().unwrap_or(0);
    let total: usize = contexts.iter().sum();
    contexts.len() > 1 && longest <= total / streams.max(1) + contexts.len() * CALL_TOKENS
}

const DOING: &str = "run attention of a batch";

/// Rows of context that take as long as beginning a call on all threads. Chosen: 40 µs where a row takes 0.3 µs to
/// 0.7 µs (1B model, two cores).
const CALL_TOKENS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_sequence_is_not_left_to_one_thread() {
        assert!(pays(&[4096; 8], 2));
        assert!(pays(&[32, 64, 96], 2));
        assert!(!pays(&[4096, 32, 32], 2));
        assert!(!pays(&[4096, 4096], 8), "six threads would do nothing");
        assert!(!pays(&[32], 2));
    }
}
