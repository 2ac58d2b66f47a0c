//! Calls of programs that a processor runs as one order: the places of their rows, found before the first one begins.

use std::ops::Range;

use heg_cpu::{Context, CpuCall, WeightBytes};
use heg_spec::{Bug, bug};

use super::form::{ProgramForm, running};
use crate::error::ExecError;
use crate::mem::ProgramRows;

/// Calls of programs, one after the other. All are of forms on one processor.
#[derive(Default)]
pub(super) struct ProgramOrder<'a> {
    calls: Vec<Gathered<'a>>,
    weights: Vec<WeightBytes<'a>>,
    rows: Vec<ProgramRows<'a>>,
    /// The rows of each port.
    ports: Vec<Range<usize>>,
    contexts: Vec<Context<'a>>,
}

/// A call, with what is its own of the order's lists.
struct Gathered<'a> {
    form: &'a ProgramForm,
    rows: usize,
    weights: Range<usize>,
    inputs: Range<usize>,
    outputs: Range<usize>,
    contexts: Range<usize>,
}

/// A call's rows, as a place finds them.
pub(super) trait CallRows<'a> {
    /// Adds the runs of rows of each input port.
    fn inputs(&mut self, into: &mut PortRows<'_, 'a>) -> Result<(), ExecError>;

    /// Adds the runs of rows of each output port.
    fn outputs(&mut self, into: &mut PortRows<'_, 'a>) -> Result<(), ExecError>;

    /// Adds the sequences of attention.
    fn contexts(&mut self, into: &mut Vec<Context<'a>>) -> Result<(), ExecError>;
}

/// The addresses of the rows of a call's ports.
pub(super) struct PortRows<'o, 'a> {
    rows: &'o mut Vec<ProgramRows<'a>>,
    ports: &'o mut Vec<Range<usize>>,
}

impl<'a> PortRows<'_, 'a> {
    /// Adds a port with its runs of rows.
    pub(super) fn port(
        &mut self,
        runs: impl IntoIterator<Item = Result<ProgramRows<'a>, ExecError>>,
    ) -> Result<(), ExecError> {
        let first = self.rows.len();
        for run in runs {
            self.rows.push(run?);
        }
        self.ports.push(first..self.rows.len());
        Ok(())
    }
}

impl<'a> ProgramOrder<'a> {
    /// Adds a call of a form over `rows` rows.
    pub(super) fn add(
        &mut self,
        form: &'a ProgramForm,
        rows: usize,
        mut of_call: impl CallRows<'a>,
    ) -> Result<(), ExecError> {
        let (weights, contexts) = (self.weights.len(), self.contexts.len());
        self.weights.extend(form.weights());
        of_call.contexts(&mut self.contexts)?;
        let first = self.ports.len();
        let mut ports = PortRows {
            rows: &mut self.rows,
            ports: &mut self.ports,
        };
        of_call.inputs(&mut ports)?;
        let middle = ports.ports.len();
        of_call.outputs(&mut ports)?;
        self.calls.push(Gathered {
            form,
            rows,
            weights: weights..self.weights.len(),
            inputs: first..middle,
            outputs: middle..self.ports.len(),
            contexts: contexts..self.contexts.len(),
        });
        Ok(())
    }

    /// Number of calls.
    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether a form may follow the calls that are there.
    pub(super) fn takes(&self, form: &ProgramForm) -> bool {
        let last = self.calls.last();
        last.is_none_or(|last| last.form.is_beside(form))
    }

    /// Runs the calls, and returns the number of those that ran: see [`heg_cpu::CpuDevice::run_order`]. Reactive work may
    /// take another role's device too.
    pub(super) fn run(
        &self,
        goes_on: &(dyn Fn(usize) -> bool + Sync),
        is_reactive: bool,
    ) -> Result<usize, ExecError> {
        let Some(last) = self.calls.last() else {
            return Ok(0);
        };
        let ports = self.ports.iter().map(|port| part(&self.rows, port));
        let ports: Vec<&[ProgramRows<'a>]> = ports.collect::<Result<_, Bug>>()?;
        let call = |gathered: &Gathered<'a>| {
            let call = CpuCall {
                rows: gathered.rows,
                weights: part(&self.weights, &gathered.weights)?,
                inputs: part(&ports, &gathered.inputs)?,
                outputs: part(&ports, &gathered.outputs)?,
                contexts: part(&self.contexts, &gathered.contexts)?,
            };
            Ok((gathered.form.kernel(), call))
        };
        let order = self
            .calls
            .iter()
            .map(call)
            .collect::<Result<Vec<_>, Bug>>()?;
        let ran = last.form.device().run(&order, goes_on, is_reactive);
        ran.map_err(running(last.form.name()))
    }
}

fn part<'v, T>(all: &'v [T], range: &Range<usize>) -> Result<&'v [T], Bug> {
    let part = all.get(range.clone());
    part.ok_or_else(|| bug!("a call has rows or weights that its order does not have"))
}
