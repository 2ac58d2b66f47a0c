//! Waiting times of reactive requests for their first kernel: the cost of preemption.

use std::time::Duration;

/// The state of the lanes when a reactive request arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Nothing: every lane was idle.
    Idle,
    /// Only proactive work, which has to give way.
    Preempting,
    /// Work that is not preempted: the request waited behind another reactive one, an earlier call of its flow, or
    /// kernels that were not ready.
    Queued,
}

impl Entry {
    /// All states, in order.
    pub const ALL: [Self; 3] = [Self::Idle, Self::Preempting, Self::Queued];

    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Preempting => "preempting",
            Self::Queued => "queued",
        }
    }
}

/// Times from submission to the launch of the first kernel, of the reactive requests that arrived in one state. All
/// zero if there were none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitStatus {
    /// The state of the lanes when the requests arrived.
    pub entry: Entry,
    /// Requests since the start.
    pub count: u64,
    /// The median of the last ones, in µs.
    pub median_us: u64,
    /// The 90th percentile of the last ones, in µs.
    pub p90_us: u64,
    /// The longest since the start, in µs.
    pub max_us: u64,
}

/// Waiting times so far, by the state at arrival.
#[derive(Default)]
pub(super) struct Waits([Recent; Entry::ALL.len()]);

/// Count and maximum of all values, and the last of them for quantiles.
#[derive(Default)]
struct Recent {
    count: u64,
    max_us: u64,
    /// The latest values, at most [`KEPT`]; the n-th value is at n modulo that.
    last_us: Vec<u64>,
}

/// Number of values that quantiles are computed from. Chosen: exact for any trace, and sorted in microseconds.
const KEPT: usize = 1024;

impl Waits {
    pub(super) fn note(&mut self, entry: Entry, wait: Duration) {
        self.0[entry as usize].note(wait.as_micros() as u64);
    }

    pub(super) fn status(&self) -> Vec<WaitStatus> {
        let status = |entry: Entry| self.0[entry as usize].status(entry);
        Entry::ALL.map(status).to_vec()
    }
}

impl Recent {
    fn note(&mut self, wait_us: u64) {
        let at = self.count as usize % KEPT;
        match self.last_us.get_mut(at) {
            Some(oldest) => *oldest = wait_us,
            None => self.last_us.push(wait_us),
        }
        self.count += 1;
        self.max_us = self.max_us.max(wait_us);
    }

    fn status(&self, entry: Entry) -> WaitStatus {
        let mut sorted = self.last_us.clone();
        sorted.sort_unstable();
        // The nearest-rank method.
        let percentile = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100);
            sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
        };
        WaitStatus {
            entry,
            count: self.count,
            median_us: percentile(50),
            p90_us: percentile(90),
            max_us: self.max_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(waits_us: impl Iterator<Item = u64>) -> WaitStatus {
        let mut waits = Waits::default();
        for wait_us in waits_us {
            waits.note(Entry::Preempting, Duration::from_micros(wait_us));
        }
        let status = waits.status();
        assert_eq!((status[0].count, status[2].count), (0, 0));
        status[1]
    }

    #[test]
    fn quantiles_are_of_the_last_waits_and_the_maximum_of_all() {
        let expected = |count, median_us, p90_us, max_us| WaitStatus {
            entry: Entry::Preempting,
            count,
            median_us,
            p90_us,
            max_us,
        };
        assert_eq!(status(0..0), expected(0, 0, 0, 0));
        assert_eq!(status([7].into_iter()), expected(1, 7, 7, 7));
        assert_eq!(status((1..=10).rev()), expected(10, 5, 9, 10));
        let long_ago = std::iter::repeat_n(9_000, 100);
        let since = (1..=KEPT as u64).rev();
        assert_eq!(
            status(long_ago.chain(since)),
            expected(1124, 512, 922, 9_000)
        );
    }
}
