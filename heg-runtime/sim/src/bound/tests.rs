//! The bound beside the best schedules of tiny worlds, found by trying all of them.

use super::*;
use crate::analytic::{AnalyticCosts, DevicePeak, Dimensions};
use heg_sched::{Call, Lane, LayerKernel};
use proptest::prelude::*;

/// A model of one layer on two lanes, which do not slow each other down.
fn tiny(igpu: f64, cpu: f64, launch_us: f64) -> AnalyticCosts {
    let device = |speed: f64| {
        Some(DevicePeak {
            flops_per_sec: 1e10 * speed,
            bytes_per_sec: 1e9 * speed,
            launch_us,
        })
    };
    AnalyticCosts {
        dimensions: Dimensions {
            layers: 1,
            hidden: 64,
            inner: 128,
            heads: 2,
            kv_heads: 2,
            head_dim: 32,
            vocab: 500,
        },
        devices: [None, device(igpu), device(cpu)],
        dram_bytes_per_sec: 1e12,
        chunk_tokens: 16,
        context_tokens: 64,
    }
}

const LANES: [Lane; 2] = [Lane::Igpu, Lane::Cpu];

/// A request on its way: kernels that are done, and whether one runs.
#[derive(Debug, Clone, Copy)]
struct Progress {
    request: TraceRequest,
    done: u32,
    runs: bool,
}

/// Kernels before an answer's second token: three of the layer, and the head.
const PROMPT_KERNELS: u32 = 4;

impl Progress {
    fn decodes(&self) -> bool {
        self.done >= PROMPT_KERNELS
    }

    fn is_over(&self) -> bool {
        self.done >= PROMPT_KERNELS + self.request.output_tokens - 1
    }

    fn context(&self) -> u32 {
        self.request.prompt_tokens + 1 + self.done - PROMPT_KERNELS
    }
}

/// All schedules from here on.
struct Search<'c> {
    costs: &'c AnalyticCosts,
    best_us: f64,
}

#[derive(Debug, Clone)]
struct State {
    now: f64,
    lanes: [Option<(f64, Vec<usize>)>; 2],
    requests: Vec<Progress>,
    sum_us: f64,
}

impl Search<'_> {
    fn us(&self, lane: Lane, requests: &[Progress]) -> f64 {
        let cost = |call| self.costs.cost(lane, call).unwrap().latency_us;
        let first = requests[0];
        let tokens = first.request.prompt_tokens;
        // The only layer is the last one, behind whose keys and values only the last row is needed.
        let prefill = |kernel| Call::Prefill {
            kernel,
            tokens: match kernel {
                LayerKernel::Qkv => tokens,
                LayerKernel::Mha | LayerKernel::Ffn => 1,
            },
            context: tokens,
        };
        let rows = requests.len() as u32;
        match first.done {
            0 => cost(prefill(LayerKernel::Qkv)),
            1 => cost(prefill(LayerKernel::Mha)),
            2 => cost(prefill(LayerKernel::Ffn)),
            3 => cost(Call::Head { rows: 1 }),
            _ => {
                let context = requests.iter().map(Progress::context).sum();
                let fused = false;
                cost(Call::Layer {
                    rows,
                    context,
                    fused,
                }) + cost(Call::Head { rows })
            }
        }
    }

    /// The launches that a free lane may begin: each request by itself, and all that decode together.
    fn choices(state: &State) -> Vec<Vec<usize>> {
        let ready = |progress: &Progress| {
            !progress.runs
                && !progress.is_over()
                && released_us(&progress.request).is_some_and(|at| at <= state.now)
        };
        let requests = state.requests.iter().enumerate();
        let ready: Vec<usize> = requests
            .filter(|(_, it)| ready(it))
            .map(|(at, _)| at)
            .collect();
        let decoding: Vec<usize> = ready
            .iter()
            .copied()
            .filter(|at| state.requests[*at].decodes())
            .collect();
        let mut choices: Vec<Vec<usize>> = ready.iter().map(|at| vec![*at]).collect();
        if decoding.len() > 1 {
            choices.push(decoding);
        }
        choices
    }

    fn from(&mut self, state: &State, lane: usize) {
        let open = state.requests.iter().filter(|it| !it.is_over());
        let aged = open.map(|it| (state.now - released_us(&it.request).unwrap()).max(0.0));
        if state.sum_us + aged.sum::<f64>() >= self.best_us {
            return;
        }
        if lane < LANES.len() {
            let exists = self.costs.devices[LANES[lane] as usize].is_some();
            if exists && state.lanes[lane].is_none() {
                for choice in Self::choices(state) {
                    let mut next = state.clone();
                    let chosen: Vec<Progress> =
                        choice.iter().map(|at| state.requests[*at]).collect();
                    let end = state.now + self.us(LANES[lane], &chosen);
                    for at in &choice {
                        next.requests[*at].runs = true;
                    }
                    next.lanes[lane] = Some((end, choice));
                    self.from(&next, lane + 1);
                }
            }
            self.from(state, lane + 1);
            return;
        }
        if state.requests.iter().all(Progress::is_over) {
            self.best_us = state.sum_us;
            return;
        }
        let arrivals = state
            .requests
            .iter()
            .filter_map(|it| released_us(&it.request));
        let arrivals = arrivals.filter(|at| *at > state.now);
        let ends = state.lanes.iter().flatten().map(|(end, _)| *end);
        let Some(now) = ends.chain(arrivals).min_by(f64::total_cmp) else {
            return;
        };
        let mut next = State {
            now,
            ..state.clone()
        };
        for lane in &mut next.lanes {
            if let Some((_, choice)) = lane.take_if(|(end, _)| *end <= now) {
                for at in choice {
                    let progress = &mut next.requests[at];
                    (progress.done, progress.runs) = (progress.done + 1, false);
                    if progress.is_over() {
                        next.sum_us += now - released_us(&progress.request).unwrap();
                    }
                }
            }
        }
        self.from(&next, 0);
    }
}

/// The mean latency of the best schedule, in s.
fn best_secs(costs: &AnalyticCosts, trace: &Trace) -> f64 {
    let progress = |request: &TraceRequest| Progress {
        request: *request,
        done: 0,
        runs: false,
    };
    let state = State {
        now: 0.0,
        lanes: [None, None],
        requests: trace.requests.iter().map(progress).collect(),
        sum_us: 0.0,
    };
    let mut search = Search {
        costs,
        best_us: f64::INFINITY,
    };
    search.from(&state, 0);
    search.best_us / trace.requests.len() as f64 / 1e6
}

fn bound_secs(costs: &AnalyticCosts, trace: &Trace, division: Division) -> f64 {
    let (decode, memory) = (DecodeKernels::Three, DramModel::default());
    let bound = LatencyBound::new(costs, &memory, decode, division, TraceExtent::of(trace));
    bound.mean_secs(trace, None).unwrap()
}

fn lone(at: u64, prompt_tokens: u32, output_tokens: u32) -> TraceRequest {
    let arrival = Arrival::At(Micros(at));
    TraceRequest::lone(Class::Reactive, arrival, prompt_tokens, output_tokens)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_best_of_all_schedules_is_above_it(
        speeds in (0.3..3.0f64, 0.3..3.0f64),
        launch_us in 0.0..20.0f64,
        first in (1..40u32, 1..3u32),
        second in (0..300u64, 1..40u32, 1..3u32),
    ) {
        let costs = tiny(speeds.0, speeds.1, launch_us);
        let trace = Trace {
            requests: vec![lone(0, first.0, first.1), lone(second.0, second.1, second.2)],
        };
        let best = best_secs(&costs, &trace);
        let whole = bound_secs(&costs, &trace, Division::Whole);
        let divided = bound_secs(&costs, &trace, Division::Divided);
        prop_assert!(divided <= whole * 1.0001, "{divided} {whole}");
        prop_assert!(whole <= best * 1.0001, "{whole} {best}");
    }
}

#[test]
fn a_lone_answer_on_one_lane_is_almost_at_its_bound() {
    let costs = AnalyticCosts {
        devices: [None, tiny(1.0, 1.0, 0.0).devices[1], None],
        ..tiny(1.0, 1.0, 0.0)
    };
    let trace = Trace {
        requests: vec![lone(0, 8, 4)],
    };
    let path = bound_secs(&costs, &trace, Division::Whole);
    let best = best_secs(&costs, &trace);
    assert!(path <= best && path > 0.95 * best, "{path} {best}");
}

#[test]
fn a_queue_is_bounded_by_what_it_reads_once() {
    let costs = tiny(1.0, 1.0, 0.0);
    let of = |count: usize| Trace {
        requests: vec![lone(0, 32, 3); count],
    };
    let [one, ten] = [1, 10].map(|count| bound_secs(&costs, &of(count), Division::Divided));
    // Prompts of ten requests take ten times as long; the last one waits for all.
    assert!(ten > 2.0 * one, "{one} {ten}");
}

#[test]
fn a_larger_trace_has_no_bound() {
    let costs = tiny(1.0, 1.0, 0.0);
    let small = Trace {
        requests: vec![lone(0, 8, 2)],
    };
    let large = Trace {
        requests: vec![lone(0, 8, 2); 2],
    };
    let (decode, memory) = (DecodeKernels::Three, DramModel::default());
    let extent = TraceExtent::of(&small);
    let bound = LatencyBound::new(&costs, &memory, decode, Division::Divided, extent);
    assert!(bound.mean_secs(&small, None).is_some());
    assert_eq!(bound.mean_secs(&large, None), None);
    assert_eq!(bound.mean_secs(&small, Some(Class::Proactive)), None);
}
