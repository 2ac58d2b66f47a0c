//! Measured latencies of one variant over (c, n), and the interpolation between them.
//!
//! Between measured calls the latency is interpolated linearly in c and in n. That is no guess: work and traffic of
//! every kernel are sums of terms a + b·c + d·n + e·c·n, so within one regime of the device a bilinear form is exact,
//! and where the regime changes the grid is made dense (`measure::grid`).
//!
//! The table is ragged: attention over n rows has at most n new tokens, so each c has its own values of n.

use serde::{Deserialize, Serialize};

use super::CallShape;

/// Latencies of one variant on one device.
///
/// In RON it is the list of its entries, (c, n, µs), with tenths of a microsecond.
///
/// Invariants:
/// - from 1 to [`LatencyTable::ENTRIES_MAX`] entries, ascending by (c, n), c from 1;
/// - c and n are at most [`LatencyTable::SIZE_MAX`];
/// - latencies are finite and above 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u32, u32, f64)>", into = "Vec<(u32, u32, f64)>")]
pub struct LatencyTable(Vec<(CallShape, f64)>);

/// The reason why a list of entries is not a table.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// There are too many entries, or none.
    #[error("the table has `{found}` entries, expected 1 to `{limit}`")]
    Length {
        /// Number of entries.
        found: usize,
        /// The largest number of entries.
        limit: usize,
    },

    /// An entry equals the one before or is smaller.
    #[error("the table's entry for c `{tokens}`, n `{context}` is not above the one before")]
    Order {
        /// c of the entry.
        tokens: u32,
        /// n of the entry.
        context: u32,
    },

    /// A size that no call has.
    #[error(
        "the table has c `{tokens}`, n `{context}`, expected c from 1 and both up to `{limit}`"
    )]
    Size {
        /// c of the entry.
        tokens: u32,
        /// n of the entry.
        context: u32,
        /// The largest c or n.
        limit: u32,
    },

    /// A latency that no kernel has.
    #[error("the latency in µs is `{found:?}`, expected a finite number above 0")]
    Latency {
        /// The latency, in µs.
        found: f64,
    },
}

impl LatencyTable {
    /// The largest number of entries. Chosen: ten times the size of a profile's table.
    pub const ENTRIES_MAX: usize = 4096;

    /// The largest c and n. Chosen: sixteen times the longest contexts of today.
    pub const SIZE_MAX: u32 = 1 << 24;

    /// Checks a list of latencies in µs, in ascending order of (c, n). They are rounded to 0.1 µs, but not
    /// to 0.
    pub fn new(mut entries: Vec<(CallShape, f64)>) -> Result<Self, TableError> {
        if entries.is_empty() || entries.len() > Self::ENTRIES_MAX {
            return Err(TableError::Length {
                found: entries.len(),
                limit: Self::ENTRIES_MAX,
            });
        }
        let mut before = None;
        for (call, latency_us) in &mut entries {
            let CallShape { tokens, context } = *call;
            if before >= Some(*call) {
                return Err(TableError::Order { tokens, context });
            }
            if tokens == 0 || tokens.max(context) > Self::SIZE_MAX {
                return Err(TableError::Size {
                    tokens,
                    context,
                    limit: Self::SIZE_MAX,
                });
            }
            if !(latency_us.is_finite() && *latency_us > 0.0) {
                return Err(TableError::Latency { found: *latency_us });
            }
            *latency_us = ((*latency_us * 10.0).round() / 10.0).clamp(0.1, f64::MAX);
            before = Some(*call);
        }
        Ok(Self(entries))
    }

    /// The entries, ascending by (c, n), in µs.
    pub fn entries(&self) -> &[(CallShape, f64)] {
        &self.0
    }

    /// Whether exactly this call was measured.
    pub fn contains(&self, call: CallShape) -> bool {
        self.0.binary_search_by_key(&call, |entry| entry.0).is_ok()
    }

    /// Latency of a call in µs. Beyond the measurements it follows `trend`: the nearest measured call's latency times
    /// the ratio of the trend's values, so the unit of the trend does not matter.
    pub fn latency_us(&self, call: CallShape, trend: impl Fn(CallShape) -> f64) -> f64 {
        let upper = self.0.partition_point(|(at, _)| at.tokens < call.tokens);
        let above = self.0.get(upper).map(|(at, _)| at.tokens);
        let below = match above {
            Some(tokens) if tokens == call.tokens => return self.row_us(call, &trend),
            _ => upper.checked_sub(1).and_then(|last| self.0.get(last)),
        };
        let at = |tokens| CallShape { tokens, ..call };
        match (below.map(|(at, _)| at.tokens), above) {
            (Some(low), Some(high)) => {
                let share = f64::from(call.tokens - low) / f64::from(high - low);
                self.row_us(at(low), &trend) * (1.0 - share) + self.row_us(at(high), &trend) * share
            }
            (Some(edge), None) | (None, Some(edge)) => {
                self.row_us(at(edge), &trend) * ratio(trend(call), trend(at(edge)))
            }
            (None, None) => f64::NAN,
        }
    }

    /// Like [`Self::latency_us`], for a measured c.
    fn row_us(&self, call: CallShape, trend: &impl Fn(CallShape) -> f64) -> f64 {
        let start = self.0.partition_point(|(at, _)| at.tokens < call.tokens);
        let end = self.0.partition_point(|(at, _)| at.tokens <= call.tokens);
        let row = self.0.get(start..end).unwrap_or_default();
        let upper = row.partition_point(|(at, _)| at.context < call.context);
        let above = row.get(upper);
        let below = upper.checked_sub(1).and_then(|last| row.get(last));
        match (below, above) {
            (_, Some((at, latency_us))) if at.context == call.context => *latency_us,
            (Some((low, low_us)), Some((high, high_us))) => {
                let width = f64::from(high.context - low.context);
                let share = f64::from(call.context - low.context) / width;
                low_us * (1.0 - share) + high_us * share
            }
            (Some((edge, edge_us)), None) | (None, Some((edge, edge_us))) => {
                edge_us * ratio(trend(call), trend(*edge))
            }
            (None, None) => f64::NAN,
        }
    }
}

/// The quotient if it is defined, else 1: a trend without values changes nothing.
fn ratio(value: f64, base: f64) -> f64 {
    let quotient = value / base;
    if quotient.is_finite() && quotient > 0.0 {
        quotient
    } else {
        1.0
    }
}

impl TryFrom<Vec<(u32, u32, f64)>> for LatencyTable {
    type Error = TableError;

    fn try_from(entries: Vec<(u32, u32, f64)>) -> Result<Self, TableError> {
        let entry = |(tokens, context, latency_us)| (CallShape { tokens, context }, latency_us);
        Self::new(entries.into_iter().map(entry).collect())
    }
}

impl From<LatencyTable> for Vec<(u32, u32, f64)> {
    fn from(table: LatencyTable) -> Self {
        let entry = |(call, latency_us): (CallShape, f64)| (call.tokens, call.context, latency_us);
        table.0.into_iter().map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(tokens: u32, context: u32) -> CallShape {
        CallShape { tokens, context }
    }

    fn table(entries: &[(u32, u32, f64)]) -> Result<LatencyTable, TableError> {
        LatencyTable::try_from(entries.to_vec())
    }

    #[test]
    fn a_bilinear_truth_is_found_again() {
        let truth = |call: CallShape| {
            let (c, n) = (f64::from(call.tokens), f64::from(call.context));
            50.0 + 3.0 * c + 0.5 * n + 0.25 * c * n
        };
        let knots = [1, 4, 16, 64].map(|c| [64, 256, 1024].map(|n| call(c, n)));
        let entries = knots.iter().flatten().map(|at| (*at, truth(*at))).collect();
        let table = LatencyTable::new(entries).unwrap();
        for at in [
            call(1, 64),
            call(3, 100),
            call(17, 256),
            call(63, 1023),
            call(64, 1024),
        ] {
            let found = table.latency_us(at, |_| 1.0);
            assert!((found - truth(at)).abs() < 0.1, "{at:?}: {found}");
        }
    }

    #[test]
    fn beyond_the_table_the_trend_leads() {
        let table = table(&[(2, 32, 10.0), (4, 32, 20.0)]).unwrap();
        let trend = |at: CallShape| f64::from(at.tokens) * f64::from(at.context);
        assert_eq!(table.latency_us(call(8, 32), trend), 40.0);
        assert_eq!(table.latency_us(call(4, 64), trend), 40.0);
        assert_eq!(table.latency_us(call(1, 32), trend), 5.0);
        assert_eq!(table.latency_us(call(1, 32), |_| f64::NAN), 10.0);
    }

    #[test]
    fn what_nobody_measured_is_refused() {
        assert!(matches!(table(&[]), Err(TableError::Length { .. })));
        for entries in [[(1, 0, 1.0), (1, 0, 2.0)], [(2, 0, 1.0), (1, 5, 2.0)]] {
            assert!(matches!(table(&entries), Err(TableError::Order { .. })));
        }
        for (c, n) in [(0, 0), (u32::MAX, 0), (1, u32::MAX)] {
            assert!(matches!(
                table(&[(c, n, 1.0)]),
                Err(TableError::Size { .. })
            ));
        }
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(
                table(&[(1, 0, bad)]),
                Err(TableError::Latency { .. })
            ));
        }
    }
}
