//! Threads that carry out the steps of a call together.
//!
//! A call is handed to all threads at once, and they meet between steps. They spin while they wait, because a step takes
//! microseconds; a thread that waits longer gives its core away, and parks when no call comes.

use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use crate::error::Error;

/// What every thread runs, with its number.
type Job<'a> = dyn Fn(usize) + Sync + 'a;

/// Threads of one device, the caller's included.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    /// Number of calls so far; raised when the next one is there.
    calls: AtomicU32,
    /// Threads that have not yet ended the call, without the caller's.
    running: AtomicUsize,
    job: UnsafeCell<*const Job<'static>>,
    /// Threads that are parked or about to be.
    parked: AtomicUsize,
    ends: AtomicBool,
    barrier: Barrier,
}

// SAFETY: the job is written by the caller alone, before it raises `calls` and after every thread has ended the call
// before; threads read it between. All of it goes through atomics with the orders that this needs.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// A place where all threads of a call wait for each other.
pub(crate) struct Barrier {
    threads: usize,
    arrived: AtomicUsize,
    rounds: AtomicU32,
    /// Whether a thread panicked: nobody waits for it.
    is_broken: AtomicBool,
}

impl Barrier {
    const fn new(threads: usize) -> Self {
        Self {
            threads,
            arrived: AtomicUsize::new(0),
            rounds: AtomicU32::new(0),
            is_broken: AtomicBool::new(false),
        }
    }

    /// Waits for the other threads. False where one of them is lost: the call is to be left.
    #[must_use]
    pub(crate) fn wait(&self) -> bool {
        if self.threads == 1 {
            return true;
        }
        let round = self.rounds.load(Ordering::Relaxed);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.rounds.store(round.wrapping_add(1), Ordering::Release);
            return true;
        }
        patiently(|| {
            self.rounds.load(Ordering::Acquire) != round || self.is_broken.load(Ordering::Relaxed)
        });
        !self.is_broken.load(Ordering::Relaxed)
    }
}

/// Spins until `done`, and gives the core away now and then once it takes long: on a machine whose cores are all busy,
/// the thread that is waited for may not be running.
fn patiently(done: impl Fn() -> bool) {
    let mut spins = 0_u32;
    while !done() {
        spins = spins.wrapping_add(1);
        match spins.is_multiple_of(SPINS_TO_YIELD) {
            true => thread::yield_now(),
            false => spin_loop(),
        }
    }
}

/// Spins before a thread gives its core away. Chosen: some 30 µs, longer than the difference between two threads in
/// most steps.
const SPINS_TO_YIELD: u32 = 1 << 10;

/// Spins before a thread parks when no call comes. Chosen: about a millisecond, longer than from one launch to the next.
const SPINS_TO_PARK: u32 = 1 << 15;

impl Pool {
    /// A pool of `threads`, one of them the caller's.
    pub(crate) fn new(threads: usize) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            calls: AtomicU32::new(0),
            running: AtomicUsize::new(0),
            job: UnsafeCell::new(std::ptr::from_ref::<Job<'static>>(&|_| ())),
            parked: AtomicUsize::new(0),
            ends: AtomicBool::new(false),
            barrier: Barrier::new(threads.max(1)),
        });
        let mut pool = Self {
            shared,
            threads: Vec::new(),
        };
        for number in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let thread = thread::Builder::new()
                .name(format!("heg-cpu-{number}"))
                .spawn(move || shared.serve(number))
                .map_err(Error::Thread)?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Number of threads, the caller's included.
    pub(crate) const fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs a job on all threads, and returns when all of them are through. They meet at the barrier that it is given.
    pub(crate) fn run(&mut self, job: &(dyn Fn(usize, &Barrier) + Sync)) -> Result<(), Error> {
        let shared = &*self.shared;
        let job = |thread: usize| job(thread, &shared.barrier);
        let job: &Job<'_> = &job;
        // SAFETY: only the lifetime changes. Every thread has ended the call when this function returns, as it waits
        // for `running`, and reads the job only within a call.
        let job = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
        // SAFETY: no thread reads it before `calls` is raised below, and `&mut self` keeps other callers out.
        unsafe { *shared.job.get() = job };
        shared.running.store(self.threads.len(), Ordering::Relaxed);
        shared.calls.fetch_add(1, Ordering::SeqCst);
        if shared.parked.load(Ordering::SeqCst) > 0 {
            self.threads
                .iter()
                .for_each(|thread| thread.thread().unpark());
        }
        shared.carry_out(0);
        patiently(|| shared.running.load(Ordering::Acquire) == 0);
        match shared.barrier.is_broken.load(Ordering::Relaxed) {
            true => Err(Error::Lost),
            false => Ok(()),
        }
    }
}

impl Shared {
    /// Carries out calls until the pool is dropped.
    fn serve(&self, number: usize) {
        let mut seen = 0;
        loop {
            self.wait_for_call(seen);
            seen = self.calls.load(Ordering::Acquire);
            if self.ends.load(Ordering::Relaxed) {
                return;
            }
            self.carry_out(number);
            self.running.fetch_sub(1, Ordering::Release);
        }
    }

    fn wait_for_call(&self, seen: u32) {
        let is_there = || self.calls.load(Ordering::SeqCst) != seen;
        for spin in 0..SPINS_TO_PARK {
            if is_there() {
                return;
            }
            match spin % SPINS_TO_YIELD == SPINS_TO_YIELD - 1 {
                true => thread::yield_now(),
                false => spin_loop(),
            }
        }
        self.parked.fetch_add(1, Ordering::SeqCst);
        while !is_there() {
            thread::park();
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
    }

    fn carry_out(&self, number: usize) {
        // SAFETY: the caller wrote it before it raised `calls`, and does not return before this call has ended.
        let job = unsafe { &**self.job.get() };
        if catch_unwind(AssertUnwindSafe(|| job(number))).is_err() {
            self.barrier.is_broken.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        self.shared.calls.fetch_add(1, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // It catches what it runs, so there is nothing to learn from how it ended.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_pass_each_step_together() {
        let mut pool = Pool::new(3).unwrap();
        for _ in 0..200 {
            let steps: Vec<AtomicUsize> = (0..20).map(|_| AtomicUsize::new(0)).collect();
            pool.run(&|_, barrier| {
                for step in &steps {
                    step.fetch_add(1, Ordering::Relaxed);
                    assert!(barrier.wait());
                    assert_eq!(step.load(Ordering::Relaxed), 3);
                }
            })
            .unwrap();
        }
    }

    #[test]
    fn a_parked_pool_wakes_up() {
        let mut pool = Pool::new(2).unwrap();
        for _ in 0..3 {
            thread::sleep(std::time::Duration::from_millis(30));
            let count = AtomicUsize::new(0);
            pool.run(&|_, _| {
                count.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
            assert_eq!(count.into_inner(), 2);
        }
    }

    #[test]
    fn a_lost_thread_is_an_error_and_nobody_waits_for_it() {
        let mut pool = Pool::new(2).unwrap();
        let lost = pool.run(&|thread, barrier| {
            assert_ne!(thread, 1, "on purpose");
            assert!(!barrier.wait());
        });
        assert!(matches!(lost, Err(Error::Lost)));
    }
}
