//! What kernels take on this machine: what the bundle says of it, corrected by what launches really took.
//!
//! A machine that the bundle knows nothing of starts with a rough guess per device; a few launches put it right.

use std::cell::Cell;
use std::collections::BTreeMap;

use heg_artifacts::manifest::{Group, Manifest};

use crate::sched::{
    AnnotatedCosts, CachedCosts, Call, Cost, Costs, Kernel, Lane, Micros, ModelShape, WarmKernel,
    Work,
};

/// Speeds of a device that nothing is known of: those of two cores of a laptop.
const GUESS_FLOP_PER_US: f64 = 150_000.0;
const GUESS_BYTES_PER_US: f64 = 10_000.0;
const GUESS_LAUNCH_US: f64 = 30.0;
/// Share of a new observation in the correction. Chosen: a change of speed is followed within some twenty launches.
const WEIGHT: f64 = 0.1;

/// Costs that learn.
pub(super) struct Pace {
    known: Option<CachedCosts<AnnotatedCosts>>,
    sizes: BTreeMap<Group, f64>,
    kv_width: f64,
    model: ModelShape,
    lanes: [bool; Lane::ALL.len()],
    /// Observed over predicted time, by lane and kind of call.
    learned: [[Cell<Option<f64>>; KINDS]; Lane::ALL.len()],
}

const KINDS: usize = 5;

impl Pace {
    fn factor(&self, lane: Lane, kind: usize) -> f64 {
        self.learned[lane as usize][kind].get().unwrap_or(1.0)
    }

    /// What a launch should take, in µs.
    pub(super) fn expected_us(&self, lane: Lane, work: &Work) -> Option<f64> {
        let latency_us = |call| Some(self.cost(lane, call)?.latency_us);
        match work {
            Work::Prefill {
                segment, kernel, ..
            } => latency_us(Call::Prefill {
                kernel: *kernel,
                tokens: segment.tokens,
                context: segment.context(),
            }),
            Work::Head(_) => latency_us(Call::Head { rows: 1 }),
            Work::Decode(run) => {
                let rows = run.batch.len() as u32;
                let context = run.batch.iter().map(|(_, context)| *context).sum();
                let layer = latency_us(Call::Layer {
                    rows,
                    context,
                    fused: false,
                })?;
                let head = latency_us(Call::Head { rows })?;
                Some(layer * run.layers.len() as f64 + head)
            }
            // Its parts are the others' to learn.
            Work::Mixed { .. } => None,
        }
    }

    /// What a prompt should take that has the machine for itself, in µs.
    pub(super) fn prefill_us(&self, lane: Lane, cached: u32, prompt: u32) -> f64 {
        let latency_us = |call| self.cost(lane, call).map_or(0.0, |cost| cost.latency_us);
        let chunk = self.model.chunk_tokens.max(1);
        let mut layer = 0.0;
        let mut position = cached;
        while position < prompt {
            let tokens = chunk.min(prompt - position);
            position += tokens;
            for kernel in [Kernel::Qkv, Kernel::Mha, Kernel::Ffn] {
                layer += latency_us(Call::Prefill {
                    kernel,
                    tokens,
                    context: position,
                });
            }
        }
        layer * f64::from(self.model.layers) + latency_us(Call::Head { rows: 1 })
    }

    /// A launch took `took_us` where `expected_us` was predicted.
    pub(super) fn observe(&self, lane: Lane, work: &Work, expected_us: f64, took_us: f64) {
        let kind = match work {
            Work::Prefill { kernel, .. } => kind_of(*kernel),
            Work::Head(_) => 3,
            Work::Decode(_) => 4,
            Work::Mixed { .. } => return,
        };
        let cell = &self.learned[lane as usize][kind];
        let ratio = (took_us / expected_us.max(1.0)).clamp(0.01, 100.0);
        let factor = match cell.get() {
            None => ratio,
            Some(factor) => factor * (1.0 + WEIGHT * (ratio - 1.0)),
        };
        cell.set(Some(factor.clamp(1e-3, 1e3)));
    }
}

fn kind_of(kernel: Kernel) -> usize {
    match kernel {
        Kernel::Qkv => 0,
        Kernel::Mha => 1,
        Kernel::Ffn => 2,
    }
}

impl Pace {
    /// For the lanes that are there.
    pub(super) fn new(
        manifest: &Manifest,
        known: Option<AnnotatedCosts>,
        model: ModelShape,
        lanes: [bool; Lane::ALL.len()],
    ) -> Self {
        let size = |used: &heg_artifacts::manifest::KernelUse| -> f64 {
            let weights = used
                .weights
                .iter()
                .filter_map(|id| manifest.weights.get(id.0 as usize));
            weights
                .map(|weight| {
                    weight
                        .shape
                        .iter()
                        .map(|dim| f64::from(*dim))
                        .product::<f64>()
                })
                .sum()
        };
        let mut sizes = BTreeMap::from([(Group::Head, size(&manifest.head))]);
        if let Some(layer) = manifest.layers.first() {
            sizes.insert(Group::Qkv, size(&layer.qkv));
            sizes.insert(Group::Ffn, size(&layer.ffn));
        }
        let heads = f64::from(manifest.model.heads) * f64::from(manifest.model.head_dim);
        sizes.insert(Group::Mha, heads);
        Self {
            known: known.map(CachedCosts::new),
            sizes,
            kv_width: f64::from(manifest.model.kv_heads) * f64::from(manifest.model.head_dim),
            model,
            lanes,
            learned: Default::default(),
        }
    }

    /// µs for weights of a token-wise kernel.
    fn token_wise(&self, group: Group, rows: f64) -> f64 {
        let weights = self.sizes.get(&group).copied().unwrap_or(0.0);
        (2.0 * weights * rows / GUESS_FLOP_PER_US).max(weights / GUESS_BYTES_PER_US)
    }

    fn attention(&self, rows: f64, context: f64) -> f64 {
        let queries = self.sizes.get(&Group::Mha).copied().unwrap_or(0.0);
        let flop = 4.0 * queries * rows * context;
        let bytes = 8.0 * self.kv_width * context;
        (flop / GUESS_FLOP_PER_US).max(bytes / GUESS_BYTES_PER_US)
    }

    fn guess(&self, lane: Lane, call: Call) -> Option<Cost> {
        if lane == Lane::Npu {
            return None;
        }
        let busy_us = match call {
            Call::Prefill {
                kernel,
                tokens,
                context,
            } => match kernel {
                Kernel::Qkv => self.token_wise(Group::Qkv, f64::from(tokens)),
                Kernel::Ffn => self.token_wise(Group::Ffn, f64::from(tokens)),
                Kernel::Mha => self.attention(f64::from(tokens), f64::from(context)),
            },
            Call::Layer { rows, context, .. } => {
                let rows = f64::from(rows);
                self.token_wise(Group::Qkv, rows)
                    + self.token_wise(Group::Ffn, rows)
                    + self.attention(1.0, f64::from(context))
                    + 2.0 * GUESS_LAUNCH_US
            }
            Call::Head { rows } => self.token_wise(Group::Head, f64::from(rows)),
        };
        Some(Cost {
            latency_us: busy_us + GUESS_LAUNCH_US,
            bandwidth: 0.0,
        })
    }
}

impl Costs for Pace {
    fn model(&self) -> ModelShape {
        self.model
    }

    fn cost(&self, lane: Lane, call: Call) -> Option<Cost> {
        if !self.lanes[lane as usize] {
            return None;
        }
        let known = self.known.as_ref().and_then(|known| known.cost(lane, call));
        let mut cost = known.or_else(|| self.guess(lane, call))?;
        let kind = match call {
            Call::Prefill { kernel, .. } => kind_of(kernel),
            Call::Head { .. } => 3,
            Call::Layer { .. } => 4,
        };
        cost.latency_us *= self.factor(lane, kind);
        Some(cost)
    }

    fn warm_cost(&self, kernel: WarmKernel) -> Option<Cost> {
        self.known.as_ref()?.warm_cost(kernel)
    }

    /// None: attention that the bundle has no static kernel for stays on the dynamic lane.
    fn warm_up(&self, _: WarmKernel) -> Option<Micros> {
        None
    }
}
