//! Threads that run the phases of a call together, on one side or on two.
//!
//! A phase has a number of pieces per side, which the threads of the side take one after the other. It ends when all
//! pieces are done; a thread that took none is not waited for: on a shared machine it may not be running, and the
//! others go on without it. A thread on a slow or shared core takes fewer pieces, and delays the others by at most one.
//! `pair_barrier` describes how the sides of a pair wait for each other, and when one takes over the other's pieces.
//!
//! Threads spin between phases, because a phase takes microseconds. After 30 µs a waiting thread yields its core and
//! keeps polling; after a millisecond without a call it parks, and after ten within a call it sleeps between polls. A
//! side of a pair that has no more pieces in a call sleeps, and is not woken for calls in which it has none: it would
//! take power, and half a core that has two threads.

mod call;
mod hand_over;
mod pair_barrier;
mod poll_backoff;
#[cfg(test)]
mod tests;
mod waits;

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread, ThreadId};
use std::time::Duration;

use heg_spec::Side;
use heg_spec::policy::Synchronisation;

use crate::division::SIDES;
use crate::error::CpuError;
use crate::platform;
use call::{Call, Queue, Work};
pub(crate) use call::{Pieces, Taken};
pub use hand_over::HandOvers;
use pair_barrier::PairBarrier;
pub use pair_barrier::PairWatch;
use waits::{Presence, SpinBudget, spin, stand_by};

/// Threads of one side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crew<'a> {
    /// Number of threads, at least one.
    pub(crate) threads: usize,
    /// Cores that they are pinned to; empty: placed by the system.
    pub(crate) kept_on: &'a [usize],
}

/// The threads of one device, including the caller's.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Cores that threads of the caller's side are pinned to.
    kept_on: Vec<usize>,
    /// The latest caller, which is pinned there, too.
    caller: Option<ThreadId>,
    /// Calls to reuse in turn: the current one, one that each thread may be late in, and the next.
    calls: Vec<Arc<Call>>,
}

struct Shared {
    /// Number of calls so far; raised to publish the next.
    count: AtomicU32,
    call: Mutex<Arc<Call>>,
    /// Threads that are parked or about to be.
    parked: AtomicUsize,
    ends: AtomicBool,
    /// Its threads but the caller's, by number from 1 on.
    threads: OnceLock<Vec<Thread>>,
    /// Whether a piece panicked that no other side could redo.
    is_broken: AtomicBool,
    /// The caller's side.
    callers: Side,
    /// Number of its threads; higher numbers are the other side's.
    callers_threads: usize,
    /// Barrier between two sides; `None` for a single device.
    barrier: Option<Arc<PairBarrier>>,
}

impl Pool {
    /// A pool of the threads of one side.
    pub(crate) fn new(crew: Crew<'_>) -> Result<Self, CpuError> {
        Self::with(&[crew], Side::First, None)
    }

    /// A pool of the threads of two sides; the caller's belongs to `callers`.
    pub(crate) fn pair(
        crews: [Crew<'_>; 2],
        callers: Side,
        how: Synchronisation,
    ) -> Result<Self, CpuError> {
        let [first, second] = crews;
        let crews = match callers {
            Side::First => [first, second],
            Side::Second => [second, first],
        };
        Self::with(&crews, callers, Some(Arc::new(PairBarrier::new(how))))
    }

    /// A pool of some crews, the caller's first.
    fn with(
        crews: &[Crew<'_>],
        callers: Side,
        barrier: Option<Arc<PairBarrier>>,
    ) -> Result<Self, CpuError> {
        let nothing: &'static Work<'static> = &|_| ControlFlow::Continue(());
        let first = crews.first();
        let shared = Arc::new(Shared {
            count: AtomicU32::new(0),
            call: Mutex::new(Arc::new(Call::empty(nothing))),
            parked: AtomicUsize::new(0),
            ends: AtomicBool::new(false),
            threads: OnceLock::new(),
            is_broken: AtomicBool::new(false),
            callers,
            callers_threads: first.map_or(1, |crew| crew.threads),
            barrier,
        });
        let threads: usize = crews.iter().map(|crew| crew.threads).sum();
        let mut pool = Self {
            shared,
            threads: Vec::new(),
            kept_on: first.map_or_else(Vec::new, |crew| crew.kept_on.to_vec()),
            caller: None,
            calls: (0..=threads)
                .map(|_| Arc::new(Call::empty(nothing)))
                .collect(),
        };
        let kept_on = crews
            .iter()
            .flat_map(|crew| (0..crew.threads).map(|_| crew.kept_on));
        for (number, kept_on) in kept_on.enumerate().skip(1) {
            let shared = Arc::clone(&pool.shared);
            let kept_on = kept_on.to_vec();
            let serve = move || {
                keep_on(&kept_on);
                shared.serve(number);
            };
            let thread = thread::Builder::new()
                .name(format!("heg-cpu-{number}"))
                .spawn(serve)
                .map_err(CpuError::Thread)?;
            pool.threads.push(thread);
        }
        let threads = pool.threads.iter().map(|thread| thread.thread().clone());
        pool.shared.threads.get_or_init(|| threads.collect());
        Ok(pool)
    }

    /// Number of threads, including the caller's.
    pub(crate) const fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Read-only handle to its two sides; `None` for a single device.
    pub(crate) fn watch(&self) -> Option<PairWatch> {
        let barrier = self.shared.barrier.as_ref()?;
        Some(PairWatch(Arc::clone(barrier)))
    }

    /// Runs `phases` one after the other, and returns how many ran: all, unless a piece declared its phase the last.
    ///
    /// # Errors
    ///
    /// [`CpuError::Lost`] if a piece panicked, now or before, that no other side could redo.
    pub(crate) fn run(
        &mut self,
        phases: impl Iterator<Item = Pieces>,
        work: &Work<'_>,
    ) -> Result<usize, CpuError> {
        // SAFETY: only the lifetime changes. `work` is used by threads that have taken a piece, and this function
        // returns when all pieces are done of every phase that runs.
        let work = unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) };
        let caller = (!self.kept_on.is_empty()).then(|| thread::current().id());
        if self.caller != caller {
            keep_on(&self.kept_on);
            self.caller = caller;
        }
        let call = self.next_call(phases, work);
        let shared = &*self.shared;
        if let Some(barrier) = &shared.barrier {
            call.begun_ns.store(barrier.now_ns(), Ordering::Relaxed);
        }
        if !self.threads.is_empty() {
            let mut current = shared.call.lock().unwrap_or_else(PoisonError::into_inner);
            *current = Arc::clone(&call);
            drop(current);
            shared.count.fetch_add(1, Ordering::SeqCst);
            if shared.parked.load(Ordering::SeqCst) > 0 {
                shared.wake(|side| shared.is_needed(&call, side));
            }
        }
        shared.carry_out(&call, 0);
        if shared.is_broken.load(Ordering::Relaxed) {
            return Err(CpuError::Lost);
        }
        Ok(call.end.load(Ordering::Relaxed))
    }

    /// Duration of each phase of a pair's last call, in ns.
    pub(crate) fn phases_ns(&self) -> impl Iterator<Item = u64> {
        let last = self.calls.last();
        last.into_iter().flat_map(|call| call.phases_ns())
    }

    /// A call that no thread holds any more, or a new one, filled with `phases`.
    fn next_call(
        &mut self,
        phases: impl Iterator<Item = Pieces>,
        work: *const Work<'static>,
    ) -> Arc<Call> {
        let free = self
            .calls
            .iter()
            .position(|call| Arc::strong_count(call) == 1);
        let is_pair = self.shared.barrier.is_some();
        let mut call = match free {
            Some(free) => self.calls.swap_remove(free),
            None => Arc::new(Call::empty(work)),
        };
        match Arc::get_mut(&mut call) {
            Some(call) => call.fill(phases, is_pair, work),
            // Threads only take the current call, so this does not happen.
            None => {
                let mut new = Call::empty(work);
                new.fill(phases, is_pair, work);
                call = Arc::new(new);
            }
        }
        self.calls.push(Arc::clone(&call));
        call
    }
}

impl Shared {
    /// Runs calls until the pool is dropped.
    fn serve(&self, number: usize) {
        let mut seen = 0;
        let mut presence = Presence::Needed;
        loop {
            self.wait_for_call(seen, presence);
            // Read before `ends`: a thread that sees the count raised by the drop sees `ends`, too, and waits for no
            // other call.
            seen = self.count.load(Ordering::Acquire);
            if self.ends.load(Ordering::Relaxed) {
                return;
            }
            let current = self.call.lock().unwrap_or_else(PoisonError::into_inner);
            let call = Arc::clone(&current);
            drop(current);
            presence = self.carry_out(&call, number);
        }
    }

    /// Whether threads of a side have anything to do in a call: their own pieces, or those of a lost side.
    fn is_needed(&self, call: &Call, side: Side) -> bool {
        match &self.barrier {
            Some(barrier) => call.needs(side, 0) || barrier.is_lost(side.other()),
            None => true,
        }
    }

    /// Wakes the threads of some sides.
    fn wake(&self, is_woken: impl Fn(Side) -> bool) {
        let threads = self.threads.get().into_iter().flatten();
        for (thread, number) in threads.zip(1..) {
            if is_woken(self.side_of(number)) {
                thread.unpark();
            }
        }
    }

    fn wait_for_call(&self, seen: u32, presence: Presence) {
        let is_there = || self.count.load(Ordering::SeqCst) != seen;
        let barrier = self.barrier.as_ref();
        let may_poll = presence == Presence::Needed && barrier.is_none_or(|it| it.may_poll());
        let awake = if may_poll { AWAKE } else { Duration::ZERO };
        if spin(awake, SpinBudget::Bounded, is_there) {
            return;
        }
        self.parked.fetch_add(1, Ordering::SeqCst);
        while !is_there() {
            thread::park();
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
    }

    /// The side of a thread.
    fn side_of(&self, thread: usize) -> Side {
        if thread < self.callers_threads {
            self.callers
        } else {
            self.callers.other()
        }
    }

    /// Takes pieces of each phase until its side has none left, and waits for those of other threads. Returns whether its
    /// side had any at the end.
    fn carry_out(&self, call: &Call, thread: usize) -> Presence {
        let side = self.side_of(thread);
        let mut presence = Presence::Needed;
        for number in 0.. {
            let Some(phase) = call.phase(number) else {
                break;
            };
            if let Some(barrier) = &self.barrier
                && !call.needs(side, number)
                && presence == Presence::Needed
            {
                presence = Presence::StandsBy;
                if stand_by(call, barrier, side) {
                    break;
                }
            }
            let took = self.take_all(call, number, side, thread);
            match (&self.barrier, phase.is_over()) {
                (None, true) => {}
                (None, false) => {
                    spin(Duration::MAX, SpinBudget::Bounded, || phase.is_over());
                }
                (Some(barrier), true) if took > 0 => barrier.without_wait(phase, side),
                // Too late to learn anything.
                (Some(_), true) => {}
                (Some(_), false) => self.join(call, number, thread),
            }
            // The piece that sets it is done, so every thread that comes here has seen it.
            if number + 1 == call.end.load(Ordering::Relaxed) {
                break;
            }
        }
        if let Some(sleeper) = call.sleeper.as_ref().filter(|_| thread > 0) {
            sleeper.unpark();
        }
        presence
    }

    /// Takes all untaken pieces of a side, and returns their number.
    fn take_all(&self, call: &Call, number: usize, side: Side, thread: usize) -> usize {
        let queue = call.phase(number).and_then(|phase| phase.queue(side));
        let Some(queue) = queue.filter(|queue| queue.pieces > 0) else {
            return 0;
        };
        let own = self.side_of(thread);
        let mut took = 0;
        loop {
            if self
                .barrier
                .as_ref()
                .is_some_and(|barrier| barrier.is_lost(own))
            {
                return took;
            }
            let piece = queue.taken.fetch_add(1, Ordering::Relaxed);
            if piece >= queue.pieces {
                return took;
            }
            self.work(
                call,
                queue,
                Taken {
                    thread,
                    own,
                    phase: number,
                    side,
                    piece,
                },
            );
            took += 1;
        }
    }

    /// Runs a piece that this thread has taken.
    fn work(&self, call: &Call, queue: &Queue, taken: Taken) {
        // SAFETY: the piece is not done, so `Pool::run` has not returned and still borrows the work.
        let work = unsafe { &*call.work };
        match catch_unwind(AssertUnwindSafe(|| work(taken))) {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => call.end.store(taken.phase + 1, Ordering::Relaxed),
            Err(_) => {
                let own = taken.own;
                if self
                    .barrier
                    .as_ref()
                    .is_some_and(|barrier| barrier.note_lost(own))
                {
                    // Hand the piece back: the other side redoes it.
                    let returned = queue.returned.lock();
                    returned
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(taken.piece);
                    self.wake(|side| side != own);
                    return;
                }
                // A piece that panicked counts as done if no other side is left.
                self.is_broken.store(true, Ordering::Relaxed);
            }
        }
        match &self.barrier {
            Some(barrier) => barrier.piece_done(queue, taken.own),
            None => {
                queue.done.fetch_add(1, Ordering::Release);
            }
        }
    }

    /// Waits until a phase is over. Takes the pieces that a late side has not begun, and those that a lost side had
    /// taken.
    fn join(&self, call: &Call, number: usize, thread: usize) {
        let (Some(barrier), Some(phase)) = (&self.barrier, call.phase(number)) else {
            return;
        };
        let own = self.side_of(thread);
        let other = own.other();
        let wait = barrier.begin(phase, own);
        let mut limit = barrier.patience(&wait, other);
        let mut took_over = false;
        while !barrier.wait(phase, &wait, limit) {
            limit = pair_barrier::HELD;
            // Otherwise it is a thread of the own side that is waited for.
            let is_other_behind = phase.queue(other).is_some_and(|queue| !queue.is_over());
            if is_other_behind && !barrier.is_lost(own) {
                barrier.note_late(other);
                took_over |= self.take_all(call, number, other, thread) > 0;
            }
            if !barrier.is_lost(own) {
                took_over |= self.redo(call, number, thread);
            }
        }
        // A lost side takes nothing, so nothing is handed over to it.
        if barrier.is_lost(own) {
            return;
        }
        if took_over {
            barrier.end_without(&wait);
        } else {
            barrier.end(phase, &wait, own);
        }
    }

    /// Redoes the pieces of a phase that a lost side had taken. Returns whether there were any.
    fn redo(&self, call: &Call, number: usize, thread: usize) -> bool {
        let mut did = false;
        for side in SIDES {
            let Some(queue) = call.phase(number).and_then(|phase| phase.queue(side)) else {
                continue;
            };
            let next = || {
                let returned = queue.returned.lock();
                returned.unwrap_or_else(PoisonError::into_inner).pop()
            };
            while let Some(piece) = next() {
                did = true;
                self.work(
                    call,
                    queue,
                    Taken {
                        thread,
                        own: self.side_of(thread),
                        phase: number,
                        side,
                        piece,
                    },
                );
            }
        }
        did
    }
}

/// Pins the calling thread to `cores`, if there are any. If that fails it runs elsewhere, with the same results.
fn keep_on(cores: &[usize]) {
    if !cores.is_empty() {
        platform::keep_on(cores);
    }
}

/// Idle time after which a thread parks. Chosen: longer than the gap between orders while requests are answered; waking
/// a parked thread takes some 50 µs.
const AWAKE: Duration = Duration::from_millis(1);

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        self.shared.count.fetch_add(1, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // It catches panics of its work, so its result tells nothing.
            let _ = thread.join();
        }
    }
}
