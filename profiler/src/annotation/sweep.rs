//! The chunk of prefill, chosen by a sweep over candidates (Agent.xpu §4.2, §4.4).
//!
//! A longer chunk amortises weights and launches until the device is saturated; a shorter one lets a reactive request
//! in earlier, since kernels are preempted at their boundaries. So among the candidates whose longest kernel stays
//! under the preemption bound, the sweep takes the smallest whose time per token is within a tolerance of the best. All
//! candidates are kept, so that the choice can be inspected.

use heg_artifacts::manifest::{Kernel, KernelUse, Manifest, Variant};
use heg_spec::DeviceClass;
use serde::{Deserialize, Serialize};

use super::document::{DeviceAnnotation, SocAnnotation};
use super::error::AnnotationError;
use super::estimate::{Estimate, KernelCall, estimate};
use crate::model::AnchorSource;

/// The assumptions and limits of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepLimits {
    /// Length of the prompt, and n of every attention call: that of the prompt's last and slowest chunk.
    pub context_tokens: u32,
    /// Longest permitted time of a kernel, in µs.
    pub preemption_us: f64,
    /// Tolerated slowdown per token relative to the best chunk: 0.05 is 5%.
    pub tolerance: f64,
}

impl Default for SweepLimits {
    /// A preemption bound of 100 ms (Agent.xpu §4.4) and a tolerance of 5%; a prompt of 2048 tokens, chosen.
    fn default() -> Self {
        SweepLimits {
            context_tokens: 2048,
            preemption_us: 100_000.0,
            tolerance: 0.05,
        }
    }
}

/// One candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChunkCost {
    /// The chunk, c.
    pub tokens: u32,
    /// Time per token of the prompt in µs: a pass of all layers divided by the chunk's tokens, plus the head divided by
    /// the prompt's, since it runs once.
    pub token_us: f64,
    /// The longest kernel, in µs.
    pub longest_us: f64,
    /// Each kernel of the model once, in the order of the manifest.
    pub kernels: Vec<KernelCost>,
}

/// One kernel within a pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelCost {
    /// Name of the kernel.
    pub kernel: String,
    /// The device on which it runs.
    pub device: DeviceClass,
    /// The source of the latency's anchors.
    pub source: AnchorSource,
    /// Time of its call, in µs.
    pub latency_us: f64,
}

/// A sweep with its choice.
///
/// Invariants:
/// - candidates ascend in their tokens, and their numbers are finite and above 0;
/// - the choice follows from them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawChunkSweep", into = "RawChunkSweep")]
pub struct ChunkSweep {
    limits: SweepLimits,
    candidates: Vec<ChunkCost>,
    chosen: Option<u32>,
}

impl ChunkSweep {
    /// Chooses among candidates; refuses with [`AnnotationError::Sweep`]. Times are rounded to 0.1 µs.
    pub fn new(
        limits: SweepLimits,
        mut candidates: Vec<ChunkCost>,
    ) -> Result<Self, AnnotationError> {
        check_limits(&limits)?;
        for candidate in &mut candidates {
            let times = candidate
                .kernels
                .iter_mut()
                .map(|cost| &mut cost.latency_us);
            for time_us in times.chain([&mut candidate.token_us, &mut candidate.longest_us]) {
                *time_us = rounded_us(*time_us)?;
            }
        }
        if let Some(pair) = candidates
            .windows(2)
            .find(|pair| pair[0].tokens >= pair[1].tokens)
        {
            return Err(AnnotationError::Sweep {
                what: "chunk",
                found: pair[1].tokens.into(),
                expected: "candidates in ascending order",
            });
        }
        let chosen = choose(&candidates, &limits);
        Ok(ChunkSweep {
            limits,
            candidates,
            chosen,
        })
    }

    /// The assumptions and limits.
    pub fn limits(&self) -> &SweepLimits {
        &self.limits
    }

    /// All candidates, ascending.
    pub fn candidates(&self) -> &[ChunkCost] {
        &self.candidates
    }

    /// The chunk to use, in tokens; `None` if every candidate has a kernel beyond the preemption bound.
    pub fn chosen(&self) -> Option<u32> {
        self.chosen
    }
}

/// An unchecked [`ChunkSweep`]; its choice is repeated and compared.
#[derive(Serialize, Deserialize)]
#[serde(rename = "ChunkSweep", deny_unknown_fields)]
struct RawChunkSweep {
    limits: SweepLimits,
    candidates: Vec<ChunkCost>,
    chosen: Option<u32>,
}

impl TryFrom<RawChunkSweep> for ChunkSweep {
    type Error = AnnotationError;

    fn try_from(raw: RawChunkSweep) -> Result<Self, AnnotationError> {
        let sweep = ChunkSweep::new(raw.limits, raw.candidates)?;
        match sweep.chosen == raw.chosen {
            true => Ok(sweep),
            false => Err(AnnotationError::Choice {
                found: raw.chosen,
                expected: sweep.chosen,
            }),
        }
    }
}

impl From<ChunkSweep> for RawChunkSweep {
    fn from(sweep: ChunkSweep) -> Self {
        RawChunkSweep {
            limits: sweep.limits,
            candidates: sweep.candidates,
            chosen: sweep.chosen,
        }
    }
}

/// The smallest candidate within the tolerance of the best, among those that can be preempted in time.
pub fn choose(candidates: &[ChunkCost], limits: &SweepLimits) -> Option<u32> {
    let preemptible = || {
        candidates
            .iter()
            .filter(|candidate| candidate.longest_us <= limits.preemption_us)
    };
    let best_us = preemptible()
        .map(|candidate| candidate.token_us)
        .min_by(f64::total_cmp)?;
    preemptible()
        .filter(|candidate| candidate.token_us <= best_us * (1.0 + limits.tolerance))
        .map(|candidate| candidate.tokens)
        .min()
}

/// Costs every candidate chunk of a model on a machine, and chooses.
///
/// Each kernel runs on the first of NPU, iGPU and CPU where it has a variant that admits the call and whose speed is
/// known; there the smallest such variant is taken, as the runtime does. A chunk is left out if some kernel has no such
/// variant; returns `None` if that leaves no chunk.
pub fn sweep(manifest: &Manifest, soc: &SocAnnotation, limits: SweepLimits) -> Option<ChunkSweep> {
    let candidates = manifest.model.chunk_tokens.iter();
    let candidates: Vec<ChunkCost> = candidates
        .filter_map(|&tokens| chunk_cost(manifest, soc, tokens, limits.context_tokens))
        .collect();
    if candidates.is_empty() {
        return None;
    }
    ChunkSweep::new(limits, candidates).ok()
}

fn chunk_cost(
    manifest: &Manifest,
    soc: &SocAnnotation,
    tokens: u32,
    context: u32,
) -> Option<ChunkCost> {
    let call = |tokens| KernelCall {
        tokens,
        context: context.max(tokens),
        batch: 1,
    };
    let head = manifest.head.kernel.0 as usize;
    let mut kernels = Vec::with_capacity(manifest.kernels.len());
    for (index, kernel) in manifest.kernels.iter().enumerate() {
        let tokens = if index == head { 1 } else { tokens };
        let (device, found) = cost(soc, kernel, call(tokens))?;
        kernels.push(KernelCost {
            kernel: kernel.name.clone(),
            device,
            source: found.source,
            latency_us: found.latency_us,
        });
    }
    let time_us = |place: &KernelUse| kernels.get(place.kernel.0 as usize).map(|k| k.latency_us);
    let mut pass_us = 0.0;
    for layer in &manifest.layers {
        pass_us += time_us(&layer.qkv)? + time_us(&layer.mha)? + time_us(&layer.ffn)?;
    }
    let head_us = time_us(&manifest.head)?;
    let longest_us = kernels.iter().map(|k| k.latency_us).fold(0.0, f64::max);
    Some(ChunkCost {
        tokens,
        token_us: pass_us / f64::from(tokens.max(1)) + head_us / f64::from(context.max(1)),
        longest_us,
        kernels,
    })
}

fn cost(soc: &SocAnnotation, kernel: &Kernel, call: KernelCall) -> Option<(DeviceClass, Estimate)> {
    [DeviceClass::Npu, DeviceClass::Igpu, DeviceClass::Cpu]
        .into_iter()
        .find_map(|class| {
            let device = soc.device(class)?;
            let variant = smallest_variant(kernel, device, call)?;
            let found = estimate(device, kernel, variant, call, 0)?;
            Some((class, found))
        })
}

/// The smallest variant of a device that admits the call in one run. A CPU that plays the device runs the CPU's
/// variants, which were measured there.
fn smallest_variant<'k>(
    kernel: &'k Kernel,
    device: &DeviceAnnotation,
    call: KernelCall,
) -> Option<&'k Variant> {
    let measured = |variant: &Variant| {
        let known = device.variant(&kernel.name, variant.shape, variant.binding);
        known.is_some_and(|known| known.source == AnchorSource::Measured)
    };
    let limit = |size: Option<u32>| size.unwrap_or(u32::MAX);
    kernel
        .variants
        .iter()
        .filter(|variant| variant.device == device.class || measured(variant))
        .filter(|variant| {
            variant
                .shape
                .admits(call.tokens as usize, call.context as usize)
        })
        .min_by_key(|variant| (limit(variant.shape.chunk()), limit(variant.shape.bucket())))
}

fn check_limits(limits: &SweepLimits) -> Result<(), AnnotationError> {
    let SweepLimits {
        context_tokens: _,
        preemption_us,
        tolerance,
    } = *limits;
    if !(preemption_us.is_finite() && preemption_us > 0.0) {
        return Err(AnnotationError::Sweep {
            what: "preemption bound in µs",
            found: preemption_us,
            expected: "a finite number above 0",
        });
    }
    if !(tolerance.is_finite() && tolerance >= 0.0) {
        return Err(AnnotationError::Sweep {
            what: "tolerance",
            found: tolerance,
            expected: "a finite number from 0",
        });
    }
    Ok(())
}

fn rounded_us(time_us: f64) -> Result<f64, AnnotationError> {
    if !(time_us.is_finite() && time_us > 0.0) {
        return Err(AnnotationError::Latency { found: time_us });
    }
    // Numbers that large are integers, and ten times as much might be infinite.
    if time_us > 1e15 {
        return Ok(time_us);
    }
    Ok(((time_us * 10.0).round() / 10.0).max(0.1))
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
