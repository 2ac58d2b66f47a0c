//! The device: threads, instruction set and scratch memory of one lane, and how they run an order.

use std::cell::UnsafeCell;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use heg_artifacts::program::Attention;

use crate::attention::AttentionScratch;
use crate::call::CpuCall;
use crate::error::Error;
use crate::execution::Execution;
use crate::kernel::Kernel;
use crate::listed::ListedOrder;
use crate::memory::Scratch;
use crate::placement::Placement;
use crate::pool::Pool;
use crate::product::Panel;
use heg_spec::Isa;

/// What a device is made of.
#[derive(Debug, Clone, Copy)]
pub struct CpuDeviceOptions {
    /// Instructions that its kernels use; this machine must have them.
    pub isa: Isa,
    /// Threads, the caller's included.
    pub threads: NonZeroUsize,
}

/// Runs kernels, one order at a time.
pub struct CpuDevice {
    isa: Isa,
    pool: Pool,
    scratch: Scratch,
    threads: Vec<OfThread>,
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
        let threads = placement.threads();
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
            pool: Pool::new(threads.get(), placement.kept_on())?,
            scratch: Scratch::empty(),
            threads: (0..threads.get()).map(local).collect(),
            listed: ListedOrder::default(),
            attended: Vec::new(),
        })
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
    /// first to the last phase of the last. Allocates nothing once the largest order was seen.
    ///
    /// `goes_on` is asked while a call ends, on any of the threads, whether the one of this number is to follow: where
    /// it says no, the order ends. It is asked once for each call but the first.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] where rows or weights do not fit a kernel; then nothing was written. [`Error::Memory`] where there
    /// is none for scratch rows.
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
        let work = |thread, phase, piece| {
            let Some((phase, call)) = self.listed.phase(phase) else {
                return ControlFlow::Continue(());
            };
            if piece == phase.pieces {
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
                };
                execution.run(thread, phase.index, piece);
            }
            ControlFlow::Continue(())
        };
        let ran = self.pool.run(self.listed.pieces(), &work)?;
        Ok(self.listed.calls_in(ran))
    }

    /// Lists rows, phases and pieces of an order.
    fn list(&mut self, order: &[(&Kernel, CpuCall<'_>)]) {
        self.listed.clear();
        for (number, (kernel, call)) in order.iter().enumerate() {
            let execution = Execution {
                isa: self.isa,
                kernel,
                call,
                scratch: Address(self.scratch.as_ptr()),
                tables: &[],
                items: &[],
                threads: &self.threads,
            };
            self.listed.add(&execution, number + 1 < order.len());
        }
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
