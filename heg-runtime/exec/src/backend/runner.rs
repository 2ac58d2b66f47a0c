//! The product of a back end for a form.

use std::any::Any;

use heg_artifacts::manifest::{ElementType, Kernel, Port};

use crate::error::ExecError;
use crate::mem::RowBuffer;

/// The state of a form that is ready to run. Its back end knows the type behind it.
pub(crate) trait Runner: Any + Send {
    /// Rows that a dynamic form computes for `tokens` tokens.
    fn rows(&self, tokens: usize) -> usize {
        tokens
    }

    /// Whether it runs calls whose tokens are a tree.
    fn takes_trees(&self) -> bool {
        true
    }

    /// Takes notice of the buffers that the calls of a kernel alone will use.
    fn bind(&mut self, _: &AloneCall<'_>) -> Result<(), ExecError> {
        Ok(())
    }

    /// Runs a kernel alone, on the buffers that were bound.
    fn run_alone(&mut self, call: &AloneCall<'_>) -> Result<(), ExecError>;
}

/// A call of a kernel alone, with a buffer behind each port.
pub(crate) struct AloneCall<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) tokens: usize,
    /// Position of the first token.
    pub(crate) position: usize,
    pub(crate) inputs: &'a [BoundPort],
    pub(crate) outputs: &'a [BoundPort],
}

/// A port with the buffer behind it.
pub(crate) struct BoundPort {
    pub(crate) port: Port,
    pub(crate) element: ElementType,
    pub(crate) rows: RowBuffer,
}
