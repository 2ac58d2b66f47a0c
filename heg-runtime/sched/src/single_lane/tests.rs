//! The baselines' actions, step by step.

use super::*;
use crate::{ClientId, Cost, FlowId, LayerOrder, PromptLogits, WarmKernel};

/// A device whose calls take a millisecond each; a budget of 1 MiB holds 1024 tokens.
#[derive(Debug)]
struct OneDevice;

impl Costs for OneDevice {
    fn model(&self) -> ModelShape {
        ModelShape {
            layers: 2,
            order: LayerOrder::default(),
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
    /// The launch that runs, and its work.
    launch: Option<(Ticket, Work)>,
    actions: Actions,
}

impl Driver {
    fn new(policy: &str, change: impl FnOnce(&mut Policy)) -> Self {
        let mut policy = heg_spec::shipped::policy(policy).unwrap();
        policy.limits.tokens_per_iteration = 100;
        change(&mut policy);
        Self::of(SingleLane::new(policy, OneDevice))
    }

    /// Requests whose classes share the device by a rule.
    fn shared(rule: impl DeviceSharing + 'static) -> Self {
        let mut policy = heg_spec::shipped::policy("igpu-continuous-batching").unwrap();
        policy.limits.tokens_per_iteration = 100;
        Self::of(SingleLane::shared(policy, OneDevice, Box::new(rule)))
    }

    fn of(scheduler: SingleLane<OneDevice>) -> Self {
        Self {
            scheduler,
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
        self.submit_wanting(PromptLogits::LastRow, (id, class, prompt_tokens, flow));
    }

    fn submit_wanting(
        &mut self,
        prompt_logits: PromptLogits,
        (id, class, prompt_tokens, flow): (u64, Class, u32, Option<u64>),
    ) {
        self.hear(Event::Submit(Submission {
            id: RequestId(id),
            client: ClientId::default(),
            flow: flow.map(FlowId),
            class,
            prompt_tokens,
            shared_tokens: 0,
            kept_tokens: 0,
            output_tokens_max: 2,
            deadline: None,
            prompt_logits,
        }));
    }

    /// Returns the launch as ([requests that decode], [(request of a prompt, from, to)]).
    fn iteration(&self) -> (Vec<u64>, Vec<(u64, u32, u32)>) {
        match &self.launch {
            Some((_, Work::Mixed { batch, prompts })) => (
                batch.iter().map(|member| member.request.0).collect(),
                prompts
                    .iter()
                    .map(|(id, part)| (id.0, part.position, part.context()))
                    .collect(),
            ),
            _ => Default::default(),
        }
    }

    /// Ends the launch with an event.
    fn end(&mut self, event: impl FnOnce(Ticket) -> Event) {
        let (ticket, _) = self.launch.take().unwrap();
        self.hear(event(ticket));
    }

    fn done(&mut self) {
        self.end(|ticket| Event::Done {
            ticket,
            layers: 0,
            ended: Vec::new(),
            given: Vec::new(),
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
fn whole_prompts_are_never_cut() {
    let mut driver = Driver::new("igpu-continuous-batching", |_| {});
    for (id, tokens) in [(1, 60), (2, 50), (3, 40), (4, 150)] {
        let asked = (id, Class::Proactive, tokens, None);
        driver.submit_wanting(PromptLogits::WholePrompt, asked);
    }
    assert_eq!(driver.iteration(), (vec![], vec![(1, 0, 60)]));
    driver.done();
    assert_eq!(driver.iteration(), (vec![1], vec![(2, 0, 50), (3, 0, 40)]));
    driver.done();
    assert_eq!(driver.iteration(), (vec![2, 3], vec![]));
    driver.done();
    assert_eq!(driver.iteration(), (vec![], vec![(4, 0, 150)]));
    driver.done();
    driver.done();
    assert!(driver.scheduler.is_idle());
}

/// While a reactive request lives, nothing else runs.
#[derive(Debug)]
struct ReactiveAlone;

impl DeviceSharing for ReactiveAlone {
    fn exclusive(&self, live: ClassesPresent) -> Option<Class> {
        live.reactive.then_some(Class::Reactive)
    }
}

/// Iterations of the classes alternate.
#[derive(Debug)]
struct Alternating;

impl DeviceSharing for Alternating {
    fn next(&self, with_room: ClassesPresent, last: Option<Class>) -> Option<Class> {
        let both = with_room.reactive && with_room.proactive;
        both.then_some(match last {
            Some(Class::Reactive) => Class::Proactive,
            Some(Class::Proactive) | None => Class::Reactive,
        })
    }
}

#[test]
fn a_persons_texts_are_the_next_iteration() {
    let mut driver = Driver::shared(ReactiveFirst);
    driver.submit(1, Class::Proactive, 20, None);
    for id in [2, 4] {
        driver.submit(id, Class::Proactive, 20, None);
        driver.submit(id + 1, Class::Reactive, 20, None);
    }
    // The first has the device; the person's two come next, both in one iteration, and the rest behind them.
    assert_eq!(driver.iteration(), (vec![], vec![(1, 0, 20)]));
    driver.done();
    assert_eq!(driver.iteration(), (vec![], vec![(3, 0, 20), (5, 0, 20)]));
}

#[test]
fn a_reactive_request_costs_a_proactive_one_what_it_had() {
    let mut driver = Driver::shared(ReactiveAlone);
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
    let mut driver = Driver::shared(Alternating);
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
    // Requests that arrive meanwhile wait; cancelled ones are gone.
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
        client: ClientId::default(),
        flow: None,
        class: Class::Proactive,
        prompt_tokens: 10,
        shared_tokens: 0,
        kept_tokens: 0,
        output_tokens_max: 2,
        deadline: Some(Micros(5000)),
        prompt_logits: PromptLogits::LastRow,
    }));
    driver.now = Micros(6000);
    driver.actions.clear();
    driver.hear(Event::Timer);
    assert!(matches!(driver.actions[..], [Action::Timer(at)] if at > driver.now));
}

/// Returns the members of the launch, decoding or not.
fn members(driver: &Driver) -> Vec<u64> {
    let (batch, prompts) = driver.iteration();
    batch
        .into_iter()
        .chain(prompts.into_iter().map(|(id, ..)| id))
        .collect()
}

/// Fails the launches that `bad` is part of, one of every `every`, until no request is left.
fn fail_with(driver: &mut Driver, bad: u64, every: u32) {
    let mut launches = 0;
    while driver.launch.is_some() {
        if members(driver).contains(&bad) {
            launches += 1;
            if launches % every == 0 {
                driver.end(Event::Failed);
                continue;
            }
        }
        driver.done();
    }
}

#[test]
fn the_one_that_makes_iterations_fail_ends_and_no_other() {
    for bad in 1..=3 {
        let mut driver = Driver::new("igpu-continuous-batching", |_| {});
        for id in 1..=3 {
            driver.submit(id, Class::Proactive, 20 + id as u32, None);
        }
        fail_with(&mut driver, bad, 1);
        let mut finished = driver.finished();
        finished.sort_unstable();
        let end = |id| match id == bad {
            true => (id, Finish::Failed),
            false => (id, Finish::Complete),
        };
        assert_eq!(finished, [1, 2, 3].map(end));
    }
}

#[test]
fn one_that_fails_now_and_then_costs_nobody_its_answer() {
    for bad in 1..=3 {
        for every in 2..5 {
            let mut driver = Driver::new("igpu-continuous-batching", |_| {});
            for id in 1..=3 {
                driver.submit(id, Class::Proactive, 20 + id as u32, None);
            }
            fail_with(&mut driver, bad, every);
            let finished = driver.finished();
            let complete = |(_, finish): &(u64, Finish)| *finish == Finish::Complete;
            assert!(
                finished.len() == 3 && finished.iter().all(complete),
                "{finished:?}"
            );
        }
    }
}

#[test]
fn while_suspects_are_tried_the_others_run_in_between() {
    let mut driver = Driver::new("igpu-continuous-batching", |_| {});
    driver.submit(1, Class::Proactive, 10, None);
    driver.done();
    driver.submit(2, Class::Proactive, 10, None);
    driver.submit(3, Class::Proactive, 10, None);
    assert_eq!(members(&driver), [1]);
    driver.done();
    assert_eq!(members(&driver), [2, 3]);
    driver.end(Event::Failed);
    assert_eq!(members(&driver), [2]);
    driver.submit(4, Class::Proactive, 10, None);
    driver.end(Event::Failed);
    assert_eq!(members(&driver), [4], "nobody waits for what 2 or 3 did");
    driver.done();
    assert_eq!(members(&driver), [2]);
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
fn a_reservation_that_fails_is_tried_again_when_there_may_be_room() {
    let mut driver = Driver::new("igpu-continuous-batching", |_| {});
    driver.submit(1, Class::Proactive, 60, None);
    driver.hear(Event::Submit(Submission {
        id: RequestId(2),
        client: ClientId::default(),
        flow: None,
        class: Class::Proactive,
        prompt_tokens: 50,
        shared_tokens: 0,
        kept_tokens: 0,
        output_tokens_max: 2,
        deadline: None,
        prompt_logits: PromptLogits::LastRow,
    }));
    driver.done();
    // A launch with it does not run, and the other request goes on without it.
    assert_eq!(members(&driver), [1, 2]);
    driver.launch = None;
    driver.hear(Event::Unreserved(RequestId(2)));
    assert_eq!(
        driver.actions.last(),
        Some(&Action::Timer(driver.now + Micros(2_000_000)))
    );
    assert_eq!(members(&driver), [1]);
    // It has no memory by now: the event is out of date, and does not count.
    driver.hear(Event::Unreserved(RequestId(2)));
    driver.done();
    assert_eq!(driver.finished(), [(1, Finish::Complete)]);
    assert_eq!(members(&driver), [2], "somebody gave memory back");
    for finished in [1, 2] {
        driver.launch = None;
        driver.hear(Event::Unreserved(RequestId(2)));
        assert_eq!(driver.finished().len(), finished);
    }
    assert_eq!(driver.finished().last(), Some(&(2, Finish::Failed)));
    assert!(driver.scheduler.is_idle());
}

#[test]
fn a_cache_that_cannot_be_read_costs_time_and_nothing_else() {
    let mut driver = Driver::new("igpu-continuous-batching", |_| {});
    driver.submit(1, Class::Proactive, 60, Some(7));
    driver.done();
    driver.done();
    driver.hear(Event::Submit(Submission {
        id: RequestId(2),
        client: ClientId::default(),
        flow: Some(FlowId(7)),
        class: Class::Proactive,
        prompt_tokens: 80,
        shared_tokens: 60,
        kept_tokens: 0,
        output_tokens_max: 2,
        deadline: None,
        prompt_logits: PromptLogits::LastRow,
    }));
    assert_eq!(driver.iteration().1, [(2, 60, 80)]);
    driver.end(|ticket| Event::Unreadable {
        ticket,
        request: RequestId(2),
    });
    assert_eq!(driver.iteration().1, [(2, 0, 80)]);
    driver.done();
    driver.done();
    assert_eq!(driver.finished().last(), Some(&(2, Finish::Complete)));
}

#[test]
fn what_hangs_is_left_alone_until_the_lane_answers() {
    let mut driver = Driver::new("igpu-continuous-batching", |_| {});
    driver.submit(1, Class::Proactive, 60, None);
    let (ticket, _) = driver.launch.clone().unwrap();
    driver.now = Micros(60_000_000);
    driver.hear(Event::Timer);
    // The launch ends after all, but by then it was told to stop.
    driver.hear(Event::Done {
        ticket,
        layers: 0,
        ended: Vec::new(),
        given: Vec::new(),
    });
    driver.hear(Event::Cancel(RequestId(1)));
    assert_eq!(driver.finished(), [(1, Finish::Cancelled)]);
    assert!(
        !driver
            .actions
            .iter()
            .any(|action| matches!(action, Action::Emit(_)))
    );
    driver.hear(Event::Ready(Lane::Igpu));
    driver.submit(2, Class::Proactive, 10, None);
    assert_eq!(members(&driver), [2]);
}

#[test]
fn a_lane_that_never_answers_counts_as_lost() {
    let mut driver = Driver::new("igpu-continuous-batching", |_| {});
    driver.submit(1, Class::Proactive, 60, None);
    for (seconds, ended) in [(60, 0), (71, 0), (74, 1)] {
        driver.now = Micros(seconds * 1_000_000);
        driver.hear(Event::Timer);
        assert_eq!(driver.finished().len(), ended, "after {seconds} s");
    }
    assert_eq!(driver.finished(), [(1, Finish::Failed)]);
}

#[test]
fn requests_wait_for_the_device_to_come_back_but_not_for_ever() {
    let mut driver = Driver::new("igpu-continuous-batching", |_| {});
    driver.submit(1, Class::Proactive, 60, None);
    driver.hear(Event::Lost(Lane::Igpu));
    driver.launch = None;
    driver.submit(2, Class::Proactive, 60, None);
    assert_eq!(driver.finished(), []);
    driver.hear(Event::Ready(Lane::Igpu));
    assert_eq!(driver.iteration().1, [(1, 0, 60), (2, 0, 40)]);
    driver.hear(Event::Lost(Lane::Igpu));
    driver.launch = None;
    driver.now = driver.now + Micros(3_000_000);
    driver.hear(Event::Timer);
    driver.submit(3, Class::Proactive, 60, None);
    let failed = |id| (id, Finish::Failed);
    assert_eq!(driver.finished(), [failed(1), failed(2), failed(3)]);
    driver.hear(Event::Ready(Lane::Igpu));
    driver.submit(4, Class::Proactive, 60, None);
    assert_eq!(driver.iteration().1, [(4, 0, 60)]);
}

/// On a machine whose kernels do not hang a kernel may take for ever, and the way back of a lost lane may not.
#[test]
fn a_lost_lane_is_not_waited_for_without_an_end() {
    let mut driver = Driver::new("igpu-continuous-batching", |policy| {
        policy.limits.timeout_min_ms = u32::MAX;
    });
    driver.submit(1, Class::Reactive, 60, None);
    driver.hear(Event::Lost(Lane::Igpu));
    let wakes = driver.scheduler.next_absence().unwrap();
    assert_eq!(wakes, driver.now + Micros::from_millis(10_000));
    driver.now = wakes;
    driver.hear(Event::Timer);
    assert_eq!(driver.finished(), [(1, Finish::Failed)]);
}
