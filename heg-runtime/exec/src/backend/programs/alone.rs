//! The rows of a kernel that runs alone, as a program takes them.

use heg_artifacts::manifest::{Role, Rows as PortExtent};
use heg_cpu::Context;
use heg_spec::Group;

use super::order::{CallRows, PortRows};
use crate::backend::{AloneCall, BoundPort};
use crate::error::ExecError;
use crate::mem::ProgramRows;

impl<'a> CallRows<'a> for &AloneCall<'a> {
    fn inputs(&mut self, into: &mut PortRows<'_, 'a>) -> Result<(), ExecError> {
        let mut ports = self.inputs.iter();
        ports.try_for_each(|bound| into.port(runs(bound, self.tokens)))
    }

    fn outputs(&mut self, into: &mut PortRows<'_, 'a>) -> Result<(), ExecError> {
        let mut ports = self.outputs.iter();
        ports.try_for_each(|bound| into.port(runs(bound, self.tokens)))
    }

    /// Keys and values are those of one sequence.
    fn contexts(&mut self, into: &mut Vec<Context<'a>>) -> Result<(), ExecError> {
        if self.kernel.group != Group::Mha {
            return Ok(());
        }
        let half = |role| {
            let mut inputs = self.inputs.iter();
            let bound = inputs.find(|bound| bound.port.role == role);
            let bound = bound.ok_or(ExecError::Launch {
                group: self.kernel.group,
                layer: None,
            })?;
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

/// The first rows of a port; none of the cache, which attention has as contexts.
fn runs(bound: &BoundPort, tokens: usize) -> Option<Result<ProgramRows<'_>, ExecError>> {
    let is_of_tokens = bound.port.rows == PortExtent::Tokens;
    is_of_tokens.then(|| bound.rows.for_program(0, tokens))
}
