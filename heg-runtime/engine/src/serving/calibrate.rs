//! Reads prompts again while there is no other work.

use std::time::Instant;

use super::Serving;
use crate::calibration::Kept;
use crate::error::EngineError;
use crate::live::{Live, Phase};
use crate::served::PromptRows;
use heg_draft::Likely;
use heg_sched::{FlowId, Lane, RequestId};

impl Serving {
    /// Memory that a prompt takes until it has been read again, in bytes: its rows, and its keys and values of one
    /// layer.
    pub(super) fn kept_bytes(&self, prompt: &PromptRows, tokens: u32) -> usize {
        let layers = u64::from(self.model.layers.max(1));
        let layer = self.model.kv_bytes_per_token / layers * u64::from(tokens);
        prompt.rows.bytes() + layer as usize
    }

    /// Frees the rows of a prompt that has its first token, or keeps them to be read again.
    pub(super) fn release_prompt(&mut self, request: RequestId) {
        let Some(live) = self.live.get_mut(&request) else {
            return;
        };
        let Some(prompt) = live.prompt.take() else {
            return;
        };
        let new = live.prompt_tokens.saturating_sub(live.reused_tokens);
        self.status.prompt_tokens += u64::from(new);
        let (flow, tokens) = (live.owner.flow, live.prompt_tokens);
        // A request that started over has a part of its answer in its prompt's rows.
        let cache = live.last_layer.take();
        let Some(cache) = cache.filter(|_| prompt.first < tokens) else {
            return self.room.reclaim.drop_later(prompt);
        };
        let bytes = self.kept_bytes(&prompt, tokens);
        self.forget_calibrations();
        let known = self.calibrations.keep(Kept {
            request,
            flow,
            prompt,
            cache,
            tokens,
            bytes,
        });
        if let (Some(known), Some(live)) = (known, self.live.get_mut(&request)) {
            live.calibrate(known);
        }
    }

    /// The time from which a slice of a prompt may run; `None` while a request waits for a lane, or for its first
    /// token.
    pub(super) fn calibrates_at(&self) -> Option<Instant> {
        let due = self.calibrations.due()?;
        let lane = self.head_lane()?;
        let waits = |live: &Live| live.phase() != Phase::Decoding;
        let is_idle = self.running[lane as usize].is_none() && !self.live.values().any(waits);
        is_idle.then_some(due)
    }

    /// Runs a slice if one may run.
    pub(super) fn calibrate(&mut self, now: Instant) {
        if self.calibrates_at().is_none_or(|at| at > now) {
            return;
        }
        self.forget_calibrations();
        let Some(lane) = self.head_lane() else {
            return;
        };
        if let (Some(slice), Some(handle)) =
            (self.calibrations.start(lane), &self.lanes[lane as usize])
        {
            handle.calibrate(slice);
        }
    }

    /// Takes in the tokens that a lane found likely in a prompt. A failure loses only the calibration.
    pub(super) fn calibrated(
        &mut self,
        request: RequestId,
        found: Result<Vec<Likely>, EngineError>,
    ) {
        let table = self.calibrations.ended(request, found.ok());
        if let Some(table) = table
            && let Some(live) = self.live.get_mut(&table.request)
        {
            live.calibrate(table.likely);
        }
    }

    /// The lane that has the head.
    fn head_lane(&self) -> Option<Lane> {
        [Lane::Igpu, Lane::Cpu]
            .into_iter()
            .find(|lane| self.lanes[*lane as usize].is_some())
    }

    fn forget_calibrations(&mut self) {
        let (memory, live) = (&self.room.memory, &self.live);
        let goes_on =
            |flow: FlowId| memory.keeps(flow) || live.values().any(|live| live.owner.flow == flow);
        self.calibrations.forget(goes_on);
    }
}
