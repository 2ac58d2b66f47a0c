//! Derives a run's trace from a scheduler's events and actions.

use std::collections::{BTreeMap, BTreeSet};

use heg_sched::{
    Action, Class, Event, FlowId, Hold, HoldReason, Lane, Micros, RequestId, Submission, Ticket,
    Transfer, WarmKernel, Work,
};

use super::{
    LaneAway, LaunchOutcome, TraceEvent, TracedAbsence, TracedCall, TracedHold, TracedLaunch,
    TracedRequest, TracedWarmUp,
};

/// Follows a scheduler step by step, and passes completed events to a function.
#[derive(Debug, Default)]
pub struct TraceRecorder {
    running: BTreeMap<Ticket, TracedLaunch>,
    live: BTreeMap<RequestId, LiveRequest>,
    /// Requests to come whose prompts begin in the bundle.
    baked: BTreeSet<RequestId>,
    holds: BTreeMap<RequestId, (HoldReason, Micros)>,
    away: [Option<(LaneAway, Micros)>; Lane::ALL.len()],
    warming: Option<(WarmKernel, Micros)>,
    flash: FlashFlows,
}

#[derive(Debug)]
struct LiveRequest {
    request: TracedRequest,
    flow: Option<FlowId>,
    /// Number of tokens that its next launch has to read from flash.
    unread_tokens: u32,
    /// Number of tokens that its next launch has to read from kept state.
    unread_kept_tokens: u32,
    /// Number of tokens of its prompt that are in kept state or the bundle, until it starts over.
    kept_tokens: u32,
    /// Whether these are in the bundle.
    is_baked: bool,
}

/// Flows whose caches are on flash, or on their way there.
#[derive(Debug, Default)]
struct FlashFlows {
    stored: BTreeSet<FlowId>,
    leaving: BTreeMap<Transfer, FlowId>,
}

impl TraceRecorder {
    /// Follows a step of the scheduler.
    pub fn stepped(
        &mut self,
        now: Micros,
        event: &Event,
        actions: &[Action],
        mut tell: impl FnMut(TraceEvent),
    ) {
        self.hear(now, event, &mut tell);
        for action in actions {
            self.carry_out(now, action, &mut tell);
        }
    }

    /// Notes that the beginning of a prompt that is to be submitted is in the bundle.
    pub fn baked(&mut self, request: RequestId) {
        self.baked.insert(request);
    }

    /// Notes the holds of requests after a step. If this is never called, the trace has no holds.
    pub fn held(&mut self, now: Micros, holds: &[Hold], mut tell: impl FnMut(TraceEvent)) {
        let mut before = std::mem::take(&mut self.holds);
        for hold in holds {
            let since = match before.remove(&hold.request) {
                Some((why, since)) if why == hold.why => since,
                Some(other) => {
                    tell_hold(hold.request, other, now, &mut tell);
                    now
                }
                None => now,
            };
            self.holds.insert(hold.request, (hold.why, since));
        }
        for (request, hold) in before {
            tell_hold(request, hold, now, &mut tell);
        }
    }

    /// Ends the run, and reports everything that is not complete.
    pub fn close(&mut self, now: Micros, mut tell: impl FnMut(TraceEvent)) {
        self.held(now, &[], &mut tell);
        for (_, launch) in std::mem::take(&mut self.running) {
            tell(TraceEvent::Launch(TracedLaunch { end: now, ..launch }));
        }
        for lane in Lane::ALL {
            self.set_away(lane, None, now, &mut tell);
        }
        self.warmed(now, &mut tell);
    }

    fn hear(&mut self, now: Micros, event: &Event, tell: &mut impl FnMut(TraceEvent)) {
        match event {
            Event::Submit(submission) => self.submit(submission, now, tell),
            Event::Done { ticket, .. } => self.end_launch(*ticket, LaunchOutcome::Done, now, tell),
            Event::Failed(ticket) => self.end_launch(*ticket, LaunchOutcome::Failed, now, tell),
            Event::OutOfMemory(ticket) => {
                self.end_launch(*ticket, LaunchOutcome::OutOfMemory, now, tell);
            }
            Event::Unreadable { ticket, .. } => {
                self.end_launch(*ticket, LaunchOutcome::Unreadable, now, tell);
            }
            // Launches with it are not carried out.
            Event::Unreserved(id) => self
                .running
                .retain(|_, launch| !launch.requests.contains(id)),
            Event::Lost(lane) => {
                self.end_lane(*lane, LaunchOutcome::Lost, now, tell);
                self.set_away(*lane, Some(LaneAway::Lost), now, tell);
            }
            Event::Ready(lane) => {
                self.end_lane(*lane, LaunchOutcome::Stopped, now, tell);
                self.set_away(*lane, None, now, tell);
            }
            Event::Warmed(_) | Event::WarmFailed(_) => self.warmed(now, tell),
            Event::Offloaded(transfer) => {
                let flow = self.flash.leaving.remove(transfer);
                self.flash.stored.extend(flow);
            }
            Event::OffloadFailed(transfer) => {
                self.flash.leaving.remove(transfer);
            }
            Event::Cancel(_) | Event::EndFlow(_) | Event::Timer => {}
        }
    }

    fn carry_out(&mut self, now: Micros, action: &Action, tell: &mut impl FnMut(TraceEvent)) {
        match action {
            Action::Launch { lane, ticket, work } => self.launch(*ticket, *lane, work, now),
            Action::Reset(lane) => {
                self.end_lane(*lane, LaunchOutcome::Stopped, now, tell);
                self.set_away(*lane, Some(LaneAway::Resetting), now, tell);
            }
            Action::Warm(kernel) => self.warming = Some((*kernel, now)),
            Action::Reserve {
                request, reused, ..
            } => self.reserve(*request, *reused),
            Action::Offload { flow, transfer } => {
                self.flash.leaving.insert(*transfer, *flow);
            }
            Action::ReleaseFlow(flow) => {
                self.flash.take(*flow);
            }
            Action::Restart(id) => {
                if let Some(live) = self.live.get_mut(id) {
                    live.request.restarted = Some(now);
                    live.kept_tokens = 0;
                    tell(TraceEvent::Restarted(*id, now));
                }
            }
            Action::Emit(id) => self.emit(*id, now, tell),
            Action::Finish(id, finish) => {
                if let Some(mut live) = self.live.remove(id) {
                    live.request.ended = Some((now, *finish));
                    tell(TraceEvent::Ended(live.request));
                }
            }
            Action::Yield(_)
            | Action::Unload(_)
            | Action::Release(_)
            | Action::Keep { .. }
            | Action::Timer(_) => {}
        }
    }

    fn submit(&mut self, submission: &Submission, now: Micros, tell: &mut impl FnMut(TraceEvent)) {
        if self.live.contains_key(&submission.id) {
            return;
        }
        // A request that waited for an earlier call of its flow arrived when that began.
        let arrived = self
            .holds
            .get(&submission.id)
            .map_or(now, |(_, since)| *since);
        let request = TracedRequest::arriving(submission, arrived);
        tell(TraceEvent::Arrived(request));
        let live = LiveRequest {
            request,
            flow: submission.flow,
            unread_tokens: 0,
            unread_kept_tokens: 0,
            kept_tokens: submission.kept_tokens,
            is_baked: self.baked.remove(&submission.id),
        };
        self.live.insert(submission.id, live);
    }

    fn reserve(&mut self, id: RequestId, reused: u32) {
        if let Some(live) = self.live.get_mut(&id)
            && let Some(flow) = live.flow
        {
            let was_stored = self.flash.take(flow);
            // Nothing else is reused of a prompt that has kept state.
            live.unread_kept_tokens = live.kept_tokens.min(reused);
            let is_of_flow = was_stored && live.unread_kept_tokens == 0;
            live.unread_tokens = if is_of_flow { reused } else { 0 };
        }
    }

    fn emit(&mut self, id: RequestId, now: Micros, tell: &mut impl FnMut(TraceEvent)) {
        let Some(live) = self.live.get_mut(&id) else {
            return;
        };
        live.request.output_tokens += 1;
        if live.request.first_token.is_none() {
            live.request.first_token = Some(now);
            tell(TraceEvent::FirstToken(id, now));
        }
    }

    fn launch(&mut self, ticket: Ticket, lane: Lane, work: &Work, now: Micros) {
        let requests = work.requests();
        let (mut class, mut flash_tokens) = (Class::Proactive, 0);
        let (mut kept_tokens, mut baked_tokens) = (0, 0);
        for id in &requests {
            if let Some(live) = self.live.get_mut(id) {
                live.request.started.get_or_insert(now);
                class = class.min(live.request.class);
                flash_tokens += std::mem::take(&mut live.unread_tokens);
                let read = std::mem::take(&mut live.unread_kept_tokens);
                kept_tokens += read;
                baked_tokens += if live.is_baked { read } else { 0 };
            }
        }
        let launch = TracedLaunch {
            lane,
            call: TracedCall::of(work),
            requests,
            class,
            start: now,
            end: now,
            outcome: LaunchOutcome::Done,
            flash_tokens,
            kept_tokens,
            baked_tokens,
        };
        self.running.insert(ticket, launch);
    }

    fn end_launch(
        &mut self,
        ticket: Ticket,
        outcome: LaunchOutcome,
        end: Micros,
        tell: &mut impl FnMut(TraceEvent),
    ) {
        if let Some(launch) = self.running.remove(&ticket) {
            tell(TraceEvent::Launch(TracedLaunch {
                end,
                outcome,
                ..launch
            }));
        }
    }

    /// Ends the launch on a lane.
    fn end_lane(
        &mut self,
        lane: Lane,
        outcome: LaunchOutcome,
        end: Micros,
        tell: &mut impl FnMut(TraceEvent),
    ) {
        let mut running = self.running.iter();
        let found = running.find(|(_, launch)| launch.lane == lane);
        if let Some(ticket) = found.map(|(ticket, _)| *ticket) {
            self.end_launch(ticket, outcome, end, tell);
        }
    }

    fn set_away(
        &mut self,
        lane: Lane,
        state: Option<LaneAway>,
        now: Micros,
        tell: &mut impl FnMut(TraceEvent),
    ) {
        let state = state.map(|state| (state, now));
        let before = std::mem::replace(&mut self.away[lane as usize], state);
        if let Some((state, start)) = before {
            tell(TraceEvent::Away(TracedAbsence {
                lane,
                state,
                start,
                end: now,
            }));
        }
    }

    fn warmed(&mut self, end: Micros, tell: &mut impl FnMut(TraceEvent)) {
        if let Some((kernel, start)) = self.warming.take() {
            tell(TraceEvent::WarmUp(TracedWarmUp { kernel, start, end }));
        }
    }
}

impl FlashFlows {
    /// Takes a flow's cache off flash, because it was given up or taken back; returns whether it was written.
    fn take(&mut self, flow: FlowId) -> bool {
        self.leaving.retain(|_, other| *other != flow);
        self.stored.remove(&flow)
    }
}

fn tell_hold(
    request: RequestId,
    (why, start): (HoldReason, Micros),
    end: Micros,
    tell: &mut impl FnMut(TraceEvent),
) {
    if start < end {
        tell(TraceEvent::Held(TracedHold {
            request,
            why,
            start,
            end,
        }));
    }
}
