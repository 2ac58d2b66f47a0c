//! The event loop: virtual time jumps from one event to the next.
//!
//! Events at the same time are delivered in a fixed order: ends of launches by lane, then planned events in the order
//! of their planning, then the timer.

mod actions;
mod error;
mod tokens;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use error::STEPS_PER_INSTANT;
pub use error::SimulationError;

use super::drafts::SimulatedDrafts;
use super::drift::SpeedDrift;
use super::fault::{Faults, Mishaps};
use super::memory::DramModel;
use super::meter::{Meter, RequestRecord, ResourceUsage};
use super::power::PowerModel;
use heg_sched::{
    Actions, ActivationCounts, Cost, Costs, Event, FlowId, Lane, Micros, PromptLogits, RequestId,
    Scheduler, Submission, Ticket, Transfer, WarmKernel, Work,
};
use heg_workload::{Arrival, Trace};

/// The simulated machine, except for the kernels' costs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Machine {
    /// The DRAM that the devices share.
    pub memory: DramModel,
    /// The changes of its speed during a run.
    pub drift: SpeedDrift,
    /// The power that the devices draw.
    pub power: PowerModel,
    /// Time that a lane takes to reset.
    pub reset: Micros,
    /// Time that a cache takes to be written to flash.
    pub flash_write: Micros,
    /// Time that the cache takes to be read again, by the first launch that needs it.
    pub flash_read: Micros,
    /// The faults to inject.
    pub faults: Faults,
    /// The drafts of the machine's requests; with `None` nothing is drafted.
    pub drafts: Option<SimulatedDrafts>,
    /// Whether to keep [`Run::timeline`].
    pub timeline: bool,
    /// Maximum number of steps.
    pub steps_max: Option<u64>,
}

/// The result of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The record of each request, in the order of the trace.
    pub requests: Vec<RequestRecord>,
    /// The usage of lanes, CPU and energy.
    pub usage: ResourceUsage,
    /// Time at which the last request ended.
    pub ended: Micros,
    /// Number of calls of [`Scheduler::step`].
    pub steps: u64,
    /// Number of times that each mechanism of the policy acted.
    pub activations: ActivationCounts,
    /// All launches in the order of their ends, if [`Machine::timeline`] is set.
    pub timeline: Vec<LaunchSpan>,
}

/// A launch with its start and end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchSpan {
    /// The lane.
    pub lane: Lane,
    /// The work.
    pub work: Work,
    /// Start time.
    pub start: Micros,
    /// End time.
    pub end: Micros,
}

/// Simulates `scheduler` serving `trace` on a machine whose kernels have these `costs`.
///
/// Requests are numbered by their index in the trace. An error means that the scheduler broke its contract.
pub fn simulate<S: Scheduler, C: Costs>(
    scheduler: &mut S,
    costs: &C,
    machine: &Machine,
    trace: &Trace,
) -> Result<Run, SimulationError> {
    let mut simulation = Simulation::new(costs, machine, trace);
    let mut actions = Actions::new();
    while let Some((at, event)) = simulation.next() {
        simulation.tick(at)?;
        let Some(event) = event else { continue };
        scheduler.step(at, event, &mut actions);
        for action in actions.drain(..) {
            simulation.carry_out(action)?;
        }
    }
    let run = simulation.finish()?;
    Ok(Run {
        activations: scheduler.activations(),
        ..run
    })
}

/// A planned event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Plan {
    Arrive(usize),
    Cancel(RequestId),
    EndFlow(FlowId),
    Warmed(WarmKernel),
    Lose(Lane),
    Return(Lane),
    Ready(Lane),
    OutOfMemory(Lane, Ticket),
    Unreadable(Lane, Ticket, RequestId),
    /// The late end of a launch that was given up.
    Late(Ticket),
    Written(Transfer),
}

#[derive(Debug)]
enum Place {
    Free,
    Busy(Running),
    Resetting,
    Gone,
}

#[derive(Debug)]
struct Running {
    ticket: Ticket,
    work: Work,
    cost: Cost,
    start: Micros,
    /// Remaining time in µs, at the speed of running alone.
    left_us: f64,
    /// Speed relative to running alone.
    speed: f64,
    course: Course,
    /// Number of the model's layers that will have run at the end.
    layers: u32,
}

/// The course of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    /// It completes.
    Well,
    /// It fails at its end.
    Fails,
    /// It never ends by itself.
    Stuck,
    /// As `Stuck`, and its lane does not answer a reset.
    Wedged,
}

struct Simulation<'a, C> {
    costs: &'a C,
    machine: &'a Machine,
    trace: &'a Trace,
    now: Micros,
    places: [Place; Lane::ALL.len()],
    plans: BinaryHeap<Reverse<(Micros, u64, Plan)>>,
    planned: u64,
    timer: Option<Micros>,
    warm: BTreeSet<WarmKernel>,
    compiling: Option<WarmKernel>,
    /// Whether the device was lost since the compilation began.
    compiles_in_vain: bool,
    mishaps: Mishaps<'a>,
    /// Events that the scheduler gets before any other.
    at_once: VecDeque<Event>,
    meter: Meter<'a>,
    /// Requests that wait for another one's end, as sorted pairs (other, waiting).
    followers: Vec<(u64, usize)>,
    steps: u64,
    steps_now: u32,
    timeline: Vec<LaunchSpan>,
}

impl<'a, C: Costs> Simulation<'a, C> {
    fn new(costs: &'a C, machine: &'a Machine, trace: &'a Trace) -> Self {
        let mut simulation = Self {
            costs,
            machine,
            trace,
            now: Micros(0),
            places: [Place::Free, Place::Free, Place::Free],
            plans: BinaryHeap::new(),
            planned: 0,
            timer: None,
            warm: BTreeSet::new(),
            compiling: None,
            compiles_in_vain: false,
            mishaps: Mishaps::of(&machine.faults),
            at_once: VecDeque::new(),
            meter: Meter::new(trace, &machine.power),
            followers: Vec::new(),
            steps: 0,
            steps_now: 0,
            timeline: Vec::new(),
        };
        for (index, request) in trace.requests.iter().enumerate() {
            match request.arrival {
                Arrival::At(at) => simulation.plan(at, Plan::Arrive(index)),
                Arrival::After { request, .. } => simulation.followers.push((request, index)),
            }
        }
        simulation.followers.sort_unstable();
        for interruption in &machine.faults.interruptions {
            simulation.plan(interruption.lost, Plan::Lose(interruption.lane));
            if let Some(back) = interruption.back {
                simulation.plan(back.max(interruption.lost), Plan::Return(interruption.lane));
            }
        }
        simulation
    }

    fn plan(&mut self, at: Micros, plan: Plan) {
        self.plans
            .push(Reverse((at.max(self.now), self.planned, plan)));
        self.planned += 1;
    }

    /// Returns the next event and its time; `None` for one that the scheduler does not see.
    fn next(&mut self) -> Option<(Micros, Option<Event>)> {
        if let Some(event) = self.at_once.pop_front() {
            if let Event::Unreserved(id) = event {
                self.mishaps.refusal_heard(id);
            }
            return Some((self.now, Some(event)));
        }
        let ends = Lane::ALL.map(|lane| self.end_of(lane));
        let lane = Lane::ALL
            .into_iter()
            .filter_map(|lane| Some((ends[lane as usize]?, lane)))
            .min();
        let planned = self.plans.peek().map(|Reverse((at, ..))| *at);
        let first = [lane.map(|(at, _)| at), planned, self.timer]
            .into_iter()
            .flatten()
            .min()?;
        self.advance(first);
        if let Some((at, lane)) = lane
            && at == first
        {
            return Some((first, self.end(lane)));
        }
        if planned == Some(first) {
            let Reverse((_, _, plan)) = self.plans.pop()?;
            return Some((first, self.happen(plan)));
        }
        self.timer = None;
        Some((first, Some(Event::Timer)))
    }

    fn running(&self, lane: Lane) -> Option<&Running> {
        match &self.places[lane as usize] {
            Place::Busy(running) => Some(running),
            Place::Free | Place::Resetting | Place::Gone => None,
        }
    }

    /// Returns the time at which the launch on a lane ends at its present speed.
    fn end_of(&self, lane: Lane) -> Option<Micros> {
        let running = self.running(lane)?;
        let ends = matches!(running.course, Course::Well | Course::Fails);
        let left = running.left_us / running.speed;
        ends.then(|| self.now + Micros::from_f64(left))
    }

    /// Advances virtual time.
    fn advance(&mut self, to: Micros) {
        let span = to.since(self.now);
        if span > Micros(0) {
            for place in &mut self.places {
                if let Place::Busy(running) = place {
                    running.left_us = (running.left_us - span.0 as f64 * running.speed).max(0.0);
                }
            }
            let busy = self.places.each_ref().map(|place| match place {
                Place::Busy(running) => Some(&running.work),
                Place::Free | Place::Resetting | Place::Gone => None,
            });
            self.meter.pass(span, busy, self.compiling.is_some());
            self.steps_now = 0;
        }
        self.now = to;
    }

    /// Counts a step; fails if there are too many.
    fn tick(&mut self, now: Micros) -> Result<(), SimulationError> {
        self.steps += 1;
        self.steps_now += 1;
        let steps = self.steps;
        if self.machine.steps_max.is_some_and(|max| steps > max) {
            return Err(SimulationError::TooLong { steps, now });
        }
        if self.steps_now > STEPS_PER_INSTANT {
            return Err(SimulationError::Runaway { now });
        }
        Ok(())
    }

    /// Ends the launch on a lane.
    fn end(&mut self, lane: Lane) -> Option<Event> {
        let running = self.vacate(lane, Place::Free)?;
        let ticket = running.ticket;
        if running.course != Course::Well {
            return Some(Event::Failed(ticket));
        }
        let layers = match &running.work {
            Work::Decode(_) => running.layers,
            Work::Prefill { .. } | Work::Head(_) | Work::Mixed { .. } => 0,
        };
        let through = layers == self.costs.model().layers;
        let outcome = self.outcome(&running.work, through);
        Some(Event::Done {
            ticket,
            layers,
            ended: outcome.ended,
            given: outcome.given,
        })
    }

    /// Removes the launch from a lane.
    fn vacate(&mut self, lane: Lane, place: Place) -> Option<Running> {
        let old = std::mem::replace(&mut self.places[lane as usize], place);
        let Place::Busy(running) = old else {
            return None;
        };
        self.meter.stop(&running.work, self.now);
        if self.machine.timeline {
            self.timeline.push(LaunchSpan {
                lane,
                work: running.work.clone(),
                start: running.start,
                end: self.now,
            });
        }
        self.set_speeds();
        Some(running)
    }

    fn set_speeds(&mut self) {
        let demand = |lane| self.running(lane).map(|r| r.cost.bandwidth);
        let speeds = self.machine.memory.speeds(Lane::ALL.map(demand));
        for (place, speed) in self.places.iter_mut().zip(speeds) {
            if let Place::Busy(running) = place {
                running.speed = speed;
            }
        }
    }

    fn happen(&mut self, plan: Plan) -> Option<Event> {
        match plan {
            Plan::Arrive(index) => Some(Event::Submit(self.arrive(index)?)),
            Plan::Cancel(id) => Some(Event::Cancel(id)),
            Plan::EndFlow(flow) => Some(Event::EndFlow(flow)),
            Plan::Warmed(kernel) => {
                self.compiling = None;
                if !std::mem::take(&mut self.compiles_in_vain) {
                    self.warm.insert(kernel);
                }
                Some(Event::Warmed(kernel))
            }
            Plan::Lose(lane) => {
                self.vacate(lane, Place::Gone);
                if lane == Lane::Npu {
                    // A device that comes back has lost its compiled kernels.
                    self.warm.clear();
                    self.compiles_in_vain = self.compiling.is_some();
                }
                Some(Event::Lost(lane))
            }
            Plan::Return(lane) => {
                self.places[lane as usize] = Place::Free;
                Some(Event::Ready(lane))
            }
            Plan::Ready(lane) => {
                let resetting = matches!(self.places[lane as usize], Place::Resetting);
                resetting.then(|| {
                    self.places[lane as usize] = Place::Free;
                    Event::Ready(lane)
                })
            }
            Plan::Late(ticket) => Some(Event::Done {
                ticket,
                layers: self.costs.model().layers,
                ended: Vec::new(),
                given: Vec::new(),
            }),
            Plan::Written(transfer) => Some(self.mishaps.written(transfer)),
            Plan::OutOfMemory(lane, ticket) => {
                self.cut_off(lane, ticket, Event::OutOfMemory(ticket))
            }
            Plan::Unreadable(lane, ticket, request) => {
                self.cut_off(lane, ticket, Event::Unreadable { ticket, request })
            }
        }
    }

    /// Ends a launch early with an event, if it is still running.
    fn cut_off(&mut self, lane: Lane, ticket: Ticket, event: Event) -> Option<Event> {
        let runs = self.running(lane).is_some_and(|r| r.ticket == ticket);
        runs.then(|| {
            self.vacate(lane, Place::Free);
            event
        })
    }

    fn arrive(&mut self, index: usize) -> Option<Submission> {
        let request = self.trace.requests.get(index)?;
        let id = RequestId(index as u64);
        self.meter.arrived(id, self.now);
        if let Some(after) = request.cancel_after {
            self.plan(self.now + after, Plan::Cancel(id));
        }
        Some(Submission {
            id,
            client: request.client,
            flow: request.flow,
            class: request.class,
            prompt_tokens: request.prompt_tokens,
            shared_tokens: request.shared_tokens,
            kept_tokens: 0,
            output_tokens_max: request.output_tokens_max,
            deadline: request.deadline_after.map(|after| self.now + after),
            prompt_logits: PromptLogits::LastRow,
        })
    }

    fn finish(self) -> Result<Run, SimulationError> {
        let (requests, usage, live) = self.meter.close();
        if live > 0 {
            return Err(SimulationError::Stalled {
                now: self.now,
                live,
            });
        }
        Ok(Run {
            ended: requests
                .iter()
                .filter_map(|r| r.ended)
                .max()
                .unwrap_or_default(),
            requests,
            usage,
            steps: self.steps,
            activations: ActivationCounts::default(),
            timeline: self.timeline,
        })
    }
}
