//! One layer of a small model with random weights, and sequences to run through it.

mod cached;
mod programs;

#[allow(
    unused_imports,
    reason = "used by one of the programs that have this module"
)]
pub(crate) use cached::Cached;

use heg_artifacts::manifest::{ElementType, Kernel as Declared};
use heg_cpu::{
    Activations, AffineBytes, CacheForm, Context, CpuCall, CpuDevice, CpuKernel, Partner,
    ProgramRows, WeightBytes,
};
use heg_spec::Seeded;
use std::panic::resume_unwind;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

/// Dimensions of the layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) ffn: usize,
}

impl Sizes {
    fn query(self) -> usize {
        self.heads * self.head_dim
    }

    fn key(self) -> usize {
        self.kv_heads * self.head_dim
    }
}

/// The kernels of the layer, with their weights.
pub(crate) struct Layer {
    sizes: Sizes,
    kv: CacheForm,
    qkv: (CpuKernel, Vec<Tensor>),
    mha: (CpuKernel, Vec<Tensor>),
    ffn: (CpuKernel, Vec<Tensor>),
    cos: Vec<u8>,
    sin: Vec<u8>,
    /// Whether the next call of `goes_on` panics, once.
    pub(crate) panics: AtomicBool,
}

/// A weight.
struct Tensor {
    values: Vec<u8>,
    /// Scales, and centres if rows have any.
    affine: Option<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Tensor {
    fn weight(&self) -> WeightBytes<'_> {
        WeightBytes {
            values: &self.values,
            affine: self.affine.as_ref().map(|(scales, centres)| AffineBytes {
                scales,
                centres: centres.as_deref(),
            }),
        }
    }
}

/// Returns a number from −1 to 1.
fn number(seeded: &mut Seeded) -> f32 {
    (2.0 * seeded.unit() - 1.0) as f32
}

/// Returns a scale: in f32 for 8-bit integers, in f16 for 4-bit ones.
fn scale(seeded: &mut Seeded, element: ElementType) -> Vec<u8> {
    let x = 0.001 + number(seeded).abs() * 0.001;
    match element {
        ElementType::F16 => half::f16::from_f32(16.0 * x).to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    }
}

fn bytes(seeded: &mut Seeded, count: usize, element: ElementType) -> Vec<u8> {
    let mut all = Vec::new();
    for _ in 0..count {
        let x = number(seeded) * 0.2;
        match element {
            ElementType::I8 => all.push(((seeded.bits() % 255) as i16 - 127) as i8 as u8),
            ElementType::F16 => all.extend(half::f16::from_f32(x).to_le_bytes()),
            ElementType::Bf16 => all.extend(half::bf16::from_f32(x).to_le_bytes()),
            _ => all.extend(x.to_le_bytes()),
        }
    }
    all
}

impl Layer {
    pub(crate) fn random(
        sizes: Sizes,
        weights: ElementType,
        activations: Activations,
        kv: ElementType,
        seed: u64,
    ) -> Self {
        Self::beside(sizes, weights, activations, kv, seed, None)
    }

    /// The same layer, with products that a partner takes if there is one.
    pub(crate) fn beside(
        sizes: Sizes,
        weights: ElementType,
        activations: Activations,
        kv: ElementType,
        seed: u64,
        partner: Option<&dyn Partner>,
    ) -> Self {
        let mut seeded = Seeded::new(seed);
        let form = CacheForm::new(kv, sizes.head_dim as u32).unwrap();
        let mut kernel = |(declared, program): (Declared, _)| {
            let tensor = |parameter: &heg_artifacts::manifest::Parameter| {
                let elements = parameter.shape.iter().product::<u32>() as usize;
                let numbers = parameter.affine_bytes() as usize;
                let element = match parameter.group_columns {
                    None => ElementType::F32,
                    Some(_) => ElementType::F16,
                };
                let count = numbers / element.bytes() as usize;
                Tensor {
                    affine: (count > 0).then(|| {
                        let scales = (0..count)
                            .flat_map(|_| scale(&mut seeded, element))
                            .collect();
                        let centres = parameter.centred;
                        (scales, centres.then(|| bytes(&mut seeded, count, element)))
                    }),
                    values: match parameter.group_columns {
                        None => bytes(&mut seeded, elements, parameter.element),
                        Some(_) => bytes(&mut seeded, elements / 2, ElementType::I8),
                    },
                }
            };
            let weights = declared.parameters.iter().map(tensor).collect();
            let partner = partner.and_then(|it| it.kernel(&program, &declared, kv));
            let kernel = CpuKernel::new(program, &declared, form, activations).unwrap();
            (kernel.with_partner(partner), weights)
        };
        let qkv = kernel(programs::qkv(sizes, weights));
        let mha = kernel(programs::mha(sizes, Some(40), Some(20.0)));
        let ffn = kernel(programs::ffn(sizes, weights));
        let angles = 256 * sizes.head_dim / 2;
        Self {
            sizes,
            kv: form,
            qkv,
            mha,
            ffn,
            cos: bytes(&mut seeded, angles, ElementType::F32),
            sin: bytes(&mut seeded, angles, ElementType::F32),
            panics: AtomicBool::new(false),
        }
    }
}

/// Sequences with everything that the layer computes for them.
#[derive(PartialEq)]
pub(crate) struct Sequences(Vec<Sequence>);

/// One sequence.
#[derive(PartialEq, Clone)]
struct Sequence {
    hidden: Vec<u8>,
    keys: Vec<u8>,
    values: Vec<u8>,
    out: Vec<u8>,
}

/// Writable rows of a buffer.
fn rows(bytes: &mut [u8], row_bytes: usize, first: usize, count: usize) -> ProgramRows<'static> {
    let part = &mut bytes[first * row_bytes..(first + count) * row_bytes];
    // SAFETY: buffers outlive the pass that they are for, and nothing else accesses them while it runs.
    unsafe { ProgramRows::new(NonNull::from(part).cast(), count, row_bytes, row_bytes) }
}

/// Tokens of one sequence that take part in a pass.
struct Part {
    /// Index of the sequence.
    sequence: usize,
    first: usize,
    count: usize,
}

/// The rows of a read-only table for the tokens of a pass.
fn parts_of<'t>(table: &'t [u8], row_bytes: usize, parts: &[Part]) -> Vec<ProgramRows<'t>> {
    let of_part = |part: &Part| {
        let rows = &table[part.first * row_bytes..(part.first + part.count) * row_bytes];
        ProgramRows::of(rows, row_bytes)
    };
    parts.iter().map(of_part).collect()
}

impl Sequences {
    pub(crate) fn new(layer: &Layer, tokens: &[usize], seed: u64) -> Self {
        let sizes = layer.sizes;
        let mut seeded = Seeded::new(!seed);
        let sequence = |tokens: &usize| {
            let hidden = bytes(&mut seeded, tokens * sizes.hidden, ElementType::F32);
            // Cache rows that were not written yet are NaN.
            let cache = vec![0xff; tokens * layer.kv.row_bytes(sizes.key())];
            Sequence {
                out: vec![0; hidden.len()],
                hidden,
                keys: cache.clone(),
                values: cache,
            }
        };
        Self(tokens.iter().map(sequence).collect())
    }

    /// The largest distance of two results of the layer, as a share of the largest result.
    #[allow(
        dead_code,
        reason = "used by one of the programs that have this module"
    )]
    pub(crate) fn distance(&self, other: &Self) -> f32 {
        let numbers = |sequences: &Self| -> Vec<f32> {
            let bytes = sequences.0.iter().flat_map(|it| &it.out).copied();
            let bytes: Vec<u8> = bytes.collect();
            let (words, _) = bytes.as_chunks();
            words.iter().map(|word| f32::from_le_bytes(*word)).collect()
        };
        let (one, other) = (numbers(self), numbers(other));
        let largest = other.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        let both = one.iter().zip(&other).map(|(a, b)| (a - b).abs());
        both.fold(0.0, f32::max) / largest
    }

    /// Runs all tokens through the layer in chunks of sizes `cut`, one sequence after the other or side by side.
    pub(crate) fn run(
        &mut self,
        device: &mut CpuDevice,
        layer: &Layer,
        cut: &[usize],
        together: bool,
    ) {
        let row_bytes = layer.sizes.hidden * 4;
        let lengths: Vec<usize> = self
            .0
            .iter()
            .map(|one| one.hidden.len() / row_bytes)
            .collect();
        let mut done = vec![0; lengths.len()];
        for step in 0.. {
            let size = cut[step.min(cut.len() - 1)];
            let left = |index: &usize| done[*index] < lengths[*index];
            let mut chosen: Vec<usize> = (0..lengths.len()).filter(left).collect();
            if chosen.is_empty() {
                return;
            }
            if !together {
                chosen.truncate(1);
            }
            let parts: Vec<Part> = chosen
                .into_iter()
                .map(|sequence| Part {
                    sequence,
                    first: done[sequence],
                    count: size.min(lengths[sequence] - done[sequence]),
                })
                .collect();
            self.pass(device, layer, &parts);
            parts
                .iter()
                .for_each(|part| done[part.sequence] += part.count);
        }
    }

    /// Runs one pass over parts of sequences. Kernels run one by one for a single sequence, and as one order for
    /// several.
    fn pass(&mut self, device: &mut CpuDevice, layer: &Layer, parts: &[Part]) {
        let sizes = layer.sizes;
        let tokens: usize = parts.iter().map(|part| part.count).sum();
        let mut hidden = Vec::new();
        let row = sizes.hidden * 4;
        for part in parts {
            let rows = part.first * row..(part.first + part.count) * row;
            hidden.extend(&self.0[part.sequence].hidden[rows]);
        }
        let query_row = sizes.query() * 4;
        let mut query = vec![0; tokens * query_row];
        let mut attended = vec![0; tokens * query_row];
        let mut out = vec![0; tokens * row];
        let half = sizes.head_dim / 2 * 4;
        let rotary = |table| parts_of(table, half, parts);
        let (cos, sin) = (rotary(&layer.cos), rotary(&layer.sin));
        let key_bytes = layer.kv.row_bytes(sizes.key());
        let (mut keys, mut values, mut contexts) = (Vec::new(), Vec::new(), Vec::new());
        for part in parts {
            let sequence = &mut self.0[part.sequence];
            let (first, count) = (part.first, part.count);
            keys.push(rows(&mut sequence.keys, key_bytes, first, count));
            values.push(rows(&mut sequence.values, key_bytes, first, count));
            contexts.push(Context {
                tokens: count,
                position: first,
                follows: None,
                keys: rows(&mut sequence.keys, key_bytes, 0, first + count),
                values: rows(&mut sequence.values, key_bytes, 0, first + count),
            });
        }
        let hidden = [rows(&mut hidden, row, 0, tokens)];
        let query = [rows(&mut query, query_row, 0, tokens)];
        let attended = [rows(&mut attended, query_row, 0, tokens)];
        let written = [rows(&mut out, row, 0, tokens)];
        let kernels = [&layer.qkv, &layer.mha, &layer.ffn];
        let weights = kernels.map(|(_, tensors)| tensors.iter().map(Tensor::weight).collect());
        let [of_qkv, of_mha, of_ffn]: [Vec<WeightBytes<'_>>; 3] = weights;
        let qkv = CpuCall {
            rows: tokens,
            weights: &of_qkv,
            inputs: &[&hidden, &cos, &sin],
            outputs: &[&query, &keys, &values],
            contexts: &[],
        };
        let mha = CpuCall {
            rows: tokens,
            weights: &of_mha,
            inputs: &[&query, &[], &[], &[]],
            outputs: &[&attended],
            contexts: &contexts,
        };
        let ffn = CpuCall {
            rows: tokens,
            weights: &of_ffn,
            inputs: &[&attended, &hidden],
            outputs: &[&written],
            contexts: &[],
        };
        let order = [
            (&layer.qkv.0, qkv),
            (&layer.mha.0, mha),
            (&layer.ffn.0, ffn),
        ];
        run(device, &order, parts.len() > 1, &layer.panics);
        let mut rest = out.as_slice();
        for part in parts {
            let (own, behind) = rest.split_at(part.count * row);
            let rows = part.first * row..(part.first + part.count) * row;
            self.0[part.sequence].out[rows].copy_from_slice(own);
            rest = behind;
        }
    }
}

/// Whether a device is at work; one test counts allocations then.
pub(crate) static AT_WORK: AtomicBool = AtomicBool::new(false);

fn run(
    device: &mut CpuDevice,
    order: &[(&CpuKernel, CpuCall<'_>)],
    as_one: bool,
    panics: &AtomicBool,
) {
    AT_WORK.store(true, Ordering::SeqCst);
    if as_one {
        let goes_on = |_| {
            if panics.swap(false, Ordering::SeqCst) {
                resume_unwind(Box::new("on purpose"));
            }
            true
        };
        assert_eq!(device.run_order(order, &goes_on).unwrap(), order.len());
    } else {
        for (kernel, call) in order {
            device.run(kernel, call).unwrap();
        }
    }
    AT_WORK.store(false, Ordering::SeqCst);
}
