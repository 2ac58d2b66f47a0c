//! Faults that happen on purpose, at calls that settings count out.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::log::note;
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
    /// A run gives zeros.
    Wrong,
}

/// All places, by the names that settings have for them.
const POINTS: [(&str, FaultPoint); 15] = [
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
    ("wrong", FaultPoint::Wrong),
];

/// A fault: at each call of a place, at one of them, or from one on.
#[derive(Debug)]
pub(crate) struct Fault {
    point: FaultPoint,
    /// First and last call that fail, from 1.
    first: u64,
    last: u64,
    seen: AtomicU64,
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
            seen: AtomicU64::new(0),
        })
    }

    /// Counts a call, and returns whether it fails.
    fn is_due(&self) -> bool {
        let call = self.seen.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        (self.first..=self.last).contains(&call)
    }
}

/// Whether a call at a place fails. Each call counts, for every fault of the place.
pub(crate) fn fails(point: FaultPoint) -> bool {
    let faults = settings().faults.iter();
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
    fn other_texts_are_no_faults() {
        for text in ["", "lose", "lost@", "lost@x", "lost@+", "lost@-1"] {
            assert!(Fault::parse(text).is_none(), "{text}");
        }
    }
}
