//! The cost of a call: latency, bandwidth, memory and energy of any variant on any annotated device.
//!
//! | c | b | the variant is | its runs |
//! |---|---|---|---|
//! | any | any | dynamic, token-wise | 1 of c·b rows |
//! | any | any | static, token-wise | ⌈c·b / chunk⌉ of a chunk |
//! | any | any | dynamic attention | b of c tokens over n rows |
//! | any | any | static attention | b · ⌈c / chunk⌉ · ⌈n / bucket⌉ of a chunk over a bucket |
//!
//! A padded row costs as much as a real one, so the latency of static variants is a step function (DESIGN §4.4). A
//! context longer than a bucket is not admitted by the variant (`ShapeClass::admits`); the estimate is then the time of
//! that many runs, although they could not compute the call.
//!
//! Estimates hold for a device alone: the scheduler adds contention.

use heg_artifacts::manifest::{Kernel, Parameter, Rows, Variant, Work};
use heg_spec::Group;
use serde::Serialize;

use super::document::{DeviceAnnotation, Prediction};
use crate::model::{AnchorSource, Roofline};
use crate::predict;

/// A call of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename = "Call")]
pub struct KernelCall {
    /// c: tokens of each sequence. For the head, the rows of each sequence whose logits are wanted.
    pub tokens: u32,
    /// n: rows of the KV cache that each sequence sees, its new ones included; never less than c.
    pub context: u32,
    /// b: sequences.
    pub batch: u32,
}

/// The cost of a call. All numbers are finite.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// Time of the whole call, in µs; above 0.
    pub latency_us: f64,
    /// Share of the peak bandwidth drawn while it runs, from 0 to 1; `None` if the peak is unknown.
    ///
    /// For a roofline it is u(I); for anything else the bytes of the call divided by its latency.
    pub bandwidth_utilisation: Option<f64>,
    /// Memory that the call touches, in bytes; see [`footprint_bytes`].
    pub footprint_bytes: u64,
    /// Power times latency, in µJ; `None` if the power is unknown.
    pub energy_uj: Option<f64>,
    /// Number of runs of the kernel.
    pub runs: u64,
    /// The source of the latency's anchors.
    pub source: AnchorSource,
}

/// Estimates the cost of a call of a variant on a device; `None` if nothing is known of the variant's speed there.
///
/// Zeros in the call count as one. `blob_bytes` is the length of the blob that is run, 0 without one. The footprint
/// never falls as c, n or b grow, and neither does the latency, except where measurements fell.
pub fn estimate(
    device: &DeviceAnnotation,
    kernel: &Kernel,
    variant: &Variant,
    call: KernelCall,
    blob_bytes: u64,
) -> Option<Estimate> {
    let shape = Shape::of(kernel, variant, call);
    let run = Run {
        work: &kernel.work,
        tokens: shape.run_tokens,
        context: shape.run_context,
    };
    let own = device.variant(&kernel.name, variant.shape, variant.binding);
    let spec = device.spec.map(Prediction::Roofline);
    let (prediction, source) = match own {
        Some(entry) => (&entry.prediction, entry.source),
        None => (spec.as_ref()?, AnchorSource::Spec),
    };
    let run_us = prediction.run_us(&run, device.frequency_mhz());
    let run_us = bounded(run_us, LATENCY_US_MIN, LATENCY_US_MAX);
    let latency_us = (run_us * shape.runs as f64).min(LATENCY_US_MAX);
    let of_roofline = |roofline: &Roofline| roofline.utilisation(run.flops() / run.bytes());
    let moved = device
        .peaks
        .map(|peaks| run.bytes() / (run_us / MICROS_PER_SEC) / peaks.bytes_per_sec());
    let utilisation = match prediction {
        Prediction::Roofline(roofline) => Some(of_roofline(roofline)),
        Prediction::Measured(calibrated) => {
            moved.or_else(|| calibrated.roofline.as_ref().map(of_roofline))
        }
        Prediction::Vendor(_) => moved,
    };
    let watts = device.power.map(|power| match call.tokens {
        0 | 1 => power.decode_watts(),
        _ => power.prefill_watts(),
    });
    Some(Estimate {
        latency_us,
        // A vendor's latency and a data sheet's peak may contradict each other; the share is at most 1.
        bandwidth_utilisation: utilisation.map(|share| share.clamp(0.0, 1.0)),
        footprint_bytes: footprint_of(kernel, variant, &shape, blob_bytes),
        energy_uj: watts.map(|watts| (watts * latency_us).min(f64::MAX)),
        runs: shape.runs,
        source,
    })
}

/// Work and traffic of one run: its place on the axes of a roofline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunWork {
    /// F, in FLOP; finite, at least 0.
    pub flops: f64,
    /// Q, in B; finite, at least 1.
    pub bytes: f64,
}

/// The work and traffic of each run of a call, padding included.
pub fn run_work(kernel: &Kernel, variant: &Variant, call: KernelCall) -> RunWork {
    let shape = Shape::of(kernel, variant, call);
    let run = Run {
        work: &kernel.work,
        tokens: shape.run_tokens,
        context: shape.run_context,
    };
    RunWork {
        flops: run.flops(),
        bytes: run.bytes(),
    }
}

/// Memory that a call touches, in bytes: the kernel's weights with their scales and centres, its activations (padded to
/// the variant's shape), the rows of the KV cache of all sequences, and the blob.
pub fn footprint_bytes(
    kernel: &Kernel,
    variant: &Variant,
    call: KernelCall,
    blob_bytes: u64,
) -> u64 {
    footprint_of(
        kernel,
        variant,
        &Shape::of(kernel, variant, call),
        blob_bytes,
    )
}

impl DeviceAnnotation {
    fn frequency_mhz(&self) -> Option<u32> {
        self.npu.and_then(|npu| npu.frequency_mhz)
    }
}

impl Prediction {
    /// Time of one run in µs.
    fn run_us(&self, run: &Run<'_>, frequency_mhz: Option<u32>) -> f64 {
        match self {
            Self::Roofline(roofline) => run.roofline_us(roofline),
            Self::Vendor(table) => table.latency_us(frequency_mhz),
            Self::Measured(calibrated) => calibrated.latency_us(run.work, run.call()),
        }
    }
}

/// The runs of a variant that make up a call.
struct Shape {
    /// Number of runs.
    runs: u64,
    /// Tokens of one run.
    run_tokens: u64,
    /// Visible rows of one run; 0 if the kernel does not read them.
    run_context: u64,
    /// Rows of all activations of the call, padding included.
    rows: u64,
    /// Rows of the KV cache of all sequences, padding included.
    cache_rows: u64,
    /// Sequences.
    batch: u64,
}

impl Shape {
    fn of(kernel: &Kernel, variant: &Variant, call: KernelCall) -> Self {
        let [tokens, context, batch] =
            [call.tokens, call.context.max(call.tokens), call.batch].map(|n| u64::from(n.max(1)));
        let is_attention = kernel.group == Group::Mha;
        let (rows, repeats) = match is_attention {
            true => (tokens, batch),
            false => (tokens.saturating_mul(batch), 1),
        };
        let (chunks, run_tokens) = pieces(rows, variant.shape.chunk());
        let (buckets, bucket) = pieces(context, variant.shape.bucket());
        Shape {
            runs: repeats.saturating_mul(chunks).saturating_mul(buckets),
            run_tokens,
            // A static chunk sees at least its own rows.
            run_context: match is_attention {
                true => bucket.max(run_tokens),
                false => 0,
            },
            rows: repeats.saturating_mul(chunks).saturating_mul(run_tokens),
            cache_rows: batch.saturating_mul(buckets).saturating_mul(bucket),
            batch,
        }
    }
}

/// The number of pieces that cover `total`, and their size.
fn pieces(total: u64, size: Option<u32>) -> (u64, u64) {
    match size {
        None => (1, total),
        Some(size) => {
            let size = u64::from(size.max(1));
            (total.div_ceil(size), size)
        }
    }
}

/// One run of a kernel, as predictions take it.
pub(crate) struct Run<'k> {
    /// Work of the kernel, as polynomials.
    pub(crate) work: &'k Work,
    /// c of the run: its rows, those of all sequences if the kernel is token-wise.
    pub(crate) tokens: u64,
    /// n of the run; 0 if the kernel is token-wise.
    pub(crate) context: u64,
}

impl Run<'_> {
    /// The size of the run as tables have it; a size that does not fit is beyond any table.
    fn call(&self) -> predict::CallShape {
        let size = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
        predict::CallShape {
            tokens: size(self.tokens),
            context: size(self.context),
        }
    }

    /// F, in FLOP. The polynomials come from a file: the result is finite whatever their sum is, NaN included.
    fn flops(&self) -> f64 {
        let flops = self.work.flops(self.tokens, self.context);
        bounded(flops, 0.0, WORK_MAX)
    }

    /// Q, in bytes; at least 1, finite.
    fn bytes(&self) -> f64 {
        let bytes = self.work.bytes(self.tokens, self.context);
        bounded(bytes, 1.0, WORK_MAX)
    }

    fn roofline_us(&self, roofline: &Roofline) -> f64 {
        roofline.latency_us(self.flops(), self.bytes())
    }
}

fn footprint_of(kernel: &Kernel, variant: &Variant, shape: &Shape, blob_bytes: u64) -> u64 {
    let weights = kernel.parameters.iter().map(Parameter::bytes);
    let ports = kernel.inputs.iter().chain(&kernel.outputs).map(|port| {
        let rows = match port.rows {
            Rows::Tokens => shape.rows,
            Rows::Context => shape.cache_rows,
            Rows::One => shape.batch,
        };
        let row = u64::from(port.width).saturating_mul(variant.port_element(port.role).bytes());
        rows.saturating_mul(row)
    });
    weights.chain(ports).fold(blob_bytes, u64::saturating_add)
}

/// Clamps a number to a range in which calculations stay finite; NaN becomes `most`.
fn bounded(number: f64, least: f64, most: f64) -> f64 {
    if number.is_nan() {
        return most;
    }
    number.clamp(least, most)
}

/// Largest work of a run, in FLOP or B. Chosen: real runs are below 1e16, and a roofline's slowest ceiling is
/// 1 unit per second, so that latencies stay finite.
const WORK_MAX: f64 = 1e30;

/// Bounds of a latency, in µs. Chosen: no device answers within a nanosecond, and the upper bound is longer than
/// [`WORK_MAX`] takes.
const LATENCY_US_MIN: f64 = 1e-3;
const LATENCY_US_MAX: f64 = 1e60;

/// SI definition.
const MICROS_PER_SEC: f64 = 1e6;

#[cfg(test)]
#[path = "estimate_tests.rs"]
mod tests;
