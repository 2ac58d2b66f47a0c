//! Machines and models of the evaluation, from their data sheets.

use anyhow::{Context, Result};
use heg_sched::{Call, Cost, Costs, Lane, LayerKernel, Micros, ModelShape, WarmKernel};
use heg_sim::{AnalyticCosts, DevicePeak, Dimensions, PowerModel, StagePower};
use heg_spec::{Soc, shipped};
use xtask::fail::Fail;

/// Prompt tokens per call of the long form (sd.npu 3.2).
pub(super) const LONG_TOKENS: u32 = 256;
/// Rows per call of the short form, which verifies drafts.
pub(super) const SHORT_TOKENS: u32 = 32;

/// A model's dimensions.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelShapes {
    pub(super) name: &'static str,
    pub(super) dimensions: Dimensions,
}

/// The paper's models, with their published configurations.
pub(super) const MODELS: [ModelShapes; 3] = [
    ModelShapes {
        name: "qwen2.5-0.5b",
        dimensions: Dimensions {
            layers: 24,
            hidden: 896,
            inner: 4864,
            heads: 14,
            kv_heads: 2,
            head_dim: 64,
            vocab: 151_936,
        },
    },
    ModelShapes {
        name: "qwen2.5-1.5b",
        dimensions: Dimensions {
            layers: 28,
            hidden: 1536,
            inner: 8960,
            heads: 12,
            kv_heads: 2,
            head_dim: 128,
            vocab: 151_936,
        },
    },
    ModelShapes {
        name: "llama-3.2-3b",
        dimensions: Dimensions {
            layers: 28,
            hidden: 3072,
            inner: 8192,
            heads: 24,
            kv_heads: 8,
            head_dim: 128,
            vocab: 128_256,
        },
    },
];

impl ModelShapes {
    /// Bytes of a layer's weights, in int8.
    pub(super) fn layer_bytes(self) -> f64 {
        let d = self.dimensions;
        let width = |count: u32| f64::from(count) * f64::from(d.head_dim);
        let (queries, keys) = (width(d.heads), width(d.kv_heads));
        let (hidden, inner) = (f64::from(d.hidden), f64::from(d.inner));
        2.0 * hidden * (queries + keys) + 3.0 * hidden * inner
    }
}

/// The CPU of the phones, which is not in their file since HEG runs nothing on it: one processor alone draws 40 to 45
/// GB/s (HeteroLLM 3.3), and llama.cpp processes a prompt of 1024 tokens of Llama-8B at 247.9 / 34.5 tokens per second
/// (5.2). Its power is not published.
const PHONE_CPU: DevicePeak = DevicePeak {
    flops_per_sec: 0.115e12,
    bytes_per_sec: 40e9,
    launch_us: 0.0,
};

/// A machine.
pub(super) struct Hardware {
    soc: Soc,
}

impl Hardware {
    /// The machine of a shipped SoC file.
    pub(super) fn of(name: &str) -> Result<Self> {
        let soc =
            shipped::soc(name).with_context(|| Fail::input(format!("cannot use SoC `{name}`")))?;
        Ok(Self { soc })
    }

    pub(super) fn name(&self) -> &str {
        &self.soc.name
    }

    /// The costs of a model's kernels by the anchors of the machine's file. An NPU without anchors is taken to be that
    /// of [`AnalyticCosts::core_ultra_5_125h`].
    pub(super) fn costs(&self, model: ModelShapes) -> AnalyticCosts {
        let papers = AnalyticCosts::core_ultra_5_125h(model.dimensions);
        let dram = self.soc.dram.as_ref();
        let dram = dram.map_or(papers.dram_bytes_per_sec, |dram| dram.bytes_per_sec);
        let peak = |lane: Lane| {
            let mut devices = self.soc.devices.iter();
            let Some(device) = devices.find(|device| Lane::from(device.class) == lane) else {
                return (lane == Lane::Cpu).then_some(PHONE_CPU);
            };
            let Some(anchors) = &device.anchors else {
                return papers.devices[lane as usize];
            };
            let peak = device.peaks.as_ref().and_then(|peaks| peaks.bytes_per_sec);
            let peak = peak.unwrap_or(dram);
            let (memory, compute) = (anchors.memory_bound, anchors.compute_bound);
            Some(DevicePeak {
                flops_per_sec: compute.utilisation * compute.intensity_flops_per_byte * peak,
                bytes_per_sec: memory.utilisation * peak,
                launch_us: anchors.launch_us,
            })
        };
        AnalyticCosts {
            devices: Lane::ALL.map(peak),
            dram_bytes_per_sec: dram,
            chunk_tokens: LONG_TOKENS,
            ..papers
        }
    }

    /// The power of a lane; `None` if it is unknown.
    pub(super) fn power(&self, lane: Lane) -> Option<StagePower> {
        let mut devices = self.soc.devices.iter();
        let device = devices.find(|device| Lane::from(device.class) == lane)?;
        device.power.as_ref()?;
        Some(PowerModel::of(&self.soc).lanes[lane as usize])
    }
}

/// The device and the method of decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Decoder {
    pub(super) lane: Lane,
    /// Rows of its kernels, if they are static.
    pub(super) rows: Option<u32>,
    /// Passes of a draft model before each iteration: one layer and the head each.
    pub(super) draft_passes: u32,
}

/// Costs of one request at a time: its prompt on the NPU, its answer by a [`Decoder`]. All of it counts as one lane,
/// the NPU's, since nothing runs side by side. Attention runs on the iGPU, as in engines for such NPUs (sd.npu 4.1).
pub(super) struct OneStream {
    pub(super) machine: AnalyticCosts,
    pub(super) decoder: Decoder,
}

impl OneStream {
    /// The cost of one layer in a decode iteration.
    fn layer(&self, rows: u32, context: u32) -> Option<Cost> {
        let Some(chunk) = self.decoder.rows else {
            let call = Call::Layer {
                rows,
                context,
                fused: false,
            };
            return self.machine.cost(self.decoder.lane, call);
        };
        let chunks = AnalyticCosts {
            chunk_tokens: chunk,
            ..self.machine.clone()
        };
        let on = |lane, kernel| {
            let tokens = rows;
            let call = Call::Prefill {
                kernel,
                tokens,
                context,
            };
            chunks.cost(lane, call)
        };
        let qkv = on(self.decoder.lane, LayerKernel::Qkv)?;
        let ffn = on(self.decoder.lane, LayerKernel::Ffn)?;
        let mha = on(Lane::Igpu, LayerKernel::Mha)?;
        Some(sum(&[qkv, mha, ffn]))
    }

    fn head(&self, rows: u32) -> Option<Cost> {
        let rows = self
            .decoder
            .rows
            .map_or(rows, |chunk| rows.next_multiple_of(chunk));
        self.machine.cost(self.decoder.lane, Call::Head { rows })
    }
}

impl Costs for OneStream {
    fn model(&self) -> ModelShape {
        self.machine.model()
    }

    fn cost(&self, lane: Lane, call: Call) -> Option<Cost> {
        match call {
            _ if lane != Lane::Npu => None,
            Call::Prefill {
                kernel: LayerKernel::Mha,
                ..
            } => self.machine.cost(Lane::Igpu, call),
            Call::Prefill { .. } => self.machine.cost(Lane::Npu, call),
            Call::Verify { .. } => None,
            Call::Layer { rows, context, .. } => self.layer(rows, context),
            Call::Head { rows } => {
                let mut all = vec![self.head(rows)?];
                for _ in 0..self.decoder.draft_passes {
                    all.extend([self.layer(rows, LONG_TOKENS)?, self.head(rows)?]);
                }
                Some(sum(&all))
            }
        }
    }

    fn warm_cost(&self, _kernel: WarmKernel) -> Option<Cost> {
        None
    }

    fn warm_up(&self, _kernel: WarmKernel) -> Option<Micros> {
        None
    }
}

/// The sum of costs, one after the other.
fn sum(costs: &[Cost]) -> Cost {
    let latency_us: f64 = costs.iter().map(|cost| cost.latency_us).sum();
    let moved: f64 = costs.iter().map(|it| it.latency_us * it.bandwidth).sum();
    Cost {
        latency_us,
        bandwidth: moved / latency_us,
    }
}
