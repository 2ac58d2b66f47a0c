//! Statements for publishers to sign. Keys never come here: minisign or a key service signs the text.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use heg_artifacts::Bundle;
use heg_trust::{Moment, Release, TrustError};
use jiff::Timestamp;

use crate::error::ShipError;
use crate::name::ModelName;
use crate::push::release_slices;

/// A publisher's statement of a release.
#[derive(Debug, Clone)]
pub struct Statement<'s> {
    /// Name of the repository; its tag does not matter.
    pub name: &'s ModelName,
    /// Number, above those of all releases of the name before.
    pub number: u64,
    /// Version for people.
    pub version: &'s str,
    /// Days until a newer release must exist; `None` for no such promise.
    pub valid_days: Option<u32>,
    /// Numbers of earlier releases that must not be used any more.
    pub withdrawn: BTreeSet<u64>,
}

impl Statement<'_> {
    /// The text to sign: that these bundles' slices are this release, as of now.
    ///
    /// Errors: [`ShipError::Bundle`]; [`ShipError::Refused`] for a number, a version or slices that no release has, and on
    /// a machine without a clock.
    pub fn text(&self, bundles: &[Bundle]) -> Result<String, ShipError> {
        let refused = |source| ShipError::Refused {
            name: self.name.to_string(),
            source,
        };
        let Moment::Now(issued) = now() else {
            let source = TrustError::Invalid {
                document: "release",
                field: "issued".to_owned(),
                found: "no clock".to_owned(),
                expected: "the time of this machine".to_owned(),
            };
            return Err(refused(source));
        };
        let expires = self.valid_days.and_then(|days| {
            let seconds = i64::from(days).saturating_mul(SECONDS_A_DAY);
            Timestamp::from_second(issued.as_second().saturating_add(seconds)).ok()
        });
        let release = Release {
            name: self.name.signed_name(),
            number: self.number,
            version: self.version.to_owned(),
            issued,
            expires,
            withdrawn: self.withdrawn.clone(),
            slices: release_slices(bundles)?,
        };
        release.to_text().map_err(refused)
    }
}

/// This machine's knowledge of the time. A clock that was never set is none.
pub fn now() -> Moment {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = elapsed.map_or(0, |elapsed| elapsed.as_secs());
    let moment = i64::try_from(seconds)
        .ok()
        .filter(|seconds| *seconds > CLOCK_SECONDS_MIN);
    let moment = moment.and_then(|seconds| Timestamp::from_second(seconds).ok());
    moment.map_or(Moment::Unknown, Moment::Now)
}

const SECONDS_A_DAY: i64 = 24 * 60 * 60;

/// The beginning of 2025: an earlier clock was never set.
const CLOCK_SECONDS_MIN: i64 = 1_735_689_600;
