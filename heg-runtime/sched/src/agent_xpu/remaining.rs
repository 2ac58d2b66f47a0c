//! Estimates the time that prompts still need.

use super::AgentXpu;
use super::stage::Entry;
use crate::batch::CONTEXT_STEP;
use crate::costs::{Call, Cost, Costs};
use crate::event::{LayerKernel, Segment};
use crate::prefill::{Prefill, PromptWindow};
use crate::request::{Class, Lane, PromptLogits, RequestId, Submission};

impl<C: Costs> AgentXpu<C> {
    /// Estimated time that a prompt still needs, alone on its lanes, in µs (v1 6.2).
    pub(super) fn time_to_completion(&self, id: RequestId) -> f64 {
        let entry = self.ledger.get(id);
        entry.map_or(f64::INFINITY, |entry| self.left_us(entry))
    }

    /// Estimated time that the prompt of a ledger entry still needs, in µs; tokens that its flow has cached are not
    /// computed again.
    pub(super) fn left_us(&self, entry: &Entry) -> f64 {
        self.left_us_where(entry, |_, _| 1.0)
    }

    /// Estimated time that the prompt of a ledger entry still needs beside the other requests on the lanes, in µs.
    pub(super) fn left_beside_others_us(&self, entry: &Entry) -> f64 {
        self.left_us_where(entry, |lane, cost| self.slowdown_of(entry, lane, cost))
    }

    /// The factor by which a kernel of a request takes longer than alone beside what others run on other lanes. Where
    /// requests decode, the lane of dynamic kernels decodes whenever it runs nothing else.
    fn slowdown_of(&self, entry: &Entry, lane: Lane, cost: Cost) -> f64 {
        let decoding = || {
            let (rows, layer) = (self.decode.len() as u32, self.dynamic_lane());
            let call = Call::Layer {
                rows,
                context: rows.saturating_mul(CONTEXT_STEP),
                fused: false,
            };
            let layer = layer.filter(|_| rows > 0);
            layer.and_then(|lane| Some(self.costs.cost(lane, call)?.on(lane)))
        };
        let others = Lane::ALL.into_iter().filter(|other| *other != lane);
        let loads = others.filter_map(|other| match self.lanes.running(other) {
            Some(running) if running.work.is_of(entry.id()) => None,
            Some(running) => Some(running.cost.on(other)),
            None => decoding().filter(|load| load.lane == other),
        });
        let factors = loads.map(|load| self.costs.slowdown(cost.on(lane), load));
        factors.product()
    }

    fn left_us_where(&self, entry: &Entry, slowdown: impl Fn(Lane, Cost) -> f64) -> f64 {
        if let Some(prefill) = entry.prefill() {
            return self.remaining_us(prefill, slowdown);
        }
        let shared = entry.submission.known_tokens();
        let reused = shared.min(entry.prompt_tokens.saturating_sub(1));
        let chunk = self.segment_tokens(&entry.submission);
        let fresh = Prefill::new(self.model, reused, entry.prompt_tokens, chunk);
        self.remaining_us(&fresh.wanting(entry.submission.prompt_logits), slowdown)
    }

    /// Estimated time of the remaining kernels of a prompt, alone on its lanes, in µs, each slowed down by a factor.
    fn remaining_us(&self, prefill: &Prefill, slowdown: impl Fn(Lane, Cost) -> f64) -> f64 {
        let dynamic = self.dynamic_lane().unwrap_or(Lane::Igpu);
        let token_wise = match self.lanes.is_present(Lane::Npu) {
            true => Lane::Npu,
            false => dynamic,
        };
        let latency = |(segment, kernel, count): (Segment, _, u32)| {
            let call = Call::Prefill {
                kernel,
                tokens: segment.tokens,
                context: segment.context(),
            };
            let lane = match kernel {
                LayerKernel::Mha => dynamic,
                LayerKernel::Qkv | LayerKernel::Ffn => token_wise,
            };
            let cost = self.costs.cost(lane, call);
            let time = cost.map_or(0.0, |cost| cost.latency_us * slowdown(lane, cost));
            f64::from(count) * time
        };
        prefill.remaining().map(latency).sum()
    }

    /// The segments of a request's prompt that are on their way through the layers at once.
    pub(super) fn window_of(&self, submission: &Submission) -> PromptWindow {
        let chunk = self.segment_tokens(submission);
        let tokens = self.policy.prefill.window_tokens;
        PromptWindow::new(chunk, tokens, submission.prompt_logits)
    }

    /// Tokens of a full segment of a request's prompt.
    fn segment_tokens(&self, submission: &Submission) -> u32 {
        match submission.prompt_logits {
            PromptLogits::LastRow | PromptLogits::AllRows => self.chunk_tokens(submission.class),
            PromptLogits::WholePrompt => submission.prompt_tokens,
        }
    }

    /// Tokens of a full chunk of a prompt of a class.
    pub(super) fn chunk_tokens(&self, class: Class) -> u32 {
        let chunk = self.model.chunk_tokens;
        match (class, self.policy.prefill.proactive_chunk_tokens) {
            (Class::Proactive, Some(most)) => chunk.min(most),
            _ => chunk,
        }
    }
}
