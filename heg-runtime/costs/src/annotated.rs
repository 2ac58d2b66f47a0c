//! Costs from a bundle's annotations for one machine.

use std::collections::BTreeMap;

use heg_artifacts::manifest::{self, Manifest, Model, ShapeClass, Variant};
use heg_profiler::annotation::{self, DeviceAnnotation, Regime, SocAnnotation, estimate};
use heg_spec::{DeviceClass, Group};

use heg_sched::{
    Call, Cost, Costs, KernelBound, Lane, LaneLoad, LayerKernel, LayerOrder, Micros, ModelShape,
    Slowdowns, WarmKernel, WorkStage,
};

/// Costs of one model on one machine, as [`estimate`] predicts them.
///
/// Layers differ little, if at all, so the kernels of the first one stand for all. On the NPU a call takes the
/// smallest static variant that admits it, or else the variant that needs the least time in several runs;
/// attention there counts only if a bucket admits it. A decode layer is `qkv`, attention over Σ n rows of cache as
/// one kernel, and `ffn`; a fused layer is estimated as a single kernel of the same work, with one launch. Slow:
/// wrap it in [`CachedCosts`](heg_sched::CachedCosts).
#[derive(Debug, Clone)]
pub struct AnnotatedCosts {
    devices: [Option<DeviceAnnotation>; Lane::ALL.len()],
    kernels: BTreeMap<Group, manifest::Kernel>,
    model: ModelShape,
    /// FLOPs of attention for one query and one key, over all heads.
    attention_flops: f64,
    /// Maximum throughput of prompt attention on each lane, in FLOP/s; `None` if it has no limit of its own.
    attention_flops_per_sec: [Option<f64>; Lane::ALL.len()],
    /// Slow-downs of kernels beside each other, if they were measured.
    slowdowns: Option<Slowdowns>,
    /// Time to compile the NPU's attention for one chunk, over the rows of context: offset and slope, in µs.
    compile_us: (f64, f64),
}

/// Compile times of attention at chunk 256 (DESIGN §4.4): 1.0 s at 512 rows of context, 2.9 s at 2048.
const COMPILE_US: (f64, f64) = (0.367e6, 1237.0);

impl AnnotatedCosts {
    /// Returns the costs of a model with `layers` layers on `soc` that prefills in chunks of `chunk_tokens`.
    /// `kernels` has one of each group.
    pub fn new(
        model: &Model,
        layers: u32,
        kernels: &[manifest::Kernel],
        soc: &SocAnnotation,
        chunk_tokens: u32,
    ) -> Self {
        let device = |class| soc.device(class).cloned();
        let kernels = kernels.iter();
        let kv_row = u64::from(model.kv_heads) * u64::from(model.head_dim);
        let mut costs = Self {
            devices: [
                device(DeviceClass::Npu),
                device(DeviceClass::Igpu),
                device(DeviceClass::Cpu),
            ],
            kernels: kernels.map(|k| (k.group, k.clone())).collect(),
            model: ModelShape {
                layers,
                chunk_tokens,
                context_tokens: model.context_tokens,
                // Keys and values in f16.
                order: LayerOrder::default(),
                kv_bytes_per_token: u64::from(layers) * kv_row * 4,
            },
            attention_flops: 4.0 * f64::from(model.heads) * f64::from(model.head_dim),
            attention_flops_per_sec: [None; Lane::ALL.len()],
            slowdowns: None,
            compile_us: COMPILE_US,
        };
        costs.slowdowns = costs.measured_slowdowns(soc);
        costs
    }

    /// Returns the slow-downs of kernels beside each other; `None` if they were not measured.
    pub fn slowdowns(&self) -> Option<&Slowdowns> {
        self.slowdowns.as_ref()
    }

    fn measured_slowdowns(&self, soc: &SocAnnotation) -> Option<Slowdowns> {
        if soc.contention.is_empty() {
            return None;
        }
        let mut table = Slowdowns::new(Lane::ALL.map(|lane| self.bandwidth_max(lane)));
        let end = |(class, regime): (DeviceClass, Regime)| {
            let lane = match class {
                DeviceClass::Npu => Lane::Npu,
                DeviceClass::Igpu => Lane::Igpu,
                DeviceClass::Cpu => Lane::Cpu,
            };
            let bound = match regime {
                Regime::MemoryBound => KernelBound::Memory,
                Regime::ComputeBound => KernelBound::Compute,
            };
            (lane, bound)
        };
        for cell in &soc.contention {
            table.set(end(cell.subject()), end(cell.neighbour()), cell.slowdown());
        }
        Some(table)
    }

    /// Share of the bandwidth that the kernel of a lane draws that draws most: the fewest rows read all weights, and
    /// attention reads the most of the cache.
    fn bandwidth_max(&self, lane: Lane) -> f64 {
        let groups = [Group::Qkv, Group::Mha, Group::Ffn, Group::Head];
        let contexts = [1, self.model.context_tokens];
        let drawn = groups.into_iter().flat_map(|group| {
            contexts.into_iter().filter_map(move |context| {
                let call = annotation::KernelCall {
                    tokens: 1,
                    context,
                    batch: 1,
                };
                Some(self.kernel(lane, group, call)?.bandwidth)
            })
        });
        drawn.fold(0.0, f64::max)
    }

    /// Sets the throughput of prompt attention on a lane where it is slower than the lane's other kernels.
    #[must_use]
    pub fn with_attention(mut self, lane: Lane, flops_per_sec: f64) -> Self {
        self.attention_flops_per_sec[lane as usize] = Some(flops_per_sec);
        self
    }

    /// Returns the cost of attention over a prompt's segment; `cost` is the estimate from the device's anchors.
    fn attention(&self, lane: Lane, tokens: u32, context: u32, cost: Cost) -> Cost {
        let Some(rate) = self.attention_flops_per_sec[lane as usize] else {
            return cost;
        };
        let pairs = f64::from(tokens) * f64::from(context);
        let busy_us = 1e6 * self.attention_flops * pairs / rate;
        let latency_us = cost.latency_us.max(busy_us + self.launch_us(lane));
        Cost {
            latency_us,
            bandwidth: cost.bandwidth * cost.latency_us / latency_us,
        }
    }

    /// Returns the cost of one kernel on a lane.
    fn kernel(&self, lane: Lane, group: Group, call: annotation::KernelCall) -> Option<Cost> {
        let kernel = self.kernels.get(&group)?;
        let device = self.devices[lane as usize].as_ref()?;
        // A CPU that plays the device runs the CPU's variants, and those were measured there.
        let runs_here = |variant: &&Variant| {
            let measured = || device.variant(&kernel.name, variant.shape, variant.binding);
            variant.device == device.class || measured().is_some()
        };
        let costs = kernel
            .variants
            .iter()
            .filter(runs_here)
            .filter_map(|variant| {
                let admits = variant.shape.bucket().is_none_or(|n| n >= call.context);
                let found = estimate(device, kernel, variant, call, 0).filter(|_| admits)?;
                Some(Cost {
                    latency_us: found.latency_us,
                    bandwidth: found.bandwidth_utilisation.unwrap_or(0.0),
                })
            });
        costs.min_by(|a, b| a.latency_us.total_cmp(&b.latency_us))
    }

    /// Returns the cost of one layer for `rows` requests that see `context` tokens together.
    fn layer(&self, lane: Lane, rows: u32, context: u32, fused: bool) -> Option<Cost> {
        let token_wise = annotation::KernelCall {
            tokens: 1,
            context: 1,
            batch: rows,
        };
        let attention = annotation::KernelCall {
            tokens: 1,
            context,
            batch: 1,
        };
        let parts = [
            self.kernel(lane, Group::Qkv, token_wise)?,
            self.kernel(lane, Group::Mha, attention)?,
            self.kernel(lane, Group::Ffn, token_wise)?,
        ];
        let spared = match fused {
            true => 2.0 * self.launch_us(lane),
            false => 0.0,
        };
        let latency_us: f64 = parts.iter().map(|part| part.latency_us).sum();
        let moved: f64 = parts
            .iter()
            .map(|part| part.latency_us * part.bandwidth)
            .sum();
        Some(Cost {
            latency_us: (latency_us - spared).max(1.0),
            bandwidth: moved / latency_us,
        })
    }

    /// Returns the cost of a layer over the rows of one request on the NPU.
    fn verification(&self, rows: u32, context: u32) -> Option<Cost> {
        let call = annotation::KernelCall {
            tokens: rows,
            context,
            batch: 1,
        };
        let parts = [Group::Qkv, Group::Mha, Group::Ffn];
        let (mut latency_us, mut moved) = (0.0, 0.0);
        for group in parts {
            let part = self.kernel(Lane::Npu, group, call)?;
            latency_us += part.latency_us;
            moved += part.latency_us * part.bandwidth;
        }
        Some(Cost {
            latency_us,
            bandwidth: moved / latency_us,
        })
    }

    fn launch_us(&self, lane: Lane) -> f64 {
        let device = self.devices[lane as usize].as_ref();
        device
            .and_then(|d| d.spec)
            .map_or(0.0, |spec| spec.launch_us())
    }
}

/// Returns the kernels of a model's first layer, which stands for all, and the head.
pub fn first_kernels(manifest: &Manifest) -> impl Iterator<Item = &manifest::Kernel> {
    let first = manifest.layers.first();
    let uses = first.map(|layer| [&layer.qkv, &layer.mha, &layer.ffn]);
    let uses = uses.into_iter().flatten().chain([&manifest.head]);
    uses.filter_map(|used| manifest.kernels.get(used.kernel.0 as usize))
}

impl Costs for AnnotatedCosts {
    fn model(&self) -> ModelShape {
        self.model
    }

    fn cost(&self, lane: Lane, call: Call) -> Option<Cost> {
        match call {
            Call::Prefill {
                kernel,
                tokens,
                context,
            } => {
                let call = annotation::KernelCall {
                    tokens,
                    context,
                    batch: 1,
                };
                let cost = self.kernel(lane, kernel.into(), call)?;
                Some(match kernel {
                    LayerKernel::Mha => self.attention(lane, tokens, context, cost),
                    LayerKernel::Qkv | LayerKernel::Ffn => cost,
                })
            }
            // The shapes of a batch are not static.
            Call::Layer { .. } if lane == Lane::Npu => None,
            Call::Layer {
                rows,
                context,
                fused,
            } => self.layer(lane, rows, context, fused),
            Call::Verify { .. } if lane != Lane::Npu => None,
            Call::Verify { rows, context } => self.verification(rows, context),
            Call::Head { rows } => {
                let call = annotation::KernelCall {
                    tokens: 1,
                    context: 1,
                    batch: rows,
                };
                self.kernel(lane, Group::Head, call)
            }
        }
    }

    fn watts(&self, lane: Lane, stage: WorkStage) -> Option<f64> {
        let power = self.devices[lane as usize].as_ref()?.power.as_ref()?;
        Some(match stage {
            WorkStage::Prefill => power.prefill_watts(),
            WorkStage::Decode => power.decode_watts(),
        })
    }

    fn slowdown(&self, own: LaneLoad, beside: LaneLoad) -> f64 {
        self.slowdowns
            .as_ref()
            .map_or(1.0, |table| table.factor(own, beside))
    }

    /// Returns the cost of a variant of that shape: that of the smallest bucket of the bundle that holds it,
    /// scaled to its rows of context.
    fn warm_cost(&self, warm: WarmKernel) -> Option<Cost> {
        let kernel = self.kernels.get(&Group::Mha)?;
        let device = self.devices[Lane::Npu as usize].as_ref()?;
        let npu = kernel.variants.iter().filter(|v| v.device == device.class);
        let same = npu.filter(|v| v.shape.chunk() == Some(warm.tokens));
        let nearest = same.min_by_key(|v| {
            let bucket = v.shape.bucket().unwrap_or(u32::MAX);
            (bucket < warm.context, bucket.abs_diff(warm.context))
        })?;
        let ShapeClass::Bucket { tokens, context } = nearest.shape else {
            return None;
        };
        let call = annotation::KernelCall {
            tokens,
            context,
            batch: 1,
        };
        let found = estimate(device, kernel, nearest, call, 0)?;
        let rows = f64::from(warm.context) / f64::from(context.max(1));
        Some(Cost {
            latency_us: (found.latency_us * rows).max(1.0),
            bandwidth: found.bandwidth_utilisation.unwrap_or(0.0),
        })
    }

    fn warm_up(&self, kernel: WarmKernel) -> Option<Micros> {
        self.warm_cost(kernel)?;
        let (offset, slope) = self.compile_us;
        Some(Micros::from_f64(offset + slope * f64::from(kernel.context)))
    }
}
