//! Explanations of slow requests: each run has one intended cause of delay; its trace is written and read again, and
//! the explanation of the request has to name that cause first.

use heg_sched::{
    AgentXpu, Call, Class, ClientId, Cost, Costs, FlowId, KernelBound, Lane, LayerKernel,
    Mechanism, Micros, ModelShape, Observed, RequestId, Scheduler, SingleLane, Slowdowns,
    WarmKernel, WorkStage,
};
use heg_sim::{Faults, Interruption, LaunchFault, Machine, simulate};
use heg_spec::{Policy, shipped};
use heg_workload::{
    Arrival, Explanation, RunTrace, SlowCause, Trace, TraceFile, TraceRequest, explain,
};

use crate::script::{RoundCosts, of_any_kind};

/// The costs of scripts, with some changed.
#[derive(Debug, Clone)]
struct ChangedCosts {
    round: RoundCosts,
    /// Time of attention on the iGPU, in ms.
    attention_ms: f64,
    /// Time of `qkv` and `ffn` on the iGPU, in ms; `None`: the same as on the NPU.
    igpu_token_wise_ms: Option<f64>,
    /// Time of attention on the NPU, and the time to compile its kernel, in ms.
    warm_ms: Option<(f64, u32)>,
    /// Share of the bandwidth that attention on the NPU draws.
    warm_bandwidth: f64,
}

impl Default for ChangedCosts {
    fn default() -> Self {
        Self {
            round: RoundCosts {
                draws: |_, _| 0.1,
                lanes: [true, true, false],
                row_ms: 0.0,
                verifies: false,
            },
            attention_ms: 4.0,
            igpu_token_wise_ms: None,
            warm_ms: None,
            warm_bandwidth: 0.1,
        }
    }
}

impl Costs for ChangedCosts {
    fn model(&self) -> ModelShape {
        self.round.model()
    }

    fn cost(&self, lane: Lane, call: Call) -> Option<Cost> {
        let mut cost = self.round.cost(lane, call)?;
        let Call::Prefill { kernel, .. } = call else {
            return Some(cost);
        };
        match (lane, kernel) {
            (Lane::Igpu, LayerKernel::Mha) => cost.latency_us = self.attention_ms * 1e3,
            (Lane::Igpu, _) => {
                let millis = self.igpu_token_wise_ms.map(|millis| millis * 1e3);
                cost.latency_us = millis.unwrap_or(cost.latency_us);
            }
            _ => {}
        }
        Some(cost)
    }

    fn watts(&self, lane: Lane, stage: WorkStage) -> Option<f64> {
        self.round.watts(lane, stage)
    }

    fn warm_cost(&self, _: WarmKernel) -> Option<Cost> {
        self.warm_ms.map(|(millis, _)| Cost {
            latency_us: millis * 1e3,
            bandwidth: self.warm_bandwidth,
        })
    }

    fn warm_up(&self, _: WarmKernel) -> Option<Micros> {
        self.warm_ms.map(|(_, millis)| Micros::from_millis(millis))
    }
}

/// A run with one cause of delay.
struct Case {
    policy: Policy,
    costs: ChangedCosts,
    machine: Machine,
    requests: Vec<TraceRequest>,
}

impl Case {
    /// Creates a run under Agent.xpu's policy on an NPU and an iGPU.
    fn new(requests: impl IntoIterator<Item = TraceRequest>) -> Self {
        Self {
            policy: shipped::policy("agent-xpu").unwrap(),
            costs: ChangedCosts::default(),
            machine: Machine {
                reset: Micros(1000),
                steps_max: Some(100_000),
                ..Machine::default()
            },
            requests: requests.into_iter().collect(),
        }
    }

    /// Changes the policy.
    fn with(mut self, change: impl FnOnce(&mut Policy)) -> Self {
        change(&mut self.policy);
        self
    }

    /// Runs the case, writes and reads its trace, and explains a request.
    fn explain(self, request: u64) -> Explanation {
        let scheduler = AgentXpu::new(self.policy.clone(), of_any_kind(self.costs.clone()));
        self.explain_with(scheduler, request)
    }

    fn explain_with(self, scheduler: impl Scheduler, request: u64) -> Explanation {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let file = TraceFile::create(&path).unwrap();
        let mut observed = Observed::new(scheduler, file);
        let trace = Trace {
            requests: self.requests,
        };
        simulate(&mut observed, &self.costs, &self.machine, &trace).unwrap();
        drop(observed);
        let trace = RunTrace::read(std::fs::File::open(&path).unwrap()).unwrap();
        let explanation = explain(&trace, RequestId(request)).unwrap();
        println!("{explanation}\n{}", explanation.picture(60));
        explanation
    }
}

/// Returns a request that arrives at `at_ms`, with the lengths of its prompt and answer.
fn request(class: Class, at_ms: u32, prompt_tokens: u32, output_tokens: u32) -> TraceRequest {
    let arrival = Arrival::At(Micros::from_millis(at_ms));
    TraceRequest::lone(class, arrival, prompt_tokens, output_tokens)
}

fn reactive(at_ms: u32, prompt_tokens: u32, output_tokens: u32) -> TraceRequest {
    request(Class::Reactive, at_ms, prompt_tokens, output_tokens)
}

fn proactive(at_ms: u32, prompt_tokens: u32, output_tokens: u32) -> TraceRequest {
    request(Class::Proactive, at_ms, prompt_tokens, output_tokens)
}

/// Returns the largest cause of delay of the first token.
fn main_cause(explanation: &Explanation) -> SlowCause {
    explanation.first_token.main().unwrap().cause
}

/// Returns a script in which one launch, given by number, has a fault.
fn faults(launch: u64, fault: LaunchFault) -> Faults {
    Faults {
        launches: [(launch, fault)].into(),
        ..Faults::default()
    }
}

#[test]
fn behind_a_reactive_prompt() {
    let case = Case::new([reactive(0, 2048, 1), reactive(5, 256, 1)]).with(|policy| {
        policy.prefill.short_prompts_first = None;
        policy.prefill.short_prompts_aside = false;
        policy.prefill.long_prompts_aside_ms = None;
    });
    let explanation = case.explain(1);
    assert_eq!(main_cause(&explanation), SlowCause::Prompt(RequestId(0)));
    let text = explanation.to_string();
    assert!(
        text.contains("behind the prompt of request 0 (reactive)"),
        "{text}"
    );
}

#[test]
fn behind_a_proactive_kernel_that_takes_long() {
    let mut case = Case::new([proactive(0, 256, 1), reactive(5, 256, 1)]);
    case.machine.faults = faults(0, LaunchFault::Late(Micros::from_millis(300)));
    let explanation = case.explain(1);
    let cause = SlowCause::Kernel(RequestId(0), Lane::Npu);
    assert_eq!(main_cause(&explanation), cause);
}

#[test]
fn left_out_of_a_full_batch() {
    let requests = [
        proactive(0, 200, 8),
        proactive(0, 100, 60),
        proactive(0, 50, 60),
        reactive(215, 20, 60),
    ];
    let case = Case::new(requests).with(|policy| policy.prefill.elastic = false);
    let explanation = case.explain(0);
    let answer = explanation.answer.unwrap();
    assert_eq!(answer.main().unwrap().cause, SlowCause::BatchFull);
}

#[test]
fn behind_another_client_whose_turn_it_is() {
    let mut requests = [reactive(0, 2048, 1), reactive(5, 3000, 1)];
    requests[1].client = ClientId(1);
    let case = Case::new(requests).with(|policy| {
        policy.prefill.short_prompts_aside = false;
        policy.prefill.long_prompts_aside_ms = None;
    });
    let text = case.explain(1).to_string();
    assert!(
        text.contains("behind another client, whose turn it was"),
        "{text}"
    );
}

#[test]
fn waiting_for_memory() {
    let case = Case::new([reactive(0, 900, 100), reactive(5, 256, 1)]);
    let explanation = case.with(|policy| policy.limits.kv_mib = 1).explain(1);
    assert_eq!(main_cause(&explanation), SlowCause::Memory);
}

#[test]
fn behind_one_that_waits_for_memory() {
    let requests = [
        reactive(0, 900, 100),
        reactive(200, 256, 1),
        reactive(201, 100, 1),
    ];
    let case = Case::new(requests).with(|policy| policy.limits.kv_mib = 1);
    let explanation = case.explain(2);
    assert_eq!(main_cause(&explanation), SlowCause::Memory);
    let text = explanation.to_string();
    assert!(
        text.contains("waiting for KV memory, which held up request 1 (reactive) before it"),
        "{text}"
    );
}

#[test]
fn attention_while_its_kernel_is_compiled() {
    let mut case = Case::new([proactive(0, 256, 1), reactive(5, 256, 1)]);
    case.costs.attention_ms = 100.0;
    case.costs.warm_ms = Some((5.0, 2000));
    assert_eq!(main_cause(&case.explain(1)), SlowCause::WarmUp);
}

/// The second request waits, so that a kernel of attention is compiled; the third has its attention on the NPU, where
/// it takes all of the bandwidth while the first decodes.
#[test]
fn deferred_for_bandwidth() {
    let requests = [
        proactive(0, 512, 8),
        proactive(0, 512, 1),
        reactive(225, 512, 1),
    ];
    let mut case = Case::new(requests).with(|policy| policy.prefill.elastic = false);
    case.costs.attention_ms = 100.0;
    case.costs.warm_ms = Some((50.0, 1));
    case.costs.warm_bandwidth = 0.9;
    let answer = case.explain(0).answer.unwrap();
    assert_eq!(
        answer.main().unwrap().cause,
        SlowCause::Rule(Mechanism::BandwidthDeferral)
    );
}

/// After attention of 4 ms the iGPU rests for 196 ms.
#[test]
fn while_the_igpu_rests_for_graphics() {
    let case =
        Case::new([reactive(0, 256, 1)]).with(|policy| policy.limits.igpu_percent_max = Some(2));
    assert_eq!(
        main_cause(&case.explain(0)),
        SlowCause::Rule(Mechanism::IgpuShare)
    );
}

/// NPU and iGPU draw 10 and 25 W.
#[test]
fn waiting_for_the_power_budget() {
    let case = Case::new([reactive(0, 256, 60), proactive(150, 512, 1)])
        .with(|policy| policy.limits.power_watts_max = Some(30));
    assert_eq!(
        main_cause(&case.explain(1)),
        SlowCause::Rule(Mechanism::PowerBudget)
    );
}

#[test]
fn behind_a_kernel_that_hangs() {
    let mut case = Case::new([proactive(0, 256, 1), reactive(5, 256, 1)])
        .with(|policy| policy.limits.timeout_min_ms = 500);
    case.machine.faults = faults(0, LaunchFault::Hang);
    let cause = SlowCause::Hung(RequestId(0), Lane::Npu);
    assert_eq!(main_cause(&case.explain(1)), cause);
}

#[test]
fn in_a_kernel_of_its_own_that_hangs() {
    let mut case =
        Case::new([reactive(0, 256, 1)]).with(|policy| policy.limits.timeout_min_ms = 500);
    case.machine.faults = faults(2, LaunchFault::Hang);
    let explanation = case.explain(0);
    assert!(matches!(
        main_cause(&explanation),
        SlowCause::Hung(RequestId(0), _)
    ));
    let text = explanation.to_string();
    assert!(
        text.contains("for a kernel of its own that hung on the NPU"),
        "{text}"
    );
}

/// Returns a run of a request that decodes alone, and then beside the chunks of a proactive prompt.
fn answer_beside_a_prompt() -> Case {
    Case::new([reactive(0, 256, 60), proactive(300, 2048, 1)])
}

#[test]
fn slowed_down_by_the_other_lane() {
    let mut case = answer_beside_a_prompt();
    let mut table = Slowdowns::new([1.0; Lane::ALL.len()]);
    let (npu, igpu) = (Lane::Npu, Lane::Igpu);
    let compute = KernelBound::Compute;
    table.set((igpu, compute), (npu, compute), 1.3);
    case.machine.memory = case.machine.memory.measured(Some(table));
    let explanation = case.explain(0);
    let slowed = explanation.answer.as_ref().unwrap().shares.iter();
    let slowed: Vec<_> = slowed
        .filter(|share| share.cause == SlowCause::Contention(npu))
        .collect();
    let [share] = slowed[..] else {
        panic!("{explanation}");
    };
    let said = "running 1.3 times as long as alone beside the NPU's lane";
    assert_eq!(share.text, said);
    // 240 ms of chunks, beside which decoding is slower by three tenths unless it waits.
    assert!(share.time > Micros(10_000), "{explanation}");
    assert_eq!(explanation.first_token.shares.len(), 1, "{explanation}");
}

#[test]
fn where_nothing_is_slowed_down_nobody_is_accused() {
    for request in [0, 1] {
        let explanation = answer_beside_a_prompt().explain(request);
        let answer = explanation.answer.iter();
        let mut shares = answer
            .chain([&explanation.first_token])
            .flat_map(|it| &it.shares);
        let accuses = |cause| matches!(cause, SlowCause::Contention(_) | SlowCause::Device(_));
        assert!(!shares.any(|share| accuses(share.cause)), "{explanation}");
    }
}

/// One decode run of many takes half a second longer, and nothing runs beside it.
#[test]
fn waiting_for_the_device_itself() {
    let mut case = Case::new([reactive(0, 256, 60)]);
    case.machine.faults = faults(40, LaunchFault::Late(Micros::from_millis(500)));
    let answer = case.explain(0).answer.unwrap();
    let main = answer.main().unwrap();
    assert_eq!(main.cause, SlowCause::Device(Lane::Igpu));
    assert_eq!(main.time, Micros(500_000));
    assert!(
        main.text.starts_with("waiting for the iGPU"),
        "{}",
        main.text
    );
}

#[test]
fn without_a_lane() {
    let mut case =
        Case::new([reactive(0, 256, 1)]).with(|policy| policy.limits.timeout_min_ms = 5000);
    case.machine.faults.interruptions = vec![Interruption {
        lane: Lane::Igpu,
        lost: Micros::from_millis(5),
        back: Some(Micros::from_millis(400)),
    }];
    assert_eq!(main_cause(&case.explain(0)), SlowCause::NoLane);
}

#[test]
fn on_another_lane_than_the_one_that_was_lost() {
    let mut case = Case::new([reactive(0, 1024, 1)]);
    case.costs.igpu_token_wise_ms = Some(60.0);
    case.machine.faults.interruptions = vec![Interruption {
        lane: Lane::Npu,
        lost: Micros::from_millis(15),
        back: None,
    }];
    let cause = SlowCause::WithoutLane(Lane::Npu);
    assert_eq!(main_cause(&case.explain(0)), cause);
}

#[test]
fn behind_an_overdue_request() {
    let mut case = Case::new([reactive(0, 512, 1), proactive(0, 256, 1)])
        .with(|policy| policy.ageing.as_mut().unwrap().threshold_ms = 20);
    case.costs.igpu_token_wise_ms = Some(200.0);
    let cause = SlowCause::Overdue(RequestId(1));
    assert_eq!(main_cause(&case.explain(0)), cause);
}

#[test]
fn preempted_by_a_reactive_prompt() {
    let case = Case::new([proactive(0, 512, 1), reactive(25, 2048, 1)]);
    let cause = SlowCause::Preempted(RequestId(1));
    assert_eq!(main_cause(&case.explain(0)), cause);
}

#[test]
fn started_over_when_its_memory_was_taken() {
    // The second request preempts the first, and the third needs its memory.
    let requests = [
        proactive(0, 600, 1),
        reactive(80, 300, 60),
        reactive(90, 300, 1),
    ];
    let case = Case::new(requests).with(|policy| policy.limits.kv_mib = 1);
    let shares = case.explain(0).first_token.shares;
    let lost = shares
        .iter()
        .find(|share| share.cause == SlowCause::StartedOver);
    assert!(
        lost.is_some_and(|share| share.time > Micros(60_000)),
        "{shares:?}"
    );
}

/// Returns a flow's first call, another request that needs its memory, and a second call of the flow.
fn flow_and_another() -> Case {
    let of_flow = |request: TraceRequest| TraceRequest {
        flow: Some(FlowId(7)),
        ..request
    };
    let first = of_flow(reactive(0, 600, 1));
    let second = TraceRequest {
        shared_tokens: 600,
        ends_flow: true,
        ..of_flow(reactive(2000, 700, 1))
    };
    Case::new([first, reactive(600, 900, 1), second]).with(|policy| {
        policy.limits.kv_mib = 1;
        policy.limits.flash_mib = 64;
    })
}

#[test]
fn reading_a_cache_back_from_flash() {
    let mut case = flow_and_another();
    case.machine.flash_read = Micros::from_millis(300);
    assert_eq!(main_cause(&case.explain(2)), SlowCause::FlashRead);
}

#[test]
fn waiting_for_a_cache_to_be_written_to_flash() {
    let mut case = flow_and_another();
    case.machine.flash_write = Micros::from_millis(900);
    assert_eq!(main_cause(&case.explain(1)), SlowCause::FlashWrite);
}

#[test]
fn behind_answers_that_go_first() {
    let mut case = Case::new([reactive(0, 256, 60), reactive(150, 512, 1)])
        .with(|policy| policy.decode.young_answers_first = Some(0.3));
    case.costs.round.lanes = [false, true, false];
    assert_eq!(main_cause(&case.explain(1)), SlowCause::Answers);
}

#[test]
fn behind_a_prompt_of_one_device_without_classes() {
    let mut case = Case::new([proactive(0, 3000, 1), reactive(5, 256, 1)]);
    case.policy = shipped::policy("igpu-continuous-batching").unwrap();
    case.policy.limits.tokens_per_iteration = 256;
    case.policy.limits.kv_mib = 64;
    let scheduler = SingleLane::new(case.policy.clone(), of_any_kind(case.costs.clone()));
    let explanation = case.explain_with(scheduler, 1);
    assert_eq!(main_cause(&explanation), SlowCause::Prompt(RequestId(0)));
}

#[test]
fn a_request_that_nothing_holds_up_took_its_own_time() {
    let explanation = Case::new([reactive(0, 512, 8)]).explain(0);
    assert_eq!(main_cause(&explanation), SlowCause::OwnPrompt);
    assert_eq!(
        explanation.first_token.shares[0].time,
        explanation.first_token.time()
    );
    let answer = explanation.answer.unwrap();
    assert_eq!(answer.main().unwrap().cause, SlowCause::OwnAnswer);
}
