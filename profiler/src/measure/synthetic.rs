//! A device for tests with known latencies and the disturbances of real ones.

use std::convert::Infallible;
use std::time::Duration;

use heg_artifacts::manifest::{Binding, ShapeClass, Term, Work};
use heg_spec::{DeviceClass, Seeded};

use super::{Case, Subject};
use crate::predict::CallShape;

/// The disturbances. By default the device repeats itself exactly.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Disturbance {
    /// Factor on the time of the first run of a call at a place.
    pub(crate) cold_factor: f64,
    /// Largest share by which a run takes longer, at random.
    pub(crate) noise: f64,
    /// Share of runs that take `outlier_factor` times as long.
    pub(crate) outlier_share: f64,
    pub(crate) outlier_factor: f64,
    /// In every `busy_every` runs, the number of first ones that take `busy_factor` times as long.
    pub(crate) busy_runs: u64,
    pub(crate) busy_every: u64,
    pub(crate) busy_factor: f64,
    /// Share by which each run takes longer than the one before.
    pub(crate) drift_per_run: f64,
}

impl Default for Disturbance {
    fn default() -> Self {
        Self {
            cold_factor: 1.0,
            noise: 0.0,
            outlier_share: 0.0,
            outlier_factor: 1.0,
            busy_runs: 0,
            busy_every: 1,
            busy_factor: 1.0,
            drift_per_run: 0.0,
        }
    }
}

/// The device.
pub(crate) struct Synthetic {
    pub(crate) cases: Vec<Case>,
    disturbance: Disturbance,
    /// Last call of each place of each case.
    seen: Vec<Vec<Option<CallShape>>>,
    beside: Option<usize>,
    pub(crate) runs: u64,
    random: Seeded,
}

impl Synthetic {
    pub(crate) fn new(cases: Vec<Case>, disturbance: Disturbance) -> Self {
        let places = |case: &Case| vec![None; case.places as usize];
        Self {
            seen: cases.iter().map(places).collect(),
            cases,
            disturbance,
            beside: None,
            runs: 0,
            random: Seeded::new(1),
        }
    }

    pub(crate) fn case(&self, index: usize) -> &Case {
        &self.cases[index]
    }
}

impl Subject for Synthetic {
    type Error = Infallible;

    fn cases(&self) -> &[Case] {
        &self.cases
    }

    fn run(&mut self, case: usize, call: CallShape) -> Result<Duration, Infallible> {
        let disturbance = self.disturbance;
        let mut time_us = truth_us(&self.cases[case], call);
        let place = (self.runs % u64::from(self.cases[case].places)) as usize;
        if self.seen[case][place].replace(call) != Some(call) {
            time_us *= disturbance.cold_factor;
        }
        time_us *= 1.0 + disturbance.noise * self.random.unit();
        if self.random.unit() < disturbance.outlier_share {
            time_us *= disturbance.outlier_factor;
        }
        if self.runs % disturbance.busy_every < disturbance.busy_runs {
            time_us *= disturbance.busy_factor;
        }
        time_us *= 1.0 + disturbance.drift_per_run * self.runs as f64;
        if self.beside.is_some() {
            let memory_bound = call.tokens == 1;
            time_us *= if memory_bound { BESIDE_FACTOR } else { 1.0 };
        }
        self.runs += 1;
        Ok(Duration::from_secs_f64(time_us * 1e-6))
    }

    fn load(&mut self, beside: Option<(usize, CallShape)>) -> Result<(), Infallible> {
        self.beside = beside.map(|(case, _)| case);
        Ok(())
    }
}

/// Factor by which a neighbour slows down memory-bound calls.
pub(crate) const BESIDE_FACTOR: f64 = 1.5;

/// A dynamic case on the CPU.
pub(crate) fn case(kernel: &str, tokens_max: u32, context_max: u32) -> Case {
    let term = |factor, tokens, context| Term {
        factor,
        tokens,
        context,
    };
    let work = match context_max {
        0 => Work {
            flops: vec![term(100_000_000, 1, 0)],
            bytes: vec![term(50_000_000, 0, 0), term(16_000, 1, 0)],
        },
        _ => Work {
            flops: vec![term(8192, 1, 1)],
            bytes: vec![term(16_384, 1, 0), term(4096, 0, 1)],
        },
    };
    Case {
        kernel: kernel.to_owned(),
        device: DeviceClass::Cpu,
        shape: ShapeClass::Dynamic,
        binding: Binding::Constant,
        work,
        tokens_max,
        context_max,
        context_step: if context_max == 0 { 1 } else { 32 },
        places: 4,
    }
}

/// The true latency, in µs: a roofline of 25 GB/s and 500 GFLOP/s with a smooth knee and 30 µs to launch; token-wise
/// kernels switch algorithms after 64 tokens and then work in blocks of 64.
pub(crate) fn truth_us(case: &Case, call: CallShape) -> f64 {
    let tokens = match CallShape::of_static(case.shape) {
        Some(fixed) => fixed.tokens,
        None if case.context_max == 0 && call.tokens > 64 => call.tokens.next_multiple_of(64),
        None => call.tokens,
    };
    let context = call.context.next_multiple_of(case.context_step);
    let call = CallShape { tokens, context };
    let memory_us = call.bytes(&case.work) / 25e3;
    let compute_us = call.flops(&case.work) / 500e3;
    30.0 + (memory_us.powi(4) + compute_us.powi(4)).powf(0.25)
}
