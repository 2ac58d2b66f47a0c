//! A call of the pool: its phases, and the counts of their pieces.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Thread};

use heg_spec::Side;

use crate::division::index;

/// Runs one piece. `Break` declares the piece's phase the last one.
pub(super) type Work<'a> = dyn Fn(Taken) -> ControlFlow<()> + Sync + 'a;

/// A piece that a thread has taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    /// The thread.
    pub(crate) thread: usize,
    /// Its side.
    pub(crate) own: Side,
    /// Index of the phase.
    pub(crate) phase: usize,
    /// The side that owns the piece: the thread's own, unless the other side is late or lost.
    pub(crate) side: Side,
    /// Index of the piece on its side.
    pub(crate) piece: usize,
}

/// The pieces of a phase.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pieces {
    /// Number of pieces, by side.
    pub(crate) of_side: [usize; 2],
    /// Key of phases that take the same time.
    pub(crate) timing_key: u64,
    /// Whether it may take so long that a waiting side sleeps first.
    pub(crate) is_long: bool,
}

/// A call. A late thread may hold it after its end.
pub(super) struct Call {
    /// The first side's pieces of each phase.
    pub(super) first: Vec<Queue>,
    /// The second side's pieces; empty for a single device, whose threads touch one queue per phase.
    second: Vec<Queue>,
    /// Number of phases to run: all, unless a piece declares its phase the last. Read when a phase is over.
    pub(super) end: AtomicUsize,
    /// Number of phases, by side, behind which the side has no piece.
    needed: [usize; 2],
    /// The calling thread, if its side has no piece in the last phases of a pair: the other side wakes it at the end.
    pub(super) sleeper: Option<Thread>,
    /// Start of a pair's call, in ns since the barrier's origin.
    pub(super) begun_ns: AtomicU64,
    /// Used only by threads that hold an unfinished piece, so not after the end.
    pub(super) work: *const Work<'static>,
}

// SAFETY: `work` is `Sync`, and shared between threads only while `Pool::run` borrows it.
unsafe impl Send for Call {}
// SAFETY: `work` is `Sync`, and used only while `Pool::run` borrows it.
unsafe impl Sync for Call {}

/// A phase with the pieces of each side.
#[derive(Clone, Copy)]
pub(super) struct Phase<'c> {
    pub(super) first: &'c Queue,
    pub(super) second: Option<&'c Queue>,
}

/// Piece counts of one side in one phase, on their own cache lines: threads poll one phase while the next is not begun.
#[repr(align(128))]
pub(super) struct Queue {
    pub(super) pieces: usize,
    pub(super) taken: AtomicUsize,
    pub(super) done: AtomicUsize,
    /// End of the latest piece, in ns since the barrier's origin.
    pub(super) ended_ns: AtomicU64,
    /// Pieces to redo, which a lost side had taken.
    pub(super) returned: Mutex<Vec<usize>>,
    /// Key of phases that take the same time.
    pub(super) timing_key: u64,
    /// Whether the phase may take so long that a waiting side sleeps first.
    pub(super) is_long: bool,
}

impl Queue {
    fn new(pieces: usize, phase: Pieces) -> Self {
        Self {
            pieces,
            timing_key: phase.timing_key,
            is_long: phase.is_long,
            taken: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            ended_ns: AtomicU64::new(0),
            returned: Mutex::default(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.done.load(Ordering::Acquire) == self.pieces
    }
}

impl<'c> Phase<'c> {
    /// A side's pieces.
    pub(super) const fn queue(self, side: Side) -> Option<&'c Queue> {
        match side {
            Side::First => Some(self.first),
            Side::Second => self.second,
        }
    }

    pub(super) fn is_over(self) -> bool {
        self.first.is_over() && self.second.is_none_or(Queue::is_over)
    }
}

impl Call {
    /// A call without phases.
    pub(super) fn empty(work: *const Work<'static>) -> Self {
        Self {
            first: Vec::new(),
            second: Vec::new(),
            end: AtomicUsize::new(0),
            needed: [0; 2],
            sleeper: None,
            begun_ns: AtomicU64::new(0),
            work,
        }
    }

    /// A phase by index.
    pub(super) fn phase(&self, number: usize) -> Option<Phase<'_>> {
        Some(Phase {
            first: self.first.get(number)?,
            second: self.second.get(number),
        })
    }

    /// Whether a side has a piece in a phase or in one behind it.
    pub(super) const fn needs(&self, side: Side, number: usize) -> bool {
        number < self.needed[index(side)]
    }

    /// Whether the last phase is over.
    pub(super) fn is_over(&self) -> bool {
        let last = self.end.load(Ordering::Relaxed).checked_sub(1);
        let last = last.and_then(|last| self.phase(last));
        last.is_none_or(Phase::is_over)
    }

    /// Duration of each phase of a pair in ns, from the end of the previous one.
    pub(super) fn phases_ns(&self) -> impl Iterator<Item = u64> {
        let begun_ns = self.begun_ns.load(Ordering::Relaxed);
        let queues = self.first.iter().zip(&self.second);
        queues.scan(begun_ns, |begin_ns, queues| {
            let of_side = <[&Queue; 2]>::from(queues);
            let ends_ns = of_side.map(|queue| queue.ended_ns.load(Ordering::Relaxed));
            // A phase without pieces ends with the previous one.
            let end_ns = ends_ns.into_iter().fold(*begin_ns, u64::max);
            Some(end_ns - std::mem::replace(begin_ns, end_ns))
        })
    }

    /// Lists the phases, of both sides for a pair. The thread is the one that calls.
    pub(super) fn fill(
        &mut self,
        phases: impl Iterator<Item = Pieces>,
        is_pair: bool,
        work: *const Work<'static>,
    ) {
        self.first.clear();
        self.second.clear();
        self.needed = [0; 2];
        for (phase, end) in phases.zip(1..) {
            let [first, second] = phase.of_side;
            for (needed, pieces) in self.needed.iter_mut().zip(phase.of_side) {
                if pieces > 0 {
                    *needed = end;
                }
            }
            self.first.push(Queue::new(first, phase));
            if is_pair {
                self.second.push(Queue::new(second, phase));
            }
        }
        let [needed, _] = self.needed;
        self.sleeper = (is_pair && needed < self.first.len()).then(thread::current);
        *self.end.get_mut() = self.first.len();
        self.work = work;
    }
}
