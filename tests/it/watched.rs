//! The trace of an engine's run, for tests that look at it while it grows.

use std::sync::{Arc, Mutex};

use heg_sched::{Action, Event, Micros, Observer};
use heg_workload::{RunTrace, TraceRecorder};

/// The trace of a run, shared by all clones.
#[derive(Clone, Default)]
pub(crate) struct Watch(Arc<Mutex<(TraceRecorder, RunTrace)>>);

impl Observer for Watch {
    fn stepped(&mut self, now: Micros, event: &Event, actions: &[Action]) {
        let (recorder, trace) = &mut *self.0.lock().unwrap();
        recorder.stepped(now, event, actions, |event| trace.add(event));
    }
}

impl Watch {
    /// Asks something of the trace so far.
    pub(crate) fn ask<T>(&self, question: impl FnOnce(&RunTrace) -> T) -> T {
        question(&self.0.lock().unwrap().1)
    }
}
