//! Handles the reports of lanes: commits their tokens, records errors, and gives up lanes that do not answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Serving;
use crate::drafts::Fed;
use crate::error::EngineError;
use crate::health::LostLane;
use crate::report::{Done, Failure, LaneLoss, Report};
use crate::served::Follows;
use heg_exec::{ExecError, Loss};
use heg_sched::{Event, Given, Lane, RequestId, Ticket, Work};

impl Serving {
    pub(super) fn reported(&mut self, report: Report) {
        let Report {
            lane,
            ticket,
            outcome,
            refused,
            took,
            waited,
            longest,
        } = report;
        let Some(running) = self.running[lane as usize].take_if(|r| r.ticket == ticket) else {
            return;
        };
        if let Some(status) = self.status.lane_mut(lane) {
            status.busy = None;
            status.busy_us += took.as_micros() as u64;
            status.waited_us += waited.as_micros() as u64;
        }
        let longest_us = |so_far: u64, span: Duration| so_far.max(span.as_micros() as u64);
        self.status.kernel_us_max = longest_us(self.status.kernel_us_max, longest.kernel);
        self.status.stretch_us_max = longest_us(self.status.stretch_us_max, longest.stretch);
        self.room.memory.let_go();
        if running.abandoned.is_some() {
            // The outcome does not matter: the scheduler has given the launch up.
            if let Some(handle) = &self.lanes[lane as usize] {
                handle.signals.reset.store(false, Ordering::Relaxed);
            }
            return self.step(Event::Ready(lane));
        }
        self.calibrations.wait();
        let event = match outcome {
            Ok(done) => {
                let whole = done.layers == 0 || done.layers == self.model.layers;
                // The time of fewer rows does not apply to those that were expected.
                if whole && refused.is_empty() {
                    if let Some(expected) = running.expected {
                        self.pace.observe(lane, expected, took);
                    }
                    self.note_iteration(&running.work, took);
                }
                self.note_through(&running.work);
                self.commit(ticket, done, (&running.work, &refused))
            }
            Err(failure) => self.failed(ticket, failure, &running.work.requests()),
        };
        self.step(event);
    }

    /// Notes the time of an iteration, if it decoded through all layers and did nothing else.
    fn note_iteration(&mut self, work: &Work, took: Duration) {
        let batch = match work {
            Work::Decode(run) if run.layers == (0..self.model.layers) => &run.batch,
            Work::Mixed { batch, prompts } if prompts.is_empty() => batch,
            _ => return,
        };
        let status = &mut self.status;
        let noted = match batch.iter().any(|member| member.drafted > 0) {
            true => &mut status.drafted_iterations,
            false => &mut status.plain_iterations,
        };
        noted.count += 1;
        noted.time_us += took.as_micros() as u64;
    }

    /// Takes the tokens of a launch into the answers of its requests.
    fn commit(
        &mut self,
        ticket: Ticket,
        done: Done,
        (work, refused): (&Work, &[(RequestId, u32)]),
    ) -> Event {
        let Done {
            layers,
            tokens,
            vectors,
            scores,
            likeliest,
            last_layer,
        } = done;
        if let Some((id, cache)) = last_layer
            && let Some(live) = self.live.get_mut(&id)
        {
            live.last_layer = Some(cache);
            // Its first draft is made below.
            self.draft_from_prompt(id);
        }
        for (id, scores) in scores {
            if let Some(live) = self.live.get_mut(&id) {
                live.scored(scores);
            }
        }
        let mut ended = self.complete(vectors);
        let mut given: Vec<Given> = Vec::new();
        for (id, next) in tokens {
            let Some(live) = self.live.get_mut(&id).filter(|_| !ended.contains(&id)) else {
                continue;
            };
            if live.commit(next) == Follows::Nothing {
                ended.push(id);
            }
            match given.last_mut().filter(|given| given.request == id) {
                Some(given) => given.tokens += 1,
                None => given.push(Given {
                    request: id,
                    tokens: 1,
                    draft: Arc::from([]),
                }),
            }
        }
        for given in &mut given {
            if let Some(live) = self.live.get_mut(&given.request) {
                let refused = refused.iter().find(|(id, _)| *id == given.request);
                let refused = refused.map_or(0, |(_, tokens)| *tokens);
                let member = work.decoding(given.request);
                let fed = member.map(|member| member.drafted.saturating_sub(refused));
                let drafting = (&mut self.drafting, &*self.machine);
                let likeliest = likeliest.iter().find(|(id, _)| *id == given.request);
                let likeliest = likeliest.map_or(&[][..], |(_, likeliest)| likeliest);
                let verified = fed.map(|tokens| Fed { tokens, likeliest });
                given.draft = live.draft(drafting, given.tokens, verified);
                if let Some(fed) = fed {
                    self.status.decode_steps += 1;
                    self.status.drafted_tokens += u64::from(fed);
                    self.status.accepted_tokens += u64::from(given.tokens - 1);
                }
            }
        }
        given.retain(|given| given.tokens > 1 || !given.draft.is_empty());
        Event::Done {
            ticket,
            layers,
            ended,
            given,
        }
    }

    /// Takes in vectors, each the whole answer of its request; returns the requests that have ended with them.
    fn complete(&mut self, vectors: Vec<(RequestId, Vec<f32>)>) -> Vec<RequestId> {
        let mut ended = Vec::new();
        for (id, vector) in vectors {
            if let Some(live) = self.live.get_mut(&id) {
                live.complete(vector);
                ended.push(id);
            }
        }
        ended
    }

    fn failed(&mut self, ticket: Ticket, failure: Failure, requests: &[RequestId]) -> Event {
        if let Some(request) = failure.unread {
            return Event::Unreadable { ticket, request };
        }
        let event = match failure.error {
            EngineError::Exec(ExecError::Reserve { .. }) => Event::OutOfMemory(ticket),
            _ => Event::Failed(ticket),
        };
        if let EngineError::Exec(ExecError::BundleChanged(_)) = failure.error {
            // Every request to come will fail, too.
            self.pulse.failed(failure.error.chain());
        }
        self.blame(requests, failure.error);
        event
    }

    /// Notes an error for these requests, for those of them that end with it.
    pub(super) fn blame(&mut self, requests: &[RequestId], error: EngineError) {
        let error = Arc::new(error);
        for id in requests {
            if let Some(live) = self.live.get_mut(id) {
                live.error = Some(Arc::clone(&error));
            }
        }
    }

    /// Handles the early end of a lane's thread, after which nothing writes to the memory of its job.
    pub(super) fn lose(&mut self, lane: Lane, LaneLoss { loss, why }: LaneLoss) {
        if self.lanes[lane as usize].take().is_none() {
            // The lane was given up before.
            return;
        }
        let running = self.running[lane as usize].take();
        let requests = match lane {
            Lane::Npu => running.map_or(Vec::new(), |running| running.work.requests()),
            // It has kernels that every request needs, also one that waits or runs elsewhere.
            Lane::Igpu | Lane::Cpu => self.live.keys().copied().collect(),
        };
        let error = EngineError::LaneLost {
            lane,
            why: why.clone(),
        };
        self.blame(&requests, error);
        let is_device = self.successors.notice_loss();
        if is_device {
            // A kernel that did not answer may still write to their rows.
            self.room.memory.write_off(&requests);
        }
        self.room.memory.let_go();
        self.calibrations.lose(lane);
        // The lane may still write to it.
        self.slice_room = None;
        if loss == Loss::Wrong {
            self.distrust(lane, &why);
        }
        if lane == Lane::Npu {
            self.warming = None;
        }
        for observer in &mut self.observers {
            observer.lost(lane, &why);
        }
        let lost = LostLane { lane, why };
        self.status.lost.push(lost.clone());
        if is_device && self.succeed(lane) {
            self.pulse.lost(lost);
            return self.step(Event::Lost(lane));
        }
        self.status.lanes.retain(|status| status.lane != lane);
        match lane {
            Lane::Npu => self.pulse.lost(lost.clone()),
            // The lane has the kernels that every request needs.
            Lane::Igpu | Lane::Cpu => self.pulse.failed(format!("lane {lane:?}: {}", lost.why)),
        }
        self.step(Event::Lost(lane));
        if is_device && lane != Lane::Npu {
            // Nobody waits for a device that does not come back.
            self.end_all(EngineError::LaneLost {
                lane,
                why: lost.why,
            });
        }
    }

    /// Believes nothing that was computed so far, here or on other lanes: each works on rows and caches of the others. Ends
    /// all requests, and keeps no cache.
    fn distrust(&mut self, lane: Lane, why: &str) {
        let all: Vec<RequestId> = self.live.keys().copied().collect();
        self.room.memory.write_off(&all);
        self.room.memory.release_flows();
        self.end_all(EngineError::LaneLost {
            lane,
            why: why.to_owned(),
        });
    }

    /// Ends all requests with an error.
    fn end_all(&mut self, error: EngineError) {
        let error = Arc::new(error);
        let ids: Vec<RequestId> = self.live.keys().copied().collect();
        for id in ids {
            if let Some(live) = self.live.get_mut(&id) {
                live.break_off(Arc::clone(&error));
            }
            self.step(Event::Cancel(id));
        }
    }

    /// Starts the successor of a lane whose device was lost; false if there is none.
    fn succeed(&mut self, lane: Lane) -> bool {
        match self.successors.start(lane, &*self.machine) {
            Some(Ok((handle, descents))) => {
                self.lanes[lane as usize] = Some(handle);
                self.descents.add(descents);
                if let Some(status) = self.status.lane_mut(lane) {
                    status.busy = None;
                }
                true
            }
            // The lane is as lost as it was.
            Some(Err(_)) | None => false,
        }
    }

    /// Handles the report of a successor that its kernels are ready, or cannot be made.
    pub(super) fn succeeded(&mut self, lane: Lane, ready: Result<(), EngineError>) {
        match ready {
            Ok(()) => self.step(Event::Ready(lane)),
            Err(error) => {
                self.lanes[lane as usize] = None;
                self.status.lanes.retain(|status| status.lane != lane);
                self.pulse
                    .failed(format!("lane {lane:?}: {}", error.chain()));
                self.end_all(error);
            }
        }
    }

    /// Gives up lanes that were reset and have not answered: their threads are left behind, with the memory that they
    /// may still write to.
    pub(super) fn give_up_lanes(&mut self, now: Instant) {
        let patience = self.machine.patience();
        for lane in Lane::ALL {
            let running = self.running[lane as usize].as_ref();
            let silent = running.filter(|running| {
                let since = running.abandoned;
                since.is_some_and(|since| since + patience <= now)
            });
            if let Some(running) = silent {
                let requests = running.work.requests();
                self.room.memory.write_off(&requests);
                let why = format!(
                    "its device did not answer within {} s of a reset; its thread is left behind",
                    patience.as_secs()
                );
                self.lose(lane, LaneLoss::failed(why));
            }
        }
    }

    /// Whether a lane that was given up, and has not answered, may still write to a request's memory.
    pub(super) fn is_under_reset(&self, request: RequestId) -> bool {
        let abandoned = self.running.iter().flatten();
        let mut abandoned = abandoned.filter(|running| running.abandoned.is_some());
        abandoned.any(|running| running.work.requests().contains(&request))
    }
}
