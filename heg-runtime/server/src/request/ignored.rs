//! The names of fields that have no effect, which the response lists.

use crate::fields::Fields;

/// Names of fields without effect, each once.
#[derive(Debug, Default)]
pub(super) struct Ignored(Vec<&'static str>);

impl Ignored {
    pub(super) fn add(&mut self, name: &'static str) {
        if !self.0.contains(&name) {
            self.0.push(name);
        }
    }

    /// Takes a field, and adds its name if it is there.
    pub(super) fn take(&mut self, fields: &mut Fields, name: &'static str) {
        if fields.take(name).is_some() {
            self.add(name);
        }
    }

    pub(super) fn into_names(self) -> Vec<&'static str> {
        self.0
    }
}

impl From<Vec<&'static str>> for Ignored {
    fn from(names: Vec<&'static str>) -> Self {
        Self(names)
    }
}
