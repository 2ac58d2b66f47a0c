//! Rows of a product for a partner that has memory of its own: operands in f32, and results that get what the product adds
//! to them (bias and residual) where the program wants them.

use std::ops::Range;

use heg_artifacts::program::{BufferId, Part, Step};
use heg_spec::{Bug, bug};

use crate::kernel::Layout;
use crate::partner::{PartnerArea, PartnerProduct};
use crate::product::read_operand;

impl PartnerProduct<'_> {
    /// Columns of the product's operand.
    ///
    /// # Errors
    ///
    /// [`Bug`] if the step is no product.
    pub fn columns(&self) -> Result<usize, Bug> {
        let (x, _) = self.product()?;
        Ok(self.execution.kernel.width(x))
    }

    /// Copies rows of the product's operand, one behind the other; an operand that was rounded to integers is what these
    /// stand for.
    ///
    /// # Errors
    ///
    /// [`Bug`] if the call has no such rows, or `into` is not as long.
    pub fn read_operand(&self, tokens: Range<usize>, into: &mut [f32]) -> Result<(), Bug> {
        let (x, _) = self.product()?;
        let width = self.execution.kernel.width(x);
        let rows = self.call.rows;
        if tokens.end > rows || into.len() != tokens.len() * width {
            return Err(bug!("a partner reads rows that its product does not have"));
        }
        for (row, into) in tokens.zip(into.chunks_exact_mut(width.max(1))) {
            match self.execution.kernel.layouts.get(x.0 as usize) {
                Some(Layout::Plain(first)) => {
                    let from = self.execution.plain(*first, x, row).first.cast_const();
                    // SAFETY: `CpuDevice::make_room` made room for a row of each token, and nobody writes operands while
                    // their product runs.
                    into.copy_from_slice(unsafe { std::slice::from_raw_parts(from, width) });
                }
                Some(Layout::Rounded(first, form)) => {
                    let from = self.execution.scratch_at(*first).cast_const().cast();
                    // SAFETY: as above; the operand has `rows` rows of `width` columns.
                    unsafe { read_operand(*form, rows, row, from, into) };
                }
                _ => return Err(bug!("the operand of a product is not in scratch memory")),
            }
        }
        Ok(())
    }

    /// Writes one token's results of an area that the partner was given, with bias and residual: `y` is `x · Wᵀ` alone. Only
    /// once all of the partner's results are there, since a product may add to what it overwrites, and the CPU computes all
    /// areas again where the partner fails.
    ///
    /// # Errors
    ///
    /// [`Bug`] if the partner was given no such area, token or outputs.
    pub fn write(&self, area: usize, token: usize, y: &[f32]) -> Result<(), Bug> {
        let (_, parts) = self.product()?;
        let of_area = self.areas.get(area);
        let of_area =
            of_area.filter(|it| it.tokens.contains(&token) && it.outputs.len() == y.len());
        let of_area = of_area.and_then(|it| Some((it, parts.get(it.part)?)));
        let (PartnerArea { outputs, .. }, part) =
            of_area.ok_or_else(|| bug!("a partner writes what it was not given"))?;
        let execution = self.execution;
        let out = execution.strided(part.out)?.starting_at(token).first;
        let bias = part.bias.map(|bias| execution.vector(bias)).transpose()?;
        let residual = execution.residual(part, token)?;
        for (output, y) in outputs.clone().zip(y) {
            // SAFETY: `CpuCall::check` found rows and weights, `Program::read` that they are as wide as the product's
            // outputs, and `Division` gives each output of a token to one side, which waits for this thread.
            unsafe {
                let mut y = *y;
                if let Some(bias) = bias {
                    y += bias.add(output).read_unaligned();
                }
                if let Some(residual) = residual {
                    y = residual.from.add(output).read() + residual.factor * y;
                }
                out.add(output).write(y);
            }
        }
        Ok(())
    }

    fn product(&self) -> Result<(BufferId, &[Part]), Bug> {
        match self.execution.kernel.program.steps.get(self.step) {
            Some(Step::Product { x, parts }) => Ok((*x, parts)),
            _ => Err(bug!("the step of a partner's product is no product")),
        }
    }
}
