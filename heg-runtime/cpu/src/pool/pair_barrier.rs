//! Barrier between the two sides of a pair, at the end of each phase.
//!
//! Fast synchronisation: a side polls the other's piece counts, which lie beside its own and are reused from order to
//! order. In phases that may be long, as in prompts, it first sleeps for most of the shortest wait seen lately in
//! phases of this kind. Phases of decoding are shorter than the error of a sleep, so there it only polls. A side that
//! has polled for longer than such waits take assumes that the other has lost its core: it sleeps until the bell rings,
//! and both sides sleep wherever they wait for a while (`poll_backoff`). Plain synchronisation always sleeps.
//!
//! A side is late when it keeps the other waiting several times as long as before. The other then takes the pieces that
//! the late side has not begun, and does not wait for that side again until it has finished a piece. A side that
//! panicked is lost: it takes no more pieces, and the other redoes those that it had begun. A piece that a late side
//! still works on is waited for, since its memory cannot be taken away.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use heg_spec::Side;
use heg_spec::policy::Synchronisation;

use super::call::{Phase, Queue};
use super::hand_over::{HandOverCounts, HandOvers};
use super::poll_backoff::PollBackoff;
use super::waits::{SpinBudget, spin};
use crate::division::{SIDES, index};

/// The barrier, and statistics of its waits.
pub(super) struct PairBarrier {
    how: Synchronisation,
    /// Origin of all times.
    origin: Instant,
    /// Waits by hash of the phase's timing key: a tag, then the longest and the shortest of late, in µs.
    known: Vec<AtomicU64>,
    /// Whether each side is late.
    late: [AtomicBool; 2],
    /// Index of the lost side, [`BOTH`] or [`NONE`].
    lost: AtomicU8,
    hand_overs: HandOverCounts,
    /// Times that a partner's parts took beside its work: to get there, and back.
    partner_hand_overs: HandOverCounts,
    /// Decides whether waits poll or sleep.
    backoff: PollBackoff,
    /// Number of threads that wait for the bell, or are about to.
    sleeping: AtomicUsize,
    /// Rings at the end of a side's phase: always in plain synchronisation, otherwise if a thread sleeps.
    bell: (Mutex<()>, Condvar),
}

/// Read-only handle to a pair's wait statistics; usable while it runs.
#[derive(Clone)]
pub struct PairWatch(pub(super) Arc<PairBarrier>);

impl PairWatch {
    /// Hand-over latencies so far.
    pub fn hand_overs(&self) -> HandOvers {
        self.0.hand_overs.read()
    }

    /// Times that parts of a partner took beside its work: until it began, and until its side knew of the end.
    pub fn partner_hand_overs(&self) -> HandOvers {
        self.0.partner_hand_overs.read()
    }

    /// Records the time that a part of a partner took beside its work.
    pub(crate) fn note_partner(&self, took: Duration) {
        self.0.partner_hand_overs.add(took.as_nanos() as u64);
    }

    /// The lost side, if any: the other runs everything.
    pub fn lost_side(&self) -> Option<Side> {
        SIDES.into_iter().find(|side| self.0.is_lost(*side))
    }
}

/// A wait for the other side, in progress.
pub(super) struct Wait {
    begin_ns: u64,
    /// Slot and tag of its statistics.
    slot: usize,
    tag: u64,
    expected: Option<Expected>,
}

/// Bounds of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Expected {
    longest_us: u64,
    shortest_us: u64,
}

impl Expected {
    /// Unpacks a slot; `None` if its tag differs.
    fn of(known: u64, tag: u64) -> Option<Self> {
        (known >> TAG_SHIFT == tag).then_some(Self {
            longest_us: known >> TIME_BITS & MICROSECONDS,
            shortest_us: known & MICROSECONDS,
        })
    }

    /// Adds a wait: a bound moves at once to a wait outside of it, and by an eighth to one inside.
    fn with(self, waited_us: u64) -> Self {
        let Self {
            longest_us,
            shortest_us,
        } = self;
        Self {
            longest_us: waited_us.max(longest_us - longest_us.saturating_sub(waited_us) / 8),
            shortest_us: waited_us.min(shortest_us + waited_us.saturating_sub(shortest_us) / 8),
        }
    }

    /// Time to sleep before the other side can be done.
    fn sleep(self) -> Duration {
        Duration::from_micros(self.shortest_us * 3 / 4).saturating_sub(EARLY)
    }

    /// Polling time after which the other side must have lost its core.
    fn polled_until(self) -> Duration {
        Duration::from_micros(self.longest_us) * 5 / 4 + LOST
    }

    fn noted(self, tag: u64) -> u64 {
        tag << TAG_SHIFT | self.longest_us << TIME_BITS | self.shortest_us
    }
}

impl PairBarrier {
    pub(super) fn new(how: Synchronisation) -> Self {
        Self {
            how,
            origin: Instant::now(),
            known: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            late: [const { AtomicBool::new(false) }; 2],
            lost: AtomicU8::new(NONE),
            hand_overs: HandOverCounts::new(),
            partner_hand_overs: HandOverCounts::new(),
            backoff: PollBackoff::new(),
            sleeping: AtomicUsize::new(0),
            bell: (Mutex::new(()), Condvar::new()),
        }
    }

    /// Whether a side has panicked and takes no more pieces.
    pub(super) fn is_lost(&self, side: Side) -> bool {
        usize::from(self.lost.load(Ordering::Relaxed)) == index(side)
    }

    /// Records that a side panicked. Returns whether the other goes on.
    pub(super) fn note_lost(&self, side: Side) -> bool {
        let side = index(side) as u8;
        match self
            .lost
            .compare_exchange(NONE, side, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => true,
            Err(lost) if lost == side => true,
            Err(_) => {
                // Both panicked: both take pieces again, so that the order ends.
                self.lost.store(BOTH, Ordering::Relaxed);
                false
            }
        }
    }

    /// Records that a side has finished a piece, so it is not late.
    fn note_here(&self, side: Side) {
        if let Some(late) = self.late.get(index(side))
            && late.load(Ordering::Relaxed)
        {
            late.store(false, Ordering::Relaxed);
        }
    }

    /// Records that a side is late.
    pub(super) fn note_late(&self, side: Side) {
        if let Some(late) = self.late.get(index(side)) {
            late.store(true, Ordering::Relaxed);
        }
    }

    /// Counts a piece as done, by a thread of the side `own`.
    pub(super) fn piece_done(&self, queue: &Queue, own: Side) {
        self.note_here(own);
        queue.ended_ns.store(self.now_ns(), Ordering::Relaxed);
        let done = queue.done.fetch_add(1, Ordering::Release) + 1;
        if done == queue.pieces {
            // Either this thread sees the sleeper, or the sleeper sees that the piece is done.
            fence(Ordering::SeqCst);
            let is_heard = self.sleeping.load(Ordering::Relaxed) > 0;
            if is_heard || self.how == Synchronisation::Plain {
                let (lock, bell) = &self.bell;
                drop(lock.lock().unwrap_or_else(PoisonError::into_inner));
                bell.notify_all();
            }
        }
    }

    /// Begins a wait of side `own`.
    pub(super) fn begin(&self, phase: Phase<'_>, own: Side) -> Wait {
        let timing_key = phase
            .first
            .timing_key
            .wrapping_mul(2)
            .wrapping_add(index(own) as u64);
        // Fibonacci hashing: the upper bits depend on all of them.
        let hash = timing_key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slot = (hash >> 32) as usize % SLOTS;
        // Never 0, the tag of an empty slot.
        let tag = hash >> TAG_SHIFT | 1;
        let noted = self.known.get(slot);
        let known = noted.map_or(0, |noted| noted.load(Ordering::Relaxed));
        Wait {
            begin_ns: self.now_ns(),
            slot,
            tag,
            expected: Expected::of(known, tag),
        }
    }

    /// Waiting time after which the other side counts as late.
    pub(super) fn patience(&self, wait: &Wait, other: Side) -> Duration {
        let late = self.late.get(index(other));
        if self.is_lost(other) || late.is_some_and(|late| late.load(Ordering::Relaxed)) {
            return Duration::ZERO;
        }
        wait.expected.map_or(UNKNOWN, |expected| {
            Duration::from_micros(expected.longest_us * LATE_TIMES).max(LATE_MIN)
        })
    }

    /// Waits for at most `limit` until a phase is over. Returns whether it is.
    pub(super) fn wait(&self, phase: Phase<'_>, wait: &Wait, limit: Duration) -> bool {
        let mut left = limit;
        if self.how == Synchronisation::Fast {
            let since = || Duration::from_nanos(self.now_ns().saturating_sub(wait.begin_ns));
            let before = since();
            let sleep = wait.expected.map_or(Duration::ZERO, Expected::sleep);
            // Only once, and not while waiting for a late side's last piece.
            if phase.first.is_long && sleep > SLEEP_MIN && before < SLEEP_MIN && limit > sleep {
                thread::sleep(sleep);
            }
            let polling = self.polling(wait).saturating_sub(since());
            if spin(limit.min(polling), SpinBudget::Unlimited, || {
                phase.is_over()
            }) {
                return true;
            }
            left = limit.saturating_sub(since().saturating_sub(before));
        }
        self.sleep_until_over(phase, left)
    }

    /// Time from the start of a wait during which it polls.
    fn polling(&self, wait: &Wait) -> Duration {
        if self.may_poll() {
            wait.expected.map_or(LOST, Expected::polled_until)
        } else {
            Duration::ZERO
        }
    }

    /// Sleeps for at most `limit` until a phase is over. Returns whether it is.
    fn sleep_until_over(&self, phase: Phase<'_>, limit: Duration) -> bool {
        if limit > Duration::ZERO {
            self.sleeping.fetch_add(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let (lock, bell) = &self.bell;
            let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
            let rung = bell.wait_timeout_while(guard, limit, |()| !phase.is_over());
            drop(rung.unwrap_or_else(PoisonError::into_inner));
            self.sleeping.fetch_sub(1, Ordering::Relaxed);
        }
        phase.is_over()
    }

    /// Records that a side did not have to wait.
    pub(super) fn without_wait(&self, phase: Phase<'_>, own: Side) {
        if phase.first.is_long {
            self.note(&self.begin(phase, own), 0);
        }
    }

    /// Ends a wait in which each side did its own pieces.
    pub(super) fn end(&self, phase: Phase<'_>, wait: &Wait, own: Side) {
        self.end_at(phase, wait, own, self.now_ns());
    }

    fn end_at(&self, phase: Phase<'_>, wait: &Wait, own: Side, now_ns: u64) {
        let Some(other) = phase.queue(own.other()) else {
            return;
        };
        let ended_ns = other.ended_ns.load(Ordering::Relaxed);
        // Otherwise another thread of the own side was waited for.
        if ended_ns < wait.begin_ns {
            return;
        }
        self.hand_overs.add(now_ns.saturating_sub(ended_ns));
        self.note_length(wait, now_ns);
        self.note(wait, (ended_ns - wait.begin_ns) / 1000);
    }

    /// Ends a wait in which this side did pieces of the other, so nothing was handed over.
    ///
    /// Most such waits are accidents, so they hardly change the bounds; but if the other side's pieces have become
    /// slower, repeated waits will.
    pub(super) fn end_without(&self, wait: &Wait) {
        let now_ns = self.now_ns();
        self.note_length(wait, now_ns);
        let longest_us = wait.expected.map_or(0, |expected| expected.longest_us);
        let most_us = (2 * longest_us).max(LATE_MIN.as_micros() as u64 / LATE_TIMES);
        let waited_us = now_ns.saturating_sub(wait.begin_ns) / 1000;
        self.note(wait, waited_us.min(most_us));
    }

    /// Reports a wait so long that another process must have had a core.
    fn note_length(&self, wait: &Wait, now_ns: u64) {
        let waited = Duration::from_nanos(now_ns.saturating_sub(wait.begin_ns));
        if wait
            .expected
            .is_some_and(|expected| waited > expected.polled_until())
        {
            self.backoff.note_disturbance(now_ns);
        }
    }

    /// Number of threads that wait for the bell, or are about to.
    #[cfg(test)]
    pub(super) fn sleeping(&self) -> usize {
        self.sleeping.load(Ordering::Relaxed)
    }

    fn note(&self, wait: &Wait, waited_us: u64) {
        let waited_us = waited_us.min(MICROSECONDS);
        let known = wait.expected.unwrap_or(Expected {
            longest_us: waited_us,
            shortest_us: waited_us,
        });
        if let Some(slot) = self.known.get(wait.slot) {
            slot.store(known.with(waited_us).noted(wait.tag), Ordering::Relaxed);
        }
    }

    /// Whether waits poll: neither side has lost its core lately.
    pub(super) fn may_poll(&self) -> bool {
        self.backoff.may_poll_at(self.now_ns())
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }
}

/// Value of `lost`: no side.
const NONE: u8 = u8::MAX;

/// Value of `lost`: both sides.
const BOTH: u8 = u8::MAX - 1;

/// Number of slots. Chosen: a model has some ten kinds of phases per number of tokens.
const SLOTS: usize = 1024;

/// Bits of a stored time.
const TIME_BITS: u32 = 24;

/// Position of the tag, above two times.
const TAG_SHIFT: u32 = 2 * TIME_BITS;

/// Longest stored wait: 16 s.
const MICROSECONDS: u64 = (1 << TIME_BITS) - 1;

/// Excess of a wait that shows that another process had a core. Chosen: far above the variation between undisturbed
/// orders, and below a time slice.
const LOST: Duration = Duration::from_micros(500);

/// Shortest sleep. Chosen: many times its error, so that sides that end nearly together only poll.
const SLEEP_MIN: Duration = Duration::from_millis(1);

/// Margin by which a sleep ends early. Chosen: Linux adds 50 µs, and waking takes as long again.
const EARLY: Duration = Duration::from_micros(200);

/// A side is late that takes this many times as long as before ...
const LATE_TIMES: u64 = 8;

/// ... and at least this long. Chosen: longer than the time slice of another process.
const LATE_MIN: Duration = Duration::from_millis(5);

/// Time after which a side without statistics is late. Chosen: longer than any phase takes.
const UNKNOWN: Duration = Duration::from_secs(1);

/// Interval of checks for pieces to redo, while waiting for a late side's last piece.
pub(super) const HELD: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::pool::call::{Call, Pieces};

    #[test]
    fn waits_are_polled_as_long_as_they_may_take_and_no_longer() {
        let of = |longest_us, shortest_us| Expected {
            longest_us,
            shortest_us,
        };
        let us = Duration::from_micros;
        assert!(of(400, 10).polled_until() > us(800) && of(400, 10).polled_until() < us(1200));
        assert!(of(90_000, 80_000).polled_until() < us(120_000));
        assert!(of(410, 400).sleep() < us(400) && of(90_000, 80_000).sleep() > us(50_000));
    }

    #[test]
    fn who_lost_a_core_to_somebody_polls_no_more() {
        let mut call = Call::empty(std::ptr::from_ref(&|_| ControlFlow::Continue(())));
        let pieces = Pieces {
            of_side: [1, 1],
            ..Pieces::default()
        };
        call.fill([pieces].into_iter(), true, call.work);
        let phase = call.phase(0).unwrap();
        let waited = |waited_ns: u64, usual_us: u64| {
            let barrier = PairBarrier::new(Synchronisation::Fast);
            let begin_ns = barrier.now_ns();
            let wait = Wait {
                expected: Some(Expected {
                    longest_us: usual_us,
                    shortest_us: usual_us,
                }),
                ..barrier.begin(phase, Side::First)
            };
            let other = phase.queue(Side::Second).unwrap();
            other.ended_ns.store(wait.begin_ns, Ordering::Relaxed);
            barrier.end_at(phase, &wait, Side::First, begin_ns + waited_ns);
            (barrier, wait)
        };
        let (barrier, wait) = waited(400_000, 50);
        assert!(barrier.may_poll() && barrier.polling(&wait) > Duration::from_micros(50));
        // An hour too long, so that the pause is not over yet.
        let (barrier, wait) = waited(3_600_000_000_000, 50);
        assert!(!barrier.may_poll());
        assert_eq!(barrier.polling(&wait), Duration::ZERO);
    }

    #[test]
    fn bounds_of_waits_follow_at_once_outwards_and_slowly_inwards() {
        let first = Expected {
            longest_us: 800,
            shortest_us: 800,
        };
        let wider = first.with(1600).with(400);
        let bounds = |it: Expected| (it.longest_us, it.shortest_us);
        assert_eq!(bounds(wider), (1450, 400));
        let mut closer = wider;
        for _ in 0..100 {
            closer = closer.with(1000);
        }
        let (longest_us, shortest_us) = bounds(closer);
        assert!((1000..1010).contains(&longest_us) && (990..=1000).contains(&shortest_us));
        assert_eq!(Expected::of(closer.noted(7), 7), Some(closer));
        assert_eq!(Expected::of(closer.noted(7), 9), None);
        assert_eq!(Expected::of(0, 1), None);
    }
}
