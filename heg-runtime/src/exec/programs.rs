//! Launches that CPU programs run: rows are passed where they lie, for any number of sequences at once.

use heg_artifacts::manifest::{Kernel, Role, RopeTable};
use heg_cpu::Context;
use heg_spec::Group;

use super::Executor;
use super::launch::Batch;
use super::processors::ProgramCall;
use super::table::Target;
use crate::error::RuntimeError;
use crate::mem::{Half, ProgramRows};
use heg_sched::{Launch, Span};

impl Executor {
    /// Runs a launch if its form is a program; false, and nothing runs, where it is not.
    pub(super) fn run_program(
        &self,
        target: Target,
        launch: Launch,
        batch: &Batch<'_>,
    ) -> Result<bool, RuntimeError> {
        let (rows, context) = match launch.group {
            Group::Head => (batch.spans.len(), 0),
            Group::Mha => (batch.tokens(), batch.longest_context()),
            Group::Qkv | Group::Ffn => (batch.tokens(), 0),
        };
        let form = self.forms.ready(target, rows, context)?;
        let Some(program) = form.runner.program() else {
            return Ok(false);
        };
        let manifest = self.bundle.manifest();
        let kernel = target.kernel(manifest)?;
        let ports = Ports {
            executor: self,
            target,
            launch,
            batch,
        };
        let call = ProgramCall {
            rows,
            inputs: ports.all(kernel, &kernel.inputs, false)?,
            outputs: ports.all(kernel, &kernel.outputs, true)?,
            contexts: ports.contexts()?,
        };
        program.run(&call)?;
        Ok(true)
    }
}

/// Finds the rows of a launch's ports.
struct Ports<'a> {
    executor: &'a Executor,
    target: Target,
    launch: Launch,
    batch: &'a Batch<'a>,
}

impl<'a> Ports<'a> {
    fn all(
        &self,
        kernel: &Kernel,
        ports: &[heg_artifacts::manifest::Port],
        is_output: bool,
    ) -> Result<Vec<Vec<ProgramRows<'a>>>, RuntimeError> {
        let of_port = |port: &heg_artifacts::manifest::Port| match kernel.group {
            Group::Mha if matches!(port.role, Role::Key | Role::Value) => Ok(Vec::new()),
            _ => self.runs(port.role, is_output),
        };
        ports.iter().map(of_port).collect()
    }

    fn runs(&self, role: Role, is_output: bool) -> Result<Vec<ProgramRows<'a>>, RuntimeError> {
        let (first, tokens) = (self.batch.first(), self.batch.tokens());
        let rows = self.batch.rows;
        match role {
            Role::Hidden => self.hidden(is_output),
            Role::Query => Ok(vec![rows.query.for_program(first, tokens)?]),
            Role::Attended => Ok(vec![rows.attended.for_program(first, tokens)?]),
            Role::Key => self.cached(Half::Keys),
            Role::Value => self.cached(Half::Values),
            Role::Cos => self.rotary(|table| table.cos),
            Role::Sin => self.rotary(|table| table.sin),
            Role::Logits => {
                let logits = &self.executor.scratch.logits;
                Ok(vec![logits.for_program(0, self.batch.spans.len())?])
            }
            Role::Position => Ok(Vec::new()),
        }
    }

    /// The residual stream: a layer reads one half and writes the other; the head reads the last row of each span.
    fn hidden(&self, is_output: bool) -> Result<Vec<ProgramRows<'a>>, RuntimeError> {
        let layers = self.executor.bundle.manifest().layers.len();
        let layer = self.launch.layer.map_or(layers, |layer| layer as usize);
        let half = (layer + usize::from(is_output)) % 2;
        let hidden = &self.batch.rows.hidden[half];
        match self.launch.group {
            Group::Head => {
                let last = |span: &Span| hidden.for_program(span.row + span.tokens - 1, 1);
                self.batch.spans.iter().map(last).collect()
            }
            _ => Ok(vec![
                hidden.for_program(self.batch.first(), self.batch.tokens())?,
            ]),
        }
    }

    /// The rows of new keys or values in each sequence's cache.
    fn cached(&self, half: Half) -> Result<Vec<ProgramRows<'a>>, RuntimeError> {
        let layer = self.launch.layer.ok_or_else(|| self.target.unknown())? as usize;
        self.sequences()?
            .map(|(cache, span)| cache.for_program(layer, half, span.position, span.tokens))
            .collect()
    }

    fn sequences(
        &self,
    ) -> Result<impl Iterator<Item = (&'a crate::mem::KvCache, &'a Span)> + use<'a>, RuntimeError>
    {
        if self.batch.caches.len() < self.batch.spans.len() {
            return Err(self.target.unknown());
        }
        let caches = self.batch.caches.iter().copied();
        Ok(caches.zip(self.batch.spans))
    }

    /// Cosines or sines of the positions of each sequence's new tokens.
    fn rotary(
        &self,
        section: impl Fn(&RopeTable) -> heg_artifacts::SectionId,
    ) -> Result<Vec<ProgramRows<'a>>, RuntimeError> {
        let bundle = &self.executor.bundle;
        let table = self.target.rope(bundle.manifest());
        let table = table.ok_or_else(|| self.target.unknown())?;
        let bytes = bundle
            .section(section(table))
            .map_err(RuntimeError::Section)?;
        let row_bytes = table.width as usize * size_of::<f32>();
        let of_span = |span: &Span| {
            let end = (span.position + span.tokens) * row_bytes;
            let rows = bytes.get(span.position * row_bytes..end);
            let rows = rows.map(|rows| ProgramRows::of(rows, row_bytes));
            rows.ok_or(RuntimeError::Context {
                asked: span.position + span.tokens,
                context: table.rows as usize,
            })
        };
        self.batch.spans.iter().map(of_span).collect()
    }

    /// The sequences that attention works on.
    fn contexts(&self) -> Result<Vec<Context<'a>>, RuntimeError> {
        let (Group::Mha, Some(layer)) = (self.launch.group, self.launch.layer) else {
            return Ok(Vec::new());
        };
        let layer = layer as usize;
        self.sequences()?
            .map(|(cache, span)| {
                let visible = span.position + span.tokens;
                Ok(Context {
                    tokens: span.tokens,
                    position: span.position,
                    keys: cache.for_program(layer, Half::Keys, 0, visible)?,
                    values: cache.for_program(layer, Half::Values, 0, visible)?,
                })
            })
            .collect()
    }
}
