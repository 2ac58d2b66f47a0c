//! The vendor compiler's estimate of one blob: a latency for each frequency of the NPU.

use serde::{Deserialize, Serialize};

use super::error::AnnotationError;

/// Latency of one run of a blob over the NPU's frequency.
///
/// In RON it is the list of its pairs, (MHz, µs), with tenths of a microsecond.
///
/// Invariants:
/// - from 1 to [`VendorTable::FREQUENCIES_MAX`] pairs, frequencies ascending from 1 MHz;
/// - latencies are finite and above 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u32, f64)>", into = "Vec<(u32, f64)>")]
pub struct VendorTable(Vec<(u32, f64)>);

impl VendorTable {
    /// The largest number of frequencies. Chosen: blobs have 5.
    pub const FREQUENCIES_MAX: usize = 16;

    /// Checks a table of (MHz, µs); refuses with [`AnnotationError::Frequencies`] or
    /// [`AnnotationError::Latency`]. Latencies are rounded to 0.1 µs, but not to 0.
    pub fn new(mut latencies_us: Vec<(u32, f64)>) -> Result<Self, AnnotationError> {
        let ascending = latencies_us.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let from_one = latencies_us.first().is_some_and(|(mhz, _)| *mhz > 0);
        if !ascending || !from_one || latencies_us.len() > Self::FREQUENCIES_MAX {
            return Err(AnnotationError::Frequencies {
                found: latencies_us
                    .iter()
                    .map(|(mhz, _)| *mhz)
                    .take(Self::FREQUENCIES_MAX + 1)
                    .collect(),
                limit: Self::FREQUENCIES_MAX,
            });
        }
        for (_, latency_us) in &mut latencies_us {
            if !(latency_us.is_finite() && *latency_us > 0.0) {
                return Err(AnnotationError::Latency { found: *latency_us });
            }
            *latency_us = ((*latency_us * 10.0).round() / 10.0).clamp(0.1, f64::MAX);
        }
        Ok(VendorTable(latencies_us))
    }

    /// The table, as (MHz, µs) with frequencies ascending.
    pub fn latencies_us(&self) -> &[(u32, f64)] {
        &self.0
    }

    /// Latency of one run in µs at a frequency in MHz; `None` takes the highest frequency of the table.
    ///
    /// Between two frequencies the latency is interpolated linearly. Above the table it is that of the highest
    /// frequency; below it grows as the clock slows down.
    pub fn latency_us(&self, frequency_mhz: Option<u32>) -> f64 {
        let table = &self.0;
        let (Some(first), Some(last)) = (table.first(), table.last()) else {
            return f64::NAN;
        };
        let at = frequency_mhz.unwrap_or(last.0).max(1);
        if at <= first.0 {
            return (first.1 * f64::from(first.0) / f64::from(at)).min(f64::MAX);
        }
        let upper = table.partition_point(|(mhz, _)| *mhz < at);
        let (Some(below), Some(above)) = (table.get(upper.wrapping_sub(1)), table.get(upper))
        else {
            return last.1;
        };
        let share = f64::from(at - below.0) / f64::from(above.0 - below.0);
        below.1 * (1.0 - share) + above.1 * share
    }
}

impl TryFrom<Vec<(u32, f64)>> for VendorTable {
    type Error = AnnotationError;

    fn try_from(latencies_us: Vec<(u32, f64)>) -> Result<Self, AnnotationError> {
        VendorTable::new(latencies_us)
    }
}

impl From<VendorTable> for Vec<(u32, f64)> {
    fn from(table: VendorTable) -> Self {
        table.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ffn` of llama-3.2-3b at chunk 256 on 3720.
    const FFN: [(u32, f64); 5] = [
        (700, 29_200.2),
        (850, 24_047.0),
        (1000, 20_440.0),
        (1150, 17_774.0),
        (1300, 15_723.0),
    ];

    #[test]
    fn latencies_are_those_of_the_table_and_lie_between_them() {
        let table = VendorTable::new(FFN.to_vec()).unwrap();
        for (mhz, latency_us) in FFN {
            assert_eq!(table.latency_us(Some(mhz)), latency_us);
        }
        assert_eq!(table.latency_us(None), 15_723.0);
        assert_eq!(table.latency_us(Some(5000)), 15_723.0);
        assert_eq!(table.latency_us(Some(350)), 58_400.4);
        assert_eq!(table.latency_us(Some(925)), (24_047.0 + 20_440.0) / 2.0);
        assert!(table.latency_us(Some(0)).is_finite());
    }

    #[test]
    fn a_faster_clock_is_never_slower() {
        let table = VendorTable::new(FFN.to_vec()).unwrap();
        let latencies: Vec<f64> = (1..2000).map(|mhz| table.latency_us(Some(mhz))).collect();
        assert!(latencies.windows(2).all(|pair| pair[0] >= pair[1]));
    }

    #[test]
    fn tables_that_are_none() {
        for frequencies in [vec![], vec![(0, 1.0)], vec![(2, 1.0), (2, 1.0)]] {
            let refused = VendorTable::new(frequencies).unwrap_err();
            assert!(matches!(refused, AnnotationError::Frequencies { .. }));
        }
        let long: Vec<(u32, f64)> = (1..1000).map(|mhz| (mhz, 1.0)).collect();
        let refused = VendorTable::new(long).unwrap_err();
        assert!(matches!(refused, AnnotationError::Frequencies { found, .. } if found.len() == 17));
        for latency_us in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let refused = VendorTable::new(vec![(1, latency_us)]).unwrap_err();
            assert!(matches!(refused, AnnotationError::Latency { .. }));
        }
        let smallest = VendorTable::new(vec![(1, f64::MIN_POSITIVE)]).unwrap();
        assert_eq!(smallest.latencies_us(), [(1, 0.1)]);
        let largest = VendorTable::new(vec![(1, f64::MAX)]).unwrap();
        assert!(largest.latency_us(None).is_finite());
    }
}
