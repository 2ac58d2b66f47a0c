//! A call of a kernel: the rows and weights that it works on.

use heg_artifacts::manifest::Role;
use heg_artifacts::program::{BufferId, BufferPlace, Step};

use crate::attention::TREE_TOKENS_MAX;
use crate::error::Error;
use crate::kernel::{Kernel, Port};
use crate::memory::ProgramRows;

/// What a kernel works on in one call.
#[derive(Debug, Clone, Copy)]
pub struct CpuCall<'a> {
    /// Tokens of all sequences together, at least one.
    pub rows: usize,
    /// One for each parameter of the kernel.
    pub weights: &'a [WeightBytes<'a>],
    /// For each input port the runs of rows that make it up, in order; none for keys, values and position of attention,
    /// which are those of the contexts.
    pub inputs: &'a [&'a [ProgramRows<'a>]],
    /// For each output port the runs of rows that make it up, in order.
    pub outputs: &'a [&'a [ProgramRows<'a>]],
    /// For attention: the sequences of the call, in order of their rows.
    pub contexts: &'a [Context<'a>],
}

/// A weight where it lies.
#[derive(Debug, Clone, Copy)]
pub struct WeightBytes<'a> {
    /// Elements, row-major.
    pub values: &'a [u8],
    /// What integers stand for; there where the elements are some.
    pub affine: Option<AffineBytes<'a>>,
}

/// What integers stand for: q for `scale · q + centre`, or for `scale · q`. There is an f32 of each for a row of 8-bit
/// integers, and an f16 for a group of columns of 4-bit ones.
#[derive(Debug, Clone, Copy)]
pub struct AffineBytes<'a> {
    /// Factors.
    pub scales: &'a [u8],
    /// Terms, where integers are centred.
    pub centres: Option<&'a [u8]>,
}

/// A sequence that attention works on.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// New tokens, each with a row of queries.
    pub tokens: usize,
    /// Position of the first of them.
    pub position: usize,
    /// How they follow each other: one after the other where there is nothing; for a tree of at most [`TREE_TOKENS_MAX`]
    /// the number, for each but the first, of the earlier one that it follows. Their keys and values lie in order.
    pub follows: Option<&'a [u16]>,
    /// Keys from position 0 on, up to the last new token at least.
    pub keys: ProgramRows<'a>,
    /// Values, likewise.
    pub values: ProgramRows<'a>,
}

impl CpuCall<'_> {
    /// Checks all that kernels rely on: what they read and write is there, and as wide as they take it to be.
    pub(crate) fn check(&self, kernel: &Kernel) -> Result<(), Error> {
        // Without any it has no phase, and `goes_on` would not be asked behind it.
        expect("rows", 0, 1, self.rows.min(1))?;
        self.check_weights(kernel)?;
        // Rows are found by the number of their port, inputs before outputs.
        expect("input ports", 0, kernel.inputs.len(), self.inputs.len())?;
        expect("output ports", 0, kernel.outputs.len(), self.outputs.len())?;
        let has_contexts = kernel.attention().is_some();
        for (index, port) in kernel.inputs.iter().enumerate() {
            if has_contexts && matches!(port.role, Role::Key | Role::Value | Role::Position) {
                continue;
            }
            self.check_port("rows of an input", index, *port, self.inputs.get(index))?;
        }
        for (index, port) in kernel.outputs.iter().enumerate() {
            self.check_port("rows of an output", index, *port, self.outputs.get(index))?;
        }
        self.check_strides(kernel)?;
        match has_contexts {
            true => self.check_contexts(kernel),
            false => Ok(()),
        }
    }

    fn check_weights(&self, kernel: &Kernel) -> Result<(), Error> {
        expect("weights", 0, kernel.parameters.len(), self.weights.len())?;
        for (index, (weight, parameter)) in self.weights.iter().zip(&kernel.parameters).enumerate()
        {
            let elements = parameter.shape.iter().map(|dim| u64::from(*dim)).product();
            let bytes = parameter.element.bytes_of(elements).unwrap_or(u64::MAX) as usize;
            expect("bytes of a weight", index, bytes, weight.values.len())?;
            let of_each = parameter.affine_bytes() as usize;
            if of_each > 0 {
                let found = weight.affine.map_or(0, |affine| affine.scales.len());
                expect("bytes of a weight's scales", index, of_each, found)?;
                let centres = weight.affine.and_then(|affine| affine.centres);
                let found = centres.map_or(0, <[u8]>::len);
                let centres = if parameter.centred { of_each } else { 0 };
                expect("bytes of a weight's centres", index, centres, found)?;
            }
        }
        Ok(())
    }

    fn check_port(
        &self,
        what: &'static str,
        index: usize,
        port: Port,
        runs: Option<&&[ProgramRows<'_>]>,
    ) -> Result<(), Error> {
        let runs = runs.copied().unwrap_or_default();
        let found = runs.iter().map(ProgramRows::count).sum();
        expect(what, index, self.rows, found)?;
        for run in runs {
            expect("bytes of a row", index, port.row_bytes(), run.row_bytes())?;
        }
        Ok(())
    }

    /// Products write rows at one distance from each other, and so do the terms that they are added to.
    fn check_strides(&self, kernel: &Kernel) -> Result<(), Error> {
        let single = |id: BufferId| {
            let runs = match kernel.buffer(id).map(|buffer| buffer.place) {
                Some(BufferPlace::Input(port)) => self.inputs.get(port as usize),
                Some(BufferPlace::Output(port)) => self.outputs.get(port as usize),
                Some(BufferPlace::Scratch { .. }) | None => return Ok(()),
            };
            let found = runs.map_or(0, |runs| runs.len());
            expect("runs of rows of a product", id.0 as usize, 1, found)
        };
        for step in &kernel.program.steps {
            match step {
                Step::Product { parts, .. } => {
                    for part in parts {
                        single(part.out)?;
                        part.residual
                            .map_or(Ok(()), |residual| single(residual.to))?;
                    }
                }
                Step::Attention { out, .. } => single(*out)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn check_contexts(&self, kernel: &Kernel) -> Result<(), Error> {
        let tokens = self.contexts.iter().map(|context| context.tokens).sum();
        expect("tokens of the contexts", 0, self.rows, tokens)?;
        for (index, context) in self.contexts.iter().enumerate() {
            if let Some(follows) = context.follows {
                check_tree(index, context.tokens, follows)?;
            }
            let visible = context.position.saturating_add(context.tokens);
            for (role, rows) in [(Role::Key, &context.keys), (Role::Value, &context.values)] {
                let port = kernel.inputs.iter().find(|port| port.role == role);
                let row_bytes = port.map_or(0, |port| port.row_bytes());
                expect(
                    "bytes of a row of the cache",
                    index,
                    row_bytes,
                    rows.row_bytes(),
                )?;
                let found = rows.count().min(visible);
                expect("rows of the cache", index, visible, found)?;
            }
        }
        Ok(())
    }
}

fn check_tree(index: usize, tokens: usize, follows: &[u16]) -> Result<(), Error> {
    expect(
        "tokens of a tree",
        index,
        tokens.min(TREE_TOKENS_MAX),
        tokens,
    )?;
    expect(
        "tokens that follow others",
        index,
        tokens.saturating_sub(1),
        follows.len(),
    )?;
    for (at, before) in follows.iter().enumerate() {
        let before = usize::from(*before);
        expect(
            "the earlier token of one of a tree",
            index,
            before.min(at),
            before,
        )?;
    }
    Ok(())
}

fn expect(what: &'static str, index: usize, expected: usize, found: usize) -> Result<(), Error> {
    match expected == found {
        true => Ok(()),
        false => Err(Error::Call {
            what,
            index,
            expected,
            found,
        }),
    }
}
