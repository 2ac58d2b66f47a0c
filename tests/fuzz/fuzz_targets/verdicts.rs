//! Reads arbitrary bytes as a file of remembered verdicts, and as the verdict on a GPU.
//!
//! An accepted file can be written and read again: quarantine decides which kernels run.

use heg_runtime::exec::GpuVerdict;
use heg_runtime::verdicts::Verdicts;

pub(crate) fn run(input: &[u8]) {
    if let Ok(verdict) = GpuVerdict::parse(input) {
        let again = GpuVerdict::parse(verdict.to_text().as_bytes());
        assert_eq!(again.expect("what was written is read"), verdict);
    }
    let Ok(verdicts) = Verdicts::parse(input) else {
        return;
    };
    let again = Verdicts::parse(verdicts.to_text().as_bytes());
    assert_eq!(again.expect("what was written is read"), verdicts);
    for (place, rung, verdict) in verdicts.iter() {
        assert_eq!(verdicts.get(place, rung), Some(verdict));
    }
    let mut cleared = verdicts.clone();
    let wrong = cleared.clear_quarantine();
    assert_eq!(cleared.iter().count() + wrong, verdicts.iter().count());
    assert!(cleared.iter().all(|(_, _, verdict)| verdict.is_right()));
}
