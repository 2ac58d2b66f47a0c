//! The probe: what a driver's arithmetic does with given numbers, and the variant of the modules that follows.
//!
//! A driver's declarations are not its behaviour, in either direction: one flushes small numbers unless told to keep them,
//! another keeps them and does not offer to. So nothing is believed that was not computed.

use std::time::Duration;

use heg_spec::Seeded;
use heg_spirv::spirv::Declarations;
use heg_spirv::{Module, constant};

use crate::arithmetic::{Arithmetic, Means};
use crate::error::GpuError;
use crate::pipelines::Pipelines;
use crate::vulkan::{Args, Dispatch, Kind, Memory, Recording, Timing};

/// The findings of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Cases that each operation was asked for.
    pub cases: usize,
    /// Operations in order of the probe, each with the number of cases in which the bits differed.
    pub wrong: Vec<(&'static str, usize)>,
    /// The variant that modules are used in.
    pub arithmetic: Arithmetic,
    /// Whether results have the bits of the CPU programs.
    pub fidelity: Fidelity,
}

impl Probe {
    /// The findings of an earlier probe of a device whose results have the bits of the CPU programs, without its cases.
    pub(crate) fn known(arithmetic: Arithmetic, declared: Declarations) -> Self {
        Self {
            cases: 0,
            wrong: Vec::new(),
            arithmetic: Arithmetic {
                declared,
                ..arithmetic
            },
            fidelity: Fidelity::Equal,
        }
    }
}

/// The agreement of a device's results with those of the CPU programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fidelity {
    /// Bit by bit the same.
    Equal,
    /// The same but for rounding.
    Close {
        /// The operations whose results differ in bits from the CPU's.
        reason: String,
    },
}

/// Results of a case, as `shaders/probe.comp` has them.
const RESULTS: usize = 16;

/// The names of the results.
const NAMES: [&str; RESULTS] = [
    "fma",
    "fma by steps",
    "a / b",
    "a / b by steps",
    "root",
    "root by steps",
    "a * b + c",
    "a + b",
    "a - b",
    "a * b",
    "small results",
    "small operands",
    "int to float",
    "dot of bytes",
    "nearest integer",
    "larger of two",
];

const FMA: usize = 0;
const FMA_STEPS: usize = 1;
const DIVISION: usize = 2;
const DIVISION_STEPS: usize = 3;
const ROOT: usize = 4;
const ROOT_STEPS: usize = 5;
const DOT: usize = 13;
const SMALL: [usize; 2] = [10, 11];

/// Cases: enough to find what is wrong in one of a thousand, and little enough to take milliseconds.
const CASES: usize = 1 << 16;

/// The longest time for a driver's answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks a device.
pub(crate) fn probe(pipelines: &Pipelines) -> Result<Probe, GpuError> {
    let cases = cases();
    let asker = Asker::new(pipelines, &cases)?;
    let mut arithmetic = Arithmetic {
        declared: pipelines.device().candidate.floats,
        ..Arithmetic::default()
    };
    let mut wrong = asker.wrong(Module::Probe, arithmetic)?;
    let means = |wrong: usize| match wrong {
        0 => Means::Instruction,
        _ => Means::Steps,
    };
    arithmetic.fma = means(wrong[FMA]);
    arithmetic.division = means(wrong[DIVISION]);
    arithmetic.root = means(wrong[ROOT]);
    let stepped = asker.wrong(
        Module::Probe,
        Arithmetic {
            division: Means::Steps,
            root: Means::Steps,
            ..arithmetic
        },
    )?;
    wrong[DIVISION_STEPS] = stepped[DIVISION_STEPS];
    wrong[ROOT_STEPS] = stepped[ROOT_STEPS];
    if pipelines.device().candidate.has_dots {
        let dots = asker.wrong(Module::ProbeDots, arithmetic)?;
        arithmetic.dots = dots[DOT] == 0;
    }
    Ok(Probe {
        cases: cases.len(),
        fidelity: fidelity(&wrong),
        wrong: NAMES.into_iter().zip(wrong).collect(),
        arithmetic,
    })
}

fn fidelity(wrong: &[usize; RESULTS]) -> Fidelity {
    let either = |one: usize, other: usize| wrong[one].min(wrong[other]);
    let chosen = (0..RESULTS).map(|index| match index {
        FMA | FMA_STEPS => either(FMA, FMA_STEPS),
        DIVISION | DIVISION_STEPS => either(DIVISION, DIVISION_STEPS),
        ROOT | ROOT_STEPS => either(ROOT, ROOT_STEPS),
        _ => wrong[index],
    });
    let named = chosen.zip(NAMES).enumerate();
    let mut reasons = Vec::new();
    for (index, (wrong, name)) in named {
        let reason = match SMALL.contains(&index) {
            true => "numbers below 2^-126 are flushed to zero".to_owned(),
            false => format!("`{name}` is not rounded once"),
        };
        if wrong > 0 && !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    match reasons.is_empty() {
        true => Fidelity::Equal,
        false => Fidelity::Close {
            reason: reasons.join(", "),
        },
    }
}

/// Memories with the cases.
struct Asker<'a> {
    pipelines: &'a Pipelines,
    cases: &'a [[f32; 3]],
    input: std::sync::Arc<Memory>,
    output: std::sync::Arc<Memory>,
}

impl<'a> Asker<'a> {
    fn new(pipelines: &'a Pipelines, cases: &'a [[f32; 3]]) -> Result<Self, GpuError> {
        let device = pipelines.device();
        let memory = |words: usize| Memory::new(device, 4 * words as u64, Kind::Host);
        let input = memory(3 * cases.len())?;
        let bytes = cases.iter().flatten().flat_map(|x| x.to_ne_bytes());
        input.write(0, &bytes.collect::<Vec<u8>>())?;
        Ok(Self {
            pipelines,
            cases,
            input,
            output: memory(RESULTS * cases.len())?,
        })
    }

    /// Cases in which each result has other bits than it should.
    fn wrong(&self, module: Module, arithmetic: Arithmetic) -> Result<[usize; RESULTS], GpuError> {
        let count = u32::try_from(self.cases.len()).unwrap_or(u32::MAX);
        let mut args = Args::default();
        args.at[..2].copy_from_slice(&[self.input.address(), self.output.address()]);
        args.n[0] = count;
        let dispatch = Dispatch {
            pipeline: self
                .pipelines
                .of(module, &[(constant::WIDTH, 64)], arithmetic)?,
            args,
            groups: [count.div_ceil(64), 1],
            waits: false,
        };
        let device = self.pipelines.device();
        let memories = vec![self.input.clone(), self.output.clone()];
        #[allow(unsafe_code, reason = "modules read and write by address")]
        // SAFETY: the module reads three words and writes its results for each of `count` cases, which both have.
        let recording = unsafe { Recording::new(device, &[dispatch], memories, Timing::None) }?;
        device.wait(recording.submit()?, PATIENCE)?;
        let mut bytes = vec![0; 4 * RESULTS * self.cases.len()];
        self.output.read(0, &mut bytes)?;
        let (words, _) = bytes.as_chunks::<4>();
        let mut wrong = [0; RESULTS];
        for (case, results) in self.cases.iter().zip(words.chunks_exact(RESULTS)) {
            for (index, expected) in expected(*case).into_iter().enumerate() {
                wrong[index] += usize::from(results[index] != expected.to_ne_bytes());
            }
        }
        Ok(wrong)
    }
}

/// Random and hard cases. A third cancel, where one rounding and two differ most.
fn cases() -> Vec<[f32; 3]> {
    let mut seeded = Seeded::new(1);
    let mut number = move || {
        let mantissa = seeded.bits() >> 32 & 0x807f_ffff;
        let exponent = 127 - 12 + seeded.below(24) as u64;
        f32::from_bits((mantissa | exponent << 23) as u32)
    };
    let case = |index: usize| {
        let (a, b, c) = (number(), number(), number());
        [a, b, if index.is_multiple_of(3) { -(a * b) } else { c }]
    };
    let mut cases: Vec<_> = (0..CASES - HARD.len()).map(case).collect();
    cases.extend(HARD);
    cases
}

/// Ties, neighbours of powers of two, scales of operands, equal terms.
const HARD: [[f32; 3]; 8] = [
    [1.0, 3.0, -1.0 / 3.0],
    [127.0, 1.000_000_1, 0.5],
    [1.000_000_1, 1.000_000_1, -1.000_000_2],
    [0.999_999_94, 0.999_999_94, 1.0],
    [2.5, 1.0, 0.0],
    [-3.5, 7.0, 3.5],
    [16_777_215.0 / 16_777_216.0, 2.0, 1.0e-7],
    [4097.0, 4097.0, -16_785_409.0],
];

/// The expected value of each result.
fn expected([a, b, c]: [f32; 3]) -> [u32; RESULTS] {
    let product = a * b;
    let fused = libm::fmaf(a, b, c);
    let bytes = a
        .to_bits()
        .to_le_bytes()
        .into_iter()
        .zip(b.to_bits().to_le_bytes());
    let dot: i32 = bytes
        .map(|(x, y)| i32::from(x as i8) * i32::from(y as i8))
        .sum();
    let small = f32::from_bits(a.to_bits() & 0x807f_ffff);
    [
        fused,
        fused,
        a / b,
        a / b,
        a.abs().sqrt(),
        a.abs().sqrt(),
        product + c,
        a + b,
        a - b,
        product,
        product * f32::MIN_POSITIVE,
        small * 16_777_216.0,
        (a.to_bits() as i32 >> 3) as f32,
        dot as f32,
        a.round_ties_even() as i32 as f32,
        a.max(b),
    ]
    .map(f32::to_bits)
}
