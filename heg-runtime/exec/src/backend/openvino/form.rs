//! Forms that OpenVINO runs.

use std::any::Any;
use std::sync::Arc;

use heg_artifacts::manifest::Rows as PortExtent;
use heg_openvino::{CompiledModel, InferRequest, Tensor};

use super::band::Band;
use super::tree::TreeRows;
use super::watch::{DeviceWatch, RunError};
use crate::backend::{AloneCall, BoundPort, Runner};
use crate::error::{ExecError, openvino};
use crate::padding::padded;

/// A compiled model and its priority.
#[derive(Clone)]
pub(super) struct Compiled {
    pub(super) model: CompiledModel,
    pub(super) band: Arc<Band>,
}

/// A form that OpenVINO runs.
pub(super) struct PluginForm {
    pub(super) request: InferRequest,
    /// Priority of the compiled model, shared by all its requests.
    pub(super) band: Arc<Band>,
    /// The watch over its device.
    pub(super) watch: Arc<DeviceWatch>,
    /// The input that says which token sees which, if the form has one.
    pub(super) tree: Option<TreeRows>,
    /// Whether it is attention, which without that input has its tokens one after the other.
    pub(super) is_attention: bool,
}

impl PluginForm {
    /// The form, if a runner is one of OpenVINO's.
    pub(super) fn of(runner: &dyn Runner) -> Option<&Self> {
        let any: &dyn Any = runner;
        any.downcast_ref()
    }

    /// The form, if a runner is one of OpenVINO's.
    pub(super) fn of_mut(runner: &mut dyn Runner) -> Option<&mut Self> {
        let any: &mut dyn Any = runner;
        any.downcast_mut()
    }
}

impl Runner for PluginForm {
    fn rows(&self, tokens: usize) -> usize {
        padded(tokens)
    }

    fn takes_trees(&self) -> bool {
        !self.is_attention || self.tree.is_some()
    }

    fn bind(&mut self, call: &AloneCall<'_>) -> Result<(), ExecError> {
        let name = &call.kernel.name;
        for (index, bound) in call.inputs.iter().enumerate() {
            let bind = self.request.bind_input(index, tensor(bound)?);
            bind.map_err(openvino(format!("bind an input of `{name}`")))?;
        }
        for (index, bound) in call.outputs.iter().enumerate() {
            let bind = self.request.bind_output(index, tensor(bound)?);
            bind.map_err(openvino(format!("bind an output of `{name}`")))?;
        }
        Ok(())
    }

    fn run_alone(&mut self, _: &AloneCall<'_>) -> Result<(), ExecError> {
        let ran = self.watch.run(&mut self.request, None);
        ran.map_err(|error| match error {
            RunError::Failed(error) => openvino("run a lone kernel")(error),
            RunError::Lost(error) => error,
        })
    }
}

/// The buffer of a port as a tensor.
fn tensor(bound: &BoundPort) -> Result<Tensor, ExecError> {
    match bound.port.rows {
        PortExtent::One => bound.rows.vector(1),
        PortExtent::Tokens | PortExtent::Context => bound.rows.view(0, bound.rows.count()),
    }
}
