//! Runs programs that pass the check on exactly the memory that they were promised.
//!
//! Input bytes are choices, from which a program and its call are made. All instruction sets and numbers of threads
//! give the same bits; each tensor ends where an inaccessible page begins, so that reading a byte beyond it ends the
//! process.

mod choices;
mod memory;
mod program;

use std::num::NonZeroUsize;
use std::sync::{LazyLock, Mutex, PoisonError};

use heg_artifacts::manifest::{ElementType, Parameter, Port, Role};
use heg_artifacts::program::Step;
use heg_cpu::{
    Activations, AffineBytes, CacheForm, Context, CpuCall, CpuDevice, CpuDeviceOptions, CpuKernel,
    Isa, ProgramRows, WeightBytes,
};

use choices::Choices;
use memory::Tensor;
use program::Made;

/// A device for each instruction set of this machine, and one with a second thread.
static DEVICES: LazyLock<Mutex<Vec<CpuDevice>>> = LazyLock::new(|| {
    let available = Isa::ALL.into_iter().filter(|isa| isa.is_available());
    let alone: Vec<(Isa, usize)> = available.map(|isa| (isa, 1)).collect();
    // On a busy machine a second thread waits for its turn more than it works.
    let joint = alone.last().map(|(isa, _)| (*isa, 2));
    let devices = alone.into_iter().chain(joint);
    let device = |(isa, threads)| {
        let threads = NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN);
        CpuDevice::new(CpuDeviceOptions { isa, threads }).expect("threads start")
    };
    Mutex::new(devices.map(device).collect())
});

pub(crate) fn run(input: &[u8]) {
    let mut choices = Choices::new(input);
    let made = Made::new(&mut choices);
    if made.program.check(&made.declared).is_err() {
        return;
    }
    let call = Call::new(&made, &mut choices);
    let activations = choices.one(&[Activations::F32, Activations::I8, Activations::I16]);
    let form = CacheForm::new(call.kv, 1).expect("floats have a form");
    let kernel = CpuKernel::new(made.program.clone(), &made.declared, form, activations);
    let kernel = kernel.expect("the check has passed");
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut expected: Option<Vec<Vec<u8>>> = None;
    for device in devices.iter_mut() {
        let outputs = call.run(&kernel, device);
        let expected = expected.get_or_insert_with(|| outputs.clone());
        assert_eq!(*expected, outputs, "the same bits everywhere");
    }
}

/// A weight, with its dequantisation parameters.
struct Weight {
    values: Tensor,
    affine: Option<(Tensor, Option<Tensor>)>,
}

impl Weight {
    fn new(parameter: &Parameter, choices: &mut Choices<'_>) -> Self {
        let elements = parameter.shape.iter().product::<u32>() as usize;
        let bytes = parameter.element.bytes_of(elements as u64);
        let values = match parameter.element {
            ElementType::I8 | ElementType::I4 | ElementType::U4 => {
                choices.numbers(bytes.unwrap_or_default() as usize, ElementType::I8)
            }
            element => choices.numbers(elements, element),
        };
        let element = match parameter.group_columns {
            Some(_) => ElementType::F16,
            None => ElementType::F32,
        };
        let count = parameter.affine_bytes() as usize / element.bytes() as usize;
        let mut numbers = || Tensor::of(&choices.numbers(count, element));
        Self {
            values: Tensor::of(&values),
            affine: (count > 0).then(|| (numbers(), parameter.centred.then(&mut numbers))),
        }
    }

    fn bytes(&self) -> WeightBytes<'_> {
        let affine = self.affine.as_ref().map(|(scales, centres)| AffineBytes {
            scales: scales.bytes(),
            centres: centres.as_ref().map(Tensor::bytes),
        });
        WeightBytes {
            values: self.values.bytes(),
            affine,
        }
    }
}

/// A sequence for attention.
struct Sequence {
    tokens: usize,
    position: usize,
    follows: Option<Vec<u16>>,
    keys: Tensor,
    values: Tensor,
}

/// The tensors and sequences of a kernel call.
struct Call {
    rows: usize,
    kv: ElementType,
    kv_row_bytes: usize,
    weights: Vec<Weight>,
    inputs: Vec<Option<Tensor>>,
    outputs: Vec<usize>,
    sequences: Vec<Sequence>,
}

impl Call {
    fn new(made: &Made, choices: &mut Choices<'_>) -> Self {
        let kv = choices.one(&[ElementType::F32, ElementType::Bf16]);
        let rows = choices.one(&[1, 1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 47, 70]);
        let steps = &made.program.steps;
        let attends = steps
            .iter()
            .any(|step| matches!(step, Step::Attention { .. }));
        let is_whole = |step: &Step| matches!(step, Step::Attention { attributes, .. } if !attributes.sight.is_causal());
        // What is seen as a whole is no tree.
        let trees = !steps.iter().any(is_whole);
        let of_contexts =
            |port: &Port| matches!(port.role, Role::Key | Role::Value | Role::Position);
        let declared = &made.declared;
        let keys = declared.inputs.iter().find(|port| port.role == Role::Key);
        let kv_width = keys.map_or(0, |port| port.width as usize);
        let input = |port: &Port, choices: &mut Choices<'_>| {
            let numbers = choices.numbers(rows * port.width as usize, ElementType::F32);
            (!(attends && of_contexts(port))).then(|| Tensor::of(&numbers))
        };
        Self {
            rows,
            kv,
            kv_row_bytes: kv_width * kv.bytes() as usize,
            weights: declared
                .parameters
                .iter()
                .map(|it| Weight::new(it, choices))
                .collect(),
            inputs: declared
                .inputs
                .iter()
                .map(|port| input(port, choices))
                .collect(),
            outputs: declared
                .outputs
                .iter()
                .map(|port| row_bytes(port, kv))
                .collect(),
            sequences: match attends {
                true => sequences(choices, (rows, trees), (kv, kv_width)),
                false => Vec::new(),
            },
        }
    }

    /// Runs the kernel; returns the rows of its outputs.
    fn run(&self, kernel: &CpuKernel, device: &mut CpuDevice) -> Vec<Vec<u8>> {
        let weights: Vec<_> = self.weights.iter().map(Weight::bytes).collect();
        let inputs = self.inputs.iter().map(|input| {
            let rows = input.as_ref().map(|tensor| tensor.rows(self.rows));
            rows.into_iter().collect()
        });
        let inputs: Vec<Vec<ProgramRows<'_>>> = inputs.collect();
        let inputs: Vec<_> = inputs.iter().map(Vec::as_slice).collect();
        let written: Vec<Tensor> = self
            .outputs
            .iter()
            .map(|bytes| Tensor::of(&vec![0; self.rows * bytes]))
            .collect();
        let outputs: Vec<_> = written
            .iter()
            .map(|tensor| [tensor.rows(self.rows)])
            .collect();
        let outputs: Vec<&[ProgramRows<'_>]> = outputs.iter().map(|rows| &rows[..]).collect();
        let contexts = self.sequences.iter().map(|sequence| Context {
            tokens: sequence.tokens,
            position: sequence.position,
            follows: sequence.follows.as_deref(),
            keys: ProgramRows::of(sequence.keys.bytes(), self.kv_row_bytes),
            values: ProgramRows::of(sequence.values.bytes(), self.kv_row_bytes),
        });
        let contexts: Vec<Context<'_>> = contexts.collect();
        let call = CpuCall {
            rows: self.rows,
            weights: &weights,
            inputs: &inputs,
            outputs: &outputs,
            contexts: &contexts,
        };
        device.run(kernel, &call).expect("the call fits");
        written
            .iter()
            .map(|tensor| tensor.whole().to_vec())
            .collect()
    }
}

fn row_bytes(port: &Port, kv: ElementType) -> usize {
    let element = match port.role {
        Role::Key | Role::Value => kv,
        _ => ElementType::F32,
    };
    port.width as usize * element.bytes() as usize
}

/// One or two sequences with `rows` rows together, some of them trees if there may be any.
fn sequences(
    choices: &mut Choices<'_>,
    (rows, trees): (usize, bool),
    cache: (ElementType, usize),
) -> Vec<Sequence> {
    let (kv, width) = cache;
    let first = 1 + choices.below(rows);
    let tokens = [first, rows - first]
        .into_iter()
        .filter(|tokens| *tokens > 0);
    let tokens: Vec<usize> = tokens.collect();
    let sequence = |tokens: &usize| {
        let tokens = *tokens;
        let position = choices.below(70);
        let is_tree = trees && tokens <= 16 && choices.below(3) == 0;
        let follows = (0..tokens - 1)
            .map(|at| choices.below(at + 1) as u16)
            .collect();
        let elements = (tokens + position) * width;
        Sequence {
            tokens,
            position,
            follows: is_tree.then_some(follows),
            keys: Tensor::of(&choices.numbers(elements, kv)),
            values: Tensor::of(&choices.numbers(elements, kv)),
        }
    };
    tokens.iter().map(sequence).collect()
}
