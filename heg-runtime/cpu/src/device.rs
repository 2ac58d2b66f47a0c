//! The device of one lane: its threads, instruction set and scratch memory, and how it runs an order.

use std::cell::UnsafeCell;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::time::Instant;

use heg_artifacts::program::Attention;

use crate::asking::{AskedPhase, Asking};
use crate::attention::AttentionScratch;
use crate::call::CpuCall;
use crate::divider::{Divided, Divider};
use crate::division::{Division, Partition, WorkItem, index};
use crate::error::CpuError;
use crate::execution::Execution;
use crate::kernel::CpuKernel;
use crate::listed::{ListedOrder, ListedPhase};
use crate::memory::Scratch;
use crate::pace::Pace;
use crate::part_clock::{PartClock, PartTimes};
use crate::partner::PartnerSide;
use crate::placement::Placement;
use crate::pool::{Crew, PairWatch, Pool, Taken};
use crate::product::Panel;
use crate::rests::{OrderKind, PartnerPart, Rests};
use crate::solo_tuner::{PhaseTiming, SoloTuner};
use heg_spec::policy::Synchronisation;
use heg_spec::{Bug, Cut, Isa, Side, bug};

/// Options of a device.
#[derive(Debug, Clone, Copy)]
pub struct CpuDeviceOptions {
    /// Instruction set of its kernels; this machine must have it.
    pub isa: Isa,
    /// Number of threads, including the caller's.
    pub threads: NonZeroUsize,
}

/// Runs kernels, one order at a time: as a single device, or as a pair that shares each kernel.
pub struct CpuDevice {
    isa: Isa,
    pool: Pool,
    scratch: Scratch,
    threads: Vec<PerThread>,
    /// Number of threads by side; a single device has only the first side.
    crews: [usize; 2],
    /// Policy by which a pair shares work; `None` for a single device.
    partition: Option<Box<dyn Partition>>,
    /// The side of a pair that is another device.
    partner: Option<PartnerSide>,
    /// Measured speed ratios of the sides.
    pace: Pace,
    /// Finds the products that one side of a pair does faster alone.
    solo_tuner: SoloTuner,
    /// Finds the products on which a partner is to be measured.
    asking: Asking,
    /// Orders that run without the partner, undivided.
    rests: Rests,
    /// Time that the partner would need for the latest order, in ns; `None` if it was not divided, or that is not known.
    partner_ns: Option<u64>,
    /// Times of parts, for a partition that is told.
    clock: PartClock,
    /// The running order.
    listed: ListedOrder,
    /// Attention steps that the threads have memory for.
    attended: Vec<Attention>,
}

/// Address of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address(pub(crate) *mut u8);

// SAFETY: an address is a number; the memory behind it is accessed as `ProgramRows::new` demands.
unsafe impl Send for Address {}
// SAFETY: an address is a number; the memory behind it is accessed as `ProgramRows::new` demands.
unsafe impl Sync for Address {}

/// Memory of one thread, accessed by that thread alone within a call.
pub(crate) struct PerThread(UnsafeCell<Local>);

// SAFETY: within a call each thread uses only the one of its own number, as `PerThread::get` demands.
unsafe impl Sync for PerThread {}

/// Memory of one thread.
pub(crate) struct Local {
    pub(crate) panel: Panel,
    pub(crate) attention: AttentionScratch,
    /// One f32 row, before it is converted.
    pub(crate) row: Scratch,
}

impl PerThread {
    /// The thread's memory.
    ///
    /// # Safety
    ///
    /// Only the thread of this number calls it, and drops the reference before the next call.
    #[allow(clippy::mut_from_ref, reason = "one thread has each")]
    pub(crate) unsafe fn get(&self) -> &mut Local {
        // SAFETY: the caller is the only thread that uses this memory, and keeps no earlier reference.
        unsafe { &mut *self.0.get() }
    }
}

impl CpuDevice {
    /// A device with its own threads, placed by the system.
    ///
    /// # Errors
    ///
    /// As [`placed`](Self::placed).
    pub fn new(options: CpuDeviceOptions) -> Result<Self, CpuError> {
        Self::placed(options.isa, &Placement::anywhere(options.threads))
    }

    /// A device with threads pinned to cores. A thread that calls [`run_order`](Self::run_order) works along, and is
    /// pinned to the same cores from then on.
    ///
    /// # Errors
    ///
    /// [`CpuError::Program`] if this machine lacks the instructions, [`CpuError::Thread`] if a thread cannot be started.
    pub fn placed(isa: Isa, placement: &Placement) -> Result<Self, CpuError> {
        let crew = crew_of(placement);
        Self::over(isa, Pool::new(crew)?, [crew.threads, 0])
    }

    /// A pair of devices that runs every order together; both end at the same time if the partition is right. Results
    /// are those of a single device. `sides`: the threads of each; the caller's thread belongs to the first.
    ///
    /// With a partner in place of a side's processors, that side has one thread, which gives the partner work, and the
    /// caller's belongs to the other: a partner that gets nothing costs no hand-over.
    ///
    /// # Errors
    ///
    /// As [`placed`](Self::placed).
    pub fn pair(
        isa: Isa,
        sides: &[Placement; 2],
        how: Synchronisation,
        partition: Box<dyn Partition>,
        partner: Option<PartnerSide>,
    ) -> Result<Self, CpuError> {
        let crews = sides.each_ref().map(crew_of);
        let side = partner.as_ref().map(|it| it.side);
        let callers = side.map_or(Side::First, Side::other);
        let pool = Pool::pair(crews, callers, how)?;
        Ok(Self {
            partition: Some(partition),
            pace: side.map_or_else(Pace::default, Pace::beside),
            partner,
            ..Self::over(isa, pool, crews.map(|crew| crew.threads))?
        })
    }

    fn over(isa: Isa, pool: Pool, crews: [usize; 2]) -> Result<Self, CpuError> {
        if !isa.is_available() {
            return Err(CpuError::Program {
                what: "instruction set".to_owned(),
                expected: "one that this machine has",
                found: isa.to_string(),
            });
        }
        let local = |_| -> Result<PerThread, CpuError> {
            Ok(PerThread(UnsafeCell::new(Local {
                panel: Panel::new(),
                attention: AttentionScratch::new([])?,
                row: Scratch::empty(),
            })))
        };
        Ok(Self {
            isa,
            threads: (0..pool.threads()).map(local).collect::<Result<_, _>>()?,
            pool,
            scratch: Scratch::empty(),
            crews,
            partition: None,
            partner: None,
            pace: Pace::default(),
            solo_tuner: SoloTuner::default(),
            asking: Asking::default(),
            rests: Rests::default(),
            partner_ns: None,
            clock: PartClock::default(),
            listed: ListedOrder::default(),
            attended: Vec::new(),
        })
    }

    /// Read-only handle to the sides of a pair, usable while it runs an order; `None` for a single device.
    pub fn watch(&self) -> Option<PairWatch> {
        self.pool.watch()
    }

    /// Instruction set of its kernels.
    pub const fn isa(&self) -> Isa {
        self.isa
    }

    /// Number of threads.
    pub const fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Runs one kernel to completion: an order of one call.
    ///
    /// # Errors
    ///
    /// As [`run_order`](Self::run_order).
    pub fn run(&mut self, kernel: &CpuKernel, call: &CpuCall<'_>) -> Result<(), CpuError> {
        self.run_order(&[(kernel, *call)], &|_| true)?;
        Ok(())
    }

    /// Runs kernels one after the other, and returns how many ran. Threads stay awake for the whole order. Once the
    /// largest order was seen, nothing is allocated, except for cuts by tokens.
    ///
    /// `goes_on` is called at the end of each call but the last, on any of the threads, with the index of the next
    /// call. If it returns false, the order ends there.
    ///
    /// # Errors
    ///
    /// [`CpuError::Call`] if rows or weights do not fit a kernel; then nothing was written. [`CpuError::Partner`] if the other
    /// device of a pair did not end. [`CpuError::Memory`] if scratch rows cannot be allocated. [`CpuError::Lost`] if a
    /// thread panicked, now or before; for a pair, if one of each side did. [`CpuError::Bug`] if a kernel's own invariant
    /// does not hold.
    pub fn run_order(
        &mut self,
        order: &[(&CpuKernel, CpuCall<'_>)],
        goes_on: &(dyn Fn(usize) -> bool + Sync),
    ) -> Result<usize, CpuError> {
        for (kernel, call) in order {
            call.check(kernel)?;
        }
        for (kernel, call) in order {
            self.make_room(kernel, call.rows)?;
        }
        let partner = self.partner_side();
        let kind = partner.and_then(|_| self.kind(order));
        let rests = kind.is_some_and(|kind| self.rests.take(kind));
        self.partner_ns = None;
        self.list(order, partner.filter(|_| rests).map(Side::other))?;
        let is_measured = self.partition.is_some() && !rests;
        self.start_clock(is_measured);
        let scratch = Address(self.scratch.as_ptr());
        let watch = partner.and_then(|_| self.watch());
        let run_piece = |taken: Taken| {
            let (phase, call) = self.listed.phase(taken.phase)?;
            if phase.asker == Some(taken.side) && taken.piece == phase.pieces[index(taken.side)] {
                return Ok(match goes_on(phase.call + 1) {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                });
            }
            let of_call = order.get(phase.call);
            let (kernel, of_call) = of_call.ok_or_else(|| bug!("a phase is of no call"))?;
            let execution = Execution {
                isa: self.isa,
                kernel,
                call: of_call,
                scratch,
                tables: self.listed.tables(call)?,
                items: self.listed.items(call),
                threads: &self.threads,
                crews: self.crews,
                partner,
            };
            let begin = is_measured.then(Instant::now);
            let ran = execution.run(taken, phase)?;
            if let Some(begin) = begin {
                let own = taken.own;
                self.pace.note(own, &phase, ran, begin.elapsed());
                self.clock.note(taken.phase, taken.side, own, begin);
                if let Some((watch, busy)) = watch.as_ref().zip(ran.busy) {
                    watch.note_partner(begin.elapsed().saturating_sub(busy));
                }
            }
            Ok(ControlFlow::Continue(()))
        };
        // Other threads wait for the piece, so the order comes to its end and fails then.
        let broken = OnceLock::new();
        let work = |taken: Taken| {
            run_piece(taken).unwrap_or_else(|error: CpuError| {
                broken.get_or_init(|| error);
                ControlFlow::Continue(())
            })
        };
        let ran = self.pool.run(self.listed.pieces(), &work)?;
        if let Some(error) = broken.into_inner() {
            return Err(error);
        }
        if is_measured {
            self.learn(ran, kind);
        }
        Ok(self.listed.calls_in(ran))
    }

    fn kind(&self, order: &[(&CpuKernel, CpuCall<'_>)]) -> Option<OrderKind> {
        let partition = self.partition.as_ref()?;
        OrderKind::of(order, partition.rules())
    }

    /// Lists the rows, phases and pieces of an order; all of these for the side `alone`, if there is one.
    fn list(
        &mut self,
        order: &[(&CpuKernel, CpuCall<'_>)],
        alone: Option<Side>,
    ) -> Result<(), Bug> {
        self.listed.clear();
        let partner = self.partner_side();
        let hand_over_ns = self.hand_over_ns();
        self.asking.begin();
        let mut divider = self.partition.as_deref().map(|partition| Divider {
            partition,
            pace: &mut self.pace,
            solo_tuner: &mut self.solo_tuner,
            asking: &mut self.asking,
            partner: self
                .partner
                .as_ref()
                .map(|it| (it.side, it.partner.forms())),
            hand_over_ns,
        });
        let mut divide = |work: WorkItem, is_long: bool| match (alone, &mut divider) {
            (Some(alone), _) => Divided::by(Division::of(&Cut::Whole(alone), work)),
            (None, Some(divider)) => divider.divide(work, is_long),
            (None, None) => Divided::by(Division::whole(&work)),
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
                partner,
            };
            let is_followed = number + 1 < order.len();
            self.listed.add(&execution, &mut divide, is_followed)?;
        }
        Ok(())
    }

    /// Learns from the first `ran` phases of an order, and tells the partition of them. `kind`: the order's, beside a
    /// partner.
    fn learn(&mut self, ran: usize, kind: Option<OrderKind>) {
        self.pace.learn();
        let orders = kind.map_or(1, |kind| self.rests.stands_for(kind));
        self.tune_solo(ran, orders);
        if let Some((partner, kind)) = self.partner_side().zip(kind) {
            self.note_asked(ran, partner, orders);
            self.partner_ns = self.sum_partner_ns(partner);
            self.rests.learn(kind, self.part_of(partner, ran));
        }
        self.tell(ran);
    }

    /// Time that a partner would be busy with all products of the latest order, by its measured parts; `None` without a
    /// partner, before it was measured, and for an order that was not divided.
    pub const fn partner_ns(&self) -> Option<u64> {
        self.partner_ns
    }

    fn sum_partner_ns(&self, partner: Side) -> Option<u64> {
        let mut all_ns = 0.0;
        for phase in self.listed.phases() {
            let key = phase.pace_key();
            if phase.is_shared && self.asking.is_new(key) && phase.units > 0 {
                return None;
            }
            all_ns += self.pace.times(key)[index(partner)] * phase.units as f64;
        }
        Some(all_ns as u64)
    }

    /// The part that the partner had in the first `ran` phases.
    fn part_of(&self, partner: Side, ran: usize) -> PartnerPart {
        let phases = self.listed.phases().iter().take(ran);
        let own = phases.filter(|phase| phase.pieces[index(partner)] > 0);
        let of_phase = own.map(|phase| match phase.is_question {
            true => PartnerPart::Questions,
            false => PartnerPart::Parts,
        });
        of_phase.max().unwrap_or(PartnerPart::Nothing)
    }

    /// Starts the clock of parts of a measured order, if the partition is told of them.
    fn start_clock(&mut self, is_measured: bool) {
        let is_told = self.partition.as_ref().is_some_and(|it| it.is_told());
        let phases = if is_told && is_measured {
            self.listed.len()
        } else {
            0
        };
        self.clock.start(phases);
    }

    /// Tells the partition how long the parts of products in the first `ran` phases took.
    fn tell(&self, ran: usize) {
        let Some(partition) = self.partition.as_ref().filter(|it| it.is_told()) else {
            return;
        };
        for number in 0..ran {
            let product = self.listed.phase(number).ok();
            let product = product.and_then(|(phase, _)| phase.product);
            if let (Some(product), Some(of_side)) = (product, self.clock.of_phase(number)) {
                partition.ran(PartTimes { product, of_side });
            }
        }
    }

    /// Passes the durations of the first `ran` phases to the tuner, for `orders` like this.
    fn tune_solo(&mut self, ran: usize, orders: u32) {
        let phases = self.listed.phases().iter().zip(self.pool.phases_ns());
        let phases = phases.take(ran).filter_map(|(phase, took_ns)| {
            Some(PhaseTiming {
                memory_bound: phase.memory_bound?,
                alone: sole_side(phase),
                weights: phase.weights,
                took_ns,
            })
        });
        self.solo_tuner.learn(phases, orders);
    }

    /// Notes which of the first `ran` phases a partner had a part of, for `orders` like this.
    fn note_asked(&mut self, ran: usize, partner: Side, orders: u32) {
        let phases = self.listed.phases().iter().zip(self.pool.phases_ns());
        let shared = phases.take(ran).filter(|(phase, _)| phase.is_shared);
        let shared = shared.map(|(phase, took_ns)| AskedPhase {
            key: phase.pace_key(),
            has_part: phase.pieces[index(partner)] > 0,
            took_ns,
        });
        self.asking.learn(shared, orders);
    }

    /// Median time, by side, that a part takes beside its work before the other side has it.
    fn hand_over_ns(&self) -> [f64; 2] {
        let mut of_side = [0.0; 2];
        if let (Some(side), Some(watch)) = (self.partner_side(), self.watch()) {
            let median_us = watch.partner_hand_overs().quantile_us(0.5);
            of_side[index(side)] = 1e3 * median_us.unwrap_or(0.0);
        }
        of_side
    }

    fn partner_side(&self) -> Option<Side> {
        let partner = self.partner.as_ref()?;
        Some(partner.side)
    }

    fn make_room(&mut self, kernel: &CpuKernel, rows: usize) -> Result<(), CpuError> {
        let bytes = rows * kernel.scratch_elements * size_of::<f32>();
        match &self.partner {
            Some(PartnerSide { partner, .. }) => self.scratch.reserve_at(&**partner, bytes)?,
            None => self.scratch.reserve(bytes)?,
        }
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
            let steps = || self.attended.iter().chain([attention]);
            for thread in &mut self.threads {
                thread.0.get_mut().attention = AttentionScratch::new(steps())?;
            }
            self.attended.push(*attention);
        }
        Ok(())
    }
}

/// The side that has all pieces of a phase; `None` if both have some.
fn sole_side(phase: &ListedPhase) -> Option<Side> {
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
