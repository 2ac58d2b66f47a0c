//! How the two sides of a pair wait for each other at the end of a phase.
//!
//! Fast: a side polls the counts of the other, which lie beside what it computes and are used again from order to order.
//! Where a phase may be long, as those of prompts are, it first sleeps for most of the time that it waited at least at the
//! last phases of this kind. Phases of decoding are as short as a sleep is inexact, so it only polls there. A side that has
//! polled for longer than such a wait takes stops: the other has lost its core to somebody. It sleeps until the other rings,
//! and for a while both sleep at once wherever they wait (`calm`). Plain: they always do.
//!
//! A side is late when it lets the other wait several times as long as before. The other then takes the pieces that it has
//! not begun, and waits for it no more until it has done one again. A side that panicked is lost: it takes nothing any more,
//! and the other does what it had begun again. What a side has begun and still works on is waited for, as its memory
//! cannot be taken from it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use heg_spec::Side;
use heg_spec::policy::Synchronisation;

use super::call::{Phase, Queue};
use super::calm::Calm;
use super::hand_over::{HandOverCounts, HandOvers};
use super::{Impatience, spin};
use crate::division::{SIDES, index};

/// How two sides wait for each other, and what is known of their waits.
pub(super) struct Joint {
    how: Synchronisation,
    /// Where times are counted from.
    origin: Instant,
    /// How long sides have waited, by likeness of the phase: a tag, the longest and the shortest of late, in µs.
    known: Vec<AtomicU64>,
    /// Sides whose pieces the other took.
    late: [AtomicBool; 2],
    /// Number of the side that was lost, or [`NONE`].
    lost: AtomicU8,
    hand_overs: HandOverCounts,
    /// Whether polling pays.
    calm: Calm,
    /// Threads that wait for the bell, or are about to.
    sleeping: AtomicUsize,
    /// Rings at the end of a side's phase: always for plain synchronisation, otherwise where somebody sleeps.
    bell: (Mutex<()>, Condvar),
}

/// A look at a pair, also while it runs an order.
#[derive(Clone)]
pub struct PairWatch(pub(super) Arc<Joint>);

impl PairWatch {
    /// How long the sides took to hand over to each other so far.
    pub fn hand_overs(&self) -> HandOvers {
        self.0.hand_overs.read()
    }

    /// The side that was lost: the other runs everything.
    pub fn lost_side(&self) -> Option<Side> {
        SIDES.into_iter().find(|side| self.0.is_lost(*side))
    }
}

/// A wait for the other side.
pub(super) struct Wait {
    begin_ns: u64,
    /// Where it is known how long it takes, and under which tag.
    slot: usize,
    tag: u64,
    expected: Option<Expected>,
}

/// How long a wait takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Expected {
    longest_us: u64,
    shortest_us: u64,
}

impl Expected {
    /// What was noted under a tag.
    fn of(known: u64, tag: u64) -> Option<Self> {
        (known >> TAG_SHIFT == tag).then_some(Self {
            longest_us: known >> TIME_BITS & MICROSECONDS,
            shortest_us: known & MICROSECONDS,
        })
    }

    /// The same with another wait: both bounds move to it at once if it is outside, and slowly if it is within.
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

    /// Time to sleep before the other side can have ended.
    fn sleep(self) -> Duration {
        Duration::from_micros(self.shortest_us * 3 / 4).saturating_sub(EARLY)
    }

    /// Time after which the other side has lost its core to somebody.
    fn polled_until(self) -> Duration {
        Duration::from_micros(self.longest_us) * 5 / 4 + LOST
    }

    fn noted(self, tag: u64) -> u64 {
        tag << TAG_SHIFT | self.longest_us << TIME_BITS | self.shortest_us
    }
}

impl Joint {
    pub(super) fn new(how: Synchronisation) -> Self {
        Self {
            how,
            origin: Instant::now(),
            known: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            late: [const { AtomicBool::new(false) }; 2],
            lost: AtomicU8::new(NONE),
            hand_overs: HandOverCounts::new(),
            calm: Calm::new(),
            sleeping: AtomicUsize::new(0),
            bell: (Mutex::new(()), Condvar::new()),
        }
    }

    /// Whether a side takes no pieces any more.
    pub(super) fn is_lost(&self, side: Side) -> bool {
        usize::from(self.lost.load(Ordering::Relaxed)) == index(side)
    }

    /// Notes that a side panicked. Returns whether the other one goes on.
    pub(super) fn note_lost(&self, side: Side) -> bool {
        let side = index(side) as u8;
        match self
            .lost
            .compare_exchange(NONE, side, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => true,
            Err(lost) if lost == side => true,
            Err(_) => {
                // Both panicked: each takes pieces again, so that the order comes to its end.
                self.lost.store(BOTH, Ordering::Relaxed);
                false
            }
        }
    }

    /// Notes that a side does pieces.
    fn note_here(&self, side: Side) {
        if let Some(late) = self.late.get(index(side))
            && late.load(Ordering::Relaxed)
        {
            late.store(false, Ordering::Relaxed);
        }
    }

    /// Notes that a side did not come in time.
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
            // Either this one sees that somebody sleeps, or who is about to sees that the piece is done.
            fence(Ordering::SeqCst);
            let is_heard = self.sleeping.load(Ordering::Relaxed) > 0;
            if is_heard || self.how == Synchronisation::Plain {
                let (lock, bell) = &self.bell;
                drop(lock.lock().unwrap_or_else(PoisonError::into_inner));
                bell.notify_all();
            }
        }
    }

    /// Begins to wait as a side.
    pub(super) fn begin(&self, phase: Phase<'_>, own: Side) -> Wait {
        let likeness = phase
            .first
            .likeness
            .wrapping_mul(2)
            .wrapping_add(index(own) as u64);
        // Fibonacci hashing: the upper bits depend on all of them.
        let hash = likeness.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slot = (hash >> 32) as usize % SLOTS;
        // Never that of a slot that has nothing yet.
        let tag = hash >> TAG_SHIFT | 1;
        let known = self.known.get(slot);
        let known = known.map_or(0, |known| known.load(Ordering::Relaxed));
        Wait {
            begin_ns: self.now_ns(),
            slot,
            tag,
            expected: Expected::of(known, tag),
        }
    }

    /// Time after which the other side is late.
    pub(super) fn patience(&self, wait: &Wait, other: Side) -> Duration {
        let late = self.late.get(index(other));
        if self.is_lost(other) || late.is_some_and(|late| late.load(Ordering::Relaxed)) {
            return Duration::ZERO;
        }
        wait.expected.map_or(UNKNOWN, |expected| {
            Duration::from_micros(expected.longest_us * LATE_TIMES).max(LATE_MIN)
        })
    }

    /// Waits until a phase is over, for so long. Returns whether it is.
    pub(super) fn wait(&self, phase: Phase<'_>, wait: &Wait, limit: Duration) -> bool {
        let mut left = limit;
        if self.how == Synchronisation::Fast {
            let since = || Duration::from_nanos(self.now_ns().saturating_sub(wait.begin_ns));
            let before = since();
            let sleep = wait.expected.map_or(Duration::ZERO, Expected::sleep);
            // Once, and not while waiting for what a side that is late still works on.
            if phase.first.is_long && sleep > SLEEP_MIN && before < SLEEP_MIN && limit > sleep {
                thread::sleep(sleep);
            }
            let polling = self.polling(wait).saturating_sub(since());
            if spin(limit.min(polling), Impatience::Spins, || phase.is_over()) {
                return true;
            }
            left = limit.saturating_sub(since().saturating_sub(before));
        }
        self.sleeps(phase, left)
    }

    /// Time from the begin of a wait during which it is polled.
    fn polling(&self, wait: &Wait) -> Duration {
        match self.is_calm() {
            true => wait.expected.map_or(LOST, Expected::polled_until),
            false => Duration::ZERO,
        }
    }

    /// Sleeps until a phase is over, for so long at most. Returns whether it is.
    fn sleeps(&self, phase: Phase<'_>, limit: Duration) -> bool {
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

    /// Notes that a side found a phase over.
    pub(super) fn without_wait(&self, phase: Phase<'_>, own: Side) {
        if phase.first.is_long {
            self.note(&self.begin(phase, own), 0);
        }
    }

    /// Ends a wait for pieces that all threads did of their own side.
    pub(super) fn end(&self, phase: Phase<'_>, wait: &Wait, own: Side) {
        self.end_at(phase, wait, own, self.now_ns());
    }

    fn end_at(&self, phase: Phase<'_>, wait: &Wait, own: Side, now_ns: u64) {
        let Some(other) = phase.queue(own.other()) else {
            return;
        };
        let ended_ns = other.ended_ns.load(Ordering::Relaxed);
        // Else what was waited for was another thread of the own side.
        if ended_ns < wait.begin_ns {
            return;
        }
        self.hand_overs.add(now_ns.saturating_sub(ended_ns));
        self.note_length(wait, now_ns);
        self.note(wait, (ended_ns - wait.begin_ns) / 1000);
    }

    /// Ends a wait during which this side did pieces of the other, so that nothing was handed over.
    ///
    /// Most such waits are accidents, so they hardly change how long the other is waited for; but where its pieces have come
    /// to take longer, some waits will tell.
    pub(super) fn end_without(&self, wait: &Wait) {
        let now_ns = self.now_ns();
        self.note_length(wait, now_ns);
        let longest_us = wait.expected.map_or(0, |expected| expected.longest_us);
        let most_us = (2 * longest_us).max(LATE_MIN.as_micros() as u64 / LATE_TIMES);
        let waited_us = now_ns.saturating_sub(wait.begin_ns) / 1000;
        self.note(wait, waited_us.min(most_us));
    }

    /// Notes a wait so long that somebody else must have had a core.
    fn note_length(&self, wait: &Wait, now_ns: u64) {
        let waited = Duration::from_nanos(now_ns.saturating_sub(wait.begin_ns));
        if wait
            .expected
            .is_some_and(|expected| waited > expected.polled_until())
        {
            self.calm.note_disturbance(now_ns);
        }
    }

    /// Threads that wait for the bell, or are about to.
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

    /// Whether polling pays: neither side has lost its core of late.
    pub(super) fn is_calm(&self) -> bool {
        self.calm.is_at(self.now_ns())
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }
}

/// In place of a side that was lost: none was.
const NONE: u8 = u8::MAX;

/// In place of a side that was lost: both were.
const BOTH: u8 = u8::MAX - 1;

/// Waits that are remembered. Chosen: a model has some ten kinds of phases for each number of tokens.
const SLOTS: usize = 1024;

/// Bits of a time that is remembered.
const TIME_BITS: u32 = 24;

/// Behind two times, a tag that tells whose they are.
const TAG_SHIFT: u32 = 2 * TIME_BITS;

/// Longest wait that is remembered: 16 s.
const MICROSECONDS: u64 = (1 << TIME_BITS) - 1;

/// What a wait takes too long in which somebody else had a core. Chosen: far more than sides that are alone differ by from
/// one order to the next, and less than a slice of time.
const LOST: Duration = Duration::from_micros(500);

/// Shortest sleep. Chosen: many times as long as one may last too long, so that sides which end nearly together only poll.
const SLEEP_MIN: Duration = Duration::from_millis(1);

/// Time by which a sleep ends earlier than it could. Chosen: Linux adds 50 µs, and waking takes as long again.
const EARLY: Duration = Duration::from_micros(200);

/// A side is late that needs this many times what it did before ...
const LATE_TIMES: u64 = 8;

/// ... and at least this long. Chosen: longer than another program has a core for in one go.
const LATE_MIN: Duration = Duration::from_millis(5);

/// Time after which a side is late of which nothing is known. Chosen: longer than any phase takes.
const UNKNOWN: Duration = Duration::from_secs(1);

/// Interval at which is looked for pieces to be done again, while a side that is late works on what it had begun.
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
            let joint = Joint::new(Synchronisation::Fast);
            let begin_ns = joint.now_ns();
            let wait = Wait {
                expected: Some(Expected {
                    longest_us: usual_us,
                    shortest_us: usual_us,
                }),
                ..joint.begin(phase, Side::First)
            };
            let other = phase.queue(Side::Second).unwrap();
            other.ended_ns.store(wait.begin_ns, Ordering::Relaxed);
            joint.end_at(phase, &wait, Side::First, begin_ns + waited_ns);
            (joint, wait)
        };
        let (joint, wait) = waited(400_000, 50);
        assert!(joint.is_calm() && joint.polling(&wait) > Duration::from_micros(50));
        // An hour too long, so that the while is not over yet.
        let (joint, wait) = waited(3_600_000_000_000, 50);
        assert!(!joint.is_calm());
        assert_eq!(joint.polling(&wait), Duration::ZERO);
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
