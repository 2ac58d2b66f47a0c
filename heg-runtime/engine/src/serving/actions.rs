//! Carries out the scheduler's actions: launches, memory, tokens, ends of requests.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::job::Obstacle;
use super::{Running, SHARED_MIN, Serving, UNNAMED};
use crate::error::EngineError;
use crate::live::Owner;
use crate::prefix::PrefixRows;
use crate::row_ring::RowRing;
use crate::served::PromptRows;
use crate::waits::Entry;
use heg_exec::mem::ActivationRows;
use heg_sched::{
    Action, Class, Event, Finish, FlowId, Lane, PromptWindow, RequestId, Ticket, Work,
};
use heg_spec::bug;

impl Serving {
    pub(super) fn carry_out(&mut self, action: Action) {
        match action {
            Action::Launch { lane, ticket, work } => self.launch(lane, ticket, work),
            Action::Yield(ticket) => {
                let lanes = self.running.iter().zip(&self.lanes);
                let runs = |(running, _): &(&Option<Running>, _)| {
                    running.as_ref().is_some_and(|r| r.ticket == ticket)
                };
                if let Some((_, Some(handle))) = lanes.into_iter().find(runs) {
                    handle.signals.ask_to_yield(ticket);
                }
            }
            Action::Reset(lane) => self.reset(lane),
            Action::Reserve {
                request,
                tokens,
                reused,
                window,
            } => self.reserve(request, tokens, reused, window),
            Action::Release(request) => {
                self.room.memory.release(request);
                self.events
                    .retain(|event| *event != Event::Unreserved(request));
            }
            Action::Keep {
                request,
                flow,
                tokens,
            } => self.keep(request, flow, tokens),
            Action::Offload { flow, transfer } => {
                let known = self.room.memory.offload(flow, transfer);
                self.events.extend(known);
            }
            Action::ReleaseFlow(flow) => self.room.memory.release_flow(flow),
            Action::Restart(request) => {
                self.calibrations.leave(request);
                if let Some(live) = self.live.get_mut(&request) {
                    live.prompt = None;
                    live.last_layer = None;
                    live.kept = None;
                }
            }
            Action::Emit(request) => self.emit(request),
            Action::Finish(request, finish) => self.finish(request, finish),
            Action::Timer(at) => self.timer = Some(at),
            Action::Warm(kernel) => {
                let asked = self
                    .warming
                    .as_ref()
                    .is_some_and(|warming| warming.warm(kernel));
                if !asked {
                    self.events.push_back(Event::WarmFailed(kernel));
                }
            }
            Action::Unload(kernel) => {
                self.pace.unloaded(kernel);
                if let Some(npu) = &self.lanes[Lane::Npu as usize] {
                    npu.unload(kernel);
                }
            }
        }
    }

    fn launch(&mut self, lane: Lane, ticket: Ticket, work: Work) {
        let requests = work.requests();
        let job = match self.job(&work) {
            Ok(job) => job,
            // The scheduler is told, or was told, that the reservation failed, and waits for nothing else.
            Err(Obstacle::Unreserved) => return,
            Err(Obstacle::Unusable(request)) => {
                self.events.push_back(Event::Unreadable { ticket, request });
                return;
            }
        };
        self.status.launches += 1;
        let classes = requests
            .iter()
            .filter_map(|id| Some(self.live.get(id)?.class));
        let class = classes.min();
        if let Some(status) = self.status.lane_mut(lane) {
            status.busy = class;
        }
        let scores = |id| {
            let live = self.live.get(id);
            live.is_some_and(|live| live.served.scores_prompt())
        };
        // The head's time on rows of a prompt does not apply to other requests.
        let is_plain = !requests.iter().any(scores);
        let running = self.running.iter().flatten();
        let beside = running.filter_map(|it| Some(it.expected.as_ref()?.load));
        let expected = self.pace.expected(lane, &work, beside);
        self.running[lane as usize] = Some(Running {
            ticket,
            expected: expected.filter(|_| is_plain),
            since: Instant::now(),
            work,
            abandoned: None,
        });
        let launched = self.lanes[lane as usize]
            .as_ref()
            .is_some_and(|handle| handle.launch(ticket, class.unwrap_or(Class::Proactive), job));
        if !launched {
            // Its thread is about to report that it has ended, if it has not.
            return;
        }
        self.last_launch = Instant::now();
        for id in requests {
            if let Some(live) = self.live.get_mut(&id)
                && let Some((entry, wait)) = live.start()
                && live.class == Class::Reactive
            {
                self.waits.note(entry, wait);
            }
        }
    }

    fn reset(&mut self, lane: Lane) {
        match (&mut self.running[lane as usize], &self.lanes[lane as usize]) {
            (Some(running), Some(handle)) => {
                running.abandoned.get_or_insert_with(Instant::now);
                handle.signals.reset.store(true, Ordering::Relaxed);
                let requests = running.work.requests();
                self.blame(&requests, EngineError::Hung { lane });
            }
            // The lane was never given the launch that the scheduler takes to be hung.
            (None, Some(_)) => self.events.push_back(Event::Ready(lane)),
            (_, None) => {}
        }
    }

    /// Leaves a request's cache to a flow. Some caches are not kept, and the scheduler is told that the flow has
    /// ended: a cache of an unnamed flow that is too short for other requests to continue, one that takes far more
    /// memory than its tokens are charged for, and one that a lane may still write to.
    fn keep(&mut self, request: RequestId, flow: FlowId, tokens: u32) {
        let Some(live) = self.live.get(&request) else {
            bug!("a flow is to keep the cache of a request that is over");
            return;
        };
        let memory = &mut self.room.memory;
        let reusable = memory.is_worth(tokens) && (flow.0 < UNNAMED || tokens >= SHARED_MIN);
        if reusable
            && memory.keep(
                request,
                Owner { flow, ..live.owner },
                live.leading_tokens(tokens),
                live.class,
            )
        {
            return;
        }
        memory.release(request);
        self.events.push_back(Event::EndFlow(flow));
    }

    /// Reserves the cache and activations of a request.
    fn reserve(&mut self, request: RequestId, tokens_max: u32, reused: u32, window: PromptWindow) {
        let Some(live) = self.live.get_mut(&request) else {
            bug!("memory is reserved for a request that is over");
            return;
        };
        let tokens = live.served.with_tokens(<[u32]>::len);
        live.reused_tokens = reused;
        let new = tokens.saturating_sub(reused as usize).max(1);
        let memory = &mut self.room.memory;
        let kept = live.kept.clone().filter(|_| reused > 0);
        (live.kept_tokens, live.baked_tokens) = match kept {
            None => (0, 0),
            Some(PrefixRows::Kept(_)) => (reused, 0),
            Some(PrefixRows::Baked(_)) => (0, reused),
        };
        let reserved = memory.reserve(request, live.owner.flow, kept, tokens_max, reused);
        let ring = RowRing::new(window, new, self.room.padding_rows);
        let rows = reserved.and_then(|()| {
            let (widths, home) = (self.room.widths, &self.room.home);
            Ok(ActivationRows::new(ring.allocated(), widths, home)?)
        });
        match rows {
            Ok(rows) => {
                self.status.reused_tokens += u64::from(reused);
                live.prompt = Some(PromptRows {
                    rows: Arc::new(rows),
                    first: tokens.saturating_sub(new) as u32,
                    ring,
                });
                self.calibrations.reserved(live.owner.flow, reused);
            }
            Err(error) => {
                memory.release(request);
                live.error = Some(Arc::new(error));
                self.events.push_back(Event::Unreserved(request));
            }
        }
    }

    fn emit(&mut self, request: RequestId) {
        self.status.generated_tokens += 1;
        self.release_prompt(request);
        if let Some(live) = self.live.get_mut(&request) {
            live.emit();
        }
    }

    fn finish(&mut self, request: RequestId, finish: Finish) {
        self.status.finished += 1;
        self.calibrations.leave(request);
        let Some(live) = self.live.remove(&request) else {
            bug!("a request ended twice");
            return;
        };
        let flow = live.owner.flow;
        if live.drafts.is_some() && finish == Finish::Complete {
            let prompt = live.prompt_tokens as usize;
            live.served.with_tokens(|tokens| {
                let (prompt, answer) = tokens.split_at(prompt.min(tokens.len()));
                self.drafting.keep(live.owner.scope, prompt, answer);
            });
        }
        live.finish(finish);
        // The next call of its flow, if there is one.
        if let Some(arrival) = self.held.next_of(flow) {
            self.submit(arrival, Entry::Queued);
        }
    }
}
