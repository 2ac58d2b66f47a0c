//! What the baselines say, step by step.

use super::*;
use crate::sched::{Cost, WarmKernel};

/// A device whose calls take a millisecond each; a budget of 1 MiB holds 1024 tokens.
#[derive(Debug)]
struct OneDevice;

impl Costs for OneDevice {
    fn model(&self) -> ModelShape {
        ModelShape {
            layers: 2,
            chunk_tokens: 256,
            context_tokens: 4096,
            kv_bytes_per_token: 1024,
        }
    }

    fn cost(&self, lane: Lane, _call: Call) -> Option<Cost> {
        (lane == Lane::Igpu).then_some(Cost {
            latency_us: 1000.0,
            bandwidth: 0.5,
        })
    }

    fn warm_cost(&self, _kernel: WarmKernel) -> Option<Cost> {
        None
    }

    fn warm_up(&self, _kernel: WarmKernel) -> Option<Micros> {
        None
    }
}

struct Driver {
    scheduler: SingleLane<OneDevice>,
    now: Micros,
    /// What runs.
    launch: Option<(Ticket, Work)>,
    actions: Actions,
}

impl Driver {
    fn new(policy: &str, change: impl FnOnce(&mut Policy)) -> Self {
        let mut policy = heg_spec::shipped::policy(policy).unwrap();
        policy.limits.tokens_per_iteration = 100;
        change(&mut policy);
        Self {
            scheduler: SingleLane::new(policy, OneDevice),
            now: Micros(0),
            launch: None,
            actions: Actions::new(),
        }
    }

    fn hear(&mut self, event: Event) {
        self.now = self.now + Micros(1000);
        let first = self.actions.len();
        self.scheduler.step(self.now, event, &mut self.actions);
        for action in &self.actions[first..] {
            match action {
                Action::Launch { ticket, work, .. } => {
                    assert!(self.launch.is_none());
                    self.launch = Some((*ticket, work.clone()));
                }
                Action::Reset(_) => self.launch = None,
                _ => {}
            }
        }
    }

    fn submit(&mut self, id: u64, class: Class, prompt_tokens: u32, flow: Option<u64>) {
        self.hear(Event::Submit(Submission {
            id: RequestId(id),
            flow: flow.map(FlowId),
            class,
            prompt_tokens,
            shared_tokens: 0,
            output_tokens_max: 2,
            deadline: None,
        }));
    }

    /// The launch as ([who decodes], [(whose prompt, from, to)]).
    fn iteration(&self) -> (Vec<u64>, Vec<(u64, u32, u32)>) {
        match &self.launch {
            Some((_, Work::Mixed { batch, prompts })) => (
                batch.iter().map(|(id, _)| id.0).collect(),
                prompts
                    .iter()
                    .map(|(id, part)| (id.0, part.position, part.context()))
                    .collect(),
            ),
            _ => Default::default(),
        }
    }

    /// The launch comes to this end.
    fn end(&mut self, event: impl FnOnce(Ticket) -> Event) {
        let (ticket, _) = self.launch.take().unwrap();
        self.hear(event(ticket));
    }

    fn done(&mut self) {
        self.end(|ticket| Event::Done {
            ticket,
            layers: 0,
            ended: Vec::new(),
        });
    }

    fn finished(&self) -> Vec<(u64, Finish)> {
        let ends = self.actions.iter().filter_map(|action| match action {
            Action::Finish(id, finish) => Some((id.0, *finish)),
            _ => None,
        });
        ends.collect()
    }
}

#[test]
fn prompts_fill_what_decoding_leaves_of_the_budget() {
    let mut driver = Driver::new("igpu-continuous-batching", |_| {});
    driver.submit(1, Class::Proactive, 60, None);
    driver.submit(2, Class::Reactive, 150, None);
    driver.submit(3, Class::Proactive, 30, None);
    assert_eq!(driver.iteration(), (vec![], vec![(1, 0, 60)]));
    driver.done();
    assert_eq!(driver.iteration(), (vec![1], vec![(2, 0, 99)]));
    driver.done();
    assert_eq!(driver.iteration(), (vec![], vec![(2, 99, 150), (3, 0, 30)]));
    driver.done();
    assert_eq!(driver.iteration(), (vec![2, 3], vec![]));
    driver.done();
    assert!(driver.scheduler.is_idle());
}

#[test]
fn a_reactive_request_costs_a_proactive_one_what_it_had() {
    let mut driver = Driver::new("igpu-preempt-recompute", |_| {});
    driver.submit(1, Class::Proactive, 60, None);
    driver.done();
    driver.submit(2, Class::Reactive, 50, None);
    driver.submit(3, Class::Proactive, 20, None);
    assert_eq!(
        driver.iteration(),
        (vec![1], vec![]),
        "nothing is interrupted"
    );
    driver.end(Event::Failed);
    assert!(driver.actions.contains(&Action::Restart(RequestId(1))));
    assert_eq!(driver.iteration(), (vec![], vec![(2, 0, 50)]));
    driver.done();
    assert_eq!(driver.iteration(), (vec![2], vec![]));
    driver.done();
    // Its first token has become part of its prompt.
    assert_eq!(driver.iteration(), (vec![], vec![(1, 0, 61), (3, 0, 20)]));
    driver.done();
    driver.done();
    let restarts = driver.actions.iter();
    let restarts = restarts.filter(|action| matches!(action, Action::Restart(_)));
    assert_eq!(restarts.count(), 1, "who has nothing loses nothing");
    assert!(driver.scheduler.is_idle());
}

#[test]
fn streams_alternate() {
    let mut driver = Driver::new("igpu-time-sharing", |_| {});
    driver.submit(1, Class::Proactive, 250, None);
    driver.submit(2, Class::Reactive, 150, None);
    let mut prompts = Vec::new();
    while driver.launch.is_some() {
        let (batch, parts) = driver.iteration();
        prompts.push(batch.first().copied().unwrap_or_else(|| parts[0].0));
        driver.done();
    }
    assert_eq!(prompts, [1, 2, 1, 2, 1, 2, 1]);
}

#[test]
fn a_hung_iteration_is_composed_anew_after_the_reset() {
    let mut driver = Driver::new("igpu-continuous-batching", |_| {});
    driver.submit(1, Class::Proactive, 60, None);
    driver.submit(2, Class::Proactive, 20, None);
    driver.now = Micros(60_000_000);
    driver.hear(Event::Timer);
    assert!(driver.actions.contains(&Action::Reset(Lane::Igpu)));
    // What comes meanwhile waits; who goes is gone.
    driver.submit(3, Class::Proactive, 10, None);
    driver.hear(Event::Cancel(RequestId(1)));
    assert!(driver.launch.is_none());
    driver.hear(Event::Ready(Lane::Igpu));
    assert_eq!(driver.iteration(), (vec![], vec![(2, 0, 20), (3, 0, 10)]));
    assert_eq!(driver.finished(), [(1, Finish::Cancelled)]);
}

#[test]
fn a_passed_deadline_does_not_hide_that_an_iteration_hangs() {
    let mut driver = Driver::new("igpu-continuous-batching", |_| {});
    driver.hear(Event::Submit(Submission {
        id: RequestId(1),
        flow: None,
        class: Class::Proactive,
        prompt_tokens: 10,
        shared_tokens: 0,
        output_tokens_max: 2,
        deadline: Some(Micros(5000)),
    }));
    driver.now = Micros(6000);
    driver.actions.clear();
    driver.hear(Event::Timer);
    assert!(matches!(driver.actions[..], [Action::Timer(at)] if at > driver.now));
}

#[test]
fn an_iteration_that_fails_three_times_ends_its_requests() {
    let mut driver = Driver::new("igpu-continuous-batching", |_| {});
    driver.submit(1, Class::Proactive, 100, None);
    driver.submit(2, Class::Proactive, 50, None);
    for _ in 0..3 {
        driver.end(Event::Failed);
    }
    assert_eq!(driver.finished(), [(1, Finish::Failed)]);
    assert_eq!(driver.iteration(), (vec![], vec![(2, 0, 50)]));
}

#[test]
fn requests_wait_for_memory_and_a_flow_that_ends_early_keeps_none() {
    let mut driver = Driver::new("igpu-continuous-batching", |policy| {
        policy.limits.kv_mib = 1;
        policy.limits.tokens_per_iteration = 2000;
    });
    driver.submit(1, Class::Proactive, 600, Some(7));
    driver.submit(2, Class::Proactive, 600, None);
    driver.submit(3, Class::Proactive, 2000, None);
    driver.hear(Event::EndFlow(FlowId(7)));
    assert_eq!(driver.finished(), [(3, Finish::Shed)]);
    driver.done();
    assert_eq!(driver.iteration(), (vec![1], vec![]));
    driver.done();
    assert!(driver.actions.contains(&Action::ReleaseFlow(FlowId(7))));
    assert_eq!(driver.iteration(), (vec![], vec![(2, 0, 600)]));
}

#[test]
fn idle_flows_give_their_memory_before_anything_fails() {
    let mut driver = Driver::new("igpu-continuous-batching", |_| {});
    driver.submit(1, Class::Proactive, 60, Some(7));
    driver.done();
    driver.done();
    driver.submit(2, Class::Proactive, 60, None);
    for _ in 0..3 {
        driver.end(Event::OutOfMemory);
    }
    assert!(driver.actions.contains(&Action::ReleaseFlow(FlowId(7))));
    assert!(driver.launch.is_some(), "the first time was nobody's fault");
    driver.end(Event::OutOfMemory);
    assert_eq!(driver.finished().last(), Some(&(2, Finish::Failed)));
}

#[test]
fn without_the_device_all_end() {
    let mut driver = Driver::new("igpu-continuous-batching", |_| {});
    driver.submit(1, Class::Proactive, 60, None);
    driver.hear(Event::Lost(Lane::Igpu));
    driver.submit(2, Class::Proactive, 60, None);
    assert_eq!(
        driver.finished(),
        [(1, Finish::Failed), (2, Finish::Failed)]
    );
    driver.launch = None;
    driver.hear(Event::Ready(Lane::Igpu));
    driver.submit(3, Class::Proactive, 60, None);
    assert_eq!(driver.iteration().1, [(3, 0, 60)]);
}
