//! Runs recipes on one thread of the CPU: results do not depend on the machine.

use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Mutex;

use heg_artifacts::manifest::{ElementType, Role};
use heg_cpu::{
    AffineBytes, Context, CpuCall, CpuDevice, CpuDeviceOptions, CpuError, Isa, ProgramRows,
    WeightBytes,
};

use super::convert;
use super::recipe::{Recipe, RecipePort, RecipeWeight};
use crate::error::SoftNpuError;
use crate::log::{lock, note};
use crate::memory::Located;

/// Rows in f32.
struct F32Rows {
    values: Vec<f32>,
    count: usize,
    width: usize,
}

/// Runs a recipe on the memory of its arguments, one for each of the blob's ports, in their order.
///
/// # Errors
///
/// [`SoftNpuError::Compute`] if the program refuses the call.
pub(crate) fn run(recipe: &Recipe, arguments: &[Located]) -> Result<(), SoftNpuError> {
    let mut arguments = arguments.iter();
    let mut bytes = |length: usize| {
        let argument = arguments.next();
        // SAFETY: whoever submitted the run leaves its arguments alone until it has ended, as Level Zero asks.
        let bytes = argument.map(|argument| unsafe { argument.as_bytes() });
        bytes
            .and_then(|bytes| bytes.get(..length))
            .unwrap_or_default()
    };
    let inputs: Vec<&[u8]> = recipe
        .inputs
        .iter()
        .map(|port| bytes(port.bytes()))
        .collect();
    let tree = recipe.tree.as_ref().map(|port| (port, bytes(port.bytes())));
    let weights = recipe.weights.iter();
    let weights: Vec<WeightBytes<'_>> = weights.map(|weight| parts(weight, &mut bytes)).collect();
    let call = Call {
        follows: tree.and_then(|(port, bytes)| follows(port, bytes)),
        ..Call::new(recipe, &inputs)
    };
    if call.follows.is_some() {
        note!("tree kernel={}", recipe.kernel());
    }
    let outputs = call.compute(recipe, &weights).map_err(|source| {
        let kernel = recipe.kernel().to_owned();
        SoftNpuError::Compute { kernel, source }
    })?;
    for ((port, rows), argument) in recipe.outputs.iter().zip(&outputs).zip(arguments) {
        let mut bytes = convert::write(port.element, &rows.values);
        // Rows of padding past the end of the cache are of no token.
        bytes.resize(port.bytes(), 0);
        // SAFETY: as above; what the run reads is not used any more.
        unsafe { argument.write(&bytes) };
    }
    Ok(())
}

/// The ports of a weight.
fn parts<'a>(weight: &RecipeWeight, bytes: &mut impl FnMut(usize) -> &'a [u8]) -> WeightBytes<'a> {
    WeightBytes {
        values: bytes(weight.value_bytes),
        affine: (weight.scale_bytes > 0).then(|| AffineBytes {
            scales: bytes(weight.scale_bytes),
            centres: weight.has_centres.then(|| bytes(weight.scale_bytes)),
        }),
    }
}

/// A call of a recipe's program.
struct Call {
    /// Rows that are computed: those of the chunk for which the cache has rows.
    rows: usize,
    position: usize,
    /// The earlier token that each but the first follows, if that is not always the one before it.
    follows: Option<Vec<u16>>,
    /// By input port; without rows for the position.
    inputs: Vec<F32Rows>,
}

impl Call {
    fn new(recipe: &Recipe, inputs: &[&[u8]]) -> Self {
        let position = position(recipe, inputs);
        let chunk = recipe.shape.chunk().unwrap_or(0) as usize;
        let rows = match recipe.shape.bucket() {
            Some(bucket) => chunk.min((bucket as usize).saturating_sub(position)),
            None => chunk,
        };
        let visible = position.saturating_add(rows);
        let ports = recipe.inputs.iter().zip(inputs);
        let inputs = ports.map(|(port, bytes)| {
            let needed = match port.role {
                Role::Key | Role::Value => visible,
                Role::Position => 0,
                _ => rows,
            };
            F32Rows::read(port, bytes, needed.min(port.rows))
        });
        Self {
            rows,
            position,
            follows: None,
            inputs: inputs.collect(),
        }
    }

    /// Runs the program; returns the rows of its outputs.
    fn compute(
        &self,
        recipe: &Recipe,
        weights: &[WeightBytes<'_>],
    ) -> Result<Vec<F32Rows>, CpuError> {
        let mut outputs: Vec<F32Rows> = recipe
            .outputs
            .iter()
            .map(|port| F32Rows::zeros(self.rows, port.width))
            .collect();
        let of_role = |role| {
            let mut ports = recipe.inputs.iter().zip(&self.inputs);
            ports
                .find(|(port, _)| port.role == role)
                .map(|(_, rows)| rows)
        };
        let contexts = of_role(Role::Key).zip(of_role(Role::Value));
        let contexts = contexts.map(|(keys, values)| Context {
            tokens: self.rows,
            position: self.position,
            follows: self
                .follows
                .as_ref()
                .and_then(|follows| follows.get(..self.rows.saturating_sub(1))),
            keys: keys.as_program_rows(),
            values: values.as_program_rows(),
        });
        let contexts: Vec<Context<'_>> = contexts.into_iter().collect();
        let is_of_tokens =
            |port: &RecipePort| !matches!(port.role, Role::Key | Role::Value | Role::Position);
        let inputs = recipe.inputs.iter().zip(&self.inputs);
        let inputs: Vec<Vec<ProgramRows<'_>>> = inputs
            .map(|(port, rows)| match is_of_tokens(port) {
                true => vec![rows.as_program_rows()],
                false => Vec::new(),
            })
            .collect();
        let inputs: Vec<&[ProgramRows<'_>]> = inputs.iter().map(Vec::as_slice).collect();
        let written: Vec<[ProgramRows<'_>; 1]> = outputs
            .iter_mut()
            .map(|rows| [rows.as_written_rows()])
            .collect();
        let written: Vec<&[ProgramRows<'_>]> = written.iter().map(|rows| rows.as_slice()).collect();
        let call = CpuCall {
            rows: self.rows,
            weights,
            inputs: &inputs,
            outputs: &written,
            contexts: &contexts,
        };
        with_device(|device| device.run(&recipe.program, &call))?;
        Ok(outputs)
    }
}

/// The position of the first token, for attention; 0 for the others. One outside of the cache is its end.
fn position(recipe: &Recipe, inputs: &[&[u8]]) -> usize {
    let mut ports = recipe.inputs.iter().zip(inputs);
    let port =
        ports.find(|(port, _)| port.role == Role::Position && port.element == ElementType::I64);
    let number = port.and_then(|(_, bytes)| bytes.first_chunk());
    let number = number.map_or(0, |bytes| i64::from_le_bytes(*bytes));
    let end = recipe.shape.bucket().unwrap_or(0) as usize;
    usize::try_from(number).unwrap_or(end).min(end)
}

/// The token before each but the first: the last of those that it sees. `None` if that is always the one before it.
fn follows(port: &RecipePort, bytes: &[u8]) -> Option<Vec<u16>> {
    let seen = F32Rows::read(port, bytes, port.rows);
    let rows = seen.values.chunks(port.width.max(1)).enumerate().skip(1);
    let before = rows.map(|(token, row)| {
        let mut earlier = row.iter().take(token);
        earlier.rposition(|sees| *sees > 0.5).unwrap_or(0) as u16
    });
    let follows: Vec<u16> = before.collect();
    let is_chain = (0..).zip(&follows).all(|(last, before)| last == *before);
    (!is_chain).then_some(follows)
}

impl F32Rows {
    fn zeros(count: usize, width: usize) -> Self {
        Self {
            values: vec![0.0; count.saturating_mul(width)],
            count,
            width,
        }
    }

    fn read(port: &RecipePort, bytes: &[u8], count: usize) -> Self {
        let mut rows = Self::zeros(count, port.width);
        convert::read(port.element, bytes, &mut rows.values);
        rows
    }

    fn as_program_rows(&self) -> ProgramRows<'_> {
        let first = NonNull::from(self.values.as_slice()).cast();
        let row_bytes = self.width.saturating_mul(size_of::<f32>());
        // SAFETY: there are `count` rows of f32 behind each other, borrowed for as long as the result; programs write
        // to the rows of outputs only, and these are of inputs.
        unsafe { ProgramRows::new(first, self.count, row_bytes, row_bytes) }
    }

    fn as_written_rows(&mut self) -> ProgramRows<'_> {
        let first = NonNull::from(self.values.as_mut_slice()).cast();
        let row_bytes = self.width.saturating_mul(size_of::<f32>());
        // SAFETY: there are `count` rows of f32 behind each other, borrowed alone for as long as the result.
        unsafe { ProgramRows::new(first, self.count, row_bytes, row_bytes) }
    }
}

/// Calls with the device of this process.
fn with_device<T>(call: impl FnOnce(&mut CpuDevice) -> Result<T, CpuError>) -> Result<T, CpuError> {
    static DEVICE: Mutex<Option<CpuDevice>> = Mutex::new(None);
    let mut device = lock(&DEVICE);
    let device = match &mut *device {
        Some(device) => device,
        empty => empty.insert(CpuDevice::new(CpuDeviceOptions {
            isa: Isa::best(),
            threads: NonZeroUsize::MIN,
        })?),
    };
    call(device)
}
