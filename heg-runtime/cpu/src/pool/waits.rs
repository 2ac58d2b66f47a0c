//! The waits of a thread: spinning, for pieces that take microseconds, and standing by while another side works.

use std::hint::spin_loop;
use std::thread;
use std::time::{Duration, Instant};

use heg_spec::Side;

use super::call::Call;
use super::pair_barrier::PairBarrier;

/// Whether the side of a thread has pieces in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// It has.
    Needed,
    /// It has none behind some phase, if any at all.
    StandsBy,
}

/// Sleeps until a call is over, or its other side is lost. Returns whether it is over.
pub(super) fn stand_by(call: &Call, barrier: &PairBarrier, own: Side) -> bool {
    loop {
        if call.is_over() {
            return true;
        }
        if barrier.is_lost(own.other()) {
            return false;
        }
        thread::park_timeout(STANDING_BY);
    }
}

/// Limit on spinning while a thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpinBudget {
    /// Until the limit of the wait.
    Unlimited,
    /// For [`SPINNING`]; then it yields between polls, and after [`YIELDING`] it sleeps between them.
    Bounded,
}

/// Spins until `done` returns true, for at most `limit`. Returns whether it did.
pub(super) fn spin(limit: Duration, budget: SpinBudget, done: impl Fn() -> bool) -> bool {
    let mut begin = None;
    loop {
        // Most waits end here, without reading the clock.
        for _ in 0..SPINS_A_LOOK {
            if done() {
                return true;
            }
            spin_loop();
        }
        let waited = begin.get_or_insert_with(Instant::now).elapsed();
        if waited >= limit {
            return done();
        }
        match budget {
            // Late by an eighth of the wait at most.
            SpinBudget::Bounded if waited > YIELDING => {
                thread::sleep((waited / 8).min(STANDING_BY));
            }
            SpinBudget::Bounded if waited > SPINNING => thread::yield_now(),
            _ => {}
        }
    }
}

/// Spins between reads of the clock. Chosen: a few microseconds, a hundred times the cost of a read.
const SPINS_A_LOOK: u32 = 128;

/// Time that a thread spins before it yields its core. Chosen: longer than most pieces take.
const SPINNING: Duration = Duration::from_micros(30);

/// Time after which whoever is waited for is taken to be held up: it has no core, or makes way for another engine's job, which
/// needs the core of the one that waits. Chosen: longer than pieces of long prompts take, and far below a job.
const YIELDING: Duration = Duration::from_millis(10);

/// Most time between two looks, at one that is held up or of a side that has nothing to do. Chosen: hardly any work, and far
/// below what it takes to lose a side.
const STANDING_BY: Duration = Duration::from_millis(1);
