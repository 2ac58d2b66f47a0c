//! The memory of a machine about a name, by which an older release is found out.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::judge::Word;

/// The past of one name on this machine. The default is that of a name that was never here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeenReleases {
    /// Largest number of an accepted release.
    pub newest: u64,
    /// Numbers that accepted releases withdrew.
    pub withdrawn: BTreeSet<u64>,
    /// Whether an accepted release was signed.
    pub signed: bool,
    /// Serial of the last change of keys that counted when one was accepted.
    #[serde(default, skip_serializing_if = "is_none")]
    pub keys_serial: u64,
}

fn is_none(serial: &u64) -> bool {
    *serial == 0
}

impl SeenReleases {
    /// Adds an accepted release. Nothing that was seen is forgotten, but numbers that a change of keys takes back.
    pub fn note(&mut self, word: &Word) {
        let Word::Signed {
            release, turned, ..
        } = word
        else {
            return;
        };
        if let Some(turned) = turned {
            *self = turned.past(&release.name, self);
        }
        self.newest = self.newest.max(release.number);
        self.withdrawn.extend(&release.withdrawn);
        self.signed = true;
    }
}
