//! Predicted times of kernels on this machine: those of the bundle's annotations, corrected by measured launches.
//!
//! A machine without annotations starts with a rough guess per device, which a few launches correct.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use heg_artifacts::manifest::ShapeClass;
use heg_exec::Loader;
use heg_spec::{Activations, DeviceClass, Group};

use super::correction::Correction;
use heg_costs::AnnotatedCosts;
use heg_sched::{
    CachedCosts, Call, Cost, Costs, Decoding, Lane, LaneLoad, LayerKernel, Micros, ModelShape,
    Segment, WarmKernel, Work, WorkStage,
};

/// Speeds assumed for a device without annotations: those of two cores of a laptop. That of products of integers is fitted to
/// first prompts of a 1B shape on two server cores.
const GUESS_FLOP_PER_US: f64 = 150_000.0;
const GUESS_INTEGER_FLOP_PER_US: f64 = 450_000.0;
const GUESS_BYTES_PER_US: f64 = 10_000.0;
const GUESS_LAUNCH_US: f64 = 30.0;
/// Time assumed for compiling a static attention without annotations: that over 512 rows (DESIGN §4.4).
const GUESS_COMPILE_US: f64 = 1e6;

/// Costs that are corrected by measurements.
pub(super) struct Pace {
    known: Option<CachedCosts<AnnotatedCosts>>,
    sizes: BTreeMap<Group, f64>,
    /// Speed of products, where it is guessed.
    flop_per_us: f64,
    kv_width: f64,
    model: ModelShape,
    lanes: [bool; Lane::ALL.len()],
    /// Shapes that the NPU has kernels for, smallest first.
    npu_shapes: BTreeMap<Group, Vec<ShapeClass>>,
    /// Attention that was compiled for the NPU while requests waited.
    warm: RefCell<BTreeSet<WarmKernel>>,
    /// Corrections by lane and kind of call.
    learned: [[Correction; KINDS]; Lane::ALL.len()],
    /// Correction of the time to compile.
    compile: Correction,
}

/// Calls whose predictions are corrected together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Qkv,
    Mha,
    Ffn,
    Head,
    Decode,
    WarmMha,
    Verify,
}

const KINDS: usize = 7;

impl From<LayerKernel> for Kind {
    fn from(kernel: LayerKernel) -> Self {
        match kernel {
            LayerKernel::Qkv => Self::Qkv,
            LayerKernel::Mha => Self::Mha,
            LayerKernel::Ffn => Self::Ffn,
        }
    }
}

/// Predicted time of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    kind: Kind,
    rows: u32,
    /// The correction factor that it contains.
    factor: f64,
    /// The time beside the launches that ran on other lanes when it began.
    latency_us: f64,
    /// Its own load, for the launches that begin beside it.
    pub(super) load: LaneLoad,
}

impl Expected {
    /// The time, in µs.
    pub(super) fn latency_us(&self) -> f64 {
        self.latency_us
    }
}

impl Pace {
    fn factor(&self, lane: Lane, kind: Kind, rows: u32) -> f64 {
        self.learned[lane as usize][kind as usize].factor(rows)
    }

    /// Predicted time of a launch beside the loads of other lanes. What contention costs is no property of the kernel:
    /// its correction is learned from the rest.
    pub(super) fn expected(
        &self,
        lane: Lane,
        work: &Work,
        beside: impl Iterator<Item = LaneLoad>,
    ) -> Option<Expected> {
        let iteration = |batch: &[Decoding], layers: usize| {
            let rows = Decoding::rows_of(batch);
            let mut cost = self.cost(lane, Call::iteration(lane, batch, false))?;
            let head = self.cost(lane, Call::Head { rows })?;
            cost.latency_us = cost.latency_us * layers as f64 + head.latency_us;
            let kind = match lane {
                Lane::Npu => Kind::Verify,
                Lane::Igpu | Lane::Cpu => Kind::Decode,
            };
            Some((kind, rows, cost))
        };
        let (kind, rows, cost) = match work {
            Work::Prefill {
                segment, kernel, ..
            } => match self.warm_for(lane, *segment, *kernel) {
                Some(warm) => {
                    let cost = self.warm_cost(warm)?;
                    (Kind::WarmMha, warm.tokens, cost)
                }
                None => {
                    let call = Call::Prefill {
                        kernel: *kernel,
                        tokens: segment.tokens,
                        context: segment.context(),
                    };
                    (Kind::from(*kernel), segment.tokens, self.cost(lane, call)?)
                }
            },
            Work::Head(_) => (Kind::Head, 1, self.cost(lane, Call::Head { rows: 1 })?),
            Work::Decode(run) => iteration(&run.batch, run.layers.len())?,
            Work::Mixed { batch, prompts } if prompts.is_empty() => {
                iteration(batch, self.model.layers as usize)?
            }
            // Each of its parts is learned from other launches.
            Work::Mixed { .. } => return None,
        };
        let load = cost.on(lane);
        let slower: f64 = beside.map(|other| self.slowdown(load, other)).product();
        Some(Expected {
            kind,
            rows,
            factor: self.factor(lane, kind, rows),
            latency_us: cost.latency_us * slower,
            load,
        })
    }

    /// Returns the warm kernel that attention of a segment runs on: the smallest that holds it, unless the
    /// bundle has a smaller one.
    fn warm_for(&self, lane: Lane, segment: Segment, kernel: LayerKernel) -> Option<WarmKernel> {
        if (lane, kernel) != (Lane::Npu, LayerKernel::Mha) {
            return None;
        }
        let (tokens, context) = (segment.tokens, segment.context());
        let holds = |warm: &&WarmKernel| warm.tokens >= tokens && warm.context >= context;
        let warm = *self.warm.borrow().iter().find(holds)?;
        let bundled = self.padded(Group::Mha, tokens, context);
        let nearest = bundled.is_none_or(|size| (warm.tokens, warm.context) <= size);
        nearest.then_some(warm)
    }

    /// Takes in the measured time of a launch.
    pub(super) fn observe(&self, lane: Lane, expected: Expected, took: Duration) {
        let Expected {
            kind,
            rows,
            factor,
            latency_us,
            load: _,
        } = expected;
        self.learned[lane as usize][kind as usize].learn(rows, factor, latency_us, took);
    }

    /// Takes in a compiled kernel, and the time that compiling it took.
    pub(super) fn warmed(&self, kernel: WarmKernel, took: Duration) {
        if let Some(expected) = self.warm_up(kernel) {
            let factor = self.compile.factor(kernel.tokens);
            let expected_us = expected.0 as f64;
            self.compile.learn(kernel.tokens, factor, expected_us, took);
        }
        self.warm.borrow_mut().insert(kernel);
    }

    /// Forgets a compiled kernel.
    pub(super) fn unloaded(&self, kernel: WarmKernel) {
        self.warm.borrow_mut().remove(&kernel);
    }
}

impl Pace {
    /// Makes the costs for the lanes that exist, and an NPU that has kernels for these shapes.
    pub(super) fn new(
        loader: &Loader,
        known: Option<AnnotatedCosts>,
        model: ModelShape,
        lanes: [bool; Lane::ALL.len()],
    ) -> Self {
        let manifest = loader.bundle().manifest();
        let mut npu_shapes = loader.shapes(DeviceClass::Npu);
        let forms = loader.activations().unwrap_or_default();
        let is_integer = |form: &Activations| *form == Activations::I8;
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
        for shapes in npu_shapes.values_mut() {
            // Shapes without bounds come last.
            let size = |size: Option<u32>| size.unwrap_or(u32::MAX);
            shapes.sort_by_key(|shape| (size(shape.chunk()), size(shape.bucket())));
        }
        Self {
            known: known.map(CachedCosts::new),
            sizes,
            flop_per_us: match !forms.is_empty() && forms.iter().all(is_integer) {
                true => GUESS_INTEGER_FLOP_PER_US,
                false => GUESS_FLOP_PER_US,
            },
            kv_width: f64::from(manifest.model.kv_heads) * f64::from(manifest.model.head_dim),
            model,
            lanes,
            npu_shapes,
            warm: RefCell::default(),
            learned: Default::default(),
            compile: Correction::default(),
        }
    }

    /// Guesses the time of a token-wise kernel from its weights, in µs.
    fn token_wise(&self, group: Group, rows: f64) -> f64 {
        let weights = self.sizes.get(&group).copied().unwrap_or(0.0);
        (2.0 * weights * rows / self.flop_per_us).max(weights / GUESS_BYTES_PER_US)
    }

    fn attention(&self, rows: f64, context: f64) -> f64 {
        let queries = self.sizes.get(&Group::Mha).copied().unwrap_or(0.0);
        let flop = 4.0 * queries * rows * context;
        let bytes = 8.0 * self.kv_width * context;
        (flop / GUESS_FLOP_PER_US).max(bytes / GUESS_BYTES_PER_US)
    }

    /// Rows and context of the NPU's smallest kernel that holds a call.
    fn padded(&self, group: Group, tokens: u32, context: u32) -> Option<(u32, u32)> {
        let mut shapes = self.npu_shapes.get(&group)?.iter();
        let shape = shapes.find(|shape| shape.admits(tokens as usize, context as usize))?;
        Some((
            shape.chunk().unwrap_or(tokens),
            shape.bucket().unwrap_or(context),
        ))
    }

    /// Guesses the cost of a call from sizes alone; on the NPU, from those of the kernel that holds the call, if
    /// there is one.
    fn guess(&self, lane: Lane, call: Call) -> Option<Cost> {
        let size = |group, tokens, context| match lane {
            Lane::Npu => self.padded(group, tokens, context),
            Lane::Igpu | Lane::Cpu => Some((tokens, context)),
        };
        let token_wise = |group, tokens| {
            let (rows, _) = size(group, tokens, 0)?;
            Some(self.token_wise(group, f64::from(rows)))
        };
        let busy_us = match call {
            Call::Prefill {
                kernel,
                tokens,
                context,
            } => match kernel {
                LayerKernel::Qkv => token_wise(Group::Qkv, tokens)?,
                LayerKernel::Ffn => token_wise(Group::Ffn, tokens)?,
                LayerKernel::Mha => {
                    let (rows, context) = size(Group::Mha, tokens, context)?;
                    self.attention(f64::from(rows), f64::from(context))
                }
            },
            // Shapes of a batch are not static.
            Call::Layer { .. } if lane == Lane::Npu => return None,
            Call::Layer { rows, context, .. } => {
                let rows = f64::from(rows);
                self.token_wise(Group::Qkv, rows)
                    + self.token_wise(Group::Ffn, rows)
                    + self.attention(1.0, f64::from(context))
                    + 2.0 * GUESS_LAUNCH_US
            }
            Call::Verify { .. } if lane != Lane::Npu => return None,
            Call::Verify { rows, context } => {
                let (padded, context) = size(Group::Mha, rows, context)?;
                let attention = self.attention(f64::from(padded), f64::from(context));
                let token_wise = token_wise(Group::Qkv, rows)? + token_wise(Group::Ffn, rows)?;
                token_wise + attention + 2.0 * GUESS_LAUNCH_US
            }
            Call::Head { rows } => token_wise(Group::Head, rows)?,
        };
        Some(guessed(busy_us))
    }
}

fn guessed(busy_us: f64) -> Cost {
    Cost {
        latency_us: busy_us + GUESS_LAUNCH_US,
        bandwidth: 0.0,
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
        let (kind, rows) = match call {
            Call::Prefill { kernel, tokens, .. } => (Kind::from(kernel), tokens),
            Call::Head { rows } => (Kind::Head, rows),
            Call::Layer { rows, .. } => (Kind::Decode, rows),
            Call::Verify { rows, .. } => (Kind::Verify, rows),
        };
        cost.latency_us *= self.factor(lane, kind, rows);
        Some(cost)
    }

    fn watts(&self, lane: Lane, stage: WorkStage) -> Option<f64> {
        self.known.as_ref()?.watts(lane, stage)
    }

    fn slowdown(&self, own: LaneLoad, beside: LaneLoad) -> f64 {
        let known = self.known.as_ref();
        known.map_or(1.0, |known| known.slowdown(own, beside))
    }

    fn warm_cost(&self, kernel: WarmKernel) -> Option<Cost> {
        let known = self.known.as_ref();
        let known = known.and_then(|known| known.warm_cost(kernel));
        let (rows, context) = (f64::from(kernel.tokens), f64::from(kernel.context));
        let mut cost = known.unwrap_or_else(|| guessed(self.attention(rows, context)));
        cost.latency_us *= self.factor(Lane::Npu, Kind::WarmMha, kernel.tokens);
        Some(cost)
    }

    /// Returns `None` if the bundle has no shape to make it from.
    fn warm_up(&self, kernel: WarmKernel) -> Option<Micros> {
        let larger = |shape: &ShapeClass| {
            shape.chunk() == Some(kernel.tokens) && shape.bucket() >= Some(kernel.context)
        };
        if !self.npu_shapes.get(&Group::Mha)?.iter().any(larger) {
            return None;
        }
        let known = self.known.as_ref();
        let known = known.and_then(|known| known.warm_up(kernel));
        let compile_us = known.map_or(GUESS_COMPILE_US, |known| known.0 as f64);
        Some(Micros::from_f64(
            compile_us * self.compile.factor(kernel.tokens),
        ))
    }
}
