//! A single kernel: one place in one variant on one device, for measurements and known-answer tests.
//!
//! The loader that makes it also makes the kernels of requests, so measurements and tests apply to the kernels of
//! requests. Its tensors are buffers of its own; this module does not time, compare or decide.

use std::sync::Arc;

use half::{bf16, f16};
use heg_artifacts::Bundle;
use heg_artifacts::manifest::{ElementType, Port, Role, Rows as PortExtent, Variant};
use heg_cpu::CacheForm;
use heg_spec::bug;

use super::form::Form;
use super::loader::Loader;
use super::place::{Place, place_kernel, place_use, unknown};
use crate::backend::{AloneCall, BoundPort, Runner};
use crate::error::ExecError;
use crate::ladder::Rung;
use crate::mem::{MemoryHome, RowBuffer, tensor_element};

/// One kernel, ready to run on values that the caller sets.
///
/// Set the size of a call with [`size`](Self::size), its inputs with [`set`](Self::set) and
/// [`set_position`](Self::set_position), run it with [`infer`](Self::infer) as often as wanted, read its outputs
/// with [`get`](Self::get). Inputs that were not set are zeros.
pub struct LoneKernel {
    bundle: Arc<Bundle>,
    /// The home of its buffers.
    home: MemoryHome,
    place: Place,
    form: Form,
    inputs: Vec<BoundPort>,
    outputs: Vec<BoundPort>,
    tokens: usize,
    context: usize,
    /// Position of the first token.
    position: usize,
}

impl LoneKernel {
    /// Makes the kernel of `place` ready, for calls of one token over one row of context.
    ///
    /// # Errors
    ///
    /// Errors of loading a kernel, e.g. [`ExecError::OpenVino`] if the device refuses it.
    pub fn prepare(loader: &Loader, place: Place, rung: Rung) -> Result<Self, ExecError> {
        Self::over(loader, place, loader.form(place, rung)?)
    }

    /// Makes a kernel like [`prepare`](Self::prepare), for static attention narrowed to `context` rows of the KV
    /// cache.
    ///
    /// # Errors
    ///
    /// The errors of [`prepare`](Self::prepare); [`ExecError::Narrow`] if the IR cannot be narrowed.
    pub fn prepare_over(
        loader: &Loader,
        place: Place,
        rung: Rung,
        context: u32,
    ) -> Result<Self, ExecError> {
        Self::over(loader, place, loader.form_over(place, rung, context)?)
    }

    /// Makes a kernel from a form that is ready.
    pub(super) fn over(loader: &Loader, place: Place, form: Form) -> Result<Self, ExecError> {
        let mut lone = Self {
            bundle: Arc::clone(loader.bundle()),
            home: loader.home(),
            place,
            form,
            inputs: Vec::new(),
            outputs: Vec::new(),
            tokens: 1,
            context: 1,
            position: 0,
        };
        lone.size(1, 1)?;
        Ok(lone)
    }

    /// Returns the form, with buffers of this kernel still bound.
    pub(super) fn into_form(self) -> Form {
        self.form
    }

    /// Rows of a port in a call of the current size, without padding.
    pub(super) fn rows_of(&self, rows: PortExtent) -> usize {
        match rows {
            PortExtent::Tokens => self.tokens,
            PortExtent::Context => self.context,
            PortExtent::One => 1,
        }
    }

    /// Returns the variant that runs.
    pub fn variant(&self) -> Result<&Variant, ExecError> {
        let kernel = place_kernel(self.bundle.manifest(), self.place)?;
        let variant = kernel.variants.get(self.form.rung.variant);
        variant.ok_or(unknown(self.place))
    }

    /// Inputs without weights, in port order.
    pub fn inputs(&self) -> impl Iterator<Item = &Port> {
        self.inputs.iter().map(|bound| &bound.port)
    }

    /// Outputs in port order.
    pub fn outputs(&self) -> impl Iterator<Item = &Port> {
        self.outputs.iter().map(|bound| &bound.port)
    }

    /// Binds zeroed buffers for calls of `tokens` tokens over `context` rows of the KV cache, padded to the size of
    /// a static variant. It allocates, so it should not be measured.
    ///
    /// # Errors
    ///
    /// [`ExecError::Batch`] if the variant does not admit the call.
    pub fn size(&mut self, tokens: usize, context: usize) -> Result<(), ExecError> {
        if !self.form.shape.admits(tokens, context) {
            return Err(ExecError::Batch {
                asked: tokens,
                rows: self.form.rows(tokens),
            });
        }
        let kernel = place_kernel(self.bundle.manifest(), self.place)?;
        let elements = self.form.elements;
        let head_dim = self.bundle.manifest().model.head_dim;
        let buffers = |ports: &[Port]| -> Result<Vec<BoundPort>, ExecError> {
            ports
                .iter()
                .map(|port| {
                    let element = elements.at(port.role);
                    let rows = match port.rows {
                        PortExtent::Tokens => self.form.rows(tokens),
                        PortExtent::Context => self.form.context(context),
                        PortExtent::One => 1,
                    };
                    let bytes = elements.row_bytes(port.role, port.width, head_dim);
                    let width = bytes.map_or(0, |bytes| bytes / element.bytes()) as usize;
                    Ok(BoundPort {
                        port: port.clone(),
                        element,
                        rows: RowBuffer::new(rows, width, tensor_element(element), &self.home)?,
                    })
                })
                .collect()
        };
        let (inputs, outputs) = (buffers(&kernel.inputs)?, buffers(&kernel.outputs)?);
        (self.inputs, self.outputs) = (inputs, outputs);
        (self.tokens, self.context) = (tokens, context);
        self.with_call(|runner, call| runner.bind(call))
    }

    /// Sets the first rows of an input from row-major `values`, converted to the input's element type. Does
    /// nothing for a role that the kernel does not have.
    ///
    /// # Errors
    ///
    /// [`ExecError::OpenVino`] if there are more values than the call has room for.
    pub fn set(&mut self, role: Role, values: &[f32]) -> Result<(), ExecError> {
        for bound in self.inputs.iter().filter(|bound| bound.port.role == role) {
            let bytes: Vec<u8> = match bound.element {
                ElementType::I8 => self.integers()?.rows_of(values),
                ElementType::F16 => values
                    .iter()
                    .flat_map(|value| f16::from_f32(*value).to_le_bytes())
                    .collect(),
                ElementType::Bf16 => values
                    .iter()
                    .flat_map(|value| bf16::from_f32(*value).to_le_bytes())
                    .collect(),
                ElementType::I64 => values
                    .iter()
                    .flat_map(|value| (*value as i64).to_le_bytes())
                    .collect(),
                _ => values
                    .iter()
                    .flat_map(|value| value.to_le_bytes())
                    .collect(),
            };
            bound.rows.write_packed(0, &bytes)?;
        }
        Ok(())
    }

    /// Sets the position of the first token, and rotary factors to rows of the place's table from there on.
    ///
    /// # Errors
    ///
    /// [`ExecError::Section`] if the table is damaged, [`ExecError::Context`] if it is too short.
    pub fn set_position(&mut self, position: usize) -> Result<(), ExecError> {
        self.position = position;
        for bound in &self.inputs {
            if bound.port.role == Role::Position {
                let position = position as i64;
                bound.rows.write_row(0, &position.to_le_bytes())?;
            }
        }
        let bundle = Arc::clone(&self.bundle);
        let manifest = bundle.manifest();
        let rope = place_use(manifest, self.place)?.rope;
        // Kernels that rotate nothing have no table.
        let Some(id) = rope else {
            return Ok(());
        };
        let table = manifest.rope.get(id.0 as usize);
        let table = table.ok_or_else(|| bug!("an opened bundle names a table that it lacks"))?;
        let row_bytes = table.width as usize * ElementType::F32.bytes() as usize;
        for (role, id) in [(Role::Cos, table.cos), (Role::Sin, table.sin)] {
            let bytes = bundle.section(id).map_err(ExecError::Section)?;
            let wanted = position * row_bytes..(position + self.tokens) * row_bytes;
            let bytes = bytes.get(wanted).ok_or(ExecError::Context {
                asked: position + self.tokens,
                context: table.rows as usize,
            })?;
            for bound in self.inputs.iter().filter(|bound| bound.port.role == role) {
                bound.rows.write_packed(0, bytes)?;
            }
        }
        Ok(())
    }

    /// Runs the kernel once and waits for its end.
    ///
    /// # Errors
    ///
    /// [`ExecError::OpenVino`] or [`ExecError::Program`] if the device fails.
    pub fn infer(&mut self) -> Result<(), ExecError> {
        self.with_call(|runner, call| runner.run_alone(call))
    }

    /// Calls `act` with the form's runner and a call of the current size.
    fn with_call(
        &mut self,
        act: impl FnOnce(&mut dyn Runner, &AloneCall<'_>) -> Result<(), ExecError>,
    ) -> Result<(), ExecError> {
        let call = AloneCall {
            kernel: place_kernel(self.bundle.manifest(), self.place)?,
            tokens: self.tokens,
            position: self.position,
            inputs: &self.inputs,
            outputs: &self.outputs,
        };
        act(&mut *self.form.runner, &call)
    }

    /// Returns an output of the last run as f32, row-major, without padding; `None` if the kernel has no such output.
    ///
    /// # Errors
    ///
    /// [`ExecError::OpenVino`] if it cannot be read.
    pub fn get(&self, role: Role) -> Result<Option<Vec<f32>>, ExecError> {
        let Some(bound) = self.outputs.iter().find(|bound| bound.port.role == role) else {
            return Ok(None);
        };
        let rows = self.rows_of(bound.port.rows);
        let mut bytes = vec![0; rows * bound.rows.row_bytes()];
        bound.rows.read_packed(0, &mut bytes)?;
        Ok(Some(match bound.element {
            ElementType::I8 => self.integers()?.elements_of(&bytes),
            element => to_f32(element, &bytes),
        }))
    }

    /// The form of keys and values that are integers.
    fn integers(&self) -> Result<CacheForm, ExecError> {
        let head_dim = self.bundle.manifest().model.head_dim;
        let form = CacheForm::new(ElementType::I8, head_dim);
        form.map_err(|source| ExecError::Program {
            kernel: format!("{:?}", self.place.group),
            source,
        })
    }
}

fn to_f32(element: ElementType, bytes: &[u8]) -> Vec<f32> {
    match element {
        ElementType::F16 => numbers(bytes, |half| f16::from_le_bytes(half).to_f32()),
        ElementType::Bf16 => numbers(bytes, |half| bf16::from_le_bytes(half).to_f32()),
        _ => numbers(bytes, f32::from_le_bytes),
    }
}

fn numbers<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    let (each, _) = bytes.as_chunks();
    each.iter().map(|bytes| number(*bytes)).collect()
}
