//! The checker has teeth for faults too: a scheduler that takes them lightly is noticed.
//!
//! | broken | noticed by |
//! |---|---|
//! | a request ends as failed although nothing of it failed alone | `CulpritOnly` |
//! | memory is given to others while it is still being written to flash | `MemoryBalanced` |
//! | a lane that is to stop is used before it has answered | `OneLaunchPerLane` |
//! | a reservation that failed, or a launch that found nothing to read, is not heard of | any rule, or requests that never end |
//! | kernels that were compiled for a device before it went are used after it came back | the simulator, which has none |

use heg_runtime::sched::{Action, Actions, Event, Finish, Lane, Micros, Scheduler};
use heg_runtime::sim::Rule;

use crate::fault_worlds::world;
use crate::scenario::Verdict;

/// What a scheduler is told at once, as a consequence of what it said; nothing else answers that.
type Echo = fn(&Action) -> Option<Event>;

/// A scheduler that hears less than happens, or more.
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

/// Under each policy some world notices a scheduler that is broken like this.
fn assert_noticed(
    hears: fn(&Event) -> bool,
    echo: Echo,
    says: fn(&Event, &mut Actions),
    notices: impl Fn(&Verdict) -> bool,
) {
    for name in ["agent-xpu", "igpu-continuous-batching", "serial-npu-igpu"] {
        let policy = heg_spec::shipped::policy(name).unwrap();
        let noticed = (0..3000).any(|seed| {
            let scenario = world(&policy, seed);
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

fn breaks(rule: Rule) -> impl Fn(&Verdict) -> bool {
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
    assert_noticed(|_| true, |_| None, says, breaks(Rule::CulpritOnly));
}

#[test]
fn memory_that_is_given_away_while_it_is_written_to_flash() {
    let hears = |event: &Event| !matches!(event, Event::Offloaded(_) | Event::OffloadFailed(_));
    let echo = |action: &Action| match action {
        Action::Offload { transfer, .. } => Some(Event::Offloaded(*transfer)),
        _ => None,
    };
    assert_noticed(hears, echo, |_, _| {}, breaks(Rule::MemoryBalanced));
}

#[test]
fn a_lane_that_is_used_before_it_has_answered() {
    let echo = |action: &Action| match action {
        Action::Reset(lane) => Some(Event::Ready(*lane)),
        _ => None,
    };
    let notices = breaks(Rule::OneLaunchPerLane);
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

/// A lane that comes back is not the device that it was.
#[test]
fn kernels_that_are_not_compiled_anew() {
    let policy = heg_spec::shipped::policy("agent-xpu").unwrap();
    // The scheduler does not hear that the NPU went, but for what ran there.
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
