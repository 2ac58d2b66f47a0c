//! The device: threads, instruction set and scratch memory of one lane, and how they run a call.

use std::cell::UnsafeCell;
use std::num::NonZeroUsize;

use heg_artifacts::program::Attention;

use crate::attention::AttentionScratch;
use crate::call::CpuCall;
use crate::error::Error;
use crate::execution::{Execution, Item};
use crate::kernel::Kernel;
use crate::memory::Scratch;
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

/// Runs kernels, one call at a time.
pub struct CpuDevice {
    isa: Isa,
    pool: Pool,
    scratch: Scratch,
    threads: Vec<OfThread>,
    /// Addresses of rows, by port: inputs, then outputs.
    tables: Vec<Vec<Address>>,
    /// Pieces of the call's attention.
    items: Vec<Item>,
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
    /// A device with threads of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Program`] where this machine does not have the instructions, [`Error::Thread`] where a thread cannot be
    /// started.
    pub fn new(options: CpuDeviceOptions) -> Result<Self, Error> {
        let CpuDeviceOptions { isa, threads } = options;
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
            pool: Pool::new(threads.get())?,
            scratch: Scratch::empty(),
            threads: (0..threads.get()).map(local).collect(),
            tables: Vec::new(),
            items: Vec::new(),
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

    /// Runs a kernel, and returns when it is done. Allocates nothing once the largest call was seen.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] where rows or weights do not fit the kernel; then nothing was written. [`Error::Memory`] where
    /// there is none for scratch rows.
    pub fn run(&mut self, kernel: &Kernel, call: &CpuCall<'_>) -> Result<(), Error> {
        call.check(kernel)?;
        if call.rows == 0 {
            return Ok(());
        }
        self.make_room(kernel, call.rows)?;
        list_rows(&mut self.tables, call);
        let mut execution = Execution {
            isa: self.isa,
            kernel,
            call,
            scratch: Address(self.scratch.as_ptr()),
            tables: &self.tables,
            items: &mut self.items,
            threads: &self.threads,
        };
        execution.list_items();
        let work = |thread, phase, piece| execution.run(thread, phase, piece);
        self.pool.run(execution.pieces(), &work)
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

/// Writes the address of each row of each port.
fn list_rows(tables: &mut Vec<Vec<Address>>, call: &CpuCall<'_>) {
    let ports = call.inputs.iter().chain(call.outputs);
    tables.resize_with(call.inputs.len() + call.outputs.len(), Vec::new);
    for (table, runs) in tables.iter_mut().zip(ports) {
        table.clear();
        for run in *runs {
            table.extend((0..run.count()).map(|row| Address(run.row(row))));
        }
    }
}
