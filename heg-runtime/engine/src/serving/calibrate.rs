//! Finds the tokens that the model thinks likely in prompts, in bubbles of the lane that has the head.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Running, Serving};
use crate::calibration::{Begun, Calibrations, Kept, SLICE_ROWS, is_bubble};
use crate::conductor::Room;
use crate::error::EngineError;
use crate::live::{Live, Phase};
use crate::served::PromptRows;
use heg_draft::Likely;
use heg_exec::mem::ActivationRows;
use heg_sched::{Call, Costs as _, FlowId, Lane, LayerKernel, RequestId, Segment, Work};

impl Serving {
    /// Memory that a prompt takes beyond its first token, in bytes: its rows, and its keys and values of one layer.
    pub(super) fn kept_bytes(&self, prompt: &PromptRows, tokens: u32) -> usize {
        let layers = u64::from(self.model.layers.max(1));
        let layer = self.model.kv_bytes_per_token / layers * u64::from(tokens);
        prompt.rows.bytes() + layer as usize
    }

    /// Notes that a launch has given a segment of a prompt its last keys and values, after which its rows wait for a
    /// bubble. The kernels of a prompt's last segment go on, and those of all segments where all rows have logits.
    pub(super) fn note_through(&mut self, work: &Work) {
        let Work::Prefill {
            request,
            segment,
            layer,
            kernel: LayerKernel::Qkv,
        } = work
        else {
            return;
        };
        let Some(live) = self.live.get(request) else {
            return;
        };
        let tokens = live.served.with_tokens(<[u32]>::len) as u32;
        let goes_on = segment.context() >= tokens || live.served.scores_prompt();
        let is_first_pass = tokens == live.prompt_tokens;
        if layer + 1 < self.model.layers || goes_on || !is_first_pass || live.drafts.is_none() {
            return;
        }
        // Rows of a longer prompt are soon another segment's.
        if let Some(prompt) = live.prompt.clone().filter(|it| it.ring.is_whole()) {
            let (request, flow) = (*request, live.owner.flow);
            let begun = Begun {
                request,
                flow,
                prompt,
                tokens,
            };
            self.calibrations.is_through(begun, *segment);
        }
    }

    /// Frees the rows of a prompt that has its first token, or keeps those for which there was no bubble yet.
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
            self.calibrations.leave(request);
            return self.room.reclaim.drop_later(prompt);
        };
        let bytes = self.kept_bytes(&prompt, tokens);
        self.forget_calibrations();
        self.calibrations.keep(Kept {
            request,
            flow,
            prompt,
            cache,
            tokens,
            bytes,
        });
        self.draft_from_prompt(request);
    }

    /// Has a request's answer drafted from the likely tokens that are known of its prompt.
    pub(super) fn draft_from_prompt(&mut self, request: RequestId) {
        let known = self.calibrations.table(request);
        if let (Some(likely), Some(live)) = (known, self.live.get_mut(&request)) {
            live.calibrate(likely);
        }
    }

    /// The time from which a slice may run; `None` while a request may need the lane before it ends.
    pub(super) fn calibrates_at(&self) -> Option<Instant> {
        let since = self.calibrations.since()?;
        let lane = self.head_lane()?;
        if self.running[lane as usize].is_some() {
            return None;
        }
        if self.is_bubble(lane) {
            return Some(since);
        }
        let waits = |live: &Live| live.phase() != Phase::Decoding;
        let is_idle = !self.live.values().any(waits);
        self.calibrations.due().filter(|_| is_idle)
    }

    /// Whether an idle lane stays idle for as long as the next slice takes, by prediction: the scheduler has nothing for
    /// it until one of the launches on other lanes ends.
    fn is_bubble(&self, lane: Lane) -> bool {
        let next = self.calibrations.next();
        let needed = next.and_then(|segment| self.slice_time(lane, segment));
        let left = |other: &Running| {
            let known = other.expected.filter(|_| other.abandoned.is_none())?;
            let whole = Duration::from_secs_f64(known.latency_us().max(0.0) / 1e6);
            Some(whole.saturating_sub(other.since.elapsed()))
        };
        needed.is_some_and(|needed| is_bubble(self.running.iter().flatten().map(left), needed))
    }

    /// Predicted time of a slice.
    fn slice_time(&self, lane: Lane, segment: Segment) -> Option<Duration> {
        let layer = [LayerKernel::Mha, LayerKernel::Ffn].map(|kernel| Call::Prefill {
            kernel,
            tokens: segment.tokens,
            context: segment.context(),
        });
        let head = Call::Head {
            rows: segment.tokens,
        };
        let mut calls = layer.into_iter().chain([head]);
        let us = calls.try_fold(0.0, |all, call| {
            Some(all + self.pace.cost(lane, call)?.latency_us)
        })?;
        Some(Duration::from_secs_f64(us / 1e6))
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
        let Some(room) = self.slice_room() else {
            return;
        };
        let memory = &self.room.memory;
        let cache = |request| memory.cache(request).ok()?.read().ok();
        let slice = self.calibrations.start(lane, room, cache);
        if let (Some(slice), Some(handle)) = (slice, &self.lanes[lane as usize]) {
            handle.calibrate(slice);
        }
    }

    /// Rows to compute a slice in. Without memory for them there is no calibration.
    fn slice_room(&mut self) -> Option<Arc<ActivationRows>> {
        if self.slice_room.is_none() {
            let Room {
                widths,
                home,
                padding_rows,
                ..
            } = &self.room;
            let rows = SLICE_ROWS as usize + padding_rows;
            let made = ActivationRows::new(rows, *widths, home);
            if made.is_err() {
                self.calibrations = Calibrations::new(false);
            }
            self.slice_room = made.ok().map(Arc::new);
        }
        self.slice_room.clone()
    }

    /// Takes in the tokens that a lane found likely in a prompt. A failure loses only the calibration.
    pub(super) fn calibrated(
        &mut self,
        (request, position): (RequestId, u32),
        found: Result<Vec<Likely>, EngineError>,
    ) {
        // Caches of requests in progress are shared with a slice.
        self.room.memory.let_go();
        if let Ok(likely) = &found {
            self.machine.calibrated(request, position, likely);
        }
        if self.calibrations.ended((request, position), found.ok()) {
            let live = self.live.get(&request);
            if live.is_none_or(|live| live.phase() == Phase::Decoding) {
                self.draft_from_prompt(request);
            }
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
