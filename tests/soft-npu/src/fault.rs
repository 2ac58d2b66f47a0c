//! Faults that happen on purpose, at calls that settings count out, or a plan that is made while the process runs.
//!
//! Whoever plans writes the file that `SOFT_NPU_PLAN` names, by renaming one that is whole. The next call of a place where
//! something may fail takes it: the file is removed, its faults replace all that there were, and they count from there.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::log::{lock, note};
use crate::settings::settings;

/// A place where something may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultPoint {
    /// The loader finds no driver that starts.
    Init,
    /// The device is asked how it is, and is lost.
    Status,
    /// There is no memory.
    Memory,
    /// Pages of the caller cannot be pinned.
    Import,
    /// A queue cannot be made.
    Queue,
    /// A blob is of a version that the driver does not read.
    Create,
    /// A blob is none.
    CreateBinary,
    /// There is no memory for a blob.
    CreateMemory,
    /// A blob cannot be brought to the device.
    Initialize,
    /// A list cannot be changed.
    Update,
    /// A list cannot be submitted.
    Submit,
    /// A run ends with the loss of the device.
    Lost,
    /// A run hangs, and the kernel aborts it.
    Abort,
    /// A run never ends.
    Hang,
    /// A run takes long, and less than any time limit.
    Late,
    /// A run gives zeros.
    Wrong,
    /// A run gives no numbers.
    NotANumber,
    /// A run gives its numbers with the other sign: nothing but another computation shows that.
    Negated,
    /// A run ends well and writes nothing.
    Unwritten,
}

/// All places, by the names that settings have for them.
const POINTS: [(&str, FaultPoint); 19] = [
    ("init", FaultPoint::Init),
    ("status", FaultPoint::Status),
    ("memory", FaultPoint::Memory),
    ("import", FaultPoint::Import),
    ("queue", FaultPoint::Queue),
    ("create", FaultPoint::Create),
    ("create-binary", FaultPoint::CreateBinary),
    ("create-memory", FaultPoint::CreateMemory),
    ("initialize", FaultPoint::Initialize),
    ("update", FaultPoint::Update),
    ("submit", FaultPoint::Submit),
    ("lost", FaultPoint::Lost),
    ("abort", FaultPoint::Abort),
    ("hang", FaultPoint::Hang),
    ("late", FaultPoint::Late),
    ("wrong", FaultPoint::Wrong),
    ("nan", FaultPoint::NotANumber),
    ("negated", FaultPoint::Negated),
    ("unwritten", FaultPoint::Unwritten),
];

/// A fault: at each call of a place, at one of them, or from one on.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    point: FaultPoint,
    /// First and last call that fail, from 1.
    first: u64,
    last: u64,
    seen: Arc<AtomicU64>,
}

impl Fault {
    /// Reads `NAME`, `NAME@N` or `NAME@N+`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (name, at) = text.split_once('@').unwrap_or((text, "1+"));
        let (_, point) = POINTS.iter().find(|(known, _)| *known == name)?;
        let (first, is_open) = match at.strip_suffix('+') {
            Some(first) => (first, true),
            None => (at, false),
        };
        let first = first.parse().ok()?;
        Some(Self {
            point: *point,
            first,
            last: if is_open { u64::MAX } else { first },
            seen: Arc::default(),
        })
    }

    /// Counts a call, and returns whether it fails.
    fn is_due(&self) -> bool {
        let call = self.seen.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        (self.first..=self.last).contains(&call)
    }
}

/// Faults with commas between them.
fn parse_all(text: &str) -> Option<Vec<Fault>> {
    let parts = text.trim().split(',').filter(|part| !part.is_empty());
    parts.map(Fault::parse).collect()
}

/// The faults that hold now: those of the last plan that was taken, or of the settings.
fn current() -> Arc<[Fault]> {
    static CURRENT: OnceLock<Mutex<Arc<[Fault]>>> = OnceLock::new();
    let current = CURRENT.get_or_init(|| Mutex::new(settings().faults.as_slice().into()));
    let mut current = lock(current);
    if let Some(planned) = settings().plan.as_deref().and_then(take) {
        *current = planned.into();
    }
    Arc::clone(&current)
}

/// Takes a plan, if there is one. One that means nothing is in the log, and has no faults.
fn take(path: &Path) -> Option<Vec<Fault>> {
    let text = std::fs::read_to_string(path).ok()?;
    std::fs::remove_file(path).ok()?;
    note!("PLAN {}", text.trim());
    let planned = parse_all(&text);
    if planned.is_none() {
        note!("REFUSED plan");
    }
    Some(planned.unwrap_or_default())
}

/// Whether a call at a place fails. Each call counts, for every fault of the place.
pub(crate) fn fails(point: FaultPoint) -> bool {
    let faults = current();
    let faults = faults.iter();
    let due = faults.filter(|fault| fault.point == point && fault.is_due());
    let is_due = due.count() > 0;
    if is_due {
        note!("FAULT {point:?}");
    }
    is_due
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(text: &str) -> Vec<bool> {
        let fault = Fault::parse(text).unwrap();
        (0..4).map(|_| fault.is_due()).collect()
    }

    #[test]
    fn a_fault_happens_at_the_calls_that_are_counted_out() {
        assert_eq!(calls("lost"), [true; 4]);
        assert_eq!(calls("lost@2"), [false, true, false, false]);
        assert_eq!(calls("lost@3+"), [false, false, true, true]);
    }

    #[test]
    fn a_plan_is_taken_once() {
        let path = std::env::temp_dir().join(format!("soft-npu-plan-{}", std::process::id()));
        assert!(take(&path).is_none());
        std::fs::write(&path, "hang@3,wrong\n").unwrap();
        assert_eq!(take(&path).unwrap().len(), 2);
        assert!(take(&path).is_none());
        std::fs::write(&path, "hang@3,nothing").unwrap();
        assert!(take(&path).unwrap().is_empty());
    }

    #[test]
    fn other_texts_are_no_faults() {
        for text in ["", "lose", "lost@", "lost@x", "lost@+", "lost@-1"] {
            assert!(Fault::parse(text).is_none(), "{text}");
        }
    }
}
