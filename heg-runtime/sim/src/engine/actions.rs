//! Carries out the scheduler's actions on the simulated machine.

use super::{Course, Place, Plan, Running, Simulation, SimulationError};
use crate::duration::duration;
use crate::fault::LaunchFault;
use heg_sched::{Action, Call, Costs, Event, Lane, RequestId, Ticket, Work};
use heg_workload::Arrival;

impl<C: Costs> Simulation<'_, C> {
    pub(super) fn carry_out(&mut self, action: Action) -> Result<(), SimulationError> {
        match action {
            Action::Launch { lane, ticket, work } => self.launch(lane, ticket, work)?,
            Action::Yield(ticket) => self.yield_at_layer(ticket),
            Action::Reset(lane) => self.reset(lane),
            Action::Warm(kernel) => {
                if let Some(time) = self.costs.warm_up(kernel) {
                    self.compiling = Some(kernel);
                    self.plan(self.now + time, Plan::Warmed(kernel));
                }
            }
            Action::Unload(kernel) => {
                self.warm.remove(&kernel);
            }
            Action::Timer(at) => self.timer = Some(at.max(self.now)),
            Action::Emit(id) => self.meter.emitted(id, self.now),
            Action::Restart(id) => self.meter.restarted(id),
            Action::Finish(id, finish) => {
                self.meter.finished(id, finish, self.now);
                self.follow(id);
            }
            // The scheduler counts memory, and `Checked` checks it.
            Action::Reserve {
                reused, request, ..
            } => {
                self.meter.reused(request, reused);
                let flow = self.trace.requests.get(request.0 as usize);
                let flow = flow.and_then(|request| request.flow);
                if !self.mishaps.reserves(request, flow, reused) {
                    self.at_once.push_back(Event::Unreserved(request));
                }
            }
            Action::Offload { flow, transfer } => {
                self.mishaps.writes(flow, transfer);
                let written = self.now + self.machine.flash_write;
                self.plan(written, Plan::Written(transfer));
            }
            Action::ReleaseFlow(flow) => self.mishaps.released(flow),
            Action::Release(id) => {
                self.mishaps.refusal_heard(id);
                self.at_once.retain(|event| *event != Event::Unreserved(id));
            }
            Action::Keep { .. } => {}
        }
        Ok(())
    }

    /// Resets a lane, which stops its launch if that can be stopped.
    fn reset(&mut self, lane: Lane) {
        let ends = self.end_of(lane);
        let running = self.vacate(lane, Place::Resetting);
        let course = running.as_ref().map(|running| running.course);
        if course == Some(Course::Wedged) {
            return;
        }
        let mut ready = self.now + self.machine.reset;
        if let (Some(running), Some(end)) = (running, ends) {
            // The launch cannot be stopped: it runs to its end, for which the scheduler no longer waits.
            ready = ready.max(end);
            self.plan(ready, Plan::Late(running.ticket));
        }
        self.plan(ready, Plan::Ready(lane));
    }

    fn launch(&mut self, lane: Lane, ticket: Ticket, work: Work) -> Result<(), SimulationError> {
        if !matches!(self.places[lane as usize], Place::Free) {
            return Err(SimulationError::NotFree { ticket, lane });
        }
        if !self.mishaps.has_memory(&work) {
            return Ok(());
        }
        let is_last = |id: &RequestId, context| self.meter.prompt_tokens(*id) <= context;
        let mut cost = duration(self.costs, lane, &work, &self.warm, is_last)
            .ok_or(SimulationError::NoKernel { ticket, lane })?;
        cost.latency_us *= self.machine.drift.factor(lane, self.now);
        self.meter.start(&work, lane, cost, self.now);
        let fault = self.mishaps.launches(&work);
        let reads = self.mishaps.has_unread(&work);
        let unreadable = self.mishaps.reads(&work);
        let mut left_us = cost.latency_us;
        if reads {
            left_us += self.machine.flash_read.0 as f64;
        }
        let course = match fault {
            _ if unreadable.is_some() => Course::Stuck,
            None => Course::Well,
            Some(LaunchFault::Fail) => Course::Fails,
            Some(LaunchFault::Hang | LaunchFault::OutOfMemory) => Course::Stuck,
            Some(LaunchFault::Wedge) => Course::Wedged,
            Some(LaunchFault::Late(by)) => {
                left_us += by.0 as f64;
                Course::Well
            }
        };
        if let Some(request) = unreadable {
            self.plan(self.now, Plan::Unreadable(lane, ticket, request));
        } else if fault == Some(LaunchFault::OutOfMemory) {
            self.plan(self.now, Plan::OutOfMemory(lane, ticket));
        }
        let layers = match &work {
            Work::Decode(run) => run.layers.end,
            Work::Prefill { .. } | Work::Head(_) | Work::Mixed { .. } => 0,
        };
        self.places[lane as usize] = Place::Busy(Running {
            ticket,
            work,
            cost,
            start: self.now,
            left_us,
            speed: 1.0,
            course,
            layers,
        });
        self.set_speeds();
        Ok(())
    }

    /// Cuts a decode run short at the end of its current layer; in the last layer or the head it is too late.
    fn yield_at_layer(&mut self, ticket: Ticket) {
        for (lane, place) in Lane::ALL.into_iter().zip(&mut self.places) {
            let Place::Busy(running) = place else {
                continue;
            };
            let Work::Decode(run) = &running.work else {
                continue;
            };
            if running.ticket != ticket || running.layers < run.layers.end {
                continue;
            }
            let layer = Call::iteration(lane, &run.batch, run.fused);
            let Some(layer) = self.costs.cost(lane, layer) else {
                continue;
            };
            let layer_us = layer.latency_us * self.machine.drift.factor(lane, running.start);
            let done_us = running.cost.latency_us - running.left_us;
            let under_way = (done_us / layer_us).floor() as u32 + 1;
            if under_way < run.layers.len() as u32 {
                running.layers = run.layers.start + under_way;
                running.left_us = f64::from(under_way) * layer_us - done_us;
            }
        }
    }

    /// Plans the arrival of requests that waited for a request's end.
    fn follow(&mut self, id: RequestId) {
        let first = self.followers.partition_point(|(other, _)| *other < id.0);
        let waiting = self.followers[first..].iter();
        let indices: Vec<usize> = waiting
            .take_while(|(other, _)| *other == id.0)
            .map(|(_, index)| *index)
            .collect();
        for index in indices {
            if let Arrival::After {
                pause, not_before, ..
            } = self.trace.requests[index].arrival
            {
                self.plan((self.now + pause).max(not_before), Plan::Arrive(index));
            }
        }
        let request = self.trace.requests.get(id.0 as usize);
        if let Some(flow) = request.filter(|r| r.ends_flow).and_then(|r| r.flow) {
            self.plan(self.now, Plan::EndFlow(flow));
        }
    }
}
