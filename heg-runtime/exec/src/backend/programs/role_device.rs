//! The device of a role: one that is nobody else's, or two as one, or one that takes the other role's beside it while that
//! has nothing to run.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};

use heg_cpu::{CpuCall, CpuDevice, CpuError, CpuKernel};
use heg_spec::bug;

use super::pair::PairedRoles;

/// The device that runs programs in a role.
pub(super) struct RoleDevice {
    own: Mutex<CpuDevice>,
    /// Launches that wait for it.
    waiting: AtomicUsize,
    /// The pair that `own` is.
    pair: Option<Arc<PairedRoles>>,
    borrowing: OnceLock<Borrowing>,
}

/// Another role's device, which reactive work may take too.
struct Borrowing {
    other: Weak<RoleDevice>,
    /// Both as one; used by whoever holds both.
    both: Mutex<CpuDevice>,
    /// Whether both sides of `both` panicked: each device is used alone from then on.
    is_lost: AtomicBool,
    pair: Arc<PairedRoles>,
}

impl RoleDevice {
    /// A device that is one role's alone, or two roles' as one.
    pub(super) fn new(own: CpuDevice, pair: Option<Arc<PairedRoles>>) -> Self {
        Self {
            own: Mutex::new(own),
            waiting: AtomicUsize::new(0),
            pair,
            borrowing: OnceLock::new(),
        }
    }

    /// Lets reactive work of this role take `other` too while that is idle; `both` is what they are together.
    pub(super) fn may_borrow(&self, other: &Arc<Self>, both: CpuDevice, pair: &Arc<PairedRoles>) {
        // Nobody gives it two.
        let _ = self.borrowing.set(Borrowing {
            other: Arc::downgrade(other),
            both: Mutex::new(both),
            is_lost: AtomicBool::new(false),
            pair: Arc::clone(pair),
        });
    }

    /// Runs an order: see [`CpuDevice::run_order`]. Of reactive work, on two devices as long as nothing waits for the other.
    pub(super) fn run(
        &self,
        order: &[(&CpuKernel, CpuCall<'_>)],
        goes_on: &(dyn Fn(usize) -> bool + Sync),
        is_reactive: bool,
    ) -> Result<usize, CpuError> {
        let mut own = self.wait_for();
        if let Some(pair) = self.pair.as_ref().filter(|_| is_reactive) {
            pair.count_order();
        }
        let mut ran = 0;
        let borrowing = self.borrowing.get().filter(|_| is_reactive);
        if let Some(shared) = borrowing.and_then(|borrowing| borrowing.run(order, goes_on)) {
            let ending = shared?;
            ran = ending.ran;
            if !ending.is_other_wanted {
                return Ok(ran);
            }
        }
        let rest = order.get(ran..);
        let rest = rest.ok_or_else(|| bug!("a pair ran more calls than its order has"))?;
        let ran = ran + own.run_order(rest, &|next| goes_on(ran + next))?;
        if let Some(pair) = &self.pair {
            pair.note_partner_ns(own.partner_ns());
        }
        Ok(ran)
    }

    fn wait_for(&self) -> MutexGuard<'_, CpuDevice> {
        if let Some(idle) = self.if_idle() {
            return idle;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let own = taken(&self.own);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        own
    }

    fn if_idle(&self) -> Option<MutexGuard<'_, CpuDevice>> {
        match self.own.try_lock() {
            Ok(own) => Some(own),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// The end of an order that ran on two devices.
struct SharedEnding {
    /// Calls that ran.
    ran: usize,
    /// Whether it would have gone on, and something waits for the other device.
    is_other_wanted: bool,
}

impl Borrowing {
    /// Runs an order on both devices; `None` where the other one is busy.
    fn run(
        &self,
        order: &[(&CpuKernel, CpuCall<'_>)],
        goes_on: &(dyn Fn(usize) -> bool + Sync),
    ) -> Option<Result<SharedEnding, CpuError>> {
        if self.is_lost.load(Ordering::Relaxed) {
            return None;
        }
        let other = self.other.upgrade()?;
        let _held = other.if_idle()?;
        self.pair.count_order();
        let is_wanted = AtomicBool::new(false);
        let goes_on = |next: usize| {
            let follows = goes_on(next);
            let wanted = follows && other.waiting.load(Ordering::Relaxed) > 0;
            is_wanted.store(wanted, Ordering::Relaxed);
            follows && !wanted
        };
        let ran = taken(&self.both).run_order(order, &goes_on);
        if matches!(ran, Err(CpuError::Lost)) {
            self.is_lost.store(true, Ordering::Relaxed);
        }
        Some(ran.map(|ran| SharedEnding {
            ran,
            is_other_wanted: is_wanted.into_inner(),
        }))
    }
}

/// A value that a panicking thread left is whole, since an order lists all anew.
fn taken(device: &Mutex<CpuDevice>) -> MutexGuard<'_, CpuDevice> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}
