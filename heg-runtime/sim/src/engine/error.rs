//! Ends of a simulation that are no result.

use heg_sched::{Lane, Micros, Ticket};
use thiserror::Error;

/// The reason why a simulation did not finish.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SimulationError {
    /// The scheduler launched something on a lane that is busy or away.
    #[error("launch {} on the {lane:?} lane, which is not free", ticket.0)]
    NotFree {
        /// The launch.
        ticket: Ticket,
        /// The lane.
        lane: Lane,
    },
    /// The scheduler launched something for which the lane has no kernel.
    #[error("launch {} on the {lane:?} lane, which has no kernel for it", ticket.0)]
    NoKernel {
        /// The launch.
        ticket: Ticket,
        /// The lane.
        lane: Lane,
    },
    /// Requests are live, but nothing runs and nothing is planned.
    #[error("nothing happens any more after {} s, with {live} requests live", now.as_secs())]
    Stalled {
        /// The time since which nothing has happened.
        now: Micros,
        /// Number of live requests.
        live: usize,
    },
    /// Requests are still live after the maximum number of steps.
    #[error("no end after {steps} steps, at {} s", now.as_secs())]
    TooLong {
        /// Number of steps.
        steps: u64,
        /// Virtual time.
        now: Micros,
    },
    /// Events keep coming while virtual time stands still.
    #[error("more than {STEPS_PER_INSTANT} events at {} s", now.as_secs())]
    Runaway {
        /// Virtual time.
        now: Micros,
    },
}

/// Maximum number of events at one time; more are an endless loop. Chosen: far more than a thousand requests can cause.
pub(super) const STEPS_PER_INSTANT: u32 = 100_000;
