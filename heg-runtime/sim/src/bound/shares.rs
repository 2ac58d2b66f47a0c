//! The least that a token, a row or a pair takes of each lane and of the memory, over all calls that it may be part of.
//!
//! Calls are tried at sizes that grow by a twentieth. As a call never takes less than a smaller one, the least for a unit
//! between two sizes is the smaller call's time by the larger size.

use heg_sched::{Call, Costs, Lane, LayerKernel, WarmKernel};
use heg_workload::TraceRequest;

use super::super::memory::DramModel;
use super::uses::{ByLane, Line, Use, by_lane, least, sizes};
use super::{TraceExtent, own_tokens};

/// The decode kernels that a bundle has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeKernels {
    /// A layer is three kernels.
    Three,
    /// A layer of one row may also be a single kernel.
    OneToo,
}

/// Whether several lanes may share one kernel of a decode step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Division {
    /// Any number of lanes share it, and none waits for another.
    Divided,
    /// One lane runs it.
    Whole,
}

/// Prices of a µs of each lane and of the memory, with a sum of 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prices {
    lanes: [f64; Lane::ALL.len()],
    memory: f64,
}

/// Steps of the grid of prices.
const PRICE_STEPS: u32 = 8;

impl Prices {
    /// Returns all prices that are multiples of an eighth.
    pub(super) fn grid() -> Vec<Self> {
        let mut grid = Vec::new();
        let share = |steps: u32| f64::from(steps) / f64::from(PRICE_STEPS);
        for npu in 0..=PRICE_STEPS {
            for igpu in 0..=PRICE_STEPS - npu {
                for cpu in 0..=PRICE_STEPS - npu - igpu {
                    grid.push(Self {
                        lanes: [share(npu), share(igpu), share(cpu)],
                        memory: share(PRICE_STEPS - npu - igpu - cpu),
                    });
                }
            }
        }
        grid
    }

    /// Returns the price of something on the lane where it is cheapest.
    fn cheapest(&self, uses: &ByLane) -> f64 {
        let price = |(uses, lane): (&Option<Use>, f64)| {
            uses.map_or(f64::INFINITY, |it| {
                lane * it.lane_us + self.memory * it.memory_us
            })
        };
        let prices = uses.iter().zip(self.lanes).map(price);
        prices.fold(f64::INFINITY, f64::min)
    }

    /// Returns the price of amounts of work.
    pub(super) fn of(&self, work: &[(f64, ByLane)]) -> f64 {
        let some = work.iter().filter(|(amount, _)| *amount > 0.0);
        some.map(|(amount, uses)| amount * self.cheapest(uses))
            .sum()
    }
}

/// The least uses of a model's work on a machine.
#[derive(Debug, Clone)]
pub(super) struct Shares {
    layers: f64,
    /// `qkv` and `ffn` for a token, by the largest number of tokens in a call.
    token_wise: [Vec<(u32, ByLane)>; 2],
    /// Attention of a prompt for a query and a key.
    pairs: ByLane,
    /// The head for a row.
    head: ByLane,
    /// A row of a decode layer by its context: as part of a batch, as one kernel, on static kernels.
    layer_rows: [Vec<Line>; Lane::ALL.len()],
    /// Attention of a row in an iteration with prompts, by its context.
    attention_rows: [Vec<Line>; Lane::ALL.len()],
    /// The head of one row, alone, in µs.
    head_us: f64,
    /// Steps of one row before each context, added up, in µs.
    steps_us: Vec<f64>,
}

/// A machine whose calls are measured.
struct Machine<'c, C> {
    costs: &'c C,
    memory: &'c DramModel,
    decode: DecodeKernels,
    extent: TraceExtent,
}

impl Shares {
    pub(super) fn of(
        costs: &impl Costs,
        memory: &DramModel,
        (decode, division): (DecodeKernels, Division),
        prices: &[Prices],
        extent: TraceExtent,
    ) -> Self {
        let machine = Machine {
            costs,
            memory,
            decode,
            extent,
        };
        let alone = |uses: &ByLane| match division {
            Division::Divided => prices
                .iter()
                .map(|prices| prices.cheapest(uses))
                .fold(0.0, f64::max),
            Division::Whole => {
                let us = uses.iter().flatten().map(|it| it.lane_us);
                us.fold(f64::INFINITY, f64::min)
            }
        };
        let layers = f64::from(costs.model().layers);
        let head_us = alone(&by_lane(|lane| machine.head(lane, 1)));
        let mut steps_us = vec![0.0];
        for (first, last) in sizes(costs.model().context_tokens, u32::MAX) {
            let layer = alone(&by_lane(|lane| machine.lone_layer(lane, first)));
            for _ in first..=last {
                let before = steps_us.last().copied().unwrap_or(0.0);
                steps_us.push(before + layers * layer + head_us);
            }
        }
        Self {
            layers,
            token_wise: [LayerKernel::Qkv, LayerKernel::Ffn]
                .map(|kernel| machine.token_wise(kernel)),
            pairs: by_lane(|lane| machine.pairs(lane)),
            head: by_lane(|lane| machine.head_row(lane)),
            layer_rows: Lane::ALL.map(|lane| machine.layer_rows(lane)),
            attention_rows: Lane::ALL.map(|lane| machine.attention_rows(lane)),
            head_us,
            steps_us,
        }
    }

    /// Returns the work of a prompt: in calls of up to `tokens_max` tokens without the head, or in any calls with it. Of the
    /// last layer only keys and values are needed of the rows before the last one.
    pub(super) fn prompt(
        &self,
        request: &TraceRequest,
        tokens_max: Option<u32>,
    ) -> [(f64, ByLane); 5] {
        let all = f64::from(request.prompt_tokens.max(1));
        let own = f64::from(own_tokens(request));
        let shared = all - own;
        let pairs = (all * (all + 1.0) - shared * (shared + 1.0)) / 2.0;
        let whole_layers = (self.layers - 1.0).max(0.0);
        let [qkv, ffn] = self
            .token_wise
            .each_ref()
            .map(|falling| up_to(falling, tokens_max.unwrap_or(u32::MAX)));
        let (heads, last_ffn) = match tokens_max {
            // A call of the last layer that has the last row takes no less than a call of that row.
            Some(_) => {
                let [_, falling] = &self.token_wise;
                (0.0, up_to(falling, 1))
            }
            None => (1.0, ffn),
        };
        [
            (self.layers * own, qkv),
            (whole_layers * own, ffn),
            (1.0, last_ffn),
            (whole_layers * pairs + all, self.pairs),
            (heads, self.head),
        ]
    }

    /// Returns the time of the head alone, in µs.
    pub(super) fn head_us(&self) -> f64 {
        self.head_us
    }

    /// Returns the time of steps of one row, one after the other, in µs; the first one sees `first` tokens.
    pub(super) fn steps_us(&self, first: u32, steps: u32) -> f64 {
        let before = |context: u32| {
            let last = self.steps_us.len() - 1;
            self.steps_us[(context as usize - 1).min(last)]
        };
        before(first + steps) - before(first)
    }

    /// Returns the price of rows of an answer in any company; the first one sees `first` tokens.
    pub(super) fn rows(&self, prices: &Prices, first: u32, steps: u32) -> f64 {
        if steps == 0 {
            return 0.0;
        }
        // The least of lines is concave, so that no row is below the line between the first and the last.
        let ends = [first, first + steps - 1].map(|context| self.row(prices, f64::from(context)));
        f64::from(steps) * (ends[0] + ends[1]) / 2.0
    }

    fn row(&self, prices: &Prices, context: f64) -> f64 {
        let cheapest = |lines: &[Vec<Line>; Lane::ALL.len()]| {
            let uses = |lane: Lane| lines[lane as usize].iter().map(|line| line.at(context));
            let each = Lane::ALL.map(|lane| {
                let one = |found| {
                    let mut uses: ByLane = [None; Lane::ALL.len()];
                    uses[lane as usize] = Some(found);
                    prices.cheapest(&uses)
                };
                uses(lane).map(one).fold(f64::INFINITY, f64::min)
            });
            each.into_iter().fold(f64::INFINITY, f64::min)
        };
        let [qkv, ffn] = self
            .token_wise
            .each_ref()
            .map(|falling| prices.cheapest(&up_to(falling, u32::MAX)));
        let mixed = qkv + ffn + cheapest(&self.attention_rows);
        self.layers * cheapest(&self.layer_rows).min(mixed) + prices.cheapest(&self.head)
    }
}

/// Returns the least for a token in calls of up to `tokens` tokens.
fn up_to(falling: &[(u32, ByLane)], tokens: u32) -> ByLane {
    let behind = falling.partition_point(|(first, _)| *first <= tokens);
    let found = falling.get(behind.saturating_sub(1));
    found.map_or([None; Lane::ALL.len()], |(_, uses)| *uses)
}

impl<C: Costs> Machine<'_, C> {
    fn chunk_tokens(&self) -> u32 {
        self.costs.model().chunk_tokens.max(1)
    }

    fn context_tokens(&self) -> u32 {
        self.costs.model().context_tokens.max(1)
    }

    fn cost(&self, lane: Lane, call: Call) -> Option<Use> {
        let cost = self.costs.cost(lane, call)?;
        let drawn = cost.bandwidth.min(self.memory.lanes[lane as usize]);
        Some(Use {
            lane_us: cost.latency_us,
            memory_us: cost.latency_us * drawn / self.memory.shared,
        })
    }

    fn prefill(
        &self,
        lane: Lane,
        kernel: LayerKernel,
        (tokens, context): (u32, u32),
    ) -> Option<Use> {
        let call = Call::Prefill {
            kernel,
            tokens,
            context,
        };
        self.cost(lane, call)
    }

    /// The head; a decode run draws what its layers draw also while its head runs, so that its own traffic is left out.
    fn head(&self, lane: Lane, rows: u32) -> Option<Use> {
        let found = self.cost(lane, Call::Head { rows })?;
        Some(Use {
            memory_us: 0.0,
            ..found
        })
    }

    fn head_row(&self, lane: Lane) -> Option<Use> {
        let rows = sizes(self.extent.requests, u32::MAX).into_iter();
        let each =
            rows.filter_map(|(first, last)| Some(self.head(lane, first)?.by(f64::from(last))));
        each.reduce(Use::least)
    }

    fn token_wise(&self, kernel: LayerKernel) -> Vec<(u32, ByLane)> {
        let mut falling: Vec<(u32, ByLane)> = Vec::new();
        for (first, last) in sizes(self.extent.tokens, self.chunk_tokens()) {
            let before = falling
                .last()
                .map_or([None; Lane::ALL.len()], |(_, uses)| *uses);
            let uses = by_lane(|lane| {
                let found = self.prefill(lane, kernel, (first, first));
                let found = found.map(|it| it.by(f64::from(last)));
                least(before[lane as usize], found)
            });
            falling.push((first, uses));
        }
        falling
    }

    /// The least for a query and a key, on kernels of the bundle or on one that is compiled on the way, for a chunk.
    fn pairs(&self, lane: Lane) -> Option<Use> {
        let contexts = sizes(self.context_tokens(), self.chunk_tokens());
        let mut found = None;
        for (tokens, tokens_last) in &contexts {
            let longer = contexts.iter().filter(|(_, last)| last >= tokens);
            for (context, context_last) in longer {
                let call = (*tokens, (*context).max(*tokens));
                let pairs = f64::from(*tokens_last) * f64::from(*context_last);
                let uses = self.prefill(lane, LayerKernel::Mha, call);
                found = least(found, uses.map(|it| it.by(pairs)));
            }
        }
        if lane == Lane::Npu {
            for (context, last) in contexts {
                let tokens = self.chunk_tokens();
                let warm = self.costs.warm_cost(WarmKernel { tokens, context });
                let uses = warm.map(|cost| Use {
                    lane_us: cost.latency_us,
                    memory_us: 0.0,
                });
                let pairs = f64::from(tokens) * f64::from(last);
                found = least(found, uses.map(|it| it.by(pairs)));
            }
        }
        found
    }

    /// The uses of a call of a batch by what its rows see together, each with the most that takes no less.
    fn by_context(
        &self,
        (rows, rows_last): (u32, u32),
        of: impl Fn(u32) -> Option<Use>,
    ) -> Vec<(f64, Use)> {
        let most = self.context_tokens().saturating_mul(rows_last);
        let contexts = sizes((most / rows).max(1), u32::MAX).into_iter();
        let points = contexts.filter_map(|(first, last)| {
            let end = match last == most / rows {
                true => f64::from(most),
                false => (f64::from(last) + 1.0) * f64::from(rows) - 1.0,
            };
            Some((end, of(first.saturating_mul(rows))?))
        });
        points.collect()
    }

    /// Lines below a row of a decode layer: of a batch, as one kernel, and on the NPU's static kernels.
    fn layer_rows(&self, lane: Lane) -> Vec<Line> {
        let layer = |rows, context, fused| {
            self.cost(
                lane,
                Call::Layer {
                    rows,
                    context,
                    fused,
                },
            )
        };
        let rows = sizes(self.extent.requests, u32::MAX);
        let batches = rows.iter().filter_map(|(first, last)| {
            let points = self.by_context((*first, *last), |context| layer(*first, context, false));
            let line = Line::below(&points)?;
            Some(Line {
                offset: line.offset.by(f64::from(*last)),
                ..line
            })
        });
        let batch = batches.reduce(|one, other| Line {
            offset: one.offset.least(other.offset),
            slope: one.slope.least(other.slope),
        });
        let lone = |of: &dyn Fn(u32) -> Option<Use>| Line::below(&self.by_context((1, 1), of));
        let fused = lone(&|context| match self.decode {
            DecodeKernels::Three => None,
            DecodeKernels::OneToo => layer(1, context, true),
        });
        let verified = lone(&|context| self.cost(lane, Call::Verify { rows: 1, context }));
        [batch, fused, verified].into_iter().flatten().collect()
    }

    /// Lines below attention of a row in an iteration with prompts, which takes all rows in one call.
    fn attention_rows(&self, lane: Lane) -> Vec<Line> {
        let rows = self.extent.requests;
        let points = self.by_context((1, rows), |context| {
            self.prefill(lane, LayerKernel::Mha, (1, context))
        });
        let line = Line::below(&points).map(|line| Line {
            offset: line.offset.by(f64::from(rows)),
            ..line
        });
        line.into_iter().collect()
    }

    /// A decode layer of one row: as three kernels, as one, on static kernels, or by the kernels of prompts.
    fn lone_layer(&self, lane: Lane, context: u32) -> Option<Use> {
        let layer = |fused| {
            self.cost(
                lane,
                Call::Layer {
                    rows: 1,
                    context,
                    fused,
                },
            )
        };
        let fused = match self.decode {
            DecodeKernels::Three => None,
            DecodeKernels::OneToo => layer(true),
        };
        let verified = self.cost(lane, Call::Verify { rows: 1, context });
        let kernels = || {
            let qkv = self.prefill(lane, LayerKernel::Qkv, (1, 1))?;
            let mha = self.prefill(lane, LayerKernel::Mha, (1, context))?;
            let ffn = self.prefill(lane, LayerKernel::Ffn, (1, 1))?;
            Some(qkv.plus(mha).plus(ffn))
        };
        [layer(false), fused, verified, kernels()]
            .into_iter()
            .reduce(least)
            .flatten()
    }
}
