//! Random small worlds: a model of few layers, a machine, a policy, a trace, and faults.

use heg_sched::{Action, AgentXpu, Class, ClientId, FlowId, Lane, Micros, Scheduler};
use heg_sim::{
    AnalyticCosts, Checked, Contender, DevicePeak, Dimensions, DraftRecord, DraftedSteps,
    DramModel, Faults, Interruption, LaunchFault, Machine, Rival, Rules, Run, SimulatedDrafts,
    SimulationError, Violation, simulate,
};
use heg_spec::policy::{Ageing, AgeingStart, NpuAttention, Pressure, Resume};
use heg_spec::{Policy, Seeded};
use heg_workload::{Arrival, Trace, TraceRequest};

/// Everything that a simulation needs.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) costs: AnalyticCosts,
    pub(crate) policy: Policy,
    /// The scheduler, if it is not the policy's own.
    pub(crate) rival: Option<Rival>,
    pub(crate) machine: Machine,
    pub(crate) trace: Trace,
}

/// The outcome of a scenario.
pub(crate) struct Verdict {
    pub(crate) run: Result<Run, SimulationError>,
    pub(crate) violations: Vec<Violation>,
}

impl Scenario {
    /// Creates the world of a seed. Every other one is without faults.
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = Seeded::new(seed);
        let costs = costs(&mut random);
        let mut policy = policy(&mut random);
        later_rules(&mut policy, &mut Seeded::new(seed ^ 0x1a7e));
        let trace = trace(&mut random);
        let mut machine = Machine {
            memory: memory(&mut random),
            reset: Micros(1000),
            steps_max: Some(50_000),
            ..Machine::default()
        };
        if seed % 2 == 1 {
            machine.faults = faults(&mut random, &costs);
        }
        Self {
            costs,
            policy,
            rival: None,
            machine,
            trace,
        }
    }

    /// Puts the world under another policy, with its scheduler.
    pub(crate) fn put_under(&mut self, contender: Contender) {
        let Contender { policy, rival } = contender;
        let limits = self.policy.limits.clone();
        let bounds = (
            policy.limits.igpu_percent_max,
            policy.limits.power_watts_max,
        );
        (self.policy, self.rival) = (policy, rival);
        self.policy.limits = limits;
        (
            self.policy.limits.igpu_percent_max,
            self.policy.limits.power_watts_max,
        ) = bounds;
    }

    /// Creates a world as [`Scenario::of`] does, under the policy of one of the schedulers with which Agent.xpu is
    /// compared.
    pub(crate) fn of_baseline(seed: u64) -> Self {
        let mut scenario = Self::of(seed);
        let mut random = Seeded::new(seed ^ 0xba5e);
        let names = [
            "igpu-continuous-batching",
            "cpu-continuous-batching",
            "cpu-priority-batching",
            "igpu-preempt-recompute",
            "igpu-time-sharing",
            "serial-npu-igpu",
        ];
        scenario.put_under(Contender::named(names[random.below(names.len())]).unwrap());
        scenario.policy.limits.tokens_per_iteration = [1, 8, 40, 512][random.below(4)];
        let decode = &mut scenario.policy.decode;
        decode.batch_max = decode.batch_max.min([2, 4, 32][random.below(3)]);
        scenario
    }

    /// Adds drafts to the world's answers.
    pub(crate) fn drafting(mut self, seed: u64) -> Self {
        let mut random = Seeded::new(seed ^ 0xd4af);
        let record = drafts(&mut random);
        self.machine.drafts = Some(SimulatedDrafts::new(&record, seed));
        self.policy.decode.draft_rows_max = [1, 4, 8, 32][random.below(4)];
        self
    }

    pub(crate) fn rules(&self) -> Rules {
        Rules {
            policy: self.policy.clone(),
            rival: self.rival,
        }
    }

    /// Returns all actions of Agent.xpu's scheduler, with their times.
    pub(crate) fn log(&self) -> Vec<(Micros, Action)> {
        self.log_of(|scheduler| scheduler)
    }

    /// Returns all actions of Agent.xpu's scheduler, changed by `broken`.
    pub(crate) fn log_of<B: Scheduler>(
        &self,
        broken: impl FnOnce(AgentXpu<AnalyticCosts>) -> B,
    ) -> Vec<(Micros, Action)> {
        let scheduler = broken(AgentXpu::new(self.policy.clone(), self.costs.clone()));
        let mut checked = Checked::new(scheduler, &self.costs, self.rules()).with_log();
        simulate(&mut checked, &self.costs, &self.machine, &self.trace).unwrap();
        checked.log().to_vec()
    }

    /// Runs Agent.xpu's scheduler, changed by `broken`, and judges it by the scenario's policy.
    pub(crate) fn run_broken<B: Scheduler>(
        &self,
        broken: impl FnOnce(AgentXpu<AnalyticCosts>) -> B,
    ) -> Verdict {
        self.judge(broken(AgentXpu::new(
            self.policy.clone(),
            self.costs.clone(),
        )))
    }

    /// Runs and judges the scheduler of the scenario's policy.
    pub(crate) fn run(&self) -> Verdict {
        self.judge(self.scheduler())
    }

    /// Returns the scheduler of the scenario's policy.
    pub(crate) fn scheduler(&self) -> Box<dyn Scheduler> {
        self.contender().scheduler(self.costs.clone())
    }

    /// Returns the scenario's policy and scheduler.
    pub(crate) fn contender(&self) -> Contender {
        Contender {
            policy: self.policy.clone(),
            rival: self.rival,
        }
    }

    /// Runs any scheduler, and judges it by the scenario's policy.
    pub(crate) fn judge(&self, scheduler: impl Scheduler) -> Verdict {
        let mut checked = Checked::new(scheduler, &self.costs, self.rules());
        let run = simulate(&mut checked, &self.costs, &self.machine, &self.trace);
        Verdict {
            run,
            violations: checked.finish(),
        }
    }
}

/// Returns a random time in ms, at the scale of the small models.
fn ms(random: &mut Seeded, max: usize) -> Micros {
    Micros(random.below(max * 1000) as u64)
}

fn costs(random: &mut Seeded) -> AnalyticCosts {
    let device = |random: &mut Seeded| DevicePeak {
        flops_per_sec: [1e10, 5e10, 2e11][random.below(3)],
        bytes_per_sec: [5e8, 2e9, 8e9][random.below(3)],
        launch_us: 5.0,
    };
    let mut devices = [(); 3].map(|()| Some(device(random)));
    match random.below(8) {
        0 => devices[Lane::Npu as usize] = None,
        1 => devices[Lane::Igpu as usize] = None,
        _ => {}
    }
    if random.below(2) == 0 && devices[Lane::Igpu as usize].is_some() {
        devices[Lane::Cpu as usize] = None;
    }
    AnalyticCosts {
        dimensions: Dimensions {
            layers: 1 + random.below(4) as u32,
            hidden: 256,
            inner: 512,
            heads: 8,
            kv_heads: 8,
            head_dim: 128,
            vocab: 1000,
        },
        devices,
        dram_bytes_per_sec: 8e9,
        chunk_tokens: [8, 16, 32][random.below(3)],
        context_tokens: if random.below(4) == 0 { 120 } else { 4096 },
    }
}

fn memory(random: &mut Seeded) -> DramModel {
    match random.below(2) {
        0 => DramModel::default(),
        _ => DramModel::snapdragon(),
    }
}

fn policy(random: &mut Seeded) -> Policy {
    let name = ["agent-xpu", "agent-xpu", "agent-xpu-v1"][random.below(3)];
    let mut policy = heg_spec::shipped::policy(name).unwrap();
    let flip = |random: &mut Seeded, flag: &mut bool| *flag ^= random.below(6) == 0;
    let prefill = &mut policy.prefill;
    for flag in [
        &mut prefill.preempt,
        &mut prefill.elastic,
        &mut prefill.balance,
        &mut prefill.defer_remainder,
    ] {
        flip(random, flag);
    }
    match random.below(8) {
        0 => prefill.attention = NpuAttention::Off,
        2 => prefill.joint_bandwidth_max = None,
        3 => prefill.joint_bandwidth_max = Some(0.3),
        4 => prefill.resume = Resume::LeastTimeToCompletion,
        _ => {}
    }
    prefill.short_prompts_first = [None, None, Some(0.5), Some(4.0)][random.below(4)];
    // Of a copy, so that the other choices stay as they were.
    prefill.window_tokens = [1, 48, 4096, 4096][random.clone().below(4)];
    // Chunks that fit none of the machines' kernels.
    prefill.proactive_chunk_tokens = prefill.short_prompts_first.map(|_| 5);
    let decode = &mut policy.decode;
    for flag in [
        &mut decode.evict_longest,
        &mut decode.prefill_first,
        &mut decode.fused_layer,
    ] {
        flip(random, flag);
    }
    decode.batch_max = [2, 4, 32][random.below(3)];
    decode.proactive_share = [None, Some(0.2), Some(0.6)][random.below(3)];
    decode.reactive_slowdown_max = decode.proactive_share.map(|share| 1.0 + share);
    decode.young_answers_first = [None, Some(1.0), Some(4.0)][random.below(3)];
    decode.ending_answers_first = [None, Some(1.0), Some(4.0)][random.below(3)];
    decode.reactive_batch_max = [None, Some(1), Some(3), Some(3)][random.below(4)];
    policy.ageing = match random.below(4) {
        0 => None,
        _ => Some(Ageing {
            threshold_ms: 1 + random.below(60) as u32,
            prompts_from: AgeingStart::Arrival,
        }),
    };
    if random.below(6) == 0 {
        policy.pressure = Some(Pressure {
            medium: 0.2,
            high: 0.5,
            duration_bound: random.below(2) == 0,
        });
    }
    policy.limits.kv_mib = [1, 2, 4, 64][random.below(4)];
    policy.limits.flash_mib = [0, 1, 64][random.below(3)];
    policy.limits.requests_max = if random.below(6) == 0 { 3 } else { 64 };
    policy.limits.timeout_min_ms = 20;
    policy
}

/// Rules that were added later, with random numbers of their own, so that worlds without them stay unchanged.
fn later_rules(policy: &mut Policy, random: &mut Seeded) {
    let prefill = &mut policy.prefill;
    prefill.short_prompts_aside ^= random.below(3) == 0;
    prefill.split_beside_proactive_ms = [None, Some(0), Some(5), Some(50)][random.below(4)];
    // Two removed rules drew numbers here; drawing them still keeps the worlds unchanged.
    let _ = (random.below(4), random.below(4));
    policy.limits.power_watts_max = [None, None, None, Some(20), Some(36)][random.below(5)];
    policy.limits.igpu_percent_max = [None, None, None, None, Some(30), Some(80)][random.below(6)];
    prefill.long_prompts_aside_ms = [None, Some(0), Some(5), Some(50)][random.below(4)];
    if let Some(ageing) = &mut policy.ageing
        && random.below(2) == 0
    {
        ageing.prompts_from = AgeingStart::Turn;
    }
}

fn trace(random: &mut Seeded) -> Trace {
    let count = 1 + random.below(10);
    let span = [1, 20, 200][random.below(3)];
    // A token takes about 4 KiB times the layers: the smallest budgets hold few requests.
    let prompt_max = [20, 60, 150][random.below(3)];
    let mut requests: Vec<TraceRequest> = Vec::new();
    for place in 0..count {
        let follows = place > 0 && random.below(4) == 0;
        let before = requests.last().copied().filter(|_| follows);
        let mut prompt_tokens = 1 + random.below(prompt_max) as u32;
        let mut shared_tokens = 0;
        let mut arrival = Arrival::At(ms(random, span));
        let mut flow = (random.below(3) == 0).then_some(FlowId(place as u64));
        let mut class = [Class::Reactive, Class::Proactive, Class::Proactive][random.below(3)];
        if let Some(before) = before
            && before.flow.is_some()
        {
            (flow, class) = (before.flow, before.class);
            shared_tokens = before.prompt_tokens + random.below(3) as u32;
            prompt_tokens += shared_tokens;
            // Mostly the next call waits for the last; sometimes two are present at once.
            if let (0, Arrival::At(at)) = (random.below(4), before.arrival) {
                arrival = Arrival::At(at + ms(random, 5));
            } else {
                arrival = Arrival::After {
                    request: place as u64 - 1,
                    pause: ms(random, 5),
                    not_before: Micros(0),
                };
            }
            if let Some(last) = requests.last_mut() {
                last.ends_flow = false;
            }
        }
        let output_tokens = 1 + random.below(12) as u32;
        let rarely = |random: &mut Seeded| random.below(10) == 0;
        requests.push(TraceRequest {
            client: ClientId::default(),
            arrival,
            class,
            flow,
            ends_flow: flow.is_some(),
            prompt_tokens,
            shared_tokens,
            output_tokens,
            output_tokens_max: output_tokens + random.below(8) as u32,
            deadline_after: rarely(random).then(|| ms(random, 50)),
            cancel_after: rarely(random).then(|| ms(random, 50)),
        });
    }
    Trace { requests }
}

/// Drafts of up to twenty tokens, which are right more often in some worlds than in others.
fn drafts(random: &mut Seeded) -> DraftRecord {
    let luck = random.unit();
    let mut steps = Vec::new();
    for _ in 0..1 + random.below(12) {
        let drafted = random.below(21) as u32;
        let mut accepted = 0;
        while accepted < drafted && random.unit() < luck {
            accepted += 1;
        }
        let count = 1 + random.below(9) as u32;
        steps.push(DraftedSteps::from([drafted, 0, accepted, count]));
    }
    DraftRecord {
        data: "random".to_owned(),
        method: "chain".to_owned(),
        answers: 1,
        prompt_tokens: 1,
        answer_tokens: 1,
        steps,
    }
}

fn faults(random: &mut Seeded, costs: &AnalyticCosts) -> Faults {
    let mut faults = Faults::default();
    for _ in 0..random.below(5) {
        let fault = [
            LaunchFault::Fail,
            LaunchFault::Hang,
            LaunchFault::OutOfMemory,
        ];
        let launch = random.below(200) as u64;
        faults.launches.insert(launch, fault[random.below(3)]);
    }
    for lane in Lane::ALL {
        if costs.devices[lane as usize].is_some() && random.below(4) == 0 {
            let lost = ms(random, 60);
            faults.interruptions.push(Interruption {
                lane,
                lost,
                back: (random.below(3) > 0).then(|| lost + ms(random, 40)),
            });
        }
    }
    faults
}
