//! What the scheduler says, done: launches, memory, tokens, ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Running, Serving, causes};
use crate::engine::served::{Member, Prompt};
use crate::engine::waits::Entry;
use crate::mem::Activations;
use crate::sched::{Action, Class, Event, Finish, Lane, RequestId, Ticket, Work};

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
            } => self.reserve(request, tokens, reused),
            Action::Release(request) => {
                self.room.memory.release(request);
                self.events
                    .retain(|event| *event != Event::Unreserved(request));
            }
            Action::Keep {
                request,
                flow,
                tokens,
            } => {
                if let Some(live) = self.live.get(&request) {
                    let tokens = live.leading_tokens(tokens);
                    self.room.memory.keep(request, flow, tokens);
                }
            }
            Action::Offload { flow, transfer } => {
                self.room.memory.offload(flow);
                self.events.push_back(Event::Offloaded(transfer));
            }
            Action::ReleaseFlow(flow) => self.room.memory.release_flow(flow),
            Action::Restart(request) => {
                if let Some(live) = self.live.get_mut(&request) {
                    live.prompt = None;
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
        let Some(job) = self.job(&work) else {
            // Its memory could not be had.
            self.events.push_back(Event::OutOfMemory(ticket));
            return;
        };
        self.status.launches += 1;
        let classes = requests
            .iter()
            .filter_map(|id| Some(self.live.get(id)?.class));
        let class = classes.min();
        if let Some(status) = self.status.lane_mut(lane) {
            status.busy = class;
        }
        self.running[lane as usize] = Some(Running {
            ticket,
            expected: self.pace.expected(lane, &work),
            work,
            abandoned: false,
        });
        let launched = self.lanes[lane as usize]
            .as_ref()
            .is_some_and(|handle| handle.launch(ticket, class.unwrap_or(Class::Proactive), job));
        if !launched {
            self.running[lane as usize] = None;
            self.events.push_back(Event::Lost(lane));
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
        if let Some(running) = &mut self.running[lane as usize] {
            running.abandoned = true;
        }
        if let Some(handle) = &self.lanes[lane as usize] {
            handle.signals.reset.store(true, Ordering::Relaxed);
        }
    }

    /// Cache and activations of a request. Where there is no memory its first launch says so.
    fn reserve(&mut self, request: RequestId, tokens_max: u32, reused: u32) {
        let Some(live) = self.live.get_mut(&request) else {
            return;
        };
        let tokens = live.served.with_tokens(<[u32]>::len);
        live.reused_tokens = reused;
        self.status.reused_tokens += u64::from(reused);
        let new = tokens.saturating_sub(reused as usize).max(1);
        let made = self
            .room
            .memory
            .reserve(request, live.flow, (tokens_max, reused))
            .and_then(|reserved| {
                let rows = Activations::new(new + self.room.padding_rows, self.room.widths)?;
                Ok((reserved, rows))
            });
        match made {
            Ok((reserved, rows)) => {
                live.prompt = Some(Prompt {
                    member: Member {
                        served: Arc::clone(&live.served),
                        cache: reserved.cache,
                    },
                    rows: Arc::new(rows),
                    unread: reserved.unread,
                    first: tokens.saturating_sub(new) as u32,
                });
            }
            Err(error) => {
                live.error = Some(causes(&error));
                self.events.push_back(Event::Unreserved(request));
            }
        }
    }

    fn emit(&mut self, request: RequestId) {
        self.status.generated_tokens += 1;
        if let Some(live) = self.live.get_mut(&request) {
            if let Some(prompt) = live.prompt.take() {
                self.room.reclaim.drop_later(prompt);
                let prompt = live.prompt_tokens.saturating_sub(live.reused_tokens);
                self.status.prompt_tokens += u64::from(prompt);
            }
            live.emit();
        }
    }

    fn finish(&mut self, request: RequestId, finish: Finish) {
        self.status.finished += 1;
        let Some(live) = self.live.remove(&request) else {
            return;
        };
        let flow = live.flow;
        live.finish(finish);
        // The next call of its flow, if there is one.
        let next = self
            .held
            .iter()
            .position(|arrival| arrival.ask.flow == Some(flow));
        if let Some(arrival) = next.and_then(|at| self.held.remove(at)) {
            self.submit(arrival, Entry::Queued);
        }
    }
}
