//! Mutation tests of the checker for drafts.
//!
//! | broken | noticed by |
//! |---|---|
//! | the code that runs the launches gives more tokens than were verified, or none | `TokensVerified` |
//! | more drafted tokens are verified than were drafted, or than the answer may have; more rows than the policy allows | `DraftRows` |
//! | an iteration sees rejected rows; a flow keeps them | `RejectedRows` |

use std::sync::Arc;

use heg_sched::{Action, Actions, AgentXpu, Decoding, Event, Micros, Scheduler, Work};
use heg_sim::{Checked, SchedulerInvariant, simulate};

use crate::scenario::Scenario;

/// A scheduler whose actions are falsified.
struct Misspoken<S> {
    scheduler: S,
    says: fn(&mut Action),
}

impl<S: Scheduler> Scheduler for Misspoken<S> {
    fn step(&mut self, now: Micros, event: Event, actions: &mut Actions) {
        let first = actions.len();
        self.scheduler.step(now, event, actions);
        actions[first..].iter_mut().for_each(self.says);
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }
}

/// A machine that reports other tokens than it gave, to a scheduler and the checker around it.
struct Misled<S> {
    scheduler: S,
    tells: fn(u32) -> u32,
}

impl<S: Scheduler> Scheduler for Misled<S> {
    fn step(&mut self, now: Micros, mut event: Event, actions: &mut Actions) {
        if let Event::Done { given, .. } = &mut event {
            for given in given {
                given.tokens = (self.tells)(given.tokens);
            }
        }
        self.scheduler.step(now, event, actions);
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }
}

/// Drafting worlds without faults.
fn scenarios() -> impl Iterator<Item = Scenario> {
    (0..1000).map(|seed| Scenario::of(2 * seed).drafting(seed))
}

fn assert_says(rule: SchedulerInvariant, says: fn(&mut Action)) {
    let noticed = scenarios().any(|scenario| {
        let verdict = scenario.run_broken(|scheduler| Misspoken { scheduler, says });
        verdict.violations.iter().any(|it| it.rule == rule)
    });
    assert!(noticed, "no world broke {rule:?}");
}

/// Changes the members of iterations.
fn batches(action: &mut Action, change: impl Fn(&mut Decoding)) {
    if let Action::Launch { work, .. } = action {
        let (Work::Decode(heg_sched::DecodeRun { batch, .. }) | Work::Mixed { batch, .. }) = work
        else {
            return;
        };
        let mut members = batch.to_vec();
        members.iter_mut().for_each(change);
        *batch = Arc::from(members);
    }
}

#[test]
fn tokens_that_nobody_verified() {
    let lies: [fn(u32) -> u32; 2] = [|tokens| tokens + 40, |_| 0];
    for tells in lies {
        let noticed = scenarios().any(|scenario| {
            let own = AgentXpu::new(scenario.policy.clone(), scenario.costs.clone());
            let checked = Checked::new(own, &scenario.costs, scenario.rules());
            let mut misled = Misled {
                scheduler: checked,
                tells,
            };
            let _ = simulate(
                &mut misled,
                &scenario.costs,
                &scenario.machine,
                &scenario.trace,
            );
            let mut violations = misled.scheduler.violations().iter();
            violations.any(|it| it.rule == SchedulerInvariant::TokensVerified)
        });
        assert!(noticed);
    }
}

#[test]
fn rows_of_tokens_that_were_not_drafted() {
    assert_says(SchedulerInvariant::DraftRows, |action| {
        batches(action, |member| member.drafted += 21);
    });
}

#[test]
fn rows_beyond_what_the_policy_allows() {
    let noticed = scenarios().any(|scenario| {
        let mut policy = scenario.policy.clone();
        policy.decode.draft_rows_max += 8;
        let verdict = scenario.run_broken(|_| AgentXpu::new(policy, scenario.costs.clone()));
        let mut violations = verdict.violations.iter();
        violations.any(|it| it.rule == SchedulerInvariant::DraftRows)
    });
    assert!(noticed);
}

#[test]
fn rejected_rows_that_are_seen() {
    assert_says(SchedulerInvariant::RejectedRows, |action| {
        batches(action, |member| member.context += 1);
    });
}

#[test]
fn rejected_rows_that_a_flow_keeps() {
    assert_says(SchedulerInvariant::RejectedRows, |action| {
        if let Action::Keep { tokens, .. } = action {
            *tokens += 1;
        }
    });
}
