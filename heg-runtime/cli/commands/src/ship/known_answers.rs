//! The known answers of a bundle that a name shall stand for.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use heg_ship::{ModelName, ShipError};
use serde::Deserialize;

use crate::doctor::WRONG;

/// Asks a bundle's kernels for their known answers, in a process of its own.
///
/// The process has notes of its own as well: a bundle that nobody uses yet, and whose answers may be what is wrong, must not
/// put kernels into quarantine that it has in common with the one in use.
pub(super) fn ask_kernels(name: &ModelName, bundle: &Path) -> Result<(), ShipError> {
    let (Ok(this), Ok(notes)) = (std::env::current_exe(), tempfile::tempdir()) else {
        return Ok(());
    };
    let mut doctor = Command::new(this);
    doctor.arg("doctor").arg(bundle).arg("--json");
    doctor.stdin(Stdio::null()).stderr(Stdio::null());
    let output = doctor.env("HEG_CACHE_DIR", notes.path()).output();
    let report = output.map(|output| serde_json::from_slice::<Report>(&output.stdout));
    match report {
        Ok(Ok(report)) if !report.healthy => Err(ShipError::Kept {
            name: name.to_string(),
            reason: format!(
                "kernels of the new bundle gave wrong answers on this machine ({}), so updates pass it over from now on",
                report.wrong()
            ),
        }),
        // Without a report the question could not be asked, which says nothing about the answers.
        _ => Ok(()),
    }
}

/// The fields of the report of `heg doctor` that are read here.
#[derive(Deserialize)]
struct Report {
    healthy: bool,
    kernels: Vec<Answered>,
}

#[derive(Deserialize)]
struct Answered {
    kernel: String,
    verdict: String,
}

impl Report {
    /// The kernels that answered wrongly, each once.
    fn wrong(&self) -> String {
        let wrong = self.kernels.iter().filter(|it| it.verdict == WRONG);
        let names: BTreeSet<&str> = wrong.map(|it| it.kernel.as_str()).collect();
        Vec::from_iter(names).join(", ")
    }
}
