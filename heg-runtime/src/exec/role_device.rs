//! The device of a role: one that is nobody else's, or two as one, or one that takes the other role's beside it while that
//! has nothing to run.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};

use heg_cpu::{CpuCall, CpuDevice, Error, Kernel};

use super::pair::PairedRoles;

/// What runs programs in a role.
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
            pair: Arc::clone(pair),
        });
    }

    /// Runs an order: see [`CpuDevice::run_order`]. Of reactive work, on two devices as long as nothing waits for the other.
    pub(super) fn run(
        &self,
        order: &[(&Kernel, CpuCall<'_>)],
        goes_on: &(dyn Fn(usize) -> bool + Sync),
        is_reactive: bool,
    ) -> Result<usize, Error> {
        let mut own = self.wait_for();
        if let Some(pair) = &self.pair {
            pair.count_order();
        }
        let mut ran = 0;
        if let Some(borrowing) = self.borrowing.get().filter(|_| is_reactive)
            && let Some(other) = borrowing.other.upgrade()
            && let Some(_held) = other.if_idle()
        {
            borrowing.pair.count_order();
            let is_wanted = AtomicBool::new(false);
            let goes_on = |next: usize| {
                let wanted = other.waiting.load(Ordering::Relaxed) > 0;
                is_wanted.store(wanted, Ordering::Relaxed);
                goes_on(next) && !wanted
            };
            let mut both = taken(&borrowing.both);
            ran = both.run_order(order, &goes_on)?;
            if !is_wanted.load(Ordering::Relaxed) {
                return Ok(ran);
            }
        }
        let rest = order.get(ran..).unwrap_or_default();
        Ok(ran + own.run_order(rest, &|next| goes_on(ran + next))?)
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

/// What a panicking thread left is a whole value: an order lists all anew.
fn taken(device: &Mutex<CpuDevice>) -> MutexGuard<'_, CpuDevice> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}
