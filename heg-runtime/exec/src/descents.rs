//! The rungs that an executor passed over.

use std::sync::{Arc, OnceLock};

use crate::ladder::Descent;

/// The rungs that were passed over while loading; known when every kernel is ready.
#[derive(Debug, Clone, Default)]
pub struct Descents(Arc<OnceLock<Vec<Descent>>>);

impl From<Vec<Descent>> for Descents {
    fn from(known: Vec<Descent>) -> Self {
        Self(Arc::new(OnceLock::from(known)))
    }
}

impl Descents {
    /// Returns the descents; empty until every kernel is ready.
    pub fn get(&self) -> &[Descent] {
        self.0.get().map_or(&[], Vec::as_slice)
    }

    /// Settles them, once.
    pub(crate) fn settle(&self, descents: Vec<Descent>) {
        // Kernels are ready once.
        let _ = self.0.set(descents);
    }
}
