//! Threads that carry out the phases of a call together, on one side or on two.
//!
//! A phase is a number of pieces for each side, which the threads of the side take one after the other. It has ended when
//! all its pieces are done, and nobody waits for a thread that took none: on a machine whose cores others use too, a
//! thread may not be running just then, and the rest goes on without it. A thread whose core is slow or shared takes
//! fewer pieces, and holds the others up for the one that it has. How the sides of a pair wait for each other, and when one
//! takes the pieces of the other, is told in `joint`.
//!
//! Threads spin between phases, because a phase takes microseconds. One that waits longer than 30 µs gives its core to
//! whoever wants it, and keeps asking; one that finds no call for a millisecond parks.

mod call;
mod calm;
mod hand_over;
mod joint;
#[cfg(test)]
mod tests;

use std::hint::spin_loop;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use heg_spec::Side;
use heg_spec::policy::Synchronisation;

use crate::division::SIDES;
use crate::error::Error;
use crate::platform;
use call::{Call, Queue, Work};
pub(crate) use call::{Pieces, Taken};
pub use hand_over::HandOvers;
use joint::Joint;
pub use joint::PairWatch;

/// Threads of one side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crew<'a> {
    /// Their number, at least one.
    pub(crate) threads: usize,
    /// Cores that they are kept on; none where they run wherever the system puts them.
    pub(crate) kept_on: &'a [usize],
}

/// Threads of one device, the caller's included, which is of the first side.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Cores that threads of the first side are kept on.
    kept_on: Vec<usize>,
    /// The thread that called last, and is kept there too.
    caller: Option<ThreadId>,
    /// Calls to be used again, in turn: the current one, one that each thread may be late in, and the next.
    calls: Vec<Arc<Call>>,
}

struct Shared {
    /// Number of calls so far; raised when the next one is there.
    count: AtomicU32,
    call: Mutex<Arc<Call>>,
    /// Threads that are parked or about to be.
    parked: AtomicUsize,
    ends: AtomicBool,
    /// Whether a piece panicked, and no other side could do it.
    is_broken: AtomicBool,
    /// Threads of the first side; those behind are the second's.
    first_threads: usize,
    /// How two sides wait for each other; none where there is one.
    joint: Option<Arc<Joint>>,
}

impl Pool {
    /// A pool of the threads of one side.
    pub(crate) fn new(crew: Crew<'_>) -> Result<Self, Error> {
        Self::with(&[crew], None)
    }

    /// A pool of the threads of two sides.
    pub(crate) fn pair(crews: [Crew<'_>; 2], how: Synchronisation) -> Result<Self, Error> {
        Self::with(&crews, Some(Arc::new(Joint::new(how))))
    }

    fn with(crews: &[Crew<'_>], joint: Option<Arc<Joint>>) -> Result<Self, Error> {
        let nothing: &'static Work<'static> = &|_| ControlFlow::Continue(());
        let first = crews.first();
        let shared = Arc::new(Shared {
            count: AtomicU32::new(0),
            call: Mutex::new(Arc::new(Call::empty(nothing))),
            parked: AtomicUsize::new(0),
            ends: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            first_threads: first.map_or(1, |crew| crew.threads),
            joint,
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
                .map_err(Error::Thread)?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Number of threads, the caller's included.
    pub(crate) const fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// A look at its two sides; none where there is one.
    pub(crate) fn watch(&self) -> Option<PairWatch> {
        let joint = self.shared.joint.as_ref()?;
        Some(PairWatch(Arc::clone(joint)))
    }

    /// Runs phases of so many pieces each, one after the other, and returns the number of phases that were run: when all
    /// are done, or the one that a piece said is the last.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] where a piece panicked that no other side could do, now or before.
    pub(crate) fn run(
        &mut self,
        phases: impl Iterator<Item = Pieces>,
        work: &Work<'_>,
    ) -> Result<usize, Error> {
        // SAFETY: only the lifetime changes. `work` is used by threads that have taken a piece, and this function returns
        // when all pieces are done of every phase that is run.
        let work = unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) };
        let caller = (!self.kept_on.is_empty()).then(|| thread::current().id());
        if self.caller != caller {
            keep_on(&self.kept_on);
            self.caller = caller;
        }
        let call = self.next_call(phases, work);
        let shared = &*self.shared;
        if let Some(joint) = &shared.joint {
            call.begun_ns.store(joint.now_ns(), Ordering::Relaxed);
        }
        if !self.threads.is_empty() {
            let mut current = shared.call.lock().unwrap_or_else(PoisonError::into_inner);
            *current = Arc::clone(&call);
            drop(current);
            shared.count.fetch_add(1, Ordering::SeqCst);
            if shared.parked.load(Ordering::SeqCst) > 0 {
                self.threads
                    .iter()
                    .for_each(|thread| thread.thread().unpark());
            }
        }
        shared.carry_out(&call, 0);
        match shared.is_broken.load(Ordering::Relaxed) {
            true => Err(Error::Lost),
            false => Ok(call.end.load(Ordering::Relaxed)),
        }
    }

    /// How long each phase of the last call of a pair took.
    pub(crate) fn phases_ns(&self) -> impl Iterator<Item = u64> {
        let last = self.calls.last();
        last.into_iter().flat_map(|call| call.phases_ns())
    }

    /// A call that no thread holds any more, or a new one.
    fn next_call(
        &mut self,
        phases: impl Iterator<Item = Pieces>,
        work: *const Work<'static>,
    ) -> Arc<Call> {
        let free = self
            .calls
            .iter()
            .position(|call| Arc::strong_count(call) == 1);
        let is_pair = self.shared.joint.is_some();
        let mut call = match free {
            Some(free) => self.calls.swap_remove(free),
            None => Arc::new(Call::empty(work)),
        };
        match Arc::get_mut(&mut call) {
            Some(call) => call.fill(phases, is_pair, work),
            // Nobody takes one that is not the current call, so this does not happen.
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
    /// Carries out calls until the pool is dropped.
    fn serve(&self, number: usize) {
        let mut seen = 0;
        loop {
            self.wait_for_call(seen);
            // Before `ends`: whoever sees the count that the end raised sees the end too, and waits for no other call.
            seen = self.count.load(Ordering::Acquire);
            if self.ends.load(Ordering::Relaxed) {
                return;
            }
            let current = self.call.lock().unwrap_or_else(PoisonError::into_inner);
            let call = Arc::clone(&current);
            drop(current);
            self.carry_out(&call, number);
        }
    }

    fn wait_for_call(&self, seen: u32) {
        let is_there = || self.count.load(Ordering::SeqCst) != seen;
        let is_calm = self.joint.as_ref().is_none_or(|joint| joint.is_calm());
        let awake = if is_calm { AWAKE } else { Duration::ZERO };
        if spin(awake, Impatience::Yields, is_there) {
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
        match thread < self.first_threads {
            true => Side::First,
            false => Side::Second,
        }
    }

    /// Takes pieces of each phase until its side has none left, and waits for those that others took.
    fn carry_out(&self, call: &Call, thread: usize) {
        let side = self.side_of(thread);
        for number in 0.. {
            let Some(phase) = call.phase(number) else {
                break;
            };
            let took = self.take_all(call, number, side, thread);
            match (&self.joint, phase.is_over()) {
                (None, true) => {}
                (None, false) => {
                    spin(Duration::MAX, Impatience::Yields, || phase.is_over());
                }
                (Some(joint), true) if took > 0 => joint.without_wait(phase, side),
                // It came too late to learn anything.
                (Some(_), true) => {}
                (Some(_), false) => self.join(call, number, thread),
            }
            // The piece that sets it is done, so whoever comes here has seen it, however late.
            if number + 1 == call.end.load(Ordering::Relaxed) {
                break;
            }
        }
    }

    /// Takes all pieces of a side that nobody has taken, and returns how many that were.
    fn take_all(&self, call: &Call, number: usize, side: Side, thread: usize) -> usize {
        let queue = call.phase(number).and_then(|phase| phase.queue(side));
        let Some(queue) = queue.filter(|queue| queue.pieces > 0) else {
            return 0;
        };
        let own = self.side_of(thread);
        let mut took = 0;
        loop {
            if self.joint.as_ref().is_some_and(|joint| joint.is_lost(own)) {
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
                    phase: number,
                    side,
                    piece,
                },
            );
            took += 1;
        }
    }

    /// Does a piece that this thread has taken.
    fn work(&self, call: &Call, queue: &Queue, taken: Taken) {
        // SAFETY: the piece is not done, so `Pool::run` has not returned and still borrows the work.
        let work = unsafe { &*call.work };
        match catch_unwind(AssertUnwindSafe(|| work(taken))) {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => call.end.store(taken.phase + 1, Ordering::Relaxed),
            Err(_) => {
                let own = self.side_of(taken.thread);
                if self
                    .joint
                    .as_ref()
                    .is_some_and(|joint| joint.note_lost(own))
                {
                    // Nobody works on it any more: the other side does it again.
                    let returned = queue.returned.lock();
                    returned
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(taken.piece);
                    return;
                }
                // A piece that panicked is done as well, where no other side is left.
                self.is_broken.store(true, Ordering::Relaxed);
            }
        }
        match &self.joint {
            Some(joint) => joint.piece_done(queue, self.side_of(taken.thread)),
            None => {
                queue.done.fetch_add(1, Ordering::Release);
            }
        }
    }

    /// Waits until a phase is over. Of a side that is late, takes the pieces that it has not begun, and those that it had
    /// when it was lost.
    fn join(&self, call: &Call, number: usize, thread: usize) {
        let (Some(joint), Some(phase)) = (&self.joint, call.phase(number)) else {
            return;
        };
        let own = self.side_of(thread);
        let other = own.other();
        let wait = joint.begin(phase, own);
        let mut limit = joint.patience(&wait, other);
        let mut took_over = false;
        while !joint.wait(phase, &wait, limit) {
            limit = joint::HELD;
            // Else a thread of the own side is what this one waits for.
            let lets_wait = phase.queue(other).is_some_and(|queue| !queue.is_over());
            if lets_wait && !joint.is_lost(own) {
                joint.note_late(other);
                took_over |= self.take_all(call, number, other, thread) > 0;
            }
            if !joint.is_lost(own) {
                took_over |= self.do_again(call, number, thread);
            }
        }
        match took_over {
            // Nothing is handed over to a side that takes nothing.
            _ if joint.is_lost(own) => {}
            true => joint.end_without(&wait),
            false => joint.end(phase, &wait, own),
        }
    }

    /// Does the pieces of a phase that a lost side had taken. Returns whether there were any.
    fn do_again(&self, call: &Call, number: usize, thread: usize) -> bool {
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

/// Keeps the calling thread on these cores, if there are any. Where it cannot be kept there it runs elsewhere, and computes
/// the same.
fn keep_on(cores: &[usize]) {
    if !cores.is_empty() {
        platform::keep_on(cores);
    }
}

/// What a thread does that has spun for longer than [`SPINNING`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Impatience {
    /// It spins on.
    Spins,
    /// It gives its core away now and then.
    Yields,
}

/// Spins until `done`, for so long at most. Returns whether it is done.
fn spin(limit: Duration, then: Impatience, done: impl Fn() -> bool) -> bool {
    let mut begin = None;
    loop {
        // Most waits end here, without a look at the clock.
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
        if then == Impatience::Yields && waited > SPINNING {
            thread::yield_now();
        }
    }
}

/// Spins from one look at the clock to the next. Chosen: a few microseconds, of which the look is a hundredth.
const SPINS_A_LOOK: u32 = 128;

/// Time that a thread spins before it gives its core away. Chosen: longer than most pieces take.
const SPINNING: Duration = Duration::from_micros(30);

/// Time without a call after which a thread parks. Chosen: longer than from one order to the next while requests are
/// answered; waking a parked thread takes some 50 µs.
const AWAKE: Duration = Duration::from_millis(1);

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        self.shared.count.fetch_add(1, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // It catches what it runs, so there is nothing to learn from how it ended.
            let _ = thread.join();
        }
    }
}
