//! The forms of one place.

use crate::form::{BackendIndex, Form};
use crate::ladder::{Descent, Refused};

/// The forms of one place.
pub(crate) struct Prepared {
    /// Forms that are ready; the first that admits a call runs it.
    pub(crate) forms: Vec<Form>,
    /// The form in which the partner of a pair runs the place alone, if it does.
    pub(crate) partners: Option<Form>,
    /// The back end of all forms, if one runs them all. It stays set while that has dropped them to make others.
    pub(crate) backend: Option<BackendIndex>,
    /// Rungs that were passed over.
    pub(crate) descents: Vec<Descent>,
    /// Rungs that cannot be used here.
    pub(crate) refused: Refused,
}

impl Prepared {
    /// Starts without forms.
    pub(crate) fn new(refused: Refused) -> Self {
        Self {
            forms: Vec::new(),
            partners: None,
            backend: None,
            descents: Vec::new(),
            refused,
        }
    }

    /// Notes the back end that runs all forms, if it is one.
    pub(crate) fn note_backend(&mut self) {
        let mut backends = self.forms.iter().map(|form| form.backend);
        let first = backends.next();
        self.backend = first.filter(|first| backends.all(|other| other == *first));
    }

    /// Most rows that a call may have.
    pub(crate) fn tokens_max(&self) -> usize {
        let mut chunks = self.forms.iter().map(|form| form.shape.chunk());
        let most = chunks.try_fold(1, |most, chunk| Some(chunk?.max(most)));
        most.map_or(usize::MAX, |most| most as usize)
    }
}
