//! One preemptive machine: shortest remaining time first.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// The remaining time of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Remaining(f64);

impl Eq for Remaining {}

impl Ord for Remaining {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Remaining {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Returns the least sum of the times from release to completion of jobs `(released, size)` on one machine of speed 1.
pub(super) fn least_sum(jobs: &[(f64, f64)]) -> f64 {
    let mut jobs = jobs.to_vec();
    jobs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut open: BinaryHeap<Reverse<Remaining>> = BinaryHeap::new();
    let (mut now, mut sum) = (0.0, 0.0);
    for (released, size) in &jobs {
        // Until this job is released the machine works on the open ones; each of them ages meanwhile.
        while let Some(Reverse(Remaining(left))) = open.pop() {
            if now + left <= *released {
                now += left;
                sum += now;
                continue;
            }
            open.push(Reverse(Remaining(left - (released - now))));
            break;
        }
        now = released.max(now);
        open.push(Reverse(Remaining(*size)));
    }
    while let Some(Reverse(Remaining(left))) = open.pop() {
        now += left;
        sum += now;
    }
    sum - jobs.iter().map(|(released, _)| released).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_shortest_remaining_job_goes_first() {
        // The long job gives way to the short one at 1, and ends at 6.
        assert_eq!(least_sum(&[(0.0, 5.0), (1.0, 1.0)]), 6.0 + 1.0);
        // With 2 left it does not give way to one of 3.
        assert_eq!(least_sum(&[(0.0, 3.0), (1.0, 3.0)]), 3.0 + 5.0);
        assert_eq!(least_sum(&[]), 0.0);
        // The machine idles between them.
        assert_eq!(least_sum(&[(10.0, 1.0), (0.0, 1.0)]), 2.0);
    }

    /// The sum if the jobs run to their ends in this order.
    fn in_order(jobs: &[(f64, f64)], order: &[usize]) -> f64 {
        let mut now: f64 = 0.0;
        let flow = |place: &usize| {
            let (released, size) = jobs[*place];
            now = now.max(released) + size;
            now - released
        };
        order.iter().map(flow).sum()
    }

    proptest! {
        #[test]
        fn no_order_is_better(
            jobs in prop::collection::vec((0.0..20.0f64, 0.1..8.0f64), 1..6),
            keys in prop::collection::vec(any::<u32>(), 6),
        ) {
            let mut order: Vec<usize> = (0..jobs.len()).collect();
            order.sort_by_key(|place| keys[*place]);
            prop_assert!(least_sum(&jobs) <= in_order(&jobs, &order) + 1e-9);
            // Nor is it less than what the jobs take.
            let all: f64 = jobs.iter().map(|(_, size)| size).sum();
            prop_assert!(least_sum(&jobs) >= all - 1e-9);
        }
    }
}
