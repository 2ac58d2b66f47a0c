//! Contention between devices, as a machine's table has it, in the scheduler's decisions and in its forecasts.

use heg_sched::{
    Action, Actions, AgentXpu, Call, Class, ClientId, Cost, Costs, Event, KernelBound, Lane,
    LaneLoad, LayerKernel, Micros, ModelShape, PromptLogits, RequestId, Scheduler, Slowdowns,
    Submission, WarmKernel, Work,
};
use heg_sim::{DramModel, Machine, Run, simulate};
use heg_spec::shipped;
use heg_workload::{Arrival, Trace, TraceRequest};

use crate::script::{RoundCosts, of_any_kind};

/// The costs of scripts, with what the scheduler knows of contention.
#[derive(Debug, Clone)]
struct Contended {
    round: RoundCosts,
    known: Option<Slowdowns>,
}

impl Contended {
    fn knowing(known: Option<Slowdowns>) -> Self {
        Self {
            round: RoundCosts::plain([true, true, false]),
            known,
        }
    }
}

impl Costs for Contended {
    fn model(&self) -> ModelShape {
        self.round.model()
    }

    fn cost(&self, lane: Lane, call: Call) -> Option<Cost> {
        self.round.cost(lane, call)
    }

    fn slowdown(&self, own: LaneLoad, beside: LaneLoad) -> f64 {
        let known = self.known.as_ref();
        known.map_or(1.0, |table| table.factor(own, beside))
    }

    fn warm_cost(&self, _: WarmKernel) -> Option<Cost> {
        None
    }

    fn warm_up(&self, _: WarmKernel) -> Option<Micros> {
        None
    }
}

/// Returns a table in which kernels of one lane take `factor` times as long beside those of the other.
fn slowed(own: Lane, beside: Lane, factor: f64) -> Slowdowns {
    let mut table = Slowdowns::new([1.0; Lane::ALL.len()]);
    let compute = KernelBound::Compute;
    table.set((own, compute), (beside, compute), factor);
    table
}

/// Simulates requests without the rules that are not the point here.
fn run(known: Option<Slowdowns>, real: Option<Slowdowns>, requests: &[TraceRequest]) -> Run {
    let costs = Contended::knowing(known);
    let machine = Machine {
        memory: DramModel::default().measured(real),
        timeline: true,
        ..Machine::default()
    };
    let mut policy = shipped::policy("agent-xpu").unwrap();
    policy.prefill.elastic = requests.len() == 1;
    let trace = Trace {
        requests: requests.to_vec(),
    };
    let mut scheduler = AgentXpu::new(policy, of_any_kind(costs.clone()));
    simulate(&mut scheduler, &costs, &machine, &trace).unwrap()
}

fn request(class: Class, at_ms: u32, prompt_tokens: u32, output_tokens: u32) -> TraceRequest {
    let arrival = Arrival::At(Micros::from_millis(at_ms));
    TraceRequest::lone(class, arrival, prompt_tokens, output_tokens)
}

/// Returns the starts of `ffn` over segments of a length on the iGPU.
fn on_igpu(run: &Run, length: u32) -> Vec<Micros> {
    let launches = run.timeline.iter().filter(|it| it.lane == Lane::Igpu);
    let starts = launches.filter_map(|it| match &it.work {
        Work::Prefill {
            segment, kernel, ..
        } => {
            let is = *kernel == LayerKernel::Ffn && segment.tokens == length;
            is.then_some(it.start)
        }
        _ => None,
    });
    starts.collect()
}

/// The iGPU suffers beside the NPU: a scheduler that knows it gives the iGPU less of a prompt (Algorithm 1).
#[test]
fn who_knows_the_contention_splits_a_prompt_better() {
    let table = Some(slowed(Lane::Igpu, Lane::Npu, 3.0));
    let prompt = [request(Class::Reactive, 0, 2048, 1)];
    let (blind, knowing) = (run(None, table, &prompt), run(table, table, &prompt));
    let chunks = [&blind, &knowing].map(|run| on_igpu(run, 256).len());
    assert_eq!(chunks, [4, 2], "two chunks and one, in two layers");
    let [blind, knowing] = [blind, knowing].map(|run| run.ended);
    assert!(knowing < blind, "{knowing:?} {blind:?}");
    // Where there is none, the same knowledge would cost time.
    let (blind, wrong) = (run(None, None, &prompt), run(table, None, &prompt));
    assert!(blind.ended < wrong.ended);
}

/// A remainder that takes longer beside the chunks has to start earlier to end with them (4.3).
#[test]
fn a_remainder_that_suffers_beside_the_chunks_starts_earlier() {
    let requests = [
        request(Class::Proactive, 0, 256, 90),
        request(Class::Reactive, 300, 4 * 256 + 100, 1),
    ];
    let table = Some(slowed(Lane::Igpu, Lane::Npu, 2.0));
    let [blind, knowing] = [None, table].map(|known| on_igpu(&run(known, None, &requests), 100)[0]);
    assert!(knowing < blind, "{knowing:?} {blind:?}");
}

/// Returns the forecast for a prompt of two chunks that arrives while another request decodes.
fn forecast(known: Option<Slowdowns>) -> Micros {
    let policy = shipped::policy("agent-xpu").unwrap();
    let mut scheduler = AgentXpu::new(policy, of_any_kind(Contended::knowing(known)));
    let submission = |id, class, prompt_tokens| Submission {
        id: RequestId(id),
        client: ClientId::default(),
        flow: None,
        class,
        prompt_tokens,
        shared_tokens: 0,
        kept_tokens: 0,
        output_tokens_max: 9,
        deadline: None,
        prompt_logits: PromptLogits::LastRow,
    };
    let mut actions = Actions::new();
    let mut events = vec![Event::Submit(submission(0, Class::Proactive, 256))];
    while let Some(event) = events.pop() {
        scheduler.step(Micros(0), event, &mut actions);
        for action in actions.drain(..) {
            if let Action::Launch { ticket, work, .. } = action
                && !matches!(work, Work::Decode(_))
            {
                events.push(Event::Done {
                    ticket,
                    layers: 0,
                    ended: Vec::new(),
                    given: Vec::new(),
                });
            }
        }
    }
    let next = submission(1, Class::Reactive, 512);
    scheduler.step(Micros(0), Event::Submit(next), &mut actions);
    let forecast = scheduler.first_token_in(RequestId(1)).unwrap();
    // The other request has its first token.
    let left = [Class::Reactive, Class::Proactive].map(|class| scheduler.prompts_left(class));
    assert_eq!(left, [forecast, Micros(0)]);
    forecast
}

#[test]
fn a_forecast_counts_what_decoding_costs_the_chunks() {
    let alone = forecast(None);
    let beside = forecast(Some(slowed(Lane::Npu, Lane::Igpu, 1.5)));
    // Two chunks of 30 ms in two layers, less what has begun.
    let more = beside - alone;
    assert!(
        (Micros(40_000)..=Micros(60_000)).contains(&more),
        "{more:?}"
    );
    let others = forecast(Some(slowed(Lane::Cpu, Lane::Igpu, 1.5)));
    assert_eq!(others, alone, "a lane that has no part in it");
}
