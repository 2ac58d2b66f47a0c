//! Backoff from polling while other processes want the cores.
//!
//! A polling thread uses up its time slice, and is descheduled just when there is work again; a sleeping thread is
//! scheduled at once. So after a wait that lost a core to another process, both sides sleep instead of polling for a
//! while, twice as long each time that this recurs soon.

use std::sync::atomic::{AtomicU64, Ordering};

/// Time until which sides sleep, in ns since the barrier's origin.
pub(super) struct PollBackoff {
    /// End of the pause.
    from_ns: AtomicU64,
    /// Length of the latest pause.
    pause_ns: AtomicU64,
}

impl PollBackoff {
    pub(super) const fn new() -> Self {
        Self {
            from_ns: AtomicU64::new(0),
            pause_ns: AtomicU64::new(PAUSE_MIN_NS),
        }
    }

    pub(super) fn may_poll_at(&self, now_ns: u64) -> bool {
        now_ns >= self.from_ns.load(Ordering::Relaxed)
    }

    /// Records that another process had a core. Of two concurrent calls either may win.
    pub(super) fn note_disturbance(&self, now_ns: u64) {
        let (from_ns, pause_ns) = (&self.from_ns, &self.pause_ns);
        let last_ns = pause_ns.load(Ordering::Relaxed);
        let next_ns = match now_ns.checked_sub(from_ns.load(Ordering::Relaxed)) {
            // Still the same disturbance.
            None => last_ns,
            Some(idle_ns) if idle_ns < (last_ns * SOON).max(SOON_MIN_NS) => {
                (last_ns * 2).min(PAUSE_MAX_NS)
            }
            Some(_) => PAUSE_MIN_NS,
        };
        pause_ns.store(next_ns, Ordering::Relaxed);
        from_ns.store(now_ns + next_ns, Ordering::Relaxed);
    }
}

/// Shortest pause. Chosen: a few phases, so that a single interruption costs hardly anything.
const PAUSE_MIN_NS: u64 = 2_000_000;

/// Longest pause. Chosen: the time slice lost at its end is some thousandths of it.
const PAUSE_MAX_NS: u64 = 2_000_000_000;

/// A disturbance recurs soon within this many times the latest pause ...
const SOON: u64 = 4;

/// ... and at least within this time. Chosen: many time slices.
const SOON_MIN_NS: u64 = 80_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_that_stays_is_asked_ever_more_seldom_and_one_that_is_gone_is_forgotten() {
        let backoff = PollBackoff::new();
        assert!(backoff.may_poll_at(0));
        let mut now_ns = 7_000_000_000;
        let mut pauses_ns = Vec::new();
        for _ in 0..12 {
            backoff.note_disturbance(now_ns);
            let begin_ns = now_ns;
            while !backoff.may_poll_at(now_ns) {
                now_ns += 1_000_000;
            }
            pauses_ns.push(now_ns - begin_ns);
            // It recurs a time slice later.
            now_ns += 3_000_000;
        }
        assert_eq!(pauses_ns[0], PAUSE_MIN_NS);
        assert!(pauses_ns.is_sorted() && pauses_ns[11] == PAUSE_MAX_NS);
        // A disturbance during a pause extends it by its length.
        backoff.note_disturbance(now_ns);
        backoff.note_disturbance(now_ns + PAUSE_MAX_NS / 2);
        assert!(!backoff.may_poll_at(now_ns + PAUSE_MAX_NS));
        assert!(backoff.may_poll_at(now_ns + PAUSE_MAX_NS * 3 / 2));
        now_ns += PAUSE_MAX_NS * (SOON + 2);
        backoff.note_disturbance(now_ns);
        assert!(backoff.may_poll_at(now_ns + PAUSE_MIN_NS));
    }
}
