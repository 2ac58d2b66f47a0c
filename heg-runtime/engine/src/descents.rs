//! The descents of all lanes, and of their successors, shared between the conductor and handles.

use std::sync::{Arc, Mutex, PoisonError};

use heg_exec::{Descent, Descents};

/// The descents of each executor, known when its kernels are ready.
#[derive(Clone, Default)]
pub(super) struct AllDescents(Arc<Mutex<Vec<Descents>>>);

impl AllDescents {
    /// Adds those of an executor.
    pub(super) fn add(&self, descents: Descents) {
        self.with(|all| all.push(descents));
    }

    /// Returns each descent once.
    pub(super) fn get(&self) -> Vec<Descent> {
        let mut each: Vec<Descent> = Vec::new();
        self.with(|all| {
            for descent in all.iter().flat_map(Descents::get) {
                if !each.contains(descent) {
                    each.push(descent.clone());
                }
            }
        });
        each
    }

    fn with(&self, act: impl FnOnce(&mut Vec<Descents>)) {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
