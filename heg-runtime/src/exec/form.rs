//! A form: the kernel at one place, ready to run.

use std::sync::Arc;

use heg_artifacts::manifest::ShapeClass;
use heg_openvino::InferRequest;

use super::band::Band;
use super::processors::ProgramForm;
use crate::ladder::Rung;

/// One form of the kernel at one place, ready to run.
pub(super) struct Form {
    pub(super) rung: Rung,
    pub(super) shape: ShapeClass,
    pub(super) runner: Runner,
}

/// What runs a form.
pub(super) enum Runner {
    /// A device of OpenVINO.
    Plugin(PluginForm),
    /// Our own kernels on the CPU.
    Program(ProgramForm),
}

impl Runner {
    /// The program, if it is one.
    pub(super) fn program(&self) -> Option<&ProgramForm> {
        match self {
            Self::Program(program) => Some(program),
            Self::Plugin(_) => None,
        }
    }
}

/// A form that OpenVINO runs.
pub(super) struct PluginForm {
    pub(super) request: InferRequest,
    /// Priority of the compiled model, shared by all its requests.
    pub(super) band: Arc<Band>,
}

impl Form {
    /// Rows that it computes for `tokens` tokens: the chunk of a static form, else those of a program, or [`padded`].
    pub(super) fn rows(&self, tokens: usize) -> usize {
        match (&self.runner, self.shape.chunk()) {
            (_, Some(chunk)) => chunk as usize,
            (Runner::Program(_), None) => tokens,
            (Runner::Plugin(_), None) => padded(tokens),
        }
    }

    /// Rows of the KV cache that it reads when `context` are visible: the bucket of a static form, else those.
    pub(super) fn context(&self, context: usize) -> usize {
        let bucket = self.shape.bucket();
        bucket.map_or(context, |bucket| bucket as usize)
    }
}

/// The number of rows of a dynamic form is a multiple of this. Chosen: at most 15 rows of padding; a prompt of a length
/// that was not seen before takes a third longer, because every kernel is planned again (100 tokens, 1B model, two
/// cores).
pub(crate) const ROW_STEP: usize = 16;

/// Rows that a dynamic form computes for `tokens` tokens: those of a small batch, else a multiple of [`ROW_STEP`].
pub(crate) fn padded(tokens: usize) -> usize {
    match tokens {
        0..=ROW_STEP => tokens,
        _ => tokens.next_multiple_of(ROW_STEP),
    }
}
