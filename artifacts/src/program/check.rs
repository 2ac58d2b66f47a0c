//! Checks of a program against its kernel: buffers against ports, steps against buffers and parameters.
//!
//! Programs come from files, so nothing in them is trusted. A program that passes may be run without further checks:
//! every id is in range, and every width is the one that a step needs. The first contradiction is reported, with the
//! path of its field. The flow of data between steps is checked in `flow`.

use super::flow::check_flow;
use super::{
    Attention, Buffer, BufferId, BufferPlace, ParameterId, Part, Program, Residual, RowForm,
    SCRATCH_STEP, Step,
};
use crate::error::Error;
use crate::manifest::{ElementType, Kernel, Parameter, Port, Role, Rows};
use crate::plain::is_plain;

impl Program {
    /// Checks everything that running the program for `kernel` relies on.
    ///
    /// Errors: [`Error::InvalidProgram`].
    pub fn check(&self, kernel: &Kernel) -> Result<(), Error> {
        let checker = Checker {
            program: self,
            kernel,
        };
        checker.check_counts()?;
        checker.check_roles()?;
        for (index, buffer) in self.buffers.iter().enumerate() {
            checker.check_buffer(index, buffer)?;
        }
        checker.check_outputs()?;
        for (index, step) in self.steps.iter().enumerate() {
            checker.check_step(&format!("steps[{index}]"), step)?;
        }
        check_flow(&checker)
    }

    /// The f32 elements of scratch memory that each row of a call takes.
    pub fn scratch_elements(&self) -> u32 {
        let ends = self.buffers.iter().filter_map(Buffer::scratch);
        ends.map(|scratch| scratch.end).max().unwrap_or(0)
    }
}

impl Buffer {
    /// The range of scratch elements that the buffer takes in a call of one row; `None` for ports.
    pub(super) fn scratch(&self) -> Option<std::ops::Range<u32>> {
        match self.place {
            BufferPlace::Scratch { first } => {
                Some(first..first.saturating_add(super::scratch_width(self.width)))
            }
            BufferPlace::Input(_) | BufferPlace::Output(_) => None,
        }
    }
}

/// A program under check, and its kernel.
pub(super) struct Checker<'a> {
    pub(super) program: &'a Program,
    kernel: &'a Kernel,
}

impl<'a> Checker<'a> {
    pub(super) fn invalid(
        &self,
        field: impl Into<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Error {
        Error::InvalidProgram {
            kernel: self.kernel.name.clone(),
            field: field.into(),
            found: found.into(),
            expected: expected.into(),
        }
    }

    /// Fails unless `holds`.
    fn require(
        &self,
        holds: bool,
        field: &str,
        found: impl std::fmt::Debug,
        expected: impl Into<String>,
    ) -> Result<(), Error> {
        match holds {
            true => Ok(()),
            false => Err(self.invalid(field, format!("`{found:?}`"), expected)),
        }
    }

    fn check_counts(&self) -> Result<(), Error> {
        let Program { buffers, steps } = self.program;
        for (field, count) in [("buffers", buffers.len()), ("steps", steps.len())] {
            let expected = format!("at most `{COUNT_MAX}`");
            self.require(
                count <= COUNT_MAX,
                &format!("{field}.len()"),
                count,
                expected,
            )?;
        }
        Ok(())
    }

    /// Checks that no role comes twice on a side: steps find a port by its role.
    fn check_roles(&self) -> Result<(), Error> {
        let Kernel {
            inputs, outputs, ..
        } = self.kernel;
        for (side, ports) in [("inputs", inputs), ("outputs", outputs)] {
            for (index, port) in ports.iter().enumerate() {
                let mut earlier = ports.iter().take(index);
                let is_first = earlier.all(|earlier| earlier.role != port.role);
                let field = format!("{side}[{index}].role");
                self.require(is_first, &field, port.role, "every role once on a side")?;
            }
        }
        Ok(())
    }

    fn check_buffer(&self, index: usize, buffer: &Buffer) -> Result<(), Error> {
        let Buffer {
            name,
            width,
            form,
            place,
        } = buffer;
        let field = |name: &str| format!("buffers[{index}].{name}");
        let is_name = !name.is_empty() && name.chars().all(is_plain);
        let expected = "a name without control characters";
        self.require(is_name, &field("name"), name, expected)?;
        self.require(*width > 0, &field("width"), width, "at least `1`")?;
        let (ports, port) = match place {
            BufferPlace::Scratch { first } => {
                let is_step = first.is_multiple_of(SCRATCH_STEP);
                let expected = format!("a multiple of `{SCRATCH_STEP}`");
                self.require(is_step, &field("place"), first, expected)?;
                let elements = width.checked_next_multiple_of(SCRATCH_STEP);
                let end = elements.and_then(|elements| first.checked_add(elements));
                let expected = "an end that can be counted";
                return self.require(end.is_some(), &field("place"), first, expected);
            }
            BufferPlace::Input(port) => (&self.kernel.inputs, port),
            BufferPlace::Output(port) => (&self.kernel.outputs, port),
        };
        let expected = "a port with a row for each token";
        let port = usize::try_from(*port).ok().and_then(|at| ports.get(at));
        let port = port.filter(|port| has_token_rows(port));
        let Some(port) = port else {
            return self.require(false, &field("place"), place, expected);
        };
        let expected = format!("`{}`, the width of the port", port.width);
        self.require(*width == port.width, &field("width"), width, expected)?;
        let is_plain = *form == RowForm::Plain;
        self.require(is_plain, &field("form"), form, "`Plain` at a port")?;
        let mut earlier = self.program.buffers.iter().take(index);
        let is_first = earlier.all(|earlier| earlier.place != *place);
        self.require(is_first, &field("place"), place, "one buffer for a port")
    }

    /// Checks that each output port has a buffer; `flow` checks that it is written.
    fn check_outputs(&self) -> Result<(), Error> {
        for (index, port) in self.kernel.outputs.iter().enumerate() {
            let places = self.program.buffers.iter().map(|buffer| buffer.place);
            let is_there = places.into_iter().any(
                |place| matches!(place, BufferPlace::Output(at) if usize::try_from(at) == Ok(index)),
            );
            if !is_there {
                let expected = format!("a buffer for output {:?}", port.role);
                return Err(self.invalid("buffers", "without it", expected));
            }
        }
        Ok(())
    }

    fn check_step(&self, field: &str, step: &Step) -> Result<(), Error> {
        let at = |name: &str| format!("{field}.{name}");
        let width = match step {
            Step::Product { x, parts } => return self.check_product(field, *x, parts, step),
            Step::Attention { attributes, .. } => {
                self.check_attention(&at("attributes"), attributes)?
            }
            Step::RmsNorm {
                x,
                weight,
                eps,
                offset,
                groups,
                ..
            } => {
                let width = self.plain(&at("x"), *x)?.width;
                let part = width.checked_div(*groups).unwrap_or(0);
                let divides = part.checked_mul(*groups) == Some(width) && part > 0;
                let expected = format!("a divisor of the width `{width}`");
                self.require(divides, &at("groups"), groups, expected)?;
                self.vector(&at("weight"), *weight, part)?;
                self.not_negative(&at("eps"), *eps)?;
                self.finite(&at("offset"), *offset)?;
                width
            }
            Step::LayerNorm {
                x,
                weight,
                bias,
                eps,
                ..
            } => {
                let width = self.plain(&at("x"), *x)?.width;
                self.vector(&at("weight"), *weight, width)?;
                bias.map_or(Ok(()), |bias| self.vector(&at("bias"), bias, width))?;
                self.not_negative(&at("eps"), *eps)?;
                width
            }
            Step::Copy { x, .. } => self.plain(&at("x"), *x)?.width,
            Step::Rope {
                x, heads, rotated, ..
            } => {
                let width = self.plain(&at("x"), *x)?.width;
                self.check_rope(field, width, *heads, *rotated)?;
                width
            }
            Step::Activated { x, .. } => self.plain(&at("x"), *x)?.width,
            Step::Gated { gate, up, .. } => {
                let width = self.plain(&at("gate"), *gate)?.width;
                self.plain_of(&at("up"), *up, width)?;
                width
            }
            Step::Add { a, b, b_scale, .. } => {
                let width = self.plain(&at("a"), *a)?.width;
                self.plain_of(&at("b"), *b, width)?;
                self.finite(&at("b_scale"), *b_scale)?;
                width
            }
            Step::Scale { x, factor, .. } => {
                self.finite(&at("factor"), *factor)?;
                self.plain(&at("x"), *x)?.width
            }
            Step::SoftCap { x, cap, .. } => {
                self.positive(&at("cap"), *cap)?;
                self.plain(&at("x"), *x)?.width
            }
        };
        let mut written = step.writes().into_iter();
        written.try_for_each(|out| self.out(&at("out"), out, width, step))
    }

    fn check_product(
        &self,
        field: &str,
        x: BufferId,
        parts: &[Part],
        step: &Step,
    ) -> Result<(), Error> {
        let at = |name: &str| format!("{field}.{name}");
        let operands = self.buffer(&at("x"), x)?;
        let is_operand = operands.form == RowForm::Operand;
        self.require(
            is_operand,
            &at("x"),
            format_args!("{}", operands.name),
            "operands",
        )?;
        self.require(
            !parts.is_empty(),
            &at("parts"),
            parts,
            "at least one matrix",
        )?;
        for (index, part) in parts.iter().enumerate() {
            let at = |name: &str| format!("{field}.parts[{index}].{name}");
            let Part {
                weight,
                bias,
                residual,
                out,
            } = part;
            let width = self.buffer(&at("out"), *out)?.width;
            let Parameter { element, shape, .. } = self.parameter(&at("weight"), *weight)?;
            let expected = [width, operands.width];
            let fits = shape.as_slice() == expected && *element != ElementType::I64;
            let expected = format!("a matrix of shape `{expected:?}`");
            self.require(fits, &at("weight"), (element, shape), expected)?;
            bias.map_or(Ok(()), |bias| self.vector(&at("bias"), bias, width))?;
            if let Some(Residual { to, factor }) = residual {
                self.plain_of(&at("residual.to"), *to, width)?;
                self.finite(&at("residual.factor"), *factor)?;
            }
            self.out(&at("out"), *out, width, step)?;
        }
        Ok(())
    }

    fn check_rope(&self, field: &str, width: u32, heads: u32, rotated: u32) -> Result<(), Error> {
        let head_dim = width.checked_div(heads).unwrap_or(0);
        let divides = head_dim.checked_mul(heads) == Some(width) && head_dim > 0;
        let expected = format!("a divisor of the width `{width}`");
        self.require(divides, &format!("{field}.heads"), heads, expected)?;
        let fits = rotated > 0 && rotated.is_multiple_of(2) && rotated <= head_dim;
        let expected = format!("an even number of at most `{head_dim}` dimensions");
        self.require(fits, &format!("{field}.rotated"), rotated, expected)?;
        for role in [Role::Cos, Role::Sin] {
            let port = self.input(field, role, Rows::Tokens)?;
            let is_half = port.width == rotated / 2;
            let expected = format!("twice `{}`, the width of input {role:?}", port.width);
            self.require(is_half, &format!("{field}.rotated"), rotated, expected)?;
        }
        Ok(())
    }

    /// Checks an attention against the ports that it reads, and returns the width of its rows.
    fn check_attention(&self, field: &str, attributes: &Attention) -> Result<u32, Error> {
        let Attention {
            heads,
            kv_heads,
            head_dim,
            scale,
            window,
            softcap,
            sight,
        } = *attributes;
        let at = |name: &str| format!("{field}.{name}");
        self.require(head_dim > 0, &at("head_dim"), head_dim, "at least `1`")?;
        let groups = kv_heads > 0 && heads > 0 && heads.is_multiple_of(kv_heads);
        let expected = format!("a multiple of `kv_heads`: `{kv_heads}`");
        self.require(groups, &at("heads"), heads, expected)?;
        self.input(field, Role::Position, Rows::One)?;
        for (role, rows, heads) in [
            (Role::Query, Rows::Tokens, heads),
            (Role::Key, Rows::Context, kv_heads),
            (Role::Value, Rows::Context, kv_heads),
        ] {
            let port = self.input(field, role, rows)?;
            let fits = heads.checked_mul(head_dim) == Some(port.width);
            let expected = format!("heads that fill the `{}` of input {role:?}", port.width);
            self.require(fits, field, (heads, head_dim), expected)?;
        }
        self.finite(&at("scale"), scale)?;
        self.require(window != Some(0), &at("window"), window, "at least `1`")?;
        let fits = window.is_none() || sight.is_causal();
        self.require(fits, &at("sight"), sight, "`Causal` with a window")?;
        softcap.map_or(Ok(()), |cap| self.positive(&at("softcap"), cap))?;
        Ok(heads.saturating_mul(head_dim))
    }

    /// An input port that steps read without a buffer.
    fn input(&self, field: &str, role: Role, rows: Rows) -> Result<&'a Port, Error> {
        let mut ports = self.kernel.inputs.iter();
        ports
            .find(|port| port.role == role && port.rows == rows)
            .ok_or_else(|| {
                let found = "in a kernel without it";
                self.invalid(field, found, format!("input {role:?} of {rows:?} rows"))
            })
    }

    fn buffer(&self, field: &str, id: BufferId) -> Result<&'a Buffer, Error> {
        let index = usize::try_from(id.0).ok();
        let buffer = index.and_then(|index| self.program.buffers.get(index));
        buffer.ok_or_else(|| {
            let count = self.program.buffers.len();
            let expected = format!("less than the number of buffers: `{count}`");
            self.invalid(field, format!("`{}`", id.0), expected)
        })
    }

    /// A buffer that is read element by element.
    fn plain(&self, field: &str, id: BufferId) -> Result<&'a Buffer, Error> {
        let buffer = self.buffer(field, id)?;
        let is_plain = buffer.form == RowForm::Plain;
        self.require(
            is_plain,
            field,
            format_args!("{}", buffer.name),
            "plain rows",
        )?;
        Ok(buffer)
    }

    fn plain_of(&self, field: &str, id: BufferId, width: u32) -> Result<(), Error> {
        let found = self.plain(field, id)?.width;
        let expected = format!("rows of `{width}` elements");
        self.require(found == width, field, found, expected)
    }

    /// A buffer of this `width` that `step` can write.
    fn out(&self, field: &str, id: BufferId, width: u32, step: &Step) -> Result<(), Error> {
        let buffer = self.buffer(field, id)?;
        let expected = format!("rows of `{width}` elements");
        self.require(buffer.width == width, field, buffer.width, expected)?;
        let can_write = buffer.form == RowForm::Plain || step.gives_operands();
        self.require(
            can_write,
            field,
            format_args!("{}", buffer.name),
            "plain rows",
        )?;
        let BufferPlace::Output(port) = buffer.place else {
            return Ok(());
        };
        let port = usize::try_from(port).ok();
        let port = port.and_then(|port| self.kernel.outputs.get(port));
        let cached = port.is_some_and(|port| matches!(port.role, Role::Key | Role::Value));
        let can_write = !cached || step.gives_cache_rows();
        let expected = "another buffer: keys and values are stored by norms, rotations and copies";
        self.require(can_write, field, format_args!("{}", buffer.name), expected)
    }

    fn parameter(&self, field: &str, id: ParameterId) -> Result<&'a Parameter, Error> {
        let index = usize::try_from(id.0).ok();
        let parameter = index.and_then(|index| self.kernel.parameters.get(index));
        parameter.ok_or_else(|| {
            let count = self.kernel.parameters.len();
            let expected = format!("less than the number of parameters: `{count}`");
            self.invalid(field, format!("`{}`", id.0), expected)
        })
    }

    /// A norm's weight or a bias.
    fn vector(&self, field: &str, id: ParameterId, width: u32) -> Result<(), Error> {
        let Parameter { element, shape, .. } = self.parameter(field, id)?;
        let fits = shape.as_slice() == [width] && *element == ElementType::F32;
        let expected = format!("a parameter of shape `[{width}]` in F32");
        self.require(fits, field, (element, shape), expected)
    }

    fn finite(&self, field: &str, number: f32) -> Result<(), Error> {
        self.require(number.is_finite(), field, number, "a finite number")
    }

    fn not_negative(&self, field: &str, number: f32) -> Result<(), Error> {
        let holds = number.is_finite() && number >= 0.0;
        self.require(holds, field, number, "a finite number of at least `0`")
    }

    fn positive(&self, field: &str, number: f32) -> Result<(), Error> {
        let holds = number.is_finite() && number > 0.0;
        self.require(holds, field, number, "a finite number above `0`")
    }
}

/// Whether buffers can be placed at a port: it has one row of activations for each token.
fn has_token_rows(port: &Port) -> bool {
    let is_activation = match port.role {
        Role::Hidden
        | Role::Query
        | Role::Key
        | Role::Value
        | Role::Attended
        | Role::Logits
        | Role::Vector => true,
        Role::Cos | Role::Sin | Role::Position => false,
    };
    is_activation && port.rows == Rows::Tokens
}

/// Largest number of buffers and of steps. Chosen: kernels of the shipped families have up to 12 of each.
const COUNT_MAX: usize = 1024;
