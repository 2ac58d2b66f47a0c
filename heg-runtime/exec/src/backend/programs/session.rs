//! Launches that CPU programs run: rows are passed where they lie, for any number of sequences at once, and launches that
//! follow each other on one processor are one order to it.

use std::sync::Arc;

use heg_artifacts::manifest::{Kernel, Role, RopeTable};
use heg_artifacts::{Bundle, SectionId};
use heg_cpu::Context;
use heg_spec::Group;

use super::form::ProgramForm;
use super::order::{CallRows, PortRows, ProgramOrder};
use super::pair::PairedRoles;
use crate::backend::{Order, Session};
use crate::batch::{Batch, depths};
use crate::error::ExecError;
use crate::mem::{Half, KvCache, ProgramRows, Scratch};
use crate::table::Target;
use heg_sched::{Class, Launch, Span};

/// The programs' part of an executor.
pub(super) struct ProgramsSession {
    pair: Option<Arc<PairedRoles>>,
}

impl ProgramsSession {
    /// With the roles that run kernels together, if any do.
    pub(super) fn new(pair: Option<Arc<PairedRoles>>) -> Self {
        Self { pair }
    }
}

impl Session for ProgramsSession {
    fn carry_out(&mut self, order: Order<'_>) -> Result<usize, ExecError> {
        if let (Some(pair), Some(class)) = (&self.pair, order.class) {
            pair.begin(class);
        }
        let mut done = 0;
        while let Some(rest @ [first, ..]) = order.launches.get(done..) {
            if done > 0 && !(order.goes_on)(*first) {
                break;
            }
            let (given, ran) = run_on_one(&order, rest)?;
            done += ran;
            if ran < given {
                break;
            }
        }
        Ok(done)
    }
}

/// Runs those of the first launches that are one processor's, and returns how many these are and how many of them ran.
fn run_on_one(order: &Order<'_>, launches: &[Launch]) -> Result<(usize, usize), ExecError> {
    let (batch, forms) = (order.batch, &*order.forms);
    let mut calls = ProgramOrder::default();
    let mut tables = Vec::new();
    for launch in launches {
        let target = forms.target(*launch)?;
        let (rows, context) = batch.size_for(launch.group);
        let form = forms.ready(target, rows, context)?;
        let program = ProgramForm::of(&*form.runner).ok_or_else(|| target.unknown())?;
        if !calls.takes(program) {
            break;
        }
        let ports = Ports {
            bundle: program.bundle(),
            scratch: order.scratch,
            kernel: target.kernel(program.bundle().manifest())?,
            target,
            launch: *launch,
            batch,
            tables: &mut tables,
        };
        calls.add(program, rows, ports)?;
    }
    let asks = |next: usize| {
        launches
            .get(next)
            .is_none_or(|launch| (order.goes_on)(*launch))
    };
    let is_reactive = order.class == Some(Class::Reactive);
    Ok((calls.len(), calls.run(&asks, is_reactive)?))
}

/// Cosines and sines of a rotary table, by the section of its cosines.
type Rotary<'a> = (SectionId, [&'a [u8]; 2]);

/// Finds the rows of a launch's ports.
struct Ports<'t, 'a> {
    bundle: &'a Bundle,
    scratch: &'a Scratch,
    kernel: &'a Kernel,
    target: Target,
    launch: Launch,
    batch: &'a Batch<'a>,
    /// Rotary tables that earlier launches of the order have read.
    tables: &'t mut Vec<Rotary<'a>>,
}

impl<'a> CallRows<'a> for Ports<'_, 'a> {
    fn inputs(&mut self, into: &mut PortRows<'_, 'a>) -> Result<(), ExecError> {
        let inputs = &self.kernel.inputs;
        inputs
            .iter()
            .try_for_each(|port| self.add(port.role, false, into))
    }

    fn outputs(&mut self, into: &mut PortRows<'_, 'a>) -> Result<(), ExecError> {
        let outputs = &self.kernel.outputs;
        outputs
            .iter()
            .try_for_each(|port| self.add(port.role, true, into))
    }

    /// The sequences that attention works on.
    fn contexts(&mut self, into: &mut Vec<Context<'a>>) -> Result<(), ExecError> {
        let (Group::Mha, Some(layer)) = (self.launch.group, self.launch.layer) else {
            return Ok(());
        };
        let layer = layer as usize;
        for (index, (cache, span)) in self.sequences()?.enumerate() {
            let visible = span.position + span.tokens;
            into.push(Context {
                tokens: span.tokens,
                position: span.position,
                follows: self.batch.tree(index),
                keys: cache.read_by_program(layer, Half::Keys, 0, visible)?,
                values: cache.read_by_program(layer, Half::Values, 0, visible)?,
            });
        }
        Ok(())
    }
}

impl<'a> Ports<'_, 'a> {
    /// Adds the rows of a port.
    fn add(
        &mut self,
        role: Role,
        is_output: bool,
        into: &mut PortRows<'_, 'a>,
    ) -> Result<(), ExecError> {
        let (first, tokens) = (self.batch.first(), self.batch.tokens());
        let rows = self.batch.rows;
        match role {
            Role::Hidden => self.hidden(is_output, into),
            Role::Query => into.port([rows.query.for_program(first, tokens)]),
            Role::Attended => into.port([rows.attended.for_program(first, tokens)]),
            // Attention has them as contexts.
            Role::Key | Role::Value if self.kernel.group == Group::Mha => into.port([]),
            Role::Key => self.cached(Half::Keys, into),
            Role::Value => self.cached(Half::Values, into),
            Role::Cos => self.rotary(0, into),
            Role::Sin => self.rotary(1, into),
            Role::Logits | Role::Vector => {
                let logits = &self.scratch.logits;
                into.port([logits.for_program(0, self.batch.spans.len())])
            }
            Role::Position => into.port([]),
        }
    }

    /// The residual stream: a layer reads one half and writes the other; the head reads the last row of each span.
    fn hidden(&self, is_output: bool, into: &mut PortRows<'_, 'a>) -> Result<(), ExecError> {
        let layers = self.bundle.manifest().layers.len();
        let layer = self.launch.layer.map_or(layers, |layer| layer as usize);
        let half = (layer + usize::from(is_output)) % 2;
        let hidden = &self.batch.rows.hidden[half];
        match self.launch.group {
            Group::Head => {
                let last = |span: &Span| hidden.for_program(span.row + span.tokens - 1, 1);
                into.port(self.batch.spans.iter().map(last))
            }
            _ => into.port([hidden.for_program(self.batch.first(), self.batch.tokens())]),
        }
    }

    /// The rows of new keys or values in each sequence's cache.
    fn cached(&self, half: Half, into: &mut PortRows<'_, 'a>) -> Result<(), ExecError> {
        let layer = self.launch.layer.ok_or_else(|| self.target.unknown())? as usize;
        let rows = self.sequences()?;
        into.port(
            rows.map(|(cache, span)| cache.for_program(layer, half, span.position, span.tokens)),
        )
    }

    fn sequences(
        &self,
    ) -> Result<impl Iterator<Item = (&'a KvCache, &'a Span)> + use<'a>, ExecError> {
        if self.batch.caches.len() < self.batch.spans.len() {
            return Err(self.target.unknown());
        }
        let caches = self.batch.caches.iter().copied();
        Ok(caches.zip(self.batch.spans))
    }

    /// Cosines or sines of the positions of each sequence's new tokens.
    fn rotary(&mut self, part: usize, into: &mut PortRows<'_, 'a>) -> Result<(), ExecError> {
        let manifest = self.bundle.manifest();
        let table = self.target.rope(manifest);
        let table = table.ok_or_else(|| self.target.unknown())?;
        let bytes = self.table(table)?[part];
        let row_bytes = table.width as usize * size_of::<f32>();
        let rows = |position: usize, tokens: usize| {
            let end = (position + tokens) * row_bytes;
            let rows = bytes.get(position * row_bytes..end);
            let rows = rows.map(|rows| ProgramRows::of(rows, row_bytes));
            rows.ok_or(ExecError::Context {
                asked: position + tokens,
                context: table.rows as usize,
            })
        };
        let spans = self.batch.spans.iter().enumerate();
        into.port(spans.flat_map(|(index, span)| {
            // Tokens of a tree stand one by one, others in one run.
            let (depths, tokens) = match self.batch.tree(index) {
                Some(follows) => (depths(follows), 1),
                None => (Vec::new(), span.tokens),
            };
            let run = depths.is_empty().then_some(0);
            let rows = &rows;
            let starts = depths.into_iter().chain(run);
            starts.map(move |depth| rows(span.position + depth, tokens))
        }))
    }

    /// The cosines and sines of a table, found once for all launches of the order.
    fn table(&mut self, table: &RopeTable) -> Result<[&'a [u8]; 2], ExecError> {
        let same = |(cos, _): &&Rotary<'a>| *cos == table.cos;
        if let Some((_, found)) = self.tables.iter().find(same) {
            return Ok(*found);
        }
        let section = |id| self.bundle.section(id).map_err(ExecError::Section);
        let found = [section(table.cos)?, section(table.sin)?];
        self.tables.push((table.cos, found));
        Ok(found)
    }
}
