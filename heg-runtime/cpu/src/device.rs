//! The device: threads, instruction set and scratch memory of one lane, and how they run an order.

use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::num::{NonZeroU32, NonZeroUsize};
use std::ops::ControlFlow;
use std::time::Instant;

use heg_artifacts::program::Attention;

use crate::attention::AttentionScratch;
use crate::call::CpuCall;
use crate::division::{Division, Partition, SIDES, Uncut, index};
use crate::error::Error;
use crate::execution::Execution;
use crate::kernel::Kernel;
use crate::listed::{ListedOrder, ListedPhase};
use crate::memory::Scratch;
use crate::pace::{Done, Pace};
use crate::placement::Placement;
use crate::pool::{Crew, PairWatch, Pool, Taken};
use crate::product::Panel;
use crate::solo::{Ran, Reading, Solos};
use heg_spec::policy::Synchronisation;
use heg_spec::{Isa, Side};

/// What a device is made of.
#[derive(Debug, Clone, Copy)]
pub struct CpuDeviceOptions {
    /// Instructions that its kernels use; this machine must have them.
    pub isa: Isa,
    /// Threads, the caller's included.
    pub threads: NonZeroUsize,
}

/// One of two devices that run orders together.
#[derive(Debug, Clone)]
pub struct PairSide {
    /// Its threads. The caller of an order is one of the first side's.
    pub placement: Placement,
    /// Times as long as it takes for everything: above 1, its threads wait after each piece of work.
    pub throttle: NonZeroU32,
}

/// Runs kernels, one order at a time: as one device, or as a pair of two that share each kernel.
pub struct CpuDevice {
    isa: Isa,
    pool: Pool,
    scratch: Scratch,
    threads: Vec<OfThread>,
    /// Number of threads of each side; of a device that is no pair all are of the first.
    crews: [usize; 2],
    /// Times as long as each side takes.
    throttles: [u32; 2],
    /// How the sides of a pair share what they run.
    partition: Option<Box<dyn Partition>>,
    /// How fast the sides of a pair are.
    pace: Pace,
    /// What one side of a pair does faster alone.
    solos: Solos,
    /// The order that runs.
    listed: ListedOrder,
    /// Attention that the threads have memory for.
    attended: Vec<Attention>,
}

/// Address of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address(pub(crate) *mut u8);

// SAFETY: an address is a number; what lies there is used as `ProgramRows::new` demands.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// Memory that each thread has to itself.
pub(crate) struct OfThread(UnsafeCell<Local>);

// SAFETY: within a call each thread uses the one of its own number only (`OfThread::get`).
unsafe impl Sync for OfThread {}

/// Memory of one thread.
pub(crate) struct Local {
    pub(crate) panel: Panel,
    pub(crate) attention: AttentionScratch,
    /// One row, on its way to another form.
    pub(crate) row: Scratch,
}

impl OfThread {
    /// The thread's memory.
    ///
    /// # Safety
    ///
    /// Only the thread of this number calls it, and lets go of it before the next call.
    #[allow(clippy::mut_from_ref, reason = "one thread has each")]
    pub(crate) unsafe fn get(&self) -> &mut Local {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.0.get() }
    }
}

impl CpuDevice {
    /// A device with threads of its own, which run wherever the system puts them.
    ///
    /// # Errors
    ///
    /// As [`placed`](Self::placed).
    pub fn new(options: CpuDeviceOptions) -> Result<Self, Error> {
        Self::placed(options.isa, &Placement::anywhere(options.threads))
    }

    /// A device with threads on certain cores. A thread that calls [`run_order`](Self::run_order) works with them, and is
    /// kept on these cores from then on.
    ///
    /// # Errors
    ///
    /// [`Error::Program`] where this machine does not have the instructions, [`Error::Thread`] where a thread cannot be
    /// started.
    pub fn placed(isa: Isa, placement: &Placement) -> Result<Self, Error> {
        let crew = crew_of(placement);
        Self::over(isa, Pool::new(crew)?, [crew.threads, 0])
    }

    /// Two devices that run every order together, and end together if the partition is right. Results are those of one.
    ///
    /// # Errors
    ///
    /// As [`placed`](Self::placed).
    pub fn pair(
        isa: Isa,
        sides: &[PairSide; 2],
        how: Synchronisation,
        partition: Box<dyn Partition>,
    ) -> Result<Self, Error> {
        let crews = sides.each_ref().map(|side| crew_of(&side.placement));
        let pool = Pool::pair(crews, how)?;
        let throttles = sides.each_ref().map(|side| side.throttle.get());
        Ok(Self {
            throttles,
            pace: Pace::new(throttles),
            partition: Some(partition),
            ..Self::over(isa, pool, crews.map(|crew| crew.threads))?
        })
    }

    fn over(isa: Isa, pool: Pool, crews: [usize; 2]) -> Result<Self, Error> {
        if !isa.is_available() {
            return Err(Error::Program {
                what: "instruction set".to_owned(),
                expected: "one that this machine has",
                found: isa.to_string(),
            });
        }
        let local = |_| {
            OfThread(UnsafeCell::new(Local {
                panel: Panel::new(),
                attention: AttentionScratch::new([]),
                row: Scratch::empty(),
            }))
        };
        Ok(Self {
            isa,
            threads: (0..pool.threads()).map(local).collect(),
            pool,
            scratch: Scratch::empty(),
            crews,
            throttles: [1; 2],
            partition: None,
            pace: Pace::new([1; 2]),
            solos: Solos::default(),
            listed: ListedOrder::default(),
            attended: Vec::new(),
        })
    }

    /// The same device, `times` as slow: its threads wait after each piece of work.
    #[must_use]
    pub fn throttled(self, times: NonZeroU32) -> Self {
        Self {
            throttles: [times.get(); 2],
            ..self
        }
    }

    /// A look at the sides of a pair, also while it runs an order; none for another device.
    pub fn watch(&self) -> Option<PairWatch> {
        self.pool.watch()
    }

    /// Instructions that its kernels use.
    pub const fn isa(&self) -> Isa {
        self.isa
    }

    /// Number of threads.
    pub const fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Runs a kernel, and returns when it is done: an order of one call.
    ///
    /// # Errors
    ///
    /// As [`run_order`](Self::run_order).
    pub fn run(&mut self, kernel: &Kernel, call: &CpuCall<'_>) -> Result<(), Error> {
        self.run_order(&[(kernel, *call)], &|_| true)?;
        Ok(())
    }

    /// Runs kernels one after the other, and returns the number of those that ran. Threads stay from the first phase of the
    /// first to the last phase of the last. Allocates nothing once the largest order was seen, but for cuts by tokens.
    ///
    /// `goes_on` is asked while a call ends, on any of the threads, whether the one of this number is to follow: where
    /// it says no, the order ends. It is asked once for each call but the first.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] where rows or weights do not fit a kernel; then nothing was written. [`Error::Memory`] where there
    /// is none for scratch rows. [`Error::Lost`] where a thread panicked, now or before, and of a pair one of each side.
    pub fn run_order(
        &mut self,
        order: &[(&Kernel, CpuCall<'_>)],
        goes_on: &(dyn Fn(usize) -> bool + Sync),
    ) -> Result<usize, Error> {
        for (kernel, call) in order {
            call.check(kernel)?;
        }
        for (kernel, call) in order {
            self.make_room(kernel, call.rows)?;
        }
        self.list(order);
        let scratch = Address(self.scratch.as_ptr());
        let is_timed = self.partition.is_some() || self.throttles != [1; 2];
        let work = |taken: Taken| {
            let Some((phase, call)) = self.listed.phase(taken.phase) else {
                return ControlFlow::Continue(());
            };
            if taken.side == Side::First && taken.piece == phase.pieces[index(Side::First)] {
                return match goes_on(phase.call + 1) {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                };
            }
            if let Some((kernel, of_call)) = order.get(phase.call) {
                let execution = Execution {
                    isa: self.isa,
                    kernel,
                    call: of_call,
                    scratch,
                    tables: self.listed.tables(call),
                    items: self.listed.items(call),
                    threads: &self.threads,
                    crews: self.crews,
                };
                let own = usize::from(taken.thread >= self.crews[0]);
                let begin = is_timed.then(Instant::now);
                let units = execution.run(taken.thread, phase, taken.side, taken.piece);
                if let Some(begin) = begin {
                    let padding = [phase.padding, 1.0][own];
                    wait_for(f64::from(self.throttles[own]) * padding, begin);
                    let done = Done {
                        units: (units as f64 * padding) as u64,
                        took_ns: begin.elapsed().as_nanos() as u64,
                    };
                    let kind = (phase.product, phase.is_long);
                    self.pace.add(kind, SIDES[own], done);
                }
            }
            ControlFlow::Continue(())
        };
        let ran = self.pool.run(self.listed.pieces(), &work)?;
        if is_timed {
            self.pace.learn();
        }
        if self.partition.is_some() {
            self.learn_solos(ran);
        }
        Ok(self.listed.calls_in(ran))
    }

    /// Lists rows, phases and pieces of an order.
    fn list(&mut self, order: &[(&Kernel, CpuCall<'_>)]) {
        self.listed.clear();
        let mut divide = |work: Uncut, is_long: bool| match &self.partition {
            Some(partition) => {
                let times = self.pace.times((work.product, is_long));
                let faster = SIDES[usize::from(times[0] > times[1])];
                let reading = Reading::of(&work, is_long);
                let alone = reading.and_then(|reading| self.solos.next(reading, faster));
                let work = Uncut {
                    times,
                    alone,
                    ..work
                };
                let cut = partition.cut(work);
                (Division::of(&cut, work), Division::padding(&cut, work))
            }
            None => (Division::whole(&work), 1.0),
        };
        for (number, (kernel, call)) in order.iter().enumerate() {
            let execution = Execution {
                isa: self.isa,
                kernel,
                call,
                scratch: Address(self.scratch.as_ptr()),
                tables: &[],
                items: [&[]; 2],
                threads: &self.threads,
                crews: self.crews,
            };
            let is_followed = number + 1 < order.len();
            self.listed.add(&execution, &mut divide, is_followed);
        }
    }

    /// Notes how long each of so many phases took.
    fn learn_solos(&mut self, ran: usize) {
        let times_ns = self.pool.phases_ns().take(ran).enumerate();
        let phases = times_ns.filter_map(|(number, took_ns)| {
            let (phase, _) = self.listed.phase(number)?;
            Some(Ran {
                reading: phase.reading?,
                alone: who_alone(phase),
                weights: phase.weights,
                took_ns,
            })
        });
        self.solos.learn(phases);
    }

    fn make_room(&mut self, kernel: &Kernel, rows: usize) -> Result<(), Error> {
        self.scratch
            .reserve(rows * kernel.scratch_elements * size_of::<f32>())?;
        for thread in &mut self.threads {
            thread
                .0
                .get_mut()
                .row
                .reserve(kernel.widest * size_of::<f32>())?;
        }
        if let Some((attention, _)) = kernel.attention()
            && !self.attended.contains(attention)
        {
            self.attended.push(*attention);
            for thread in &mut self.threads {
                thread.0.get_mut().attention = AttentionScratch::new(&self.attended);
            }
        }
        Ok(())
    }
}

/// The side that has all pieces of a phase; none where both have some.
fn who_alone(phase: ListedPhase) -> Option<Side> {
    match phase.pieces {
        [_, 0] => Some(Side::First),
        [0, _] => Some(Side::Second),
        _ => None,
    }
}

fn crew_of(placement: &Placement) -> Crew<'_> {
    Crew {
        threads: placement.threads().get(),
        kept_on: placement.kept_on(),
    }
}

/// Waits until what began at `begin` has taken `times` as long as it did.
fn wait_for(times: f64, begin: Instant) {
    if times > 1.0 {
        let end = begin.elapsed().mul_f64(times);
        while begin.elapsed() < end {
            spin_loop();
        }
    }
}
