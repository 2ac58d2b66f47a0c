//! A single kernel: one place in one variant on one device, for measurements and known-answer tests.
//!
//! The loader that makes it also makes the kernels of requests, so what is measured or tested is what runs. Its tensors
//! are buffers of its own; nothing here times, compares or decides.

use std::sync::Arc;

use half::{bf16, f16};
use heg_artifacts::Bundle;
use heg_artifacts::manifest::{ElementType, Port, Role, Rows as PortExtent, Variant};
use heg_cpu::Context;
use heg_spec::Group;

use super::form::{Form, Runner};
use super::loader::{Loader, tensor_element};
use super::order::{CallRows, PortRows, ProgramOrder};
use super::place::{Place, place_kernel, place_use, unknown};
use crate::error::{RuntimeError, openvino};
use crate::ladder::Rung;
use crate::mem::{ProgramRows, Rows};

/// One kernel, ready to run on values that the caller sets.
///
/// Set the size of a call with [`size`](Self::size), its inputs with [`set`](Self::set) and
/// [`set_position`](Self::set_position), run it with [`infer`](Self::infer) as often as wanted, read its outputs
/// with [`get`](Self::get). Inputs that were not set are zeros.
pub struct LoneKernel {
    bundle: Arc<Bundle>,
    place: Place,
    form: Form,
    inputs: Vec<Bound>,
    outputs: Vec<Bound>,
    tokens: usize,
    context: usize,
    /// Position of the first token.
    position: usize,
}

/// A port with the buffer behind it.
struct Bound {
    port: Port,
    element: ElementType,
    rows: Rows,
}

impl LoneKernel {
    /// Makes the kernel of `place` ready, for calls of one token over one row of context.
    ///
    /// # Errors
    ///
    /// Errors of loading a kernel, e.g. [`RuntimeError::OpenVino`] if the device refuses it.
    pub fn prepare(loader: &Loader, place: Place, rung: Rung) -> Result<Self, RuntimeError> {
        Self::over(loader.bundle(), place, loader.form(place, rung)?)
    }

    /// As [`prepare`](Self::prepare), for static attention narrowed to `context` rows of the KV cache.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare); [`RuntimeError::Narrow`] if the IR cannot be narrowed.
    pub fn prepare_over(
        loader: &Loader,
        place: Place,
        rung: Rung,
        context: u32,
    ) -> Result<Self, RuntimeError> {
        Self::over(
            loader.bundle(),
            place,
            loader.form_over(place, rung, context)?,
        )
    }

    /// A kernel over a form that is ready.
    pub(super) fn over(
        bundle: &Arc<Bundle>,
        place: Place,
        form: Form,
    ) -> Result<Self, RuntimeError> {
        let mut lone = Self {
            bundle: Arc::clone(bundle),
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

    /// The form, with buffers of this kernel still bound.
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

    /// The variant that runs.
    pub fn variant(&self) -> Result<&Variant, RuntimeError> {
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
    /// a static variant. Allocates, so it is not part of what should be measured.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Batch`] where the variant does not admit the call.
    pub fn size(&mut self, tokens: usize, context: usize) -> Result<(), RuntimeError> {
        if !self.form.shape.admits(tokens, context) {
            return Err(RuntimeError::Batch {
                asked: tokens,
                rows: self.form.rows(tokens),
            });
        }
        let kernel = place_kernel(self.bundle.manifest(), self.place)?;
        let variant = self.variant()?;
        let buffers = |ports: &[Port]| -> Result<Vec<Bound>, RuntimeError> {
            ports
                .iter()
                .map(|port| {
                    let element = variant.port_element(port.role);
                    let rows = match port.rows {
                        PortExtent::Tokens => self.form.rows(tokens),
                        PortExtent::Context => self.form.context(context),
                        PortExtent::One => 1,
                    };
                    Ok(Bound {
                        port: port.clone(),
                        element,
                        rows: Rows::new(rows, port.width as usize, tensor_element(element))?,
                    })
                })
                .collect()
        };
        let (inputs, outputs) = (buffers(&kernel.inputs)?, buffers(&kernel.outputs)?);
        if let Runner::Plugin(form) = &mut self.form.runner {
            for (index, bound) in inputs.iter().enumerate() {
                let bind = form.request.bind_input(index, bound.tensor()?);
                bind.map_err(openvino(format!("bind an input of `{}`", kernel.name)))?;
            }
            for (index, bound) in outputs.iter().enumerate() {
                let bind = form.request.bind_output(index, bound.tensor()?);
                bind.map_err(openvino(format!("bind an output of `{}`", kernel.name)))?;
            }
        }
        (self.inputs, self.outputs) = (inputs, outputs);
        (self.tokens, self.context) = (tokens, context);
        Ok(())
    }

    /// Sets the first rows of an input from row-major `values`, converted to the input's element type. A role that
    /// the kernel does not have is left out.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::OpenVino`] where there are more values than the call has room for.
    pub fn set(&mut self, role: Role, values: &[f32]) -> Result<(), RuntimeError> {
        for bound in self.inputs.iter().filter(|bound| bound.port.role == role) {
            let bytes: Vec<u8> = match bound.element {
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
    /// [`RuntimeError::Section`] where the table is damaged, [`RuntimeError::Context`] where it is too short.
    pub fn set_position(&mut self, position: usize) -> Result<(), RuntimeError> {
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
        let Some(table) = rope.and_then(|id| manifest.rope.get(id.0 as usize)) else {
            return Ok(());
        };
        let row_bytes = table.width as usize * ElementType::F32.bytes() as usize;
        for (role, id) in [(Role::Cos, table.cos), (Role::Sin, table.sin)] {
            let bytes = bundle.section(id).map_err(RuntimeError::Section)?;
            let wanted = position * row_bytes..(position + self.tokens) * row_bytes;
            let bytes = bytes.get(wanted).ok_or(RuntimeError::Context {
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
    /// [`RuntimeError::OpenVino`] or [`RuntimeError::Program`] where the device fails.
    pub fn infer(&mut self) -> Result<(), RuntimeError> {
        if let Some(program) = self.form.runner.program() {
            let mut order = ProgramOrder::default();
            order.add(program, self.tokens, &*self)?;
            order.run(&|_| true, false)?;
            return Ok(());
        }
        match &mut self.form.runner {
            Runner::Plugin(form) => form.request.infer().map_err(openvino("run a lone kernel")),
            Runner::Program(_) => Ok(()),
        }
    }

    /// An output of the last run as f32, row-major, without padding; none where the kernel has no such output.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::OpenVino`] where it cannot be read.
    pub fn get(&self, role: Role) -> Result<Option<Vec<f32>>, RuntimeError> {
        let Some(bound) = self.outputs.iter().find(|bound| bound.port.role == role) else {
            return Ok(None);
        };
        let rows = self.rows_of(bound.port.rows);
        let mut bytes = vec![0; rows * bound.rows.row_bytes()];
        bound.rows.read_packed(0, &mut bytes)?;
        Ok(Some(to_f32(bound.element, &bytes)))
    }
}

impl<'a> CallRows<'a> for &'a LoneKernel {
    fn inputs(&mut self, into: &mut PortRows<'_, 'a>) -> Result<(), RuntimeError> {
        let ports = self.inputs.iter();
        ports
            .map(|bound| bound.runs(self.tokens))
            .try_for_each(|runs| into.port(runs))
    }

    fn outputs(&mut self, into: &mut PortRows<'_, 'a>) -> Result<(), RuntimeError> {
        let ports = self.outputs.iter();
        ports
            .map(|bound| bound.runs(self.tokens))
            .try_for_each(|runs| into.port(runs))
    }

    /// Keys and values are those of one sequence.
    fn contexts(&mut self, into: &mut Vec<Context<'a>>) -> Result<(), RuntimeError> {
        if self.place.group != Group::Mha {
            return Ok(());
        }
        let half = |role| {
            let mut inputs = self.inputs.iter();
            let bound = inputs.find(|bound| bound.port.role == role);
            let bound = bound.ok_or_else(|| unknown(self.place))?;
            bound.rows.for_program(0, self.position + self.tokens)
        };
        into.push(Context {
            tokens: self.tokens,
            position: self.position,
            follows: None,
            keys: half(Role::Key)?,
            values: half(Role::Value)?,
        });
        Ok(())
    }
}

impl Bound {
    /// The first rows, for a program; none of the cache, which attention has as contexts.
    fn runs(&self, tokens: usize) -> Option<Result<ProgramRows<'_>, RuntimeError>> {
        let is_of_tokens = self.port.rows == PortExtent::Tokens;
        is_of_tokens.then(|| self.rows.for_program(0, tokens))
    }

    fn tensor(&self) -> Result<heg_openvino::Tensor, RuntimeError> {
        match self.port.rows {
            PortExtent::One => self.rows.vector(1),
            PortExtent::Tokens | PortExtent::Context => self.rows.view(0, self.rows.count()),
        }
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
