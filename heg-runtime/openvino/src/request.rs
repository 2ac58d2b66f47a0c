//! One inference at a time: tensors are bound, the model is run, the end is waited for.
//!
//! A request holds every tensor bound to it, so that OpenVINO never points at freed memory, and refuses all
//! changes between [`start`](InferRequest::start) and the [`wait`](InferRequest::wait) that sees the end.
//! Binding and [`infer`](InferRequest::infer) are the hot path: checks use data that was read at compile time,
//! and [`infer`](InferRequest::infer) allocates nothing. Nothing here retries.

use std::borrow::Borrow;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use openvino_sys::{
    ov_infer_request_cancel, ov_infer_request_get_output_tensor_by_index, ov_infer_request_infer,
    ov_infer_request_set_callback, ov_infer_request_set_input_tensor_by_index,
    ov_infer_request_set_output_tensor_by_index, ov_infer_request_start_async, ov_infer_request_t,
    ov_infer_request_wait, ov_tensor_free,
};

use crate::completion::Completion;
use crate::error::OpenvinoError;
use crate::memory::Access;
use crate::model::CompiledModel;
use crate::output::Output;
use crate::port::PortInfo;
use crate::sys::{Handle, check};
use crate::tensor::Tensor;

/// An inference request: runs a compiled model, with tensors bound to its inputs and outputs.
///
/// An input or output to which nothing is bound uses OpenVINO's own memory.
///
/// **Invariants**
/// - Every tensor that OpenVINO may still point at is held: the bound one, and those it has refused since (it
///   does not say how far a refused call got).
/// - `running` is true from a successful `start` to the `wait` that sees its end; OpenVINO touches tensors and
///   callback only meanwhile, or within `infer`.
/// - `parts` are dropped once, by `drop`; never, if a run may still be going on.
pub struct InferRequest {
    parts: ManuallyDrop<Parts>,
    running: bool,
    /// Whether the run did not end in the time that it was given.
    silent: bool,
}

/// Dropped in this order: OpenVINO's object, its callback, its tensors, its model.
struct Parts {
    handle: Handle<ov_infer_request_t>,
    completion: Completion,
    inputs: Vec<Slot<Arc<Tensor>>>,
    outputs: Vec<Slot<Tensor>>,
    model: CompiledModel,
}

/// Whether a started inference has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// It has ended successfully; the request can be used again.
    Finished,
    /// It has not ended yet.
    Pending,
}

struct Slot<T> {
    bound: Option<T>,
    refused: Vec<T>,
}

impl InferRequest {
    pub(crate) fn new(
        handle: Handle<ov_infer_request_t>,
        model: CompiledModel,
    ) -> Result<Self, OpenvinoError> {
        let completion = Completion::new();
        let parts = Parts {
            handle,
            completion,
            inputs: model.inputs().iter().map(|_| Slot::new()).collect(),
            outputs: model.outputs().iter().map(|_| Slot::new()).collect(),
            model,
        };
        let request = Self {
            parts: ManuallyDrop::new(parts),
            running: false,
            silent: false,
        };
        let callback = request.parts.completion.as_raw();
        // SAFETY: the request lives. OpenVINO keeps the pointer, which stays valid until
        // `completion` is dropped, after `handle` (field order), which no run outlives (see
        // `drop`).
        let status = unsafe { ov_infer_request_set_callback(request.raw(), callback) };
        check("ov_infer_request_set_callback", status)?;
        Ok(request)
    }

    /// Binds a tensor to an input, instead of the one bound before. Another view of the same bytes with the same
    /// shape changes nothing and costs nothing, where OpenVINO would take some 10 µs.
    ///
    /// An `Arc<Tensor>` can be bound to several requests at once: weights, tables.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::PortMissing`], [`OpenvinoError::ElementTypeMismatch`] or [`OpenvinoError::ShapeMismatch`] if it does not fit,
    /// [`OpenvinoError::Busy`] while running, [`OpenvinoError::Call`] if OpenVINO refuses it.
    pub fn bind_input(
        &mut self,
        index: usize,
        tensor: impl Into<Arc<Tensor>>,
    ) -> Result<(), OpenvinoError> {
        self.require_idle("bind an input")?;
        let tensor = tensor.into();
        let port = find_port("input", index, self.parts.model.inputs())?;
        port.check(tensor.element_type(), tensor.shape())?;
        if self.parts.inputs[index].is_view_of(&tensor) {
            return Ok(());
        }
        let request = self.raw();
        // SAFETY: request and tensor live through the call, and no run is going on. OpenVINO keeps
        // pointing into the tensor's memory, which the slot holds until another has replaced it.
        let status =
            unsafe { ov_infer_request_set_input_tensor_by_index(request, index, tensor.as_raw()) };
        let outcome = check("ov_infer_request_set_input_tensor_by_index", status);
        self.parts.inputs[index].put(tensor, outcome)
    }

    /// Binds a tensor to an output, instead of the one bound before: results are written there.
    ///
    /// With a dynamic shape the tensor must have room for the result; if it has more, only the first rows are
    /// written, and [`output`](Self::output) returns the shape.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::ReadOnly`] if its memory must not be written; else as [`bind_input`](Self::bind_input).
    pub fn bind_output(&mut self, index: usize, tensor: Tensor) -> Result<(), OpenvinoError> {
        self.require_idle("bind an output")?;
        let port = find_port("output", index, self.parts.model.outputs())?;
        port.check(tensor.element_type(), tensor.shape())?;
        if tensor.access() == Access::ReadOnly {
            return Err(OpenvinoError::ReadOnly {
                port: port.name.clone(),
            });
        }
        if self.parts.outputs[index].is_view_of(&tensor) {
            return Ok(());
        }
        let request = self.raw();
        // SAFETY: request and tensor live through the call, and no run is going on. OpenVINO keeps
        // pointing into the tensor's memory, which is writable, and which the slot holds until
        // another has replaced it.
        let status =
            unsafe { ov_infer_request_set_output_tensor_by_index(request, index, tensor.as_raw()) };
        let outcome = check("ov_infer_request_set_output_tensor_by_index", status);
        self.parts.outputs[index].put(tensor, outcome)
    }

    /// Runs to the end on the calling thread. The completion callback is not called.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Call`] if it fails, for example because an output does not fit the tensor bound to it;
    /// [`OpenvinoError::Busy`] while running.
    pub fn infer(&mut self) -> Result<(), OpenvinoError> {
        self.require_idle("infer")?;
        // SAFETY: the request lives, no other run is going on, and every tensor it points at is
        // held by `inputs` and `outputs`.
        check("ov_infer_request_infer", unsafe {
            ov_infer_request_infer(self.raw())
        })
    }

    /// Starts a run on one of OpenVINO's threads, and returns.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Call`] if it cannot start, [`OpenvinoError::Busy`] while running.
    pub fn start(&mut self) -> Result<(), OpenvinoError> {
        self.require_idle("start")?;
        self.parts.completion.arm();
        // SAFETY: the request lives, no other run is going on, and every tensor it points at is
        // held by `inputs` and `outputs`, which do not change until the run has ended.
        let status = unsafe { ov_infer_request_start_async(self.raw()) };
        check("ov_infer_request_start_async", status)?;
        self.running = true;
        Ok(())
    }

    /// Waits for the end of the started run, the completion callback included; for ever if no timeout is given.
    /// `Some(Duration::ZERO)` only polls.
    ///
    /// Must not be called from the request's own callback, for which it would wait.
    ///
    /// # Errors
    ///
    /// The run's own error, if it failed: [`OpenvinoError::Cancelled`], [`OpenvinoError::Call`], [`OpenvinoError::CallbackPanicked`];
    /// the request can be used again. [`OpenvinoError::NotStarted`] if there is nothing to wait for.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Progress, OpenvinoError> {
        if !self.running {
            return Err(OpenvinoError::NotStarted);
        }
        if timeout.is_some_and(|timeout| !self.parts.completion.wait(timeout)) {
            return Ok(Progress::Pending);
        }
        // SAFETY: the request lives.
        let status = unsafe { ov_infer_request_wait(self.raw()) };
        self.running = false;
        check("ov_infer_request_wait", status)?;
        match self.parts.completion.take_panic() {
            None => Ok(Progress::Finished),
            Some(message) => Err(OpenvinoError::CallbackPanicked { message }),
        }
    }

    /// Asks a run to end early; [`wait`](Self::wait) then returns [`OpenvinoError::Cancelled`], or the result if the run
    /// had finished. Does nothing without a run.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Call`] if the device cannot.
    pub fn cancel(&self) -> Result<(), OpenvinoError> {
        if !self.running {
            return Ok(());
        }
        // SAFETY: the request lives, and cancelling is allowed while it runs.
        check("ov_infer_request_cancel", unsafe {
            ov_infer_request_cancel(self.raw())
        })
    }

    /// Cancels a run, and waits for its end until `patience` is over. Returns whether nothing of it is going on any more.
    /// If something is, the request can only be dropped: it then leaves all that OpenVINO may touch behind.
    pub fn end_within(&mut self, patience: Duration) -> bool {
        if !self.running {
            return true;
        }
        // A device that cannot cancel may still end in time.
        let _ = self.cancel();
        if !self.parts.completion.wait(patience) {
            self.silent = true;
            return false;
        }
        // How it ended does not matter any more.
        let _ = self.wait(None);
        true
    }

    /// Sets `callback` to be called at the end of every started run, even a failed or cancelled one. Replaces
    /// the callback before.
    ///
    /// It runs on one of OpenVINO's threads: it should signal the end and return. The request stays busy until
    /// [`wait`](Self::wait) has seen the end, and returned the outcome. A panic is caught and becomes
    /// [`OpenvinoError::CallbackPanicked`] there. The request must not be dropped in it.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::Busy`] while running.
    pub fn on_done(
        &mut self,
        callback: impl FnMut() + Send + 'static,
    ) -> Result<(), OpenvinoError> {
        self.require_idle("replace the callback")?;
        self.parts.completion.set_callback(Box::new(callback));
        Ok(())
    }

    /// Returns the latest result of an output, whether or not a tensor was bound to it.
    ///
    /// # Errors
    ///
    /// [`OpenvinoError::PortMissing`], [`OpenvinoError::Busy`] while running, or [`OpenvinoError::Call`].
    pub fn output(&self, index: usize) -> Result<Output<'_>, OpenvinoError> {
        self.require_idle("read an output")?;
        let port = find_port("output", index, self.parts.model.outputs())?;
        let function = "ov_infer_request_get_output_tensor_by_index";
        // SAFETY: the request lives. The new object is the handle's alone, to be freed as named.
        let handle = unsafe {
            Handle::create(function, ov_tensor_free, |tensor| {
                ov_infer_request_get_output_tensor_by_index(self.raw(), index, tensor)
            })
        }?;
        Output::new(handle, port)
    }

    /// Returns the model that this request runs.
    pub fn model(&self) -> &CompiledModel {
        &self.parts.model
    }

    fn require_idle(&self, what: &'static str) -> Result<(), OpenvinoError> {
        if self.running {
            Err(OpenvinoError::Busy { what })
        } else {
            Ok(())
        }
    }

    fn raw(&self) -> *mut ov_infer_request_t {
        self.parts.handle.as_ptr()
    }
}

impl Drop for InferRequest {
    /// Cancels a run under way and waits for its end. A run that does not end is left behind, with its tensors.
    fn drop(&mut self) {
        let patience = match self.silent {
            true => Duration::ZERO,
            false => FAREWELL,
        };
        if self.end_within(patience) {
            // SAFETY: dropped once, since `drop` runs once and nothing else drops them. No run is going on: OpenVINO
            // signals the end last, after the callback has returned, and then touches neither callback nor tensors.
            unsafe { ManuallyDrop::drop(&mut self.parts) }
        }
    }
}

/// Time that a run has to end when its request is dropped. Chosen: drivers end jobs that hang in seconds.
const FAREWELL: Duration = Duration::from_secs(5);

// SAFETY: OpenVINO's object has no ties to a thread, and is used by one thread at a time, since
// nothing here is `Sync`. Tensors, callback and model are `Send` by themselves.
unsafe impl Send for InferRequest {}

impl fmt::Debug for InferRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InferRequest")
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}

impl<T: Borrow<Tensor>> Slot<T> {
    /// Returns whether the last bind of this slot that OpenVINO accepted was of the same bytes in the same
    /// shape. The bound tensor is held, so that no other memory can have come to lie at its address.
    fn is_view_of(&self, tensor: &Tensor) -> bool {
        let bound = self.bound.as_ref().filter(|_| self.refused.is_empty());
        bound.is_some_and(|bound| bound.borrow().is_same_view(tensor))
    }
}

impl<T> Slot<T> {
    fn new() -> Self {
        Self {
            bound: None,
            refused: Vec::new(),
        }
    }

    /// Holds `tensor`, and releases others only once OpenVINO has surely accepted it.
    fn put(&mut self, tensor: T, outcome: Result<(), OpenvinoError>) -> Result<(), OpenvinoError> {
        match outcome {
            Ok(()) => {
                self.bound = Some(tensor);
                self.refused.clear();
            }
            Err(_) => self.refused.push(tensor),
        }
        outcome
    }
}

fn find_port<'ports>(
    direction: &'static str,
    index: usize,
    ports: &'ports [PortInfo],
) -> Result<&'ports PortInfo, OpenvinoError> {
    ports.get(index).ok_or(OpenvinoError::PortMissing {
        direction,
        index,
        count: ports.len(),
    })
}
