//! Programs as text for people, with a line for each buffer that a step writes.

use std::fmt;

use super::{
    Activation, Attention, Buffer, BufferId, BufferPlace, ParameterId, Part, Program, Residual,
    RowForm, Step,
};
use heg_spec::Sight;

use crate::manifest::Kernel;

impl Program {
    /// The program as a table: each step's outputs, their place and their computation. Parameters and ports have the
    /// names that `kernel` gives them.
    pub fn text<'a>(&'a self, kernel: &'a Kernel) -> ProgramText<'a> {
        ProgramText {
            program: self,
            kernel,
        }
    }
}

/// A program with its kernel, for display: see [`Program::text`].
#[derive(Debug, Clone, Copy)]
pub struct ProgramText<'a> {
    program: &'a Program,
    kernel: &'a Kernel,
}

impl fmt::Display for ProgramText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (steps, scratch) = (self.program.steps.len(), self.program.scratch_elements());
        let plural = if steps == 1 { "" } else { "s" };
        let name = &self.kernel.name;
        writeln!(
            f,
            "{name}: {steps} step{plural}, {scratch} f32 of scratch memory for each row"
        )?;
        let rows = self.rows();
        let mut widths = [0; COLUMNS];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        let [number, name, form, elements, place, _] = widths;
        for [a, b, c, d, e, value] in &rows {
            writeln!(
                f,
                "{a:>number$}  {b:name$}  {c:form$} {d:>elements$}  {e:place$}  {value}"
            )?;
        }
        Ok(())
    }
}

/// Columns: step, the output's name, form, width and place, and its computation.
const COLUMNS: usize = 6;

impl ProgramText<'_> {
    fn rows(&self) -> Vec<[String; COLUMNS]> {
        let steps = self.program.steps.iter().enumerate();
        let rows = steps.flat_map(|(index, step)| {
            let written = step.writes().into_iter().zip(self.values(step)).enumerate();
            written.map(move |(at, (out, value))| {
                let number = if at == 0 {
                    index.to_string()
                } else {
                    String::new()
                };
                self.row(number, out, value)
            })
        });
        rows.collect()
    }

    fn row(&self, number: String, out: BufferId, value: String) -> [String; COLUMNS] {
        let Some(buffer) = self.buffer(out) else {
            let unknown = || "?".to_owned();
            return [number, unknown(), unknown(), unknown(), unknown(), value];
        };
        let form = match buffer.form {
            RowForm::Plain => "plain",
            RowForm::Operand => "operand",
        };
        let place = self.place(buffer);
        [
            number,
            buffer.name.clone(),
            form.to_owned(),
            buffer.width.to_string(),
            place,
            value,
        ]
    }

    fn place(&self, buffer: &Buffer) -> String {
        let role = |ports: &[crate::manifest::Port], at: u32| {
            let port = usize::try_from(at).ok().and_then(|at| ports.get(at));
            port.map_or_else(
                || "?".to_owned(),
                |port| format!("{:?}", port.role).to_lowercase(),
            )
        };
        match (buffer.place, buffer.scratch()) {
            (BufferPlace::Input(at), _) => format!("input {}", role(&self.kernel.inputs, at)),
            (BufferPlace::Output(at), _) => format!("output {}", role(&self.kernel.outputs, at)),
            (BufferPlace::Scratch { .. }, Some(range)) => {
                format!("scratch {}..{}", range.start, range.end)
            }
            (BufferPlace::Scratch { first }, None) => format!("scratch {first}.."),
        }
    }

    /// The computation of each output of a step, in the order of [`Step::writes`].
    fn values(&self, step: &Step) -> Vec<String> {
        let value = match step {
            Step::Product { x, parts } => {
                return parts.iter().map(|part| self.part(*x, part)).collect();
            }
            Step::RmsNorm {
                x,
                weight,
                eps,
                offset,
                groups,
                ..
            } => {
                let weight = match *offset {
                    0.0 => self.parameter(*weight),
                    _ => format!("({offset} + {})", self.parameter(*weight)),
                };
                let groups = match *groups {
                    1 => String::new(),
                    groups => format!(", {groups} groups"),
                };
                format!(
                    "rms_norm({}) · {weight}, eps {eps:e}{groups}",
                    self.name(*x)
                )
            }
            Step::LayerNorm {
                x,
                weight,
                bias,
                eps,
                ..
            } => {
                let weight = self.parameter(*weight);
                let bias = self.bias(*bias);
                format!(
                    "layer_norm({}) · {weight}{bias}, eps {eps:e}",
                    self.name(*x)
                )
            }
            Step::Copy { x, .. } => self.name(*x),
            Step::Rope {
                x, heads, rotated, ..
            } => format!("rope({}), {heads} heads, {rotated} rotated", self.name(*x)),
            Step::Attention { attributes, .. } => attention(attributes),
            Step::Activated { x, activation, .. } => {
                format!("{}({})", activation_name(*activation), self.name(*x))
            }
            Step::Gated {
                gate,
                up,
                activation,
                ..
            } => {
                let activation = activation_name(*activation);
                format!("{activation}({}) · {}", self.name(*gate), self.name(*up))
            }
            Step::Add { a, b, b_scale, .. } => {
                format!("{} + {}{}", self.name(*a), factor(*b_scale), self.name(*b))
            }
            Step::Scale { x, factor, .. } => format!("{factor} · {}", self.name(*x)),
            Step::SoftCap { x, cap, .. } => {
                format!("{cap} · tanh({} / {cap})", self.name(*x))
            }
        };
        vec![value]
    }

    fn part(&self, x: BufferId, part: &Part) -> String {
        let Part {
            weight,
            bias,
            residual,
            out: _,
        } = part;
        let product = format!("{} · {}ᵀ", self.name(x), self.parameter(*weight));
        let bias = self.bias(*bias);
        match residual {
            None => format!("{product}{bias}"),
            Some(Residual { to, factor: by }) => {
                let to = self.name(*to);
                match *by == 1.0 || bias.is_empty() {
                    true => format!("{to} + {}{product}{bias}", factor(*by)),
                    false => format!("{to} + {}({product}{bias})", factor(*by)),
                }
            }
        }
    }

    fn bias(&self, bias: Option<ParameterId>) -> String {
        bias.map_or_else(String::new, |bias| format!(" + {}", self.parameter(bias)))
    }

    fn name(&self, id: BufferId) -> String {
        let buffer = self.buffer(id);
        buffer.map_or_else(|| "?".to_owned(), |buffer| buffer.name.clone())
    }

    fn buffer(&self, id: BufferId) -> Option<&Buffer> {
        self.program.buffers.get(usize::try_from(id.0).ok()?)
    }

    fn parameter(&self, id: ParameterId) -> String {
        let index = usize::try_from(id.0).ok();
        let parameter = index.and_then(|index| self.kernel.parameters.get(index));
        parameter.map_or_else(|| "?".to_owned(), |parameter| parameter.name.clone())
    }
}

fn attention(attributes: &Attention) -> String {
    let Attention {
        heads,
        kv_heads,
        head_dim,
        scale,
        window,
        softcap,
        sight,
    } = attributes;
    let window = window.map_or_else(String::new, |window| format!(", window {window}"));
    let softcap = softcap.map_or_else(String::new, |cap| format!(", soft cap {cap}"));
    let sight = match sight {
        Sight::Causal => "",
        Sight::Whole => ", of the whole text",
    };
    format!(
        "attention(query, key, value), {heads}/{kv_heads} heads of {head_dim}, scale {scale}{window}{softcap}{sight}"
    )
}

fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "silu",
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_tanh",
    }
}

/// A factor before a term; empty for 1.
fn factor(factor: f32) -> String {
    match factor {
        1.0 => String::new(),
        factor => format!("{factor} · "),
    }
}
