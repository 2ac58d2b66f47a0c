//! One program on both: the same rows and weights, for a CPU device and for the GPU.

use crate::caches::{Caches, LAYER, LAYERS, cache_row_bytes};
use half::f16;
use heg_artifacts::manifest::{ElementType, Kernel, Parameter, Port, Role, Rows, Work};
use heg_artifacts::program::{
    Buffer, BufferId, BufferPlace, ParameterId, Program, RowForm, Step, scratch_width,
};
use heg_cpu::{
    Activations, AffineBytes, Context, CpuCall, CpuDevice, CpuDeviceOptions, Isa, ProgramRows,
    WeightBytes,
};
use heg_gpu::{
    CallState, GpuCall, GpuDevice, GpuOrder, GpuProgram, GpuRegion, GpuRows, GpuTask, GpuWeight,
    RowState, StateLimits,
};
use heg_spec::{Group, GroupColumns};
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::time::Duration;

use crate::noise::Noise;

/// Positions of rotary tables and rows of the cache in all tests.
pub(crate) const POSITIONS: usize = 640;

/// A weight's bytes.
pub(crate) struct Tensor {
    values: Vec<u8>,
    scales: Option<Vec<u8>>,
    centres: Option<Vec<u8>>,
}

/// A kernel with one program and random weights.
pub(crate) struct Subject {
    pub(crate) kernel: Kernel,
    pub(crate) program: Program,
    pub(crate) weights: Vec<Tensor>,
    pub(crate) kv: ElementType,
    pub(crate) activations: Activations,
}

/// Builds a program: buffers one behind the other in scratch memory.
pub(crate) struct Builder {
    subject: Subject,
    scratch: u32,
}

impl Builder {
    pub(crate) fn new(kv: ElementType, activations: Activations) -> Self {
        Self {
            subject: Subject {
                kernel: Kernel {
                    name: "subject".to_owned(),
                    group: Group::Ffn,
                    ops: Vec::new(),
                    inputs: Vec::new(),
                    outputs: Vec::new(),
                    parameters: Vec::new(),
                    work: Work::default(),
                    variants: Vec::new(),
                },
                program: Program {
                    buffers: Vec::new(),
                    steps: Vec::new(),
                },
                weights: Vec::new(),
                kv,
                activations,
            },
            scratch: 0,
        }
    }

    pub(crate) fn port(&mut self, role: Role, rows: Rows, width: u32) {
        self.subject.kernel.inputs.push(Port { role, rows, width });
    }

    fn buffer(&mut self, width: u32, form: RowForm, place: BufferPlace) -> BufferId {
        let buffers = &mut self.subject.program.buffers;
        buffers.push(Buffer {
            name: format!("b{}", buffers.len()),
            width,
            form,
            place,
        });
        BufferId(buffers.len() as u32 - 1)
    }

    pub(crate) fn input(&mut self, role: Role, width: u32) -> BufferId {
        self.port(role, Rows::Tokens, width);
        let port = self.subject.kernel.inputs.len() as u32 - 1;
        self.buffer(width, RowForm::Plain, BufferPlace::Input(port))
    }

    pub(crate) fn output(&mut self, role: Role, width: u32) -> BufferId {
        let outputs = &mut self.subject.kernel.outputs;
        outputs.push(Port {
            role,
            rows: Rows::Tokens,
            width,
        });
        let port = outputs.len() as u32 - 1;
        self.buffer(width, RowForm::Plain, BufferPlace::Output(port))
    }

    pub(crate) fn scratch(&mut self, width: u32, form: RowForm) -> BufferId {
        let first = self.scratch;
        self.scratch += scratch_width(width);
        self.buffer(width, form, BufferPlace::Scratch { first })
    }

    pub(crate) fn weight(
        &mut self,
        noise: &mut Noise,
        element: ElementType,
        shape: &[u32],
        centred: bool,
    ) -> ParameterId {
        let columns = shape.last().copied().unwrap_or(1);
        let mut groups = GroupColumns::ALL.into_iter().rev();
        let group = groups.find(|group| columns.is_multiple_of(group.count()));
        let parameter = Parameter {
            name: format!("w{}", self.subject.weights.len()),
            element,
            shape: shape.to_vec(),
            group_columns: group.filter(|_| element.is_grouped()),
            centred: match element {
                ElementType::I8 => centred,
                _ => element == ElementType::U4,
            },
        };
        let elements: u32 = shape.iter().product();
        let of_affine = match element.is_grouped() {
            true => ElementType::F16,
            false => ElementType::F32,
        };
        let count = (parameter.affine_bytes() / of_affine.bytes()) as usize;
        let affine = |noise: &mut Noise, size| noise.elements(count, of_affine, size);
        self.subject.weights.push(Tensor {
            values: noise.elements(elements as usize, element, 0.5),
            scales: (count > 0).then(|| affine(noise, 0.02)),
            centres: parameter.centred.then(|| affine(noise, 0.1)),
        });
        self.subject.kernel.parameters.push(parameter);
        ParameterId(self.subject.weights.len() as u32 - 1)
    }

    pub(crate) fn step(&mut self, step: Step) {
        self.subject.program.steps.push(step);
    }

    pub(crate) fn done(self) -> Subject {
        self.subject
    }
}

/// A sequence of a call: its new tokens, and how they follow each other where they are a tree.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    pub(crate) tokens: usize,
    pub(crate) position: usize,
    pub(crate) follows: Option<Vec<u16>>,
}

/// Rows of a port's whole width.
fn row_bytes(port: &Port, kv: ElementType) -> usize {
    let element = match port.role {
        Role::Key | Role::Value => kv,
        _ => ElementType::F32,
    };
    port.width as usize * element.bytes() as usize
}

fn is_cache(role: Role) -> bool {
    matches!(role, Role::Key | Role::Value)
}

/// Runs a call on both and compares all that it writes.
pub(crate) fn check(
    device: &GpuDevice,
    subject: &Subject,
    sequences: &[Sequence],
    what: &str,
    seed: u64,
) {
    let mut noise = Noise::new(seed);
    let rows: usize = sequences.iter().map(|sequence| sequence.tokens).sum();
    // A cache of all sequences, one behind the other.
    let cache_rows = POSITIONS * sequences.len();
    let lines = |port: &Port| match port.role {
        Role::Key | Role::Value => cache_rows,
        Role::Cos | Role::Sin => POSITIONS,
        Role::Position => 0,
        _ => rows,
    };
    let kernel = &subject.kernel;
    let inputs: Vec<Vec<u8>> = kernel
        .inputs
        .iter()
        .map(|port| {
            let element = if is_cache(port.role) {
                subject.kv
            } else {
                ElementType::F32
            };
            noise.elements(lines(port) * port.width as usize, element, 1.5)
        })
        .collect();
    let blank: Vec<Vec<u8>> = kernel
        .outputs
        .iter()
        .map(|port| vec![0; lines(port) * row_bytes(port, subject.kv)])
        .collect();
    let expected = match subject.kv {
        ElementType::F16 => on_cpu_in_f32(subject, sequences, &inputs, &blank),
        kv => on_cpu((subject, kv), sequences, &inputs, blank.clone()),
    };
    let found = on_gpu(device, subject, sequences, &inputs, &blank);
    for (port, (expected, found)) in kernel.outputs.iter().zip(expected.iter().zip(&found)) {
        let wrong = expected.iter().zip(found).filter(|(a, b)| a != b).count();
        let words = |bytes: &[u8]| -> Vec<f32> {
            let (words, _) = bytes.as_chunks::<4>();
            words.iter().map(|b| f32::from_le_bytes(*b)).collect()
        };
        let first = words(expected).into_iter().zip(words(found)).enumerate();
        let first: Vec<_> = first
            .filter(|(_, (a, b))| a.to_bits() != b.to_bits())
            .take(4)
            .collect();
        assert_eq!(
            wrong,
            0,
            "{what}: {:?}, of {} bytes, {first:?}",
            port.role,
            expected.len()
        );
    }
    assert_eq!(device.complaints(), [""; 0], "{what}");
}

/// Rows that a kernel of the CPU may write.
#[allow(unsafe_code, reason = "rows that kernels work on")]
fn cpu_rows(
    bytes: &mut [u8],
    row_bytes: usize,
    first: usize,
    count: usize,
) -> ProgramRows<'static> {
    let part = &mut bytes[first * row_bytes..(first + count) * row_bytes];
    // SAFETY: buffers outlive the call that they are for, and nobody else touches them while it runs.
    unsafe { ProgramRows::new(NonNull::from(part).cast(), count, row_bytes, row_bytes) }
}

/// The CPU has no caches in f16. What it makes of theirs in f32, rounded where a row of the cache is written, is the same.
fn on_cpu_in_f32(
    subject: &Subject,
    sequences: &[Sequence],
    inputs: &[Vec<u8>],
    outputs: &[Vec<u8>],
) -> Vec<Vec<u8>> {
    let wide = |(port, bytes): (&Port, &Vec<u8>)| match is_cache(port.role) {
        false => bytes.clone(),
        true => {
            let (halves, _) = bytes.as_chunks();
            let halves = halves.iter().map(|half| f16::from_le_bytes(*half));
            halves
                .flat_map(|half| half.to_f32().to_le_bytes())
                .collect()
        }
    };
    let narrow = |(port, bytes): (&Port, Vec<u8>)| match is_cache(port.role) {
        false => bytes,
        true => {
            let (words, _) = bytes.as_chunks();
            let words = words.iter().map(|word| f32::from_le_bytes(*word));
            words.flat_map(|x| f16::from_f32(x).to_le_bytes()).collect()
        }
    };
    let kernel = &subject.kernel;
    let inputs: Vec<_> = kernel.inputs.iter().zip(inputs).map(wide).collect();
    let outputs = kernel.outputs.iter().zip(outputs).map(wide).collect();
    let found = on_cpu((subject, ElementType::F32), sequences, &inputs, outputs);
    kernel.outputs.iter().zip(found).map(narrow).collect()
}

/// The CPU's results of a call, with keys and values in an element type.
fn on_cpu(
    (subject, kv): (&Subject, ElementType),
    sequences: &[Sequence],
    inputs: &[Vec<u8>],
    mut outputs: Vec<Vec<u8>>,
) -> Vec<Vec<u8>> {
    let Subject {
        kernel,
        program,
        activations,
        ..
    } = subject;
    let form = heg_cpu::CacheForm::new(kv, 1).unwrap();
    let ready = heg_cpu::CpuKernel::new(program.clone(), kernel, form, *activations).unwrap();
    let attends = program
        .steps
        .iter()
        .any(|step| matches!(step, Step::Attention { .. }));
    let mut inputs = inputs.to_vec();
    let rows: usize = sequences.iter().map(|sequence| sequence.tokens).sum();
    let runs = |port: &Port, bytes: &mut Vec<u8>, cache: bool| -> Vec<ProgramRows<'static>> {
        let size = row_bytes(port, kv);
        match port.role {
            Role::Position => Vec::new(),
            _ if is_cache(port.role) && !cache => Vec::new(),
            Role::Cos | Role::Sin | Role::Key | Role::Value => {
                let firsts = sequences.iter().enumerate().map(|(index, sequence)| {
                    let cache = if is_cache(port.role) {
                        index * POSITIONS
                    } else {
                        0
                    };
                    (cache + sequence.position, sequence)
                });
                let run = |(first, sequence): (usize, &Sequence)| -> Vec<ProgramRows<'static>> {
                    // Positions of a tree's tokens are their own; its keys lie in order.
                    let of_token = |token: usize| match is_cache(port.role) {
                        true => first + token,
                        false => first + depth(sequence, token),
                    };
                    let tokens = 0..sequence.tokens;
                    tokens
                        .map(|token| cpu_rows(bytes, size, of_token(token), 1))
                        .collect()
                };
                firsts.flat_map(run).collect()
            }
            _ => vec![cpu_rows(bytes, size, 0, rows)],
        }
    };
    let in_runs: Vec<_> = kernel
        .inputs
        .iter()
        .zip(&mut inputs)
        .map(|(port, bytes)| runs(port, bytes, false))
        .collect();
    let out_runs: Vec<_> = kernel
        .outputs
        .iter()
        .zip(&mut outputs)
        .map(|(port, bytes)| runs(port, bytes, true))
        .collect();
    let mut contexts = Vec::new();
    if attends {
        for (index, sequence) in sequences.iter().enumerate() {
            let mut cache = |role: Role| {
                let at = kernel
                    .inputs
                    .iter()
                    .position(|port| port.role == role)
                    .unwrap();
                let size = row_bytes(&kernel.inputs[at], kv);
                cpu_rows(&mut inputs[at], size, index * POSITIONS, POSITIONS)
            };
            contexts.push(Context {
                tokens: sequence.tokens,
                position: sequence.position,
                follows: sequence.follows.as_deref(),
                keys: cache(Role::Key),
                values: cache(Role::Value),
            });
        }
    }
    let weights: Vec<WeightBytes<'_>> = subject
        .weights
        .iter()
        .map(|tensor| WeightBytes {
            values: &tensor.values,
            affine: tensor.scales.as_ref().map(|scales| AffineBytes {
                scales,
                centres: tensor.centres.as_deref(),
            }),
        })
        .collect();
    let call = CpuCall {
        rows,
        weights: &weights,
        inputs: &in_runs.iter().map(Vec::as_slice).collect::<Vec<_>>(),
        outputs: &out_runs.iter().map(Vec::as_slice).collect::<Vec<_>>(),
        contexts: &contexts,
    };
    let isa = Isa::ALL.into_iter().find(|isa| isa.is_available()).unwrap();
    let threads = NonZeroUsize::MIN;
    CpuDevice::new(CpuDeviceOptions { isa, threads })
        .unwrap()
        .run(&ready, &call)
        .unwrap();
    outputs
}

/// Tokens before one on its way.
fn depth(sequence: &Sequence, token: usize) -> usize {
    match &sequence.follows {
        None => token,
        Some(follows) if token > 0 => 1 + depth(sequence, usize::from(follows[token - 1])),
        Some(_) => 0,
    }
}

/// The tokens of a tree that lead to one of them.
fn way(sequence: &Sequence, token: usize) -> Vec<u32> {
    let Some(follows) = &sequence.follows else {
        return Vec::new();
    };
    let mut way = match token {
        0 => Vec::new(),
        token => self::way(sequence, usize::from(follows[token - 1])),
    };
    way.push((sequence.position + token) as u32);
    way
}

fn on_gpu(
    device: &GpuDevice,
    subject: &Subject,
    sequences: &[Sequence],
    inputs: &[Vec<u8>],
    outputs: &[Vec<u8>],
) -> Vec<Vec<u8>> {
    let Subject {
        kernel,
        program,
        kv,
        activations,
        ..
    } = subject;
    let ready = GpuProgram::new(program.clone(), kernel, *kv, *activations).unwrap();
    let rows: usize = sequences.iter().map(|sequence| sequence.tokens).sum();
    let region = |bytes: &[u8]| -> GpuRegion {
        // As the bundle has them: whole pages.
        let region = device
            .memory(bytes.len().next_multiple_of(4096) as u64)
            .unwrap();
        region.write(0, bytes).unwrap();
        region
    };
    let weights: Vec<GpuWeight> = subject
        .weights
        .iter()
        .map(|tensor| GpuWeight {
            values: region(&tensor.values),
            scales: tensor.scales.as_deref().map(region),
            centres: tensor.centres.as_deref().map(region),
        })
        .collect();
    let row_bytes = cache_row_bytes(kernel, *kv);
    let caches = Caches::new(device, sequences.len(), row_bytes);
    let of_port = |(port, bytes): (&Port, &Vec<u8>)| match port.role {
        Role::Position => None,
        Role::Key | Role::Value => {
            caches.write(port.role, bytes);
            None
        }
        _ => Some(GpuRows {
            region: region(bytes),
            stride: port.width,
        }),
    };
    let in_rows: Vec<_> = kernel.inputs.iter().zip(inputs).map(of_port).collect();
    let out_rows: Vec<_> = kernel.outputs.iter().zip(outputs).map(of_port).collect();
    let state = CallState::new(
        device,
        StateLimits {
            rows: rows as u32,
            layers: LAYERS,
            cache_row_bytes: row_bytes,
            positions: POSITIONS as u32,
            tokens: 1,
        },
    )
    .unwrap();
    let mut ways = Vec::new();
    for (index, sequence) in sequences.iter().enumerate() {
        ways.extend(
            (0..sequence.tokens).map(|token| (index, sequence, token, way(sequence, token))),
        );
    }
    let states: Vec<RowState<'_>> = ways
        .iter()
        .map(|(index, sequence, token, way)| RowState {
            position: (sequence.position + depth(sequence, *token)) as u32,
            cache_row: (sequence.position + token) as u32,
            cache: Some(&caches.of_sequences[index % caches.of_sequences.len()]),
            first_cache_row: caches.first_row(*index),
            way,
            token: 0,
        })
        .collect();
    state.set(&states).unwrap();
    let scratch = u64::from(ready.scratch_elements().max(1)) * 4 * rows as u64;
    let scratch = device.memory(scratch).unwrap();
    let call = GpuCall {
        rows: rows as u32,
        layer: LAYER,
        weights: &weights,
        inputs: &in_rows,
        outputs: &out_rows,
        scratch: &scratch,
        state: &state,
    };
    let order = GpuOrder::record(device, &[&[GpuTask::Program(&ready, call)]]).unwrap();
    order.run(Duration::from_secs(120)).unwrap();
    let ports = kernel.outputs.iter().zip(&out_rows).zip(outputs);
    let read = |((port, rows), bytes): ((&Port, &Option<GpuRows>), &Vec<u8>)| {
        let mut found = vec![0; bytes.len()];
        match rows {
            Some(rows) => rows.region.read(0, &mut found).unwrap(),
            None => caches.read(port.role, &mut found),
        }
        found
    };
    ports.map(read).collect()
}
