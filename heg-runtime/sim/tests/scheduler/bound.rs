//! Proactive requests finish within the bound that `sched/agent_xpu/mod.rs` derives, whatever reactive ones do. The
//! terms have the names used there.

use std::rc::Rc;

use heg_sched::{AgentXpu, CachedCosts, Call, Class, Costs, Lane, LayerKernel, Micros};
use heg_sim::{AnalyticCosts, Checked, Dimensions, DramModel, Machine, Rules, simulate};
use heg_spec::{Policy, Seeded};
use heg_workload::{Arrival, Trace, TraceRequest};

use crate::script::of_any_kind;

const THRESHOLD_MS: u32 = 2000;

/// S: the time for which a split may delay an overdue answer's next token, in ms.
const SPLIT_MS: u32 = 100;

/// A stream of reactive requests, and a few proactive ones in the middle of it.
struct Stream {
    costs: AnalyticCosts,
    policy: Policy,
    trace: Trace,
}

impl Stream {
    /// Creates a stream of prompts of `reactive_tokens`; the time between them is `gap` times that of one on the NPU.
    fn new(random: &mut Seeded, gap: f64) -> Self {
        let costs = AnalyticCosts::core_ultra_5_125h(Dimensions::llama_3b());
        let mut policy = heg_spec::shipped::policy("agent-xpu").unwrap();
        policy.ageing.as_mut().unwrap().threshold_ms = THRESHOLD_MS;
        policy.prefill.split_beside_proactive_ms = Some(SPLIT_MS);
        let mut stream = Self {
            costs,
            policy,
            trace: Trace {
                requests: Vec::new(),
            },
        };
        let reactive_tokens = 256 * (2 + random.below(4)) as u32;
        let gap_us = gap * stream.on_npu(reactive_tokens);
        for place in 0..40 {
            let at = Micros::from_f64(f64::from(place) * gap_us);
            stream.push(at, Class::Reactive, reactive_tokens, 1);
        }
        for _ in 0..1 + random.below(3) {
            let at = Micros::from_f64(random.unit() * 2.0 * gap_us);
            let tokens = 50 + random.below(800) as u32;
            stream.push(at, Class::Proactive, tokens, 1 + random.below(30) as u32);
        }
        stream
    }

    fn push(&mut self, at: Micros, class: Class, prompt_tokens: u32, output_tokens: u32) {
        let request = TraceRequest::lone(class, Arrival::At(at), prompt_tokens, output_tokens);
        self.trace.requests.push(request);
    }

    fn latency_us(&self, lane: Lane, call: Call) -> f64 {
        self.costs.cost(lane, call).unwrap().latency_us
    }

    /// Returns the time of all kernels of a kind over a whole prompt, in µs.
    fn kernels_us(&self, lane: Lane, kernel: LayerKernel, prompt_tokens: u32) -> f64 {
        let chunk = self.costs.chunk_tokens;
        let segments = (0..prompt_tokens).step_by(chunk as usize).map(|position| {
            let tokens = chunk.min(prompt_tokens - position);
            let context = position + tokens;
            self.latency_us(
                lane,
                Call::Prefill {
                    kernel,
                    tokens,
                    context,
                },
            )
        });
        f64::from(self.costs.model().layers) * segments.sum::<f64>()
    }

    /// N: the time of a prompt's token-wise kernels on the NPU, without the last layer, of which not all run.
    fn on_npu(&self, prompt_tokens: u32) -> f64 {
        let layers = f64::from(self.costs.model().layers);
        let all = self.kernels_us(Lane::Npu, LayerKernel::Qkv, prompt_tokens)
            + self.kernels_us(Lane::Npu, LayerKernel::Ffn, prompt_tokens);
        all * (layers - 1.0) / layers
    }

    /// D: the time that a reactive prompt takes on the iGPU while another request has it.
    fn reactive_on_igpu(&self, prompt_tokens: u32) -> f64 {
        self.kernels_us(Lane::Igpu, LayerKernel::Mha, prompt_tokens)
            + self.latency_us(Lane::Igpu, Call::Head { rows: 1 })
    }

    /// Returns the bound on the time from arrival to the last token of any of the proactive requests.
    fn bound(&self) -> Micros {
        let is = |class| move |r: &&TraceRequest| r.class == class;
        let all = || self.trace.requests.iter();
        let layers = self.costs.model().layers;
        let proactive: Vec<&TraceRequest> = all().filter(is(Class::Proactive)).collect();
        let context = proactive
            .iter()
            .map(|r| r.prompt_tokens + r.output_tokens)
            .sum();
        let rows = proactive.len() as u32;
        let call = Call::Layer {
            rows,
            context,
            fused: false,
        };
        let layer = self.latency_us(Lane::Igpu, call);
        let head = self.latency_us(Lane::Igpu, Call::Head { rows });
        let iteration = f64::from(layers) * layer + head;
        let work: f64 = proactive
            .iter()
            .map(|r| {
                let kernels = [LayerKernel::Qkv, LayerKernel::Mha, LayerKernel::Ffn];
                let prompt: f64 = kernels
                    .map(|kernel| self.kernels_us(Lane::Igpu, kernel, r.prompt_tokens))
                    .iter()
                    .sum();
                let count = 3 * layers * r.prompt_tokens.div_ceil(self.costs.chunk_tokens) + 1;
                let blocked = f64::from(count) * layer;
                let split = f64::from(SPLIT_MS) * 1000.0;
                prompt + head + blocked + f64::from(r.output_tokens) * (2.0 * iteration + split)
            })
            .sum();
        let reactive = all().find(is(Class::Reactive)).unwrap().prompt_tokens;
        let demand = self.reactive_on_igpu(reactive);
        let share = demand / self.on_npu(reactive);
        assert!(share < 1.0);
        // One kernel of a reactive prompt may have begun on the iGPU before.
        let begun = self.latency_us(
            Lane::Igpu,
            Call::Prefill {
                kernel: LayerKernel::Ffn,
                tokens: self.costs.chunk_tokens,
                context: self.costs.chunk_tokens,
            },
        );
        // Each prompt waits for its turn, and then for this long.
        let threshold = f64::from(rows) * f64::from(THRESHOLD_MS) * 1000.0;
        Micros::from_f64(threshold + (work + 3.0 * demand + begun) / (1.0 - share))
    }

    /// Returns the longest time that a proactive request took.
    fn longest(&self, policy: &Policy) -> Micros {
        let machine = Machine {
            // Devices do not slow each other down: that would be a separate factor.
            memory: DramModel {
                shared: Lane::ALL.len() as f64,
                ..DramModel::default()
            },
            ..Machine::default()
        };
        let costs = of_any_kind(CachedCosts::new(self.costs.clone()));
        let rules = Rules::from(policy.clone());
        let scheduler = AgentXpu::new(policy.clone(), Rc::clone(&costs));
        let mut checked = Checked::new(scheduler, &costs, rules);
        let run = simulate(&mut checked, &costs, &machine, &self.trace).unwrap();
        assert_eq!(checked.finish(), []);
        let proactive = run.requests.iter().filter(|r| r.class == Class::Proactive);
        proactive
            .map(|r| r.ended.unwrap() - r.arrived.unwrap())
            .max()
            .unwrap()
    }
}

#[test]
fn proactive_requests_finish_within_the_bound() {
    for seed in 0..12 {
        let mut random = Seeded::new(seed);
        let gap = 0.3 + random.unit();
        let stream = Stream::new(&mut random, gap);
        let (longest, bound) = (stream.longest(&stream.policy), stream.bound());
        eprintln!("seed {seed}: {longest:?} of {bound:?}");
        assert!(longest <= bound, "seed {seed}: {longest:?} of {bound:?}");
    }
}

/// Mutation check: without ageing they wait for the end of a stream that loads both devices.
#[test]
fn without_ageing_they_do_not() {
    let beyond = (0..6).filter(|seed| {
        let stream = Stream::new(&mut Seeded::new(*seed), 0.3);
        let mut policy = stream.policy.clone();
        policy.ageing = None;
        stream.longest(&policy) > stream.bound()
    });
    assert!(beyond.count() > 3);
}
