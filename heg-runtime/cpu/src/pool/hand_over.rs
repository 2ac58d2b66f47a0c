//! Latency from the end of one side's last piece to the other side going on.

use std::sync::atomic::{AtomicU64, Ordering};

/// Histogram of hand-over latencies between the sides of a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandOvers([u64; BUCKETS]);

/// The histogram while it is filled.
pub(super) struct HandOverCounts([AtomicU64; BUCKETS]);

impl HandOverCounts {
    pub(super) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; BUCKETS])
    }

    pub(super) fn add(&self, took_ns: u64) {
        if let Some(count) = self.0.get(bucket(took_ns)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self) -> HandOvers {
        HandOvers(self.0.each_ref().map(|count| count.load(Ordering::Relaxed)))
    }
}

impl HandOvers {
    /// Number of hand-overs.
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The sum of both histograms.
    #[must_use]
    pub fn with(&self, others: &Self) -> Self {
        let mut all = self.clone();
        for (count, more) in all.0.iter_mut().zip(others.0) {
            *count += more;
        }
        all
    }

    /// Hand-overs since `earlier` was read.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut later = self.clone();
        for (count, before) in later.0.iter_mut().zip(earlier.0) {
            *count = count.saturating_sub(before);
        }
        later
    }

    /// Upper bound of a quantile in µs, at most a quarter too large; `None` without hand-overs. `share` is from 0 to 1.
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        let wanted = (self.count() as f64 * share).ceil() as u64;
        let mut seen = 0;
        let found = self.0.iter().position(|count| {
            seen += count;
            seen >= wanted && seen > 0
        });
        found.map(|bucket| end_ns(bucket) as f64 / 1e3)
    }
}

/// Four buckets per power of two from 64 ns to a second, and one at either end.
const BUCKETS: usize = (OCTAVE_MAX - OCTAVE_MIN) * 4 + 2;
const OCTAVE_MIN: usize = 6;
const OCTAVE_MAX: usize = 30;

fn bucket(ns: u64) -> usize {
    let Some(octave) = ns.checked_ilog2().map(|octave| octave as usize) else {
        return 0;
    };
    if octave < OCTAVE_MIN {
        return 0;
    }
    let quarter = (ns >> (octave - 2)) as usize % 4;
    ((octave - OCTAVE_MIN) * 4 + quarter + 1).min(BUCKETS - 1)
}

/// Exclusive end of a bucket.
fn end_ns(bucket: usize) -> u64 {
    let (octave, quarter) = (bucket / 4 + OCTAVE_MIN, bucket % 4);
    (4 + quarter as u64) << (octave - 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_at_most_a_quarter_too_large() {
        let counts = HandOverCounts::new();
        assert_eq!(counts.read().quantile_us(0.5), None);
        for took_ns in (1..=1000).map(|number| number * 100) {
            counts.add(took_ns);
        }
        let read = counts.read();
        assert_eq!(read.count(), 1000);
        for (share, exact_us) in [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0)] {
            let found = read.quantile_us(share).unwrap();
            assert!((exact_us..=exact_us * 1.25).contains(&found), "{found}");
        }
        counts.add(u64::MAX);
        assert_eq!(counts.read().since(&read).count(), 1);
    }

    #[test]
    fn a_time_lies_before_the_end_of_its_bucket() {
        for ns in (0..100_000).chain([1 << 20, (1 << 29) + 5]) {
            let bucket = bucket(ns);
            assert!(ns < end_ns(bucket), "{ns}");
            assert!(bucket == 0 || ns >= end_ns(bucket - 1), "{ns}");
        }
    }
}
