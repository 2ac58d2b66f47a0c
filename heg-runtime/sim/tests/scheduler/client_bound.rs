//! A client's short request beside sixty long ones of another starts, in virtual time, within the bound that
//! `agent_xpu/client_turns.rs` derives: its own work, one kernel and one iteration.

use heg_sched::{
    Action, Actions, Class, ClientId, Event, Lane, Micros, Scheduler, Work, scheduler,
};
use heg_sim::{AnalyticCosts, Checked, Dimensions, Machine, Rules, Run, simulate};
use heg_spec::{Policy, Seeded, shipped};
use heg_workload::{Arrival, Trace, TraceRequest};

use crate::clients::OneClient;

/// Number of requests of the second client.
const TRIES: u64 = 100;

/// Sixty requests of one client at once, and short ones of another from time to time.
struct Crowd {
    costs: AnalyticCosts,
    policy: Policy,
    trace: Trace,
}

/// The longest launches of each kind, in µs.
#[derive(Debug, Default)]
struct Longest {
    kernel: u64,
    iteration: u64,
}

impl Crowd {
    /// Creates a crowd on a machine of one device, whose KV memory holds about half of it.
    fn new(policy: &str, class: Class) -> Self {
        let mut costs = AnalyticCosts::core_ultra_5_125h(Dimensions::llama_3b());
        let mut policy = shipped::policy(policy).unwrap();
        match Lane::from(policy.device) {
            Lane::Igpu if policy.name.starts_with("igpu") => {}
            _ => costs.devices = [None, None, costs.devices[Lane::Cpu as usize]],
        }
        policy.limits.kv_mib = 8192;
        let mut random = Seeded::new(1);
        let mut requests = Vec::new();
        let mut push = |client, at, prompt_tokens, output_tokens| {
            let arrival = Arrival::At(Micros(at));
            requests.push(TraceRequest {
                client: ClientId(client),
                ..TraceRequest::lone(class, arrival, prompt_tokens, output_tokens)
            });
        };
        for place in 0..60 {
            push(1, place, 50 + random.below(2000) as u32, 900);
        }
        for place in 0..TRIES {
            let at = 2_000_000 + place * 5_000_000 + random.below(3_000_000) as u64;
            push(2, at, 8 + random.below(60) as u32, 4);
        }
        Self {
            costs,
            policy,
            trace: Trace { requests },
        }
    }

    fn run(&self, scheduler: impl Scheduler, trace: &Trace) -> (Run, Longest) {
        let machine = Machine {
            timeline: true,
            ..Machine::default()
        };
        let mut scheduler = scheduler;
        let run = simulate(&mut scheduler, &self.costs, &machine, trace).unwrap();
        let mut longest = Longest::default();
        for span in &run.timeline {
            let most = match span.work {
                Work::Prefill { .. } | Work::Head(_) => &mut longest.kernel,
                Work::Decode(_) | Work::Mixed { .. } => &mut longest.iteration,
            };
            *most = (*most).max((span.end - span.start).0);
        }
        (run, longest)
    }

    fn scheduler(&self) -> Box<dyn Scheduler> {
        scheduler(self.policy.clone(), self.costs.clone())
    }

    /// Returns the time to the first token of a request that runs alone.
    fn alone(&self, request: &TraceRequest) -> Micros {
        let requests = vec![TraceRequest {
            arrival: Arrival::At(Micros(0)),
            ..*request
        }];
        let (run, _) = self.run(self.scheduler(), &Trace { requests });
        run.requests[0].first_token.unwrap()
    }

    /// Returns the longest wait of the second client, as a multiple of its own work, a kernel and an iteration, and the
    /// least number of requests of the first client that waited meanwhile.
    fn worst(&self, scheduler: impl Scheduler) -> f64 {
        let (run, longest) = self.run(scheduler, &self.trace);
        let of_second = self.trace.requests.iter().zip(&run.requests).skip(60);
        let ratios = of_second.map(|(asked, record)| {
            let waited = record.first_token.unwrap() - record.arrived.unwrap();
            // An iteration of the baseline includes parts of prompts; this prompt is in the next one.
            let bound = self.alone(asked).0 + longest.kernel + longest.iteration;
            waited.0 as f64 / bound as f64
        });
        let worst = ratios.fold(0.0, f64::max);
        let last = run.requests[59].ended.unwrap();
        let tries = run.requests[60..]
            .iter()
            .filter(|it| it.arrived.unwrap() < last);
        eprintln!(
            "{}: {worst:.3} of {longest:?}, {} tries",
            self.policy.name,
            tries.count()
        );
        worst
    }
}

#[test]
fn a_short_request_starts_beside_sixty_long_ones() {
    for class in [Class::Reactive, Class::Proactive] {
        let crowd = Crowd::new("agent-xpu-one-device", class);
        let worst = crowd.worst(crowd.scheduler());
        assert!(worst <= 1.2, "{class:?}: {worst}");
        let without = crowd.worst(OneClient(crowd.scheduler()));
        assert!(without > 10.0, "{class:?}, without turns: {without}");
    }
}

#[test]
fn a_short_request_is_part_of_the_next_iteration_of_a_baseline() {
    let crowd = Crowd::new("cpu-continuous-batching", Class::Reactive);
    // Its own prompt comes with rows of others, an iteration after the one under way.
    let worst = crowd.worst(crowd.scheduler());
    assert!(worst <= 2.4, "{worst}");
    let without = crowd.worst(OneClient(crowd.scheduler()));
    assert!(without > 10.0, "without turns: {without}");
}

/// Long requests of two clients, which do not fit into memory together: each client has about half of the lane.
#[test]
fn two_clients_have_half_of_the_lane_each() {
    for name in ["agent-xpu-one-device", "cpu-continuous-batching"] {
        let mut crowd = Crowd::new(name, Class::Reactive);
        crowd.trace.requests.truncate(60);
        for (place, request) in crowd.trace.requests.iter_mut().enumerate() {
            // The second client comes later, with fewer requests.
            request.client = ClientId(u64::from(place >= 40));
            if place >= 40 {
                request.arrival = Arrival::At(Micros(3_000_000));
            }
        }
        let mut checked = Checked::new(
            Tokens::new(crowd.scheduler()),
            &crowd.costs,
            Rules::from(crowd.policy.clone()),
        );
        simulate(
            &mut checked,
            &crowd.costs,
            &Machine::default(),
            &crowd.trace,
        )
        .unwrap();
        let tokens = checked.scheduler().while_both;
        assert_eq!(checked.finish(), []);
        let share = tokens[1] as f64 / (tokens[0] + tokens[1]) as f64;
        eprintln!("{name}: {tokens:?}");
        assert!((0.4..0.6).contains(&share), "{name}: {tokens:?}");
    }
}

/// Counts the tokens of two clients, from the first token of the second client until either has all of its tokens.
struct Tokens<S> {
    scheduler: S,
    live: [usize; 2],
    seen: [u64; 2],
    while_both: [u64; 2],
}

impl<S> Tokens<S> {
    fn new(scheduler: S) -> Self {
        Self {
            scheduler,
            live: [0; 2],
            seen: [0; 2],
            while_both: [0; 2],
        }
    }
}

impl<S: Scheduler> Scheduler for Tokens<S> {
    fn step(&mut self, now: Micros, event: Event, actions: &mut Actions) {
        if let Event::Submit(submission) = &event {
            self.live[submission.client.0 as usize] += 1;
        }
        let first = actions.len();
        self.scheduler.step(now, event, actions);
        for action in &actions[first..] {
            match action {
                Action::Emit(id) => {
                    let client = usize::from(id.0 >= 40);
                    self.seen[client] += 1;
                    if self.live.iter().all(|live| *live > 0) && self.seen[1] > 1000 {
                        self.while_both[client] += 1;
                    }
                }
                Action::Finish(id, _) => self.live[usize::from(id.0 >= 40)] -= 1,
                _ => {}
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }
}
