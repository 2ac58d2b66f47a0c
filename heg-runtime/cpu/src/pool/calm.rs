//! Whether polling pays: not while others want the cores.
//!
//! Who polls uses up what the system gives it, and has to let others have the core for as long as these like just when there
//! is work again; who sleeps is let in at once. So after a wait that lost a core to somebody, sides sleep for a while. It is
//! twice as long each time that such a wait comes soon again.

use std::sync::atomic::{AtomicU64, Ordering};

/// Until when sides sleep. Times are those of `Joint`.
pub(super) struct Calm {
    /// End of the while.
    from_ns: AtomicU64,
    /// Its length.
    pause_ns: AtomicU64,
}

impl Calm {
    pub(super) const fn new() -> Self {
        Self {
            from_ns: AtomicU64::new(0),
            pause_ns: AtomicU64::new(PAUSE_MIN_NS),
        }
    }

    pub(super) fn is_at(&self, now_ns: u64) -> bool {
        now_ns >= self.from_ns.load(Ordering::Relaxed)
    }

    /// Notes that somebody else had a core. Of two threads that do at once, either counts.
    pub(super) fn note_disturbance(&self, now_ns: u64) {
        let (from_ns, pause_ns) = (&self.from_ns, &self.pause_ns);
        let last_ns = pause_ns.load(Ordering::Relaxed);
        let next_ns = match now_ns.checked_sub(from_ns.load(Ordering::Relaxed)) {
            // The same neighbour still.
            None => last_ns,
            Some(calm_ns) if calm_ns < (last_ns * SOON).max(SOON_MIN_NS) => {
                (last_ns * 2).min(PAUSE_MAX_NS)
            }
            Some(_) => PAUSE_MIN_NS,
        };
        pause_ns.store(next_ns, Ordering::Relaxed);
        from_ns.store(now_ns + next_ns, Ordering::Relaxed);
    }
}

/// Shortest while. Chosen: some phases; a program, or another machine on this one's cores, that runs once for a moment
/// changes hardly anything.
const PAUSE_MIN_NS: u64 = 2_000_000;

/// Longest while. Chosen: what is lost in the slice of time that ends it is some thousandths.
const PAUSE_MAX_NS: u64 = 2_000_000_000;

/// A wait comes soon again within so many times the while ...
const SOON: u64 = 4;

/// ... and within this time at least. Chosen: many slices of time.
const SOON_MIN_NS: u64 = 80_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_that_stays_is_asked_ever_more_seldom_and_one_that_is_gone_is_forgotten() {
        let calm = Calm::new();
        assert!(calm.is_at(0));
        let mut now_ns = 7_000_000_000;
        let mut pauses_ns = Vec::new();
        for _ in 0..12 {
            calm.note_disturbance(now_ns);
            let begin_ns = now_ns;
            while !calm.is_at(now_ns) {
                now_ns += 1_000_000;
            }
            pauses_ns.push(now_ns - begin_ns);
            // It comes a slice of time later.
            now_ns += 3_000_000;
        }
        assert_eq!(pauses_ns[0], PAUSE_MIN_NS);
        assert!(pauses_ns.is_sorted() && pauses_ns[11] == PAUSE_MAX_NS);
        // Disturbed while it sleeps, a pair sleeps as long again.
        calm.note_disturbance(now_ns);
        calm.note_disturbance(now_ns + PAUSE_MAX_NS / 2);
        assert!(!calm.is_at(now_ns + PAUSE_MAX_NS));
        assert!(calm.is_at(now_ns + PAUSE_MAX_NS * 3 / 2));
        now_ns += PAUSE_MAX_NS * (SOON + 2);
        calm.note_disturbance(now_ns);
        assert!(calm.is_at(now_ns + PAUSE_MIN_NS));
    }
}
