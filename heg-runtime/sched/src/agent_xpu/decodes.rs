//! The requests that decode, and the iterations that have begun.

use std::sync::Arc;

use crate::event::{DecodeRun, Decoding};
use crate::isolation::Isolation;
use crate::request::{Class, Lane, RequestId};

/// A decode step of a batch, on its way through the layers.
#[derive(Debug, Clone)]
pub(super) struct Iteration {
    batch: Arc<[Decoding]>,
    class: Class,
    layers_done: u32,
    lane: Lane,
}

impl Iteration {
    /// Starts an iteration over `batch`.
    pub(super) fn new(batch: Arc<[Decoding]>, class: Class, lane: Lane) -> Self {
        Self {
            batch,
            class,
            layers_done: 0,
            lane,
        }
    }

    /// The requests of the batch, which stay the same to its end.
    pub(super) fn batch(&self) -> &[Decoding] {
        &self.batch
    }

    /// The most urgent class in the batch.
    pub(super) fn class(&self) -> Class {
        self.class
    }

    /// The lane that holds its activations.
    pub(super) fn lane(&self) -> Lane {
        self.lane
    }

    /// Whether it has stopped between two layers.
    pub(super) fn is_between_layers(&self) -> bool {
        self.layers_done > 0
    }

    /// Returns the rest of the iteration, in a model of `layers` layers.
    pub(super) fn rest(&self, layers: u32, fused: bool) -> DecodeRun {
        DecodeRun {
            batch: Arc::clone(&self.batch),
            layers: self.layers_done..layers,
            fused,
        }
    }

    fn holds(&self, id: RequestId) -> bool {
        self.batch.iter().any(|member| member.request == id)
    }
}

/// The point to which a run brought its iteration.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reached {
    /// The end: every request in it has its token.
    End,
    /// A layer at which it gave way, or a run whose iteration was dropped.
    Part,
}

/// The requests that decode, and the iterations in progress.
///
/// - A request is listed once, in the order in which prompts ended.
/// - A request is in one iteration at most, and an iteration keeps its batch to its end.
#[derive(Debug, Default)]
pub(crate) struct Decode {
    requests: Vec<RequestId>,
    iteration: Option<Iteration>,
    aside: Option<Iteration>,
    isolation: Isolation,
}

impl Decode {
    pub(super) fn join(&mut self, id: RequestId) {
        debug_assert!(!self.requests.contains(&id), "{id:?} decodes already");
        self.requests.push(id);
    }

    pub(super) fn leave(&mut self, id: RequestId) {
        self.requests.retain(|other| *other != id);
    }

    /// Requests past their prefill, in the order in which they finished it.
    pub(super) fn requests(&self) -> impl Iterator<Item = &RequestId> + Clone {
        self.requests.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is nothing to decode.
    pub(super) fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether a request is part of an iteration that has begun.
    pub(super) fn holds(&self, id: RequestId) -> bool {
        let begun = [&self.iteration, &self.aside].into_iter().flatten();
        begun.into_iter().any(|iteration| iteration.holds(id))
    }

    /// The iteration that has begun on the lane of dynamic kernels.
    pub(super) fn iteration(&self) -> Option<&Iteration> {
        self.iteration.as_ref()
    }

    /// Begins an iteration on the lane of dynamic kernels, or continues one.
    pub(super) fn begin(&mut self, iteration: Iteration) {
        self.iteration = Some(iteration);
    }

    /// Takes the iteration away; its requests get no token from it.
    pub(super) fn take_iteration(&mut self) -> Option<Iteration> {
        self.iteration.take()
    }

    /// The verification that has begun on the NPU (`second_lane`).
    pub(super) fn aside(&self) -> Option<&Iteration> {
        self.aside.as_ref()
    }

    /// Begins a verification on the NPU, or continues one.
    pub(super) fn begin_aside(&mut self, iteration: Iteration) {
        self.aside = Some(iteration);
    }

    /// Drops the iteration of a batch, which has begun; its requests get no token from it.
    pub(super) fn abandon(&mut self, batch: &[Decoding]) {
        *self.slot(batch) = None;
    }

    /// Notes that a run came to its end, or to the layer at which it gave way, in a model of `of` layers.
    pub(super) fn reached(&mut self, run: &DecodeRun, layers: u32, of: u32) -> Reached {
        let slot = self.slot(&run.batch);
        let Some(iteration) = slot else {
            return Reached::Part;
        };
        if layers >= of {
            *slot = None;
            return Reached::End;
        }
        iteration.layers_done = layers.clamp(run.layers.start, run.layers.end);
        if iteration.layers_done == 0 {
            // It has not begun: until it does, other requests may join.
            *slot = None;
        }
        Reached::Part
    }

    /// The field that holds the iteration of a batch.
    fn slot(&mut self, batch: &[Decoding]) -> &mut Option<Iteration> {
        let is_aside = self.aside.as_ref().is_some_and(|it| *it.batch == *batch);
        match is_aside {
            true => &mut self.aside,
            false => &mut self.iteration,
        }
    }

    /// The search for requests that make iterations fail.
    pub(super) fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    pub(super) fn isolation_mut(&mut self) -> &mut Isolation {
        &mut self.isolation
    }
}
