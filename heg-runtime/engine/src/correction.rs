//! Corrects predictions by measured launches: a factor for each size of call.

use std::cell::Cell;
use std::time::Duration;

/// Least weight of a new observation in a factor. Chosen: a change of speed is followed within some twenty
/// launches.
const WEIGHT_MIN: f64 = 0.1;

/// Ratio of observed to predicted time.
#[derive(Debug, Clone, Copy, Default)]
struct Factor {
    value: f64,
    /// Number of launches that it is learned from.
    launches: u32,
}

/// Ratios of observed to predicted time, by the rows of a call: a guess that is right for a chunk may be far off for
/// a row. A size that has not run yet takes the factor of the nearest one that has.
#[derive(Debug, Default)]
pub(super) struct Correction([Cell<Factor>; SIZES]);

/// Number of size classes: powers of four of rows; the last class has all larger sizes.
const SIZES: usize = 6;

fn size_of(rows: u32) -> usize {
    let fours = rows.max(1).next_power_of_two().ilog2().div_ceil(2) as usize;
    fours.min(SIZES - 1)
}

impl Correction {
    /// Returns the factor for a call of `rows` rows.
    pub(super) fn factor(&self, rows: u32) -> f64 {
        let own = size_of(rows);
        let known = self.0.iter().map(Cell::get).enumerate();
        let known = known.filter(|(_, factor)| factor.launches > 0);
        let nearest = known.min_by_key(|(size, _)| size.abs_diff(own));
        nearest.map_or(1.0, |(_, factor)| factor.value)
    }

    /// Takes in the measured time of a call whose prediction, with the factor `used`, was `expected_us`. The first
    /// launch of a size sets the factor, the next ones enter it as in a mean.
    pub(super) fn learn(&self, rows: u32, used: f64, expected_us: f64, took: Duration) {
        let took_us = took.as_secs_f64() * 1e6;
        let ratio = (took_us / expected_us.max(1.0)).clamp(0.01, 100.0);
        let cell = &self.0[size_of(rows)];
        let Factor { value, launches } = cell.get();
        let weight = (1.0 / f64::from(launches.saturating_add(1))).max(WEIGHT_MIN);
        let value = value + weight * (used * ratio - value);
        cell.set(Factor {
            value: value.clamp(1e-3, 1e3),
            launches: launches.saturating_add(1),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: f64) -> Duration {
        Duration::from_secs_f64(us / 1e6)
    }

    #[test]
    fn a_size_is_known_from_its_first_launch_and_stands_for_its_neighbours() {
        let correction = Correction::default();
        assert_eq!(correction.factor(7), 1.0);
        correction.learn(256, 1.0, 1000.0, us(500.0));
        assert_eq!(correction.factor(256), 0.5);
        // No call of a single row has run yet.
        assert_eq!(correction.factor(1), 0.5);
        correction.learn(1, 0.5, 500.0, us(2000.0));
        assert!((correction.factor(1) - 2.0).abs() < 1e-9);
        assert!((correction.factor(2) - 2.0).abs() < 1e-9);
        assert_eq!(correction.factor(200), 0.5);
    }

    #[test]
    fn noise_is_averaged_and_a_change_is_followed() {
        let correction = Correction::default();
        for launch in 0..40 {
            let took = if launch % 2 == 0 { 900.0 } else { 1100.0 };
            let used = correction.factor(1);
            correction.learn(1, used, 1000.0 * used, us(took));
        }
        assert!((correction.factor(1) - 1.0).abs() < 0.02);
        for _ in 0..20 {
            let used = correction.factor(1);
            correction.learn(1, used, 1000.0 * used, us(3000.0));
        }
        assert!((correction.factor(1) - 3.0).abs() < 0.4);
    }

    #[test]
    fn rows_that_cost_the_same_share_a_size() {
        assert_eq!(
            [1, 2, 4, 5, 16, 17, 64, 65, 256, 4096].map(size_of),
            [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
        );
    }
}
