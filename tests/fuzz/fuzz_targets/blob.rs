//! Reads arbitrary bytes as an NPU blob, and as each part of one.
//!
//! A length in the footer ties the parts of a blob together, and mutations would seldom keep it right. So the
//! input is tried unchanged, as payload and as metadata beside sound ones, as the text of a compatibility
//! record, and as an estimate in RON. An accepted blob must hold its promises.

use heg_profiler::vendor::{BlobCompatibility, NpuBlob, PerfMetrics};

pub(crate) fn run(input: &[u8]) {
    use_blob(input);
    use_blob(&assemble(input, METADATA));
    use_blob(&assemble(PAYLOAD, input));
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Ok(record) = BlobCompatibility::parse(text) {
        use_record(&record);
    }
    if let Ok(estimate) = ron::from_str::<PerfMetrics>(text) {
        use_estimate(&estimate);
    }
}

fn assemble(payload: &[u8], metadata: &[u8]) -> Vec<u8> {
    let payload_bytes = (payload.len() as u64).to_le_bytes();
    [payload, metadata, &payload_bytes, b"OVNPU"].concat()
}

fn use_blob(bytes: &[u8]) {
    let Ok(blob) = NpuBlob::read(bytes) else {
        return;
    };
    use_record(blob.compatibility());
    let estimate = blob.perf_metrics();
    assert!(!blob.metadata().is_encrypted || estimate.is_err());
    if let Ok(Some(estimate)) = estimate {
        use_estimate(&estimate);
    }
}

fn use_record(record: &BlobCompatibility) {
    let again = BlobCompatibility::parse(record.text()).expect("an accepted record");
    assert_eq!(again, *record);
    let kept: usize = record.other().iter().map(String::len).sum();
    assert!(kept < record.text().len());
}

fn use_estimate(estimate: &PerfMetrics) {
    let raw = estimate.raw();
    let ticks = || raw.ticks.as_flattened().iter().copied();
    let us = |ticks: Option<u64>| {
        ticks.expect("a table has entries") as f64 * 1000.0 / f64::from(raw.timer_khz)
    };
    let (shortest, longest) = (us(ticks().min()), us(ticks().max()));
    assert!(shortest > 0.0 && longest.is_finite());
    // Rounding aside, nothing is faster or slower than the table.
    let expected = shortest * (1.0 - 1e-12)..=longest * (1.0 + 1e-12);
    let clocks = estimate.frequencies_mhz().map(f64::from);
    let bandwidths = estimate.bandwidths_mb_per_sec().map(f64::from);
    for mhz in clocks
        .into_iter()
        .chain([0.0, clocks[1] * 1.01, f64::INFINITY])
    {
        for mb_per_sec in bandwidths
            .into_iter()
            .chain([0.0, bandwidths[3] * 1.01, f64::MAX])
        {
            assert!(expected.contains(&estimate.latency_us(mhz, mb_per_sec)));
        }
    }
    let text = ron::to_string(estimate).expect("an estimate can be written");
    let again = ron::from_str::<PerfMetrics>(&text).expect("and read again");
    assert_eq!(again, *estimate);
}

const METADATA: &[u8] = include_bytes!("../seeds/blob/metadata.bin");
const PAYLOAD: &[u8] = include_bytes!("../seeds/blob/payload.elf");
