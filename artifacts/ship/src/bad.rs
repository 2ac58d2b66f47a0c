//! Bundles that turned out badly on this machine: what stands for them in the record of a name, and who passes them over.
//!
//! A mark is of a bundle and not of a release's number: a publisher who signs the same kernels anew has not mended them,
//! and an unsigned bundle has no number. It goes when the name stands for the bundle after all, since a person asked for
//! that.

use std::fmt;

use heg_artifacts::SectionId;
use serde::{Deserialize, Serialize};

use crate::error::ShipError;
use crate::name::ModelName;
use crate::names::{Held, NameRecord};
use crate::store::DeviceStore;

/// A bundle that updates of a name pass over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BadBundle {
    /// The bundle.
    pub bundle: SectionId,
    /// Number of the release that brought it; `None` if it is unsigned.
    pub number: Option<u64>,
    /// The reason.
    pub reason: BadReason,
}

/// The reason why a bundle is passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BadReason {
    /// Its kernels gave wrong answers on this machine.
    WrongAnswers,
    /// A person went back from it.
    RolledBack,
}

impl fmt::Display for BadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WrongAnswers => "its kernels gave wrong answers on this machine",
            Self::RolledBack => "it was rolled back from",
        })
    }
}

impl fmt::Display for BadBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "release {number}"),
            None => write!(f, "bundle {}", self.bundle.short()),
        }
    }
}

impl BadBundle {
    pub(crate) fn of(held: &Held, reason: BadReason) -> Self {
        Self {
            bundle: held.bundle,
            number: held.number,
            reason,
        }
    }
}

impl NameRecord {
    /// The mark of a bundle, if it has one.
    pub fn bad(&self, bundle: SectionId) -> Option<&BadBundle> {
        self.bad.iter().find(|bad| bad.bundle == bundle)
    }

    /// Adds a mark, the latest first; the oldest go when there are many.
    pub(crate) fn mark(&mut self, bad: BadBundle) {
        self.clear(bad.bundle);
        self.bad.insert(0, bad);
        self.bad.truncate(BAD_MAX);
    }

    /// Removes the mark of a bundle, if it has one.
    pub(crate) fn clear(&mut self, bundle: SectionId) {
        self.bad.retain(|bad| bad.bundle != bundle);
    }
}

impl DeviceStore {
    /// Marks a bundle that a name shall not stand for. A name that is not here has no updates, and gets no mark.
    pub(crate) fn mark_bad(&self, name: &ModelName, bad: BadBundle) -> Result<(), ShipError> {
        match self.name(name)? {
            Some(mut record) => {
                record.mark(bad);
                self.write_name(name, &record)
            }
            None => Ok(()),
        }
    }
}

/// Most marks of a name. Chosen: two years of weekly releases that were all bad.
const BAD_MAX: usize = 100;
