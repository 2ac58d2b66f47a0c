//! A call of the pool: phases, and the counts of their pieces.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use heg_spec::Side;

/// Does a piece of work. It may say that the piece's phase is the last one.
pub(super) type Work<'a> = dyn Fn(Taken) -> ControlFlow<()> + Sync + 'a;

/// A piece that a thread has taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    /// The thread.
    pub(crate) thread: usize,
    /// Number of the phase.
    pub(crate) phase: usize,
    /// The side whose piece it is; that of the thread, unless the other side is late or lost.
    pub(crate) side: Side,
    /// Number of the piece among those of the side.
    pub(crate) piece: usize,
}

/// The pieces of a phase.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pieces {
    /// For each side.
    pub(crate) of_side: [usize; 2],
    /// What tells the phase from others that take another time.
    pub(crate) likeness: u64,
    /// Whether it may take so long that a side sleeps until the other has nearly ended.
    pub(crate) is_long: bool,
}

/// A call. A thread that comes late may hold it after its end.
pub(super) struct Call {
    /// The first side's pieces of each phase.
    pub(super) first: Vec<Queue>,
    /// The second side's, of a pair; empty where there is one side, whose threads then touch one queue a phase.
    second: Vec<Queue>,
    /// Phases that are run: all, unless a piece says that its phase is the last one. Read when a phase is over.
    pub(super) end: AtomicUsize,
    /// When a pair's began, in the time of `Joint`.
    pub(super) begun_ns: AtomicU64,
    /// Used by whoever has taken a piece that is there, so not after the end.
    pub(super) work: *const Work<'static>,
}

// SAFETY: `work` is shared by reference between threads, as it is `Sync`, and only while `Pool::run` borrows it.
unsafe impl Send for Call {}
// SAFETY: as above.
unsafe impl Sync for Call {}

/// A phase, which has pieces for each side.
#[derive(Clone, Copy)]
pub(super) struct Phase<'c> {
    pub(super) first: &'c Queue,
    pub(super) second: Option<&'c Queue>,
}

/// Counts of one side in a phase, on cache lines of their own: others wait for one phase while the next is not yet begun.
#[repr(align(128))]
pub(super) struct Queue {
    pub(super) pieces: usize,
    pub(super) taken: AtomicUsize,
    pub(super) done: AtomicUsize,
    /// When the piece that ended last was done, in the time of `Joint`.
    pub(super) ended_ns: AtomicU64,
    /// Pieces that a lost side had taken.
    pub(super) returned: Mutex<Vec<usize>>,
    /// What tells the phase from others that take another time.
    pub(super) likeness: u64,
    /// Whether the phase may take so long that a side sleeps until the other has nearly ended.
    pub(super) is_long: bool,
}

impl Queue {
    fn new(pieces: usize, phase: Pieces) -> Self {
        Self {
            pieces,
            likeness: phase.likeness,
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
    /// One without phases.
    pub(super) fn empty(work: *const Work<'static>) -> Self {
        Self {
            first: Vec::new(),
            second: Vec::new(),
            end: AtomicUsize::new(0),
            begun_ns: AtomicU64::new(0),
            work,
        }
    }

    /// A phase, by its number.
    pub(super) fn phase(&self, number: usize) -> Option<Phase<'_>> {
        Some(Phase {
            first: self.first.get(number)?,
            second: self.second.get(number),
        })
    }

    /// How long each phase of a pair took, from the end of the one before it.
    pub(super) fn phases_ns(&self) -> impl Iterator<Item = u64> {
        let begun_ns = self.begun_ns.load(Ordering::Relaxed);
        let queues = self.first.iter().zip(&self.second);
        queues.scan(begun_ns, |begin_ns, queues| {
            let of_side = <[&Queue; 2]>::from(queues);
            let ends_ns = of_side.map(|queue| queue.ended_ns.load(Ordering::Relaxed));
            // One without pieces ends with the one before it.
            let end_ns = ends_ns.into_iter().fold(*begin_ns, u64::max);
            Some(end_ns - std::mem::replace(begin_ns, end_ns))
        })
    }

    /// Lists phases, of both sides where it is a pair's.
    pub(super) fn fill(
        &mut self,
        phases: impl Iterator<Item = Pieces>,
        is_pair: bool,
        work: *const Work<'static>,
    ) {
        self.first.clear();
        self.second.clear();
        for phase in phases {
            let [first, second] = phase.of_side;
            self.first.push(Queue::new(first, phase));
            if is_pair {
                self.second.push(Queue::new(second, phase));
            }
        }
        *self.end.get_mut() = self.first.len();
        self.work = work;
    }
}
