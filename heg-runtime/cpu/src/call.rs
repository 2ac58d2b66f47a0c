//! A call of a kernel: its rows and weights.

use heg_artifacts::manifest::Role;
use heg_artifacts::program::{BufferId, BufferPlace, Step};

use crate::attention::TREE_TOKENS_MAX;
use crate::error::CpuError;
use crate::kernel::{CpuKernel, Port, PortForm};
use crate::memory::ProgramRows;

/// The arguments of one kernel call.
#[derive(Debug, Clone, Copy)]
pub struct CpuCall<'a> {
    /// Number of tokens of all sequences together, at least one.
    pub rows: usize,
    /// The weights, one per parameter of the kernel.
    pub weights: &'a [WeightBytes<'a>],
    /// Per input port, the runs of rows that make it up, in order. Empty for keys, values and position of attention,
    /// which come from `contexts`.
    pub inputs: &'a [&'a [ProgramRows<'a>]],
    /// Per output port, the runs of rows that make it up, in order.
    pub outputs: &'a [&'a [ProgramRows<'a>]],
    /// For attention, the sequences of the call, in order of their rows.
    pub contexts: &'a [Context<'a>],
}

/// A weight in mapped memory.
#[derive(Debug, Clone, Copy)]
pub struct WeightBytes<'a> {
    /// Elements of the matrix, row-major.
    pub values: &'a [u8],
    /// Dequantisation parameters; `Some` for integer weights.
    pub affine: Option<AffineBytes<'a>>,
}

/// Dequantisation parameters: an integer q means `scale · q + centre`, or `scale · q`. They are f32 per row for 8-bit
/// integers, and f16 per group of columns for 4-bit ones.
#[derive(Debug, Clone, Copy)]
pub struct AffineBytes<'a> {
    /// Scales, one f32 per row or one f16 per group.
    pub scales: &'a [u8],
    /// Centres, likewise, if the weight is centred.
    pub centres: Option<&'a [u8]>,
}

/// A sequence for attention.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// Number of new tokens, each with a row of queries.
    pub tokens: usize,
    /// Position of the first new token.
    pub position: usize,
    /// Parents in a token tree of at most [`TREE_TOKENS_MAX`] tokens: for each new token but the first, the index of
    /// the earlier one that it follows. `None`: a sequence. Keys and values lie in order either way.
    pub follows: Option<&'a [u16]>,
    /// Key rows from position 0 up to at least the last new token.
    pub keys: ProgramRows<'a>,
    /// Value rows, likewise.
    pub values: ProgramRows<'a>,
}

impl CpuCall<'_> {
    /// Checks everything that kernels rely on: all rows and weights exist in the width that the program gives.
    pub(crate) fn check(&self, kernel: &CpuKernel) -> Result<(), CpuError> {
        // A call without rows has no phase, and `goes_on` would not be asked behind it.
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
        if has_contexts {
            self.check_contexts(kernel)?;
        }
        Ok(())
    }

    fn check_weights(&self, kernel: &CpuKernel) -> Result<(), CpuError> {
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
    ) -> Result<(), CpuError> {
        let runs = runs.copied().unwrap_or_default();
        let found = runs.iter().map(ProgramRows::count).sum();
        expect(what, index, self.rows, found)?;
        for run in runs {
            expect("bytes of a row", index, port.row_bytes(), run.row_bytes())?;
        }
        Ok(())
    }

    /// Checks that results and residuals of products, and queries and results of attention, are single runs, since
    /// these steps address rows by one stride.
    fn check_strides(&self, kernel: &CpuKernel) -> Result<(), CpuError> {
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
                Step::Attention { out, .. } => {
                    single(*out)?;
                    let of_query = kernel.inputs.iter().zip(self.inputs).zip(0..);
                    let of_query = of_query.filter(|((port, _), _)| port.role == Role::Query);
                    for ((_, runs), index) in of_query {
                        expect("runs of rows of queries", index, 1, runs.len())?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks that rows of the cache have the width that attention reads, whatever their ports say.
    fn check_contexts(&self, kernel: &CpuKernel) -> Result<(), CpuError> {
        let kv_elements = kernel.attention().map_or(0, |(attention, _)| {
            attention.kv_heads as usize * attention.head_dim as usize
        });
        let tokens = self.contexts.iter().map(|context| context.tokens).sum();
        expect("tokens of the contexts", 0, self.rows, tokens)?;
        for (index, context) in self.contexts.iter().enumerate() {
            let is_whole = kernel
                .attention()
                .is_some_and(|(attention, _)| !attention.sight.is_causal());
            if let Some(follows) = context.follows {
                let expected = if is_whole { 0 } else { follows.len() };
                expect(
                    "parents in a text that is seen as a whole",
                    index,
                    expected,
                    follows.len(),
                )?;
                check_tree(index, context.tokens, follows)?;
            }
            let visible = context.position.saturating_add(context.tokens);
            for (role, rows) in [(Role::Key, &context.keys), (Role::Value, &context.values)] {
                let port = kernel.inputs.iter().find(|port| port.role == role);
                let row_bytes = match port.map(|port| port.form) {
                    Some(PortForm::Cache(form)) => form.row_bytes(kv_elements),
                    Some(PortForm::Floats | PortForm::Position) | None => 0,
                };
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

fn check_tree(index: usize, tokens: usize, follows: &[u16]) -> Result<(), CpuError> {
    expect(
        "tokens of a token tree",
        index,
        tokens.min(TREE_TOKENS_MAX),
        tokens,
    )?;
    expect(
        "parents in a token tree",
        index,
        tokens.saturating_sub(1),
        follows.len(),
    )?;
    for (at, before) in follows.iter().enumerate() {
        let before = usize::from(*before);
        expect("parent of a token in a tree", index, before.min(at), before)?;
    }
    Ok(())
}

fn expect(what: &'static str, index: usize, expected: usize, found: usize) -> Result<(), CpuError> {
    if expected == found {
        return Ok(());
    }
    Err(CpuError::Call {
        what,
        index,
        expected,
        found,
    })
}
