//! Clients take turns: worlds of several clients, one of which may be an attacker, keep every rule; with one client
//! nothing changes; and a scheduler without clients is noticed.
//!
//! `HEG_WORLDS=0..100000 cargo test --release -p heg-sim --test scheduler clients` tries a hundred thousand worlds.

use std::ops::Range;

use heg_sched::{Actions, ClientId, Event, FlowId, Micros, Scheduler};
use heg_sim::{SchedulerInvariant, simulate};
use heg_spec::Seeded;
use heg_workload::{Arrival, TraceRequest};

use crate::scenario::Scenario;
use crate::worlds::{check, worlds};

/// Seeds of an ordinary test run.
const WORLDS: Range<u64> = 0..2_000;

/// The client that attacks.
const ATTACKER: ClientId = ClientId(9);

/// Returns a world of two to four clients; in most worlds one of them attacks.
fn world(seed: u64) -> Scenario {
    let mut scenario = match seed % 5 {
        0 => Scenario::of_baseline(seed / 5),
        _ => Scenario::of(seed),
    };
    let mut random = Seeded::new(seed ^ 0xc11e);
    let clients = 2 + random.below(3);
    for request in &mut scenario.trace.requests {
        request.client = match request.flow {
            // All calls of a flow come from one client.
            Some(FlowId(flow)) => ClientId(flow % clients as u64),
            None => ClientId(random.below(clients) as u64),
        };
    }
    attack(&mut scenario, &mut random);
    scenario.machine.steps_max = Some(200_000);
    scenario
}

/// Adds the attacker's requests: it floods with long requests, cancels them at once or lets deadlines pass, asks for as
/// much memory as possible, and lets flows idle.
fn attack(scenario: &mut Scenario, random: &mut Seeded) {
    let kind = random.below(6);
    if kind == 5 {
        return;
    }
    let class = scenario.trace.requests[0].class;
    let start = random.below(20_000) as u64;
    let context = scenario.costs.context_tokens;
    for place in 0..10 + random.below(20) as u64 {
        let long = 1 + random.below(60) as u32;
        let mut request = TraceRequest {
            client: ATTACKER,
            arrival: Arrival::At(Micros(start + place * random.below(500) as u64)),
            class,
            flow: None,
            ends_flow: false,
            prompt_tokens: 1 + random.below(80) as u32,
            shared_tokens: 0,
            output_tokens: long,
            output_tokens_max: long,
            deadline_after: None,
            cancel_after: None,
        };
        match kind {
            1 => request.cancel_after = Some(Micros(random.below(300) as u64)),
            2 => request.deadline_after = Some(Micros(random.below(3000) as u64)),
            3 => request.prompt_tokens = (context / 2).min(200 + random.below(400) as u32),
            4 => {
                request.flow = Some(FlowId(1000 + place));
                request.output_tokens = 1;
            }
            _ => {}
        }
        scenario.trace.requests.push(request);
        if kind == 4 {
            // The attacker ends its flows much later.
            let at = Micros(start + 2_000_000 + place);
            let last = scenario.trace.requests.last().copied().into_iter();
            scenario
                .trace
                .requests
                .extend(last.map(|request| TraceRequest {
                    arrival: Arrival::At(at),
                    ends_flow: true,
                    ..request
                }));
        }
    }
}

#[test]
fn every_rule_holds_between_clients() {
    check("clients", worlds(WORLDS), world, |_, _| None);
    // Overdue answers beside a reactive one that tolerates no others.
    check("clients", 71_358..71_359, world, |_, _| None);
    // Others catch up, before its second token, with a prompt that was under way when they came.
    check("clients", 31_422..31_423, world, |_, _| None);
    // More prompts of several clients wait than answers are decoded, and the NPU is too slow to have a share of them.
    check("clients", 91_334..91_335, world, |_, _| None);
}

/// A scheduler that sees all requests as one client's.
pub(crate) struct OneClient<S>(pub(crate) S);

impl<S: Scheduler> Scheduler for OneClient<S> {
    fn step(&mut self, now: Micros, mut event: Event, actions: &mut Actions) {
        if let Event::Submit(submission) = &mut event {
            submission.client = ClientId(0);
        }
        self.0.step(now, event, actions);
    }

    fn is_idle(&self) -> bool {
        self.0.is_idle()
    }
}

#[test]
fn a_scheduler_without_turns_is_noticed() {
    for (what, baseline) in [("agent-xpu", false), ("one device", true)] {
        let mut seeds = (0..4000_u64).filter(|seed| (seed % 5 == 0) == baseline);
        let noticed = seeds.find(|seed| {
            let scenario = world(*seed);
            let verdict = scenario.judge(OneClient(scenario.scheduler()));
            let mut rules = verdict.violations.iter().map(|violation| violation.rule);
            rules.any(|rule| rule == SchedulerInvariant::FairTurns)
        });
        assert!(noticed.is_some(), "no world of {what} shows it");
    }
}

/// A scheduler acts the same whatever number its one client has, and however that comes and goes.
#[test]
fn one_client_changes_nothing() {
    for seed in 0..500 {
        let of = |client| {
            let mut scenario = match seed % 2 {
                0 => Scenario::of_baseline(seed),
                _ => Scenario::of(seed),
            };
            for request in &mut scenario.trace.requests {
                request.client = ClientId(client);
            }
            let mut scheduler = scenario.scheduler();
            simulate(
                &mut scheduler,
                &scenario.costs,
                &scenario.machine,
                &scenario.trace,
            )
        };
        assert_eq!(of(0), of(7), "seed {seed}");
    }
}
