//! Threads that carry out the phases of a call together.
//!
//! A phase is a number of pieces, which threads take one after the other. It has ended when all its pieces are done, and
//! nobody waits for a thread that took none: on a machine whose cores others use too, a thread may not be running just
//! then, and the rest goes on without it. A thread whose core is slow or shared takes fewer pieces, and holds the others up
//! for the one that it has.
//!
//! Threads spin between phases, because a phase takes microseconds. One that waits longer than 30 µs gives its core to
//! whoever wants it, and keeps asking; one that finds no call for a millisecond parks.

use std::hint::spin_loop;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::platform;

/// A piece of work: thread, phase, and the piece's number in it. It may say that its phase is the last one.
type Work<'a> = dyn Fn(usize, usize, usize) -> ControlFlow<()> + Sync + 'a;

/// Threads of one device, the caller's included.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Cores that threads are kept on; none where they run wherever the system puts them.
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
    /// Whether a piece panicked.
    is_broken: AtomicBool,
}

/// A call. A thread that comes late may hold it after its end.
struct Call {
    phases: Vec<Phase>,
    /// Phases that are run: all, unless a piece says that its phase is the last one. Read when a phase is over.
    end: AtomicUsize,
    /// Used by whoever has taken a piece that is there, so not after the end.
    work: *const Work<'static>,
}

// SAFETY: `work` is shared by reference between threads, as it is `Sync`, and only while `Pool::run` borrows it.
unsafe impl Send for Call {}
// SAFETY: as above.
unsafe impl Sync for Call {}

/// Counts of one phase, on cache lines of their own: others wait for one phase while the next is not yet begun.
#[repr(align(128))]
struct Phase {
    pieces: usize,
    taken: AtomicUsize,
    done: AtomicUsize,
}

impl Phase {
    fn new(pieces: usize) -> Self {
        Self {
            pieces,
            taken: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
        }
    }

    fn is_over(&self) -> bool {
        self.done.load(Ordering::Acquire) == self.pieces
    }
}

impl Call {
    /// One without phases.
    fn empty(work: *const Work<'static>) -> Self {
        Self {
            phases: Vec::new(),
            end: AtomicUsize::new(0),
            work,
        }
    }

    fn fill(&mut self, pieces: impl Iterator<Item = usize>, work: *const Work<'static>) {
        self.phases.clear();
        self.phases.extend(pieces.map(Phase::new));
        *self.end.get_mut() = self.phases.len();
        self.work = work;
    }
}

impl Pool {
    /// A pool of `threads`, one of them the caller's, which are kept on these cores if there are any.
    pub(crate) fn new(threads: usize, kept_on: &[usize]) -> Result<Self, Error> {
        let nothing: &'static Work<'static> = &|_, _, _| ControlFlow::Continue(());
        let shared = Arc::new(Shared {
            count: AtomicU32::new(0),
            call: Mutex::new(Arc::new(Call::empty(nothing))),
            parked: AtomicUsize::new(0),
            ends: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
        });
        let mut pool = Self {
            shared,
            threads: Vec::new(),
            kept_on: kept_on.to_vec(),
            caller: None,
            calls: (0..=threads)
                .map(|_| Arc::new(Call::empty(nothing)))
                .collect(),
        };
        for number in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let kept_on = pool.kept_on.clone();
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

    /// Runs phases of so many pieces each, one after the other, and returns the number of phases that were run: when all
    /// are done, or the one that a piece said is the last.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] where a piece panicked, now or before.
    pub(crate) fn run(
        &mut self,
        pieces: impl Iterator<Item = usize>,
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
        let call = self.next_call(pieces, work);
        let shared = &*self.shared;
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

    /// A call that no thread holds any more, or a new one.
    fn next_call(
        &mut self,
        pieces: impl Iterator<Item = usize>,
        work: *const Work<'static>,
    ) -> Arc<Call> {
        let free = self
            .calls
            .iter()
            .position(|call| Arc::strong_count(call) == 1);
        let mut call = match free {
            Some(free) => self.calls.swap_remove(free),
            None => Arc::new(Call::empty(work)),
        };
        match Arc::get_mut(&mut call) {
            Some(call) => call.fill(pieces, work),
            // Nobody takes one that is not the current call, so this does not happen.
            None => {
                let mut new = Call::empty(work);
                new.fill(pieces, work);
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
            if self.ends.load(Ordering::Relaxed) {
                return;
            }
            seen = self.count.load(Ordering::Acquire);
            let current = self.call.lock().unwrap_or_else(PoisonError::into_inner);
            let call = Arc::clone(&current);
            drop(current);
            self.carry_out(&call, number);
        }
    }

    fn wait_for_call(&self, seen: u32) {
        let is_there = || self.count.load(Ordering::SeqCst) != seen;
        if patiently(AWAKE, is_there) {
            return;
        }
        self.parked.fetch_add(1, Ordering::SeqCst);
        while !is_there() {
            thread::park();
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
    }

    /// Takes pieces of each phase until none is left, and waits for those that others took.
    fn carry_out(&self, call: &Call, thread: usize) {
        for (index, phase) in call.phases.iter().enumerate() {
            loop {
                let piece = phase.taken.fetch_add(1, Ordering::Relaxed);
                if piece >= phase.pieces {
                    break;
                }
                // SAFETY: the piece is not done, so `Pool::run` has not returned and still borrows the work.
                let work = unsafe { &*call.work };
                match catch_unwind(AssertUnwindSafe(|| work(thread, index, piece))) {
                    Ok(ControlFlow::Continue(())) => {}
                    Ok(ControlFlow::Break(())) => call.end.store(index + 1, Ordering::Relaxed),
                    Err(_) => self.is_broken.store(true, Ordering::Relaxed),
                }
                // A piece that panicked is done as well: nobody works on it any more.
                phase.done.fetch_add(1, Ordering::Release);
            }
            while !patiently(Duration::MAX, || phase.is_over()) {}
            // The piece that sets it is done, so whoever comes here has seen it, however late.
            if index + 1 == call.end.load(Ordering::Relaxed) {
                break;
            }
        }
    }
}

/// Keeps the calling thread on these cores, if there are any. Where it cannot be kept there it runs elsewhere, and computes
/// the same.
fn keep_on(cores: &[usize]) {
    if !cores.is_empty() {
        platform::keep_on(cores);
    }
}

/// Spins until `done`, gives the core away now and then after [`SPINNING`], and gives up after `limit`. Returns whether it
/// is done.
fn patiently(limit: Duration, done: impl Fn() -> bool) -> bool {
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
        if waited > limit {
            return done();
        }
        if waited > SPINNING {
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

#[cfg(test)]
mod tests {
    use super::*;

    const GO_ON: ControlFlow<()> = ControlFlow::Continue(());

    #[test]
    fn every_piece_is_done_once_and_phases_follow_each_other() {
        let mut pool = Pool::new(3, &[]).unwrap();
        for round in 0..300 {
            let pieces: Vec<usize> = (0..12).map(|phase| (phase + round) % 5).collect();
            let done: Vec<AtomicUsize> = pieces.iter().map(|_| AtomicUsize::new(0)).collect();
            let work = |_: usize, phase: usize, piece: usize| {
                assert!(piece < pieces[phase]);
                let before = pieces[..phase].iter().zip(&done);
                assert!(
                    before
                        .into_iter()
                        .all(|(pieces, done)| done.load(Ordering::Relaxed) == *pieces)
                );
                done[phase].fetch_add(1, Ordering::Relaxed);
                GO_ON
            };
            pool.run(pieces.iter().copied(), &work).unwrap();
            let done: Vec<usize> = done.into_iter().map(AtomicUsize::into_inner).collect();
            assert_eq!(done, pieces);
        }
    }

    #[test]
    fn a_parked_pool_wakes_up() {
        let mut pool = Pool::new(2, &[]).unwrap();
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(30));
            let threads = Mutex::new(Vec::new());
            let work = |thread: usize, _: usize, _: usize| {
                threads.lock().unwrap().push(thread);
                thread::sleep(Duration::from_millis(20));
                GO_ON
            };
            pool.run([2].into_iter(), &work).unwrap();
            let mut threads = threads.into_inner().unwrap();
            threads.sort_unstable();
            assert_eq!(threads, [0, 1]);
        }
    }

    #[test]
    fn a_piece_that_panics_is_an_error_from_then_on() {
        let mut pool = Pool::new(2, &[]).unwrap();
        let work = |_: usize, _: usize, piece: usize| {
            assert_ne!(piece, 1, "on purpose");
            GO_ON
        };
        for _ in 0..2 {
            let lost = pool.run([4, 2].into_iter(), &work);
            assert!(matches!(lost, Err(Error::Lost)));
        }
    }

    #[test]
    fn a_piece_may_say_that_its_phase_is_the_last() {
        let mut pool = Pool::new(3, &[]).unwrap();
        for round in 0..300 {
            let last = round % 7;
            let ran = AtomicUsize::new(0);
            let work = |_: usize, phase: usize, piece: usize| {
                assert!(phase <= last);
                ran.fetch_add(1, Ordering::Relaxed);
                match (phase, piece) == (last, 1) {
                    true => ControlFlow::Break(()),
                    false => GO_ON,
                }
            };
            let phases = pool.run([4; 6].into_iter(), &work).unwrap();
            assert_eq!(phases, (last + 1).min(6));
            assert_eq!(ran.into_inner(), 4 * phases);
        }
    }

    /// A neighbour that takes a core for good is a thread that never comes.
    #[test]
    fn nobody_waits_for_a_thread_that_takes_no_piece() {
        let mut pool = Pool::new(1, &[]).unwrap();
        let shared = Arc::clone(&pool.shared);
        let absent = move || {
            while !shared.ends.load(Ordering::Relaxed) {
                thread::park();
            }
        };
        pool.threads.push(thread::spawn(absent));
        let done = AtomicUsize::new(0);
        let work = |thread: usize, _: usize, _: usize| {
            assert_eq!(thread, 0);
            done.fetch_add(1, Ordering::Relaxed);
            GO_ON
        };
        pool.run([8, 1, 8].into_iter(), &work).unwrap();
        assert_eq!(done.into_inner(), 17);
    }

    #[test]
    fn who_is_slow_takes_fewer_pieces() {
        let mut pool = Pool::new(2, &[]).unwrap();
        let taken = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let work = |thread: usize, _: usize, _: usize| {
            let piece = taken[thread].fetch_add(1, Ordering::Relaxed);
            // The other thread holds its first piece until this one has done all the rest.
            while thread == 1 && piece == 0 && taken[0].load(Ordering::Relaxed) < 15 {
                thread::yield_now();
            }
            while thread == 0 && taken[1].load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            GO_ON
        };
        pool.run([16].into_iter(), &work).unwrap();
        assert_eq!(taken.map(AtomicUsize::into_inner), [15, 1]);
    }
}
