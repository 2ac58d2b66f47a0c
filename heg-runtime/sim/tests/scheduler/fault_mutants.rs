//! Mutation tests of the checker for faults: a scheduler that handles them carelessly is noticed.
//!
//! | broken | noticed by |
//! |---|---|
//! | a request ends as failed although nothing of it failed alone | `CulpritOnly` |
//! | the failure of a batch counts against each of its requests | `CulpritOnly` |
//! | memory is given to others while it is still being written to flash | `MemoryBalanced` |
//! | a lane that is to stop is used before it has answered | `OneLaunchPerLane` |
//! | memory that such a lane may still write to is given to others | `MemoryBalanced` |
//! | an iteration goes on in the activations of another lane | `Dependencies` |
//! | a reservation that failed, or a launch that found nothing to read, is not heard of | any rule, or requests that never end |
//! | kernels that were compiled for a device before it went are used after it came back | the simulator, which has none |

use std::collections::{BTreeMap, BTreeSet};

use heg_sched::{
    Action, Actions, DecodeRun, Event, Finish, Lane, Micros, RequestId, Scheduler, Ticket, Work,
};
use heg_sim::{Contender, SchedulerInvariant};

use crate::fault_worlds::{world, world_of};
use crate::scenario::Verdict;

/// The immediate consequence of an action, as an event that the scheduler hears at once.
type Echo = fn(&Action) -> Option<Event>;

/// A scheduler that hears fewer events than happen, or more.
struct Deaf<S> {
    scheduler: S,
    hears: fn(&Event) -> bool,
    echo: Echo,
    says: fn(&Event, &mut Actions),
}

impl<S: Scheduler> Scheduler for Deaf<S> {
    fn step(&mut self, now: Micros, event: Event, actions: &mut Actions) {
        let first = actions.len();
        if (self.hears)(&event) {
            self.scheduler.step(now, event.clone(), actions);
        }
        let mut seen = first;
        while let Some(action) = actions.get(seen) {
            seen += 1;
            if let Some(event) = (self.echo)(action) {
                self.scheduler.step(now, event, actions);
            }
        }
        (self.says)(&event, actions);
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }
}

/// A scheduler that isolates no request: three failures in a row end a request, whatever was beside it.
struct Unjust<S> {
    scheduler: S,
    launches: BTreeMap<Ticket, Vec<RequestId>>,
    failures: BTreeMap<RequestId, u32>,
    given_up: BTreeSet<RequestId>,
}

impl<S: Scheduler> Scheduler for Unjust<S> {
    fn step(&mut self, now: Micros, event: Event, actions: &mut Actions) {
        let first = actions.len();
        let mut blamed = Vec::new();
        match &event {
            Event::Failed(ticket) => {
                for id in self.launches.remove(ticket).into_iter().flatten() {
                    let failures = self.failures.entry(id).or_default();
                    *failures += 1;
                    if *failures == 3 {
                        blamed.push(id);
                    }
                }
            }
            Event::Done { ticket, .. } => {
                for id in self.launches.remove(ticket).into_iter().flatten() {
                    self.failures.remove(&id);
                }
            }
            _ => {}
        }
        self.scheduler.step(now, event, actions);
        for id in blamed {
            self.given_up.insert(id);
            self.scheduler.step(now, Event::Cancel(id), actions);
        }
        for action in &mut actions[first..] {
            match action {
                Action::Launch { ticket, work, .. } => {
                    self.launches.insert(*ticket, work.requests());
                }
                Action::Finish(id, finish) if self.given_up.contains(id) => {
                    *finish = Finish::Failed;
                }
                _ => {}
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }
}

/// A scheduler that continues an iteration that gave way on any lane where it decodes next.
struct Astray<S> {
    scheduler: S,
    runs: BTreeMap<Ticket, (Lane, DecodeRun)>,
    /// The rest of the iteration that gave way, and the lane with its hidden states.
    left: Option<(Lane, DecodeRun)>,
}

impl<S: Scheduler> Scheduler for Astray<S> {
    fn step(&mut self, now: Micros, event: Event, actions: &mut Actions) {
        let first = actions.len();
        if let Event::Done { ticket, layers, .. } = &event
            && let Some((lane, run)) = self.runs.remove(ticket)
        {
            let layers = *layers..run.layers.end;
            self.left = (!layers.is_empty()).then_some((lane, DecodeRun { layers, ..run }));
        }
        self.scheduler.step(now, event, actions);
        for action in &mut actions[first..] {
            if let Action::Launch { lane, ticket, work } = action
                && let Work::Decode(run) = work
            {
                if let Some((before, left)) = self.left.take()
                    && before != *lane
                {
                    *run = left;
                }
                self.runs.insert(*ticket, (*lane, run.clone()));
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }
}

/// Checks that some world under the policy breaks the rule with this scheduler.
fn assert_breaks<S: Scheduler>(
    rule: SchedulerInvariant,
    policy: &str,
    broken: fn(Box<dyn Scheduler>) -> S,
) {
    let shipped = heg_spec::shipped::policy(policy).unwrap();
    let noticed = (0..3000).any(|seed| {
        let scenario = world(&shipped, seed);
        breaks(rule)(&scenario.judge(broken(scenario.scheduler())))
    });
    assert!(noticed, "no world noticed it under {policy}");
}

/// Checks that under each policy some world notices a scheduler that is broken like this.
fn assert_noticed(
    hears: fn(&Event) -> bool,
    echo: Echo,
    says: fn(&Event, &mut Actions),
    notices: impl Fn(&Verdict) -> bool,
) {
    for name in ["agent-xpu", "igpu-continuous-batching", "serial-npu-igpu"] {
        let contender = Contender::named(name).unwrap();
        let noticed = (0..3000).any(|seed| {
            let scenario = world_of(&contender, seed);
            let scheduler = scenario.scheduler();
            notices(&scenario.judge(Deaf {
                scheduler,
                hears,
                echo,
                says,
            }))
        });
        assert!(noticed, "no world noticed it under {name}");
    }
}

fn breaks(rule: SchedulerInvariant) -> impl Fn(&Verdict) -> bool {
    move |verdict| verdict.violations.iter().any(|it| it.rule == rule)
}

#[test]
fn an_innocent_request_that_fails() {
    let says = |_: &Event, actions: &mut Actions| {
        for action in actions {
            if let Action::Finish(_, finish) = action
                && *finish == Finish::Complete
            {
                *finish = Finish::Failed;
            }
        }
    };
    assert_noticed(
        |_| true,
        |_| None,
        says,
        breaks(SchedulerInvariant::CulpritOnly),
    );
}

#[test]
fn a_batch_whose_failures_count_against_each_of_its_requests() {
    for policy in ["agent-xpu", "igpu-continuous-batching"] {
        assert_breaks(SchedulerInvariant::CulpritOnly, policy, |scheduler| {
            Unjust {
                scheduler,
                launches: BTreeMap::new(),
                failures: BTreeMap::new(),
                given_up: BTreeSet::new(),
            }
        });
    }
}

#[test]
fn an_iteration_that_goes_on_in_the_activations_of_another_lane() {
    assert_breaks(SchedulerInvariant::Dependencies, "agent-xpu", |scheduler| {
        Astray {
            scheduler,
            runs: BTreeMap::new(),
            left: None,
        }
    });
}

/// The scheduler takes a lane for lost, and its writes for over, as soon as it tells the lane to stop.
#[test]
fn memory_that_is_given_away_while_a_lane_may_write_to_it() {
    let echo = |action: &Action| match action {
        Action::Reset(lane) => Some(Event::Lost(*lane)),
        _ => None,
    };
    assert_noticed(
        |_| true,
        echo,
        |_, _| {},
        breaks(SchedulerInvariant::MemoryBalanced),
    );
}

#[test]
fn memory_that_is_given_away_while_it_is_written_to_flash() {
    let hears = |event: &Event| !matches!(event, Event::Offloaded(_) | Event::OffloadFailed(_));
    let echo = |action: &Action| match action {
        Action::Offload { transfer, .. } => Some(Event::Offloaded(*transfer)),
        _ => None,
    };
    assert_noticed(
        hears,
        echo,
        |_, _| {},
        breaks(SchedulerInvariant::MemoryBalanced),
    );
}

#[test]
fn a_lane_that_is_used_before_it_has_answered() {
    let echo = |action: &Action| match action {
        Action::Reset(lane) => Some(Event::Ready(*lane)),
        _ => None,
    };
    let notices = breaks(SchedulerInvariant::OneLaunchPerLane);
    assert_noticed(|_| true, echo, |_, _| {}, notices);
}

#[test]
fn a_failed_reservation_or_read_that_is_not_heard_of() {
    let wrong = |verdict: &Verdict| !verdict.violations.is_empty() || verdict.run.is_err();
    let unreserved = |event: &Event| !matches!(event, Event::Unreserved(_));
    assert_noticed(unreserved, |_| None, |_, _| {}, wrong);
    let unreadable = |event: &Event| !matches!(event, Event::Unreadable { .. });
    assert_noticed(unreadable, |_| None, |_, _| {}, wrong);
}

/// A lane that comes back is a new device without compiled kernels.
#[test]
fn kernels_that_are_not_compiled_anew() {
    let policy = heg_spec::shipped::policy("agent-xpu").unwrap();
    // The scheduler hears nothing of the NPU's loss except about the work that ran there.
    let noticed = (0..2000).any(|seed| {
        let scenario = world(&policy, seed);
        let scheduler = scenario.scheduler();
        let verdict = scenario.judge(Deaf {
            scheduler,
            hears: |event| !matches!(event, Event::Lost(Lane::Npu) | Event::Ready(Lane::Npu)),
            echo: |_| None,
            says: |_, _| {},
        });
        verdict.run.is_err()
    });
    assert!(noticed);
}
