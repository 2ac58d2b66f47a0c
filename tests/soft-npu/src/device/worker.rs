//! The thread that runs jobs. It takes the most urgent first, and in the order of submission among equals; what it has
//! begun it ends, unlike a device, which preempts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

use super::job::Job;
use super::queue::Priority;
use crate::abi::{Outcome, UNKNOWN};
use crate::log::lock;

/// Jobs that wait for the device.
#[derive(Default)]
struct Waiting {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    heap: BinaryHeap<Waiter>,
    submitted: u64,
}

/// A job in its place.
struct Waiter {
    place: (Priority, Reverse<u64>),
    job: Job,
}

impl PartialEq for Waiter {
    fn eq(&self, other: &Self) -> bool {
        self.place == other.place
    }
}

impl Eq for Waiter {}

impl PartialOrd for Waiter {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiter {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.place.cmp(&other.place)
    }
}

/// Gives the device a job.
///
/// # Errors
///
/// [`UNKNOWN`] if there is no thread for it.
pub(super) fn submit(job: Job, priority: Priority) -> Outcome {
    static DEVICE: OnceLock<Option<&'static Waiting>> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        // For as long as the process: its thread is never joined.
        let waiting: &'static Waiting = Box::leak(Box::default());
        let thread = std::thread::Builder::new().name("soft-npu".to_owned());
        thread.spawn(|| work(waiting)).ok().map(|_| waiting)
    });
    let device = device.ok_or(UNKNOWN)?;
    lock(&device.jobs).add(job, priority);
    device.changed.notify_one();
    Ok(())
}

fn work(waiting: &Waiting) {
    loop {
        let mut jobs = lock(&waiting.jobs);
        let waiter = loop {
            match jobs.heap.pop() {
                Some(waiter) => break waiter,
                None => {
                    let waited = waiting.changed.wait(jobs);
                    jobs = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        drop(jobs);
        let (priority, _) = waiter.place;
        waiter.job.run(priority.number());
    }
}

impl Jobs {
    fn add(&mut self, job: Job, priority: Priority) {
        let place = (priority, Reverse(self.submitted));
        self.submitted += 1;
        self.heap.push(Waiter { place, job });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_urgent_goes_first_and_equals_in_order() {
        let mut jobs = Jobs::default();
        for number in [1, 0, 2, 0, 2] {
            let job = Job {
                commands: Vec::new(),
                completion: Default::default(),
            };
            jobs.add(job, Priority::of(number));
        }
        let order = std::iter::from_fn(|| jobs.heap.pop()).map(|waiter| waiter.place);
        let order: Vec<_> = order.map(|(p, Reverse(at))| (p.number(), at)).collect();
        assert_eq!(order, [(2, 2), (2, 4), (0, 1), (0, 3), (1, 0)]);
    }
}
