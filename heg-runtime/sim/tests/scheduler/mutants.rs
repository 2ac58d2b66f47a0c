//! Mutation tests of the checker: each mechanism broken on purpose is noticed by the rule that guards it.
//!
//! | broken | noticed by |
//! |---|---|
//! | a launch is sent twice, or to another lane | `OneLaunchPerLane` |
//! | attention before its keys; a decode run that skips a layer | `Dependencies` |
//! | a finish or a token lost; a finish sent twice; a request not heard | `NothingLost` |
//! | memory of a request or a flow not given back; a flow's end not heard; a larger budget | `MemoryBalanced` |
//! | a buffer for every preempted prompt; rows for more than the window | `ActivationBuffers` |
//! | launches withheld | `WorkConserving` |
//! | classes mixed up; no preemption; decoding before attention | `ReactiveFirst` |
//! | no cap beside reactive requests; larger batches | `BatchCap` |
//! | no rest for the iGPU | `IgpuShare` |
//! | no power budget | `PowerBudget` |
//! | no ageing | `Ageing`, and the bound in `bound.rs` |
//! | an action that depends on something else than the input | two logs that differ |
//! | baselines: a flow's end not heard; a finish lost; more prompt tokens than the budget | as above |

use std::sync::atomic::{AtomicU64, Ordering};

use heg_sched::{
    Action, Actions, AgentXpu, Class, Event, Lane, LayerKernel, Micros, Scheduler, Ticket, Work,
};
use heg_sim::SchedulerInvariant;
use heg_spec::Policy;

use crate::scenario::Scenario;

/// A scheduler whose events and actions are falsified.
struct Mutant<S> {
    scheduler: S,
    hears: fn(Event) -> Option<Event>,
    says: fn(&mut Actions),
}

impl<S: Scheduler> Scheduler for Mutant<S> {
    fn step(&mut self, now: Micros, event: Event, actions: &mut Actions) {
        let mut own = Actions::new();
        if let Some(event) = (self.hears)(event) {
            self.scheduler.step(now, event, &mut own);
        }
        (self.says)(&mut own);
        actions.append(&mut own);
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }
}

/// Returns the seeds of worlds without faults.
fn seeds() -> impl Iterator<Item = u64> {
    (0..600).map(|seed| 2 * seed)
}

fn assert_noticed(rule: SchedulerInvariant, violations: impl Fn(u64) -> Vec<SchedulerInvariant>) {
    let noticed = seeds().any(|seed| violations(seed).contains(&rule));
    assert!(noticed, "no world broke {rule:?}");
}

fn rules(verdict: crate::scenario::Verdict) -> Vec<SchedulerInvariant> {
    verdict.violations.iter().map(|v| v.rule).collect()
}

/// Checks that falsified events or actions of the scheduler break `rule`.
fn tampered(rule: SchedulerInvariant, hears: fn(Event) -> Option<Event>, says: fn(&mut Actions)) {
    assert_noticed(rule, |seed| {
        let scenario = Scenario::of(seed);
        rules(scenario.run_broken(|scheduler| Mutant {
            scheduler,
            hears,
            says,
        }))
    });
}

fn says(rule: SchedulerInvariant, says: fn(&mut Actions)) {
    tampered(rule, Some, says);
}

/// Checks that a scheduler of another policy breaks `rule` of the one by which it is judged.
fn other_policy(rule: SchedulerInvariant, change: fn(&mut Policy)) {
    assert_noticed(rule, |seed| {
        let scenario = Scenario::of(seed);
        let mut policy = scenario.policy.clone();
        change(&mut policy);
        let verdict = scenario.run_broken(|_| AgentXpu::new(policy, scenario.costs.clone()));
        rules(verdict)
    });
}

fn keep(actions: &mut Actions, wanted: fn(&Action) -> bool) {
    actions.retain(wanted);
}

#[test]
fn a_second_launch_on_a_lane() {
    says(SchedulerInvariant::OneLaunchPerLane, |actions| {
        let twice = actions.iter().find_map(|action| match action {
            Action::Launch { lane, ticket, work } => Some(Action::Launch {
                lane: *lane,
                ticket: Ticket(ticket.0 + 1_000_000),
                work: work.clone(),
            }),
            _ => None,
        });
        actions.extend(twice);
    });
}

#[test]
fn a_launch_on_another_lane() {
    says(SchedulerInvariant::OneLaunchPerLane, |actions| {
        for action in actions {
            if let Action::Launch { lane, .. } = action
                && *lane == Lane::Npu
            {
                *lane = Lane::Igpu;
            }
        }
    });
}

#[test]
fn attention_before_its_keys() {
    says(SchedulerInvariant::Dependencies, |actions| {
        for action in actions {
            if let Action::Launch {
                work: Work::Prefill { kernel, .. },
                ..
            } = action
                && *kernel == LayerKernel::Qkv
            {
                *kernel = LayerKernel::Mha;
            }
        }
    });
}

#[test]
fn a_decode_run_that_skips_a_layer() {
    says(SchedulerInvariant::Dependencies, |actions| {
        for action in actions {
            if let Action::Launch {
                work: Work::Decode(run),
                ..
            } = action
            {
                run.layers.start += 1;
            }
        }
    });
}

#[test]
fn a_finish_that_is_lost() {
    says(SchedulerInvariant::NothingLost, |actions| {
        keep(actions, |action| !matches!(action, Action::Finish(..)));
    });
}

#[test]
fn a_finish_said_twice() {
    says(SchedulerInvariant::NothingLost, |actions| {
        let last = actions
            .iter()
            .find(|action| matches!(action, Action::Finish(..)));
        actions.extend(last.cloned());
    });
}

#[test]
fn a_token_that_is_lost() {
    says(SchedulerInvariant::NothingLost, |actions| {
        keep(actions, |action| !matches!(action, Action::Emit(_)));
    });
}

#[test]
fn memory_that_is_never_given_back() {
    says(SchedulerInvariant::MemoryBalanced, |actions| {
        keep(actions, |action| !matches!(action, Action::Release(_)));
    });
    says(SchedulerInvariant::MemoryBalanced, |actions| {
        keep(actions, |action| !matches!(action, Action::ReleaseFlow(_)));
    });
}

#[test]
fn a_flows_end_that_is_not_heard() {
    let hears = |event| (!matches!(event, Event::EndFlow(_))).then_some(event);
    tampered(SchedulerInvariant::MemoryBalanced, hears, |_| {});
}

#[test]
fn a_request_that_is_not_heard() {
    let hears = |event| (!matches!(event, Event::Submit(_))).then_some(event);
    tampered(SchedulerInvariant::NothingLost, hears, |_| {});
}

#[test]
fn launches_that_are_withheld() {
    says(SchedulerInvariant::WorkConserving, |actions| {
        keep(actions, |action| {
            !matches!(
                action,
                Action::Launch {
                    work: Work::Decode(_),
                    ..
                }
            )
        });
    });
}

#[test]
fn classes_that_are_mixed_up() {
    let hears = |event| {
        Some(match event {
            Event::Submit(mut submission) => {
                submission.class = match submission.class {
                    Class::Reactive => Class::Proactive,
                    Class::Proactive => Class::Reactive,
                };
                Event::Submit(submission)
            }
            other => other,
        })
    };
    tampered(SchedulerInvariant::ReactiveFirst, hears, |_| {});
}

#[test]
fn no_preemption() {
    other_policy(SchedulerInvariant::ReactiveFirst, |policy| {
        policy.prefill.preempt = false
    });
}

#[test]
fn decoding_before_attention() {
    other_policy(SchedulerInvariant::ReactiveFirst, |policy| {
        policy.decode.prefill_first = false
    });
}

#[test]
fn no_cap_beside_reactive_requests() {
    other_policy(SchedulerInvariant::BatchCap, |policy| {
        policy.decode.reactive_batch_max = Some(32)
    });
    other_policy(SchedulerInvariant::BatchCap, |policy| {
        policy.decode.batch_max = 64
    });
}

#[test]
fn no_ageing() {
    other_policy(SchedulerInvariant::Ageing, |policy| policy.ageing = None);
}

#[test]
fn no_power_budget() {
    other_policy(SchedulerInvariant::PowerBudget, |policy| {
        policy.limits.power_watts_max = None;
    });
}

#[test]
fn no_rest_for_the_igpu() {
    other_policy(SchedulerInvariant::IgpuShare, |policy| {
        policy.limits.igpu_percent_max = None;
    });
}

#[test]
fn a_buffer_for_every_prompt() {
    other_policy(SchedulerInvariant::ActivationBuffers, |policy| {
        policy.prefill.resume = heg_spec::policy::Resume::LeastTimeToCompletion;
    });
}

#[test]
fn rows_for_a_whole_prompt() {
    other_policy(SchedulerInvariant::ActivationBuffers, |policy| {
        policy.prefill.window_tokens = u32::MAX;
    });
}

#[test]
fn segments_that_do_not_wait_for_their_rows() {
    other_policy(SchedulerInvariant::ActivationBuffers, |policy| {
        policy.prefill.window_tokens = policy.prefill.window_tokens.saturating_mul(2);
    });
}

#[test]
fn actions_that_depend_on_more_than_the_input() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let scenario = Scenario::of(0);
    let says = |actions: &mut Actions| {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        for action in actions {
            if let Action::Timer(at) = action {
                *at = *at + Micros(call);
            }
        }
    };
    let log = || {
        scenario.log_of(|scheduler| Mutant {
            scheduler,
            hears: Some,
            says,
        })
    };
    assert_ne!(log(), log());
}

/// Checks as [`tampered`] does, for the baselines.
fn tampered_baseline(
    rule: SchedulerInvariant,
    hears: fn(Event) -> Option<Event>,
    says: fn(&mut Actions),
) {
    assert_noticed(rule, |seed| {
        let scenario = Scenario::of_baseline(seed);
        rules(scenario.judge(Mutant {
            scheduler: scenario.scheduler(),
            hears,
            says,
        }))
    });
}

#[test]
fn baselines_that_are_broken() {
    let hears = |event| (!matches!(event, Event::EndFlow(_))).then_some(event);
    tampered_baseline(SchedulerInvariant::MemoryBalanced, hears, |_| {});
    tampered_baseline(SchedulerInvariant::NothingLost, Some, |actions| {
        keep(actions, |action| !matches!(action, Action::Finish(..)));
    });
    assert_noticed(SchedulerInvariant::BatchCap, |seed| {
        let mut scenario = Scenario::of_baseline(seed);
        let own = scenario.scheduler();
        scenario.policy.limits.tokens_per_iteration /= 2;
        rules(scenario.judge(own))
    });
}

#[test]
fn a_budget_that_is_overdrawn() {
    other_policy(SchedulerInvariant::MemoryBalanced, |policy| {
        policy.limits.kv_mib *= 4
    });
}
