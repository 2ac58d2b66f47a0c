//! The roles of NPU and iGPU together, where CPU programs play both, or a GPU is the partner: as one lane, each side with
//! a share of every kernel; or, where both are CPU programs, as two lanes, one of them with the other's device too while that
//! is idle (HeteroLLM §4).

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use heg_cpu::{CpuDevice, Isa, PairWatch, PartTimes, PartnerForms, PartnerSide, Placement};
use heg_spec::policy::PairLevel;
use heg_spec::soc::Programs;
use heg_spec::{Cut, DeviceClass, Side};

use super::cut_counts::{CutCounter, CutCounts};
use super::partition::partition;
use super::placement::placement;
use super::role_device::RoleDevice;
use crate::backend::{PAIRED_ROLES, PairPartner, PairSetup};
use crate::pair_ways::{PairWay, Prospect};
use heg_sched::Class;

pub use heg_cpu::{HandOvers, Partition, WorkItem};

/// Two roles that run kernels together.
pub struct PairedRoles {
    setup: PairSetup,
    programs: [Programs; 2],
    /// Products that were cut, by what said how.
    cuts: Arc<CutCounter>,
    /// The state of both as one lane; `None` if each has its own.
    one_lane: Option<OneLane>,
    /// Looks at the pairs that were made, each with the role that is its first side.
    watches: Mutex<Vec<(Side, PairWatch)>>,
    /// Reactive orders that both ran.
    orders: AtomicU64,
    /// Passes that the partner ran alone.
    partner_passes: AtomicU64,
    /// Passes that the CPU ran alone, since it is faster.
    cpu_passes: AtomicU64,
    /// Time that the partner would need for the products of the latest order, in ns; 0 if that is not known.
    partner_ns: AtomicU64,
    /// The way of all passes, if it is not found by trying.
    only_way: Mutex<Option<PairWay>>,
}

/// The lanes of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairLanes {
    /// One, for everything.
    One,
    /// One for each role; reactive work of one takes the other's device while that is idle.
    Two,
}

/// Both roles as one lane.
struct OneLane {
    shares: Arc<Shares>,
    /// Made when the first kernel needs it, and kept by kernels: it keeps the pair itself.
    device: Mutex<Weak<RoleDevice>>,
}

/// The partition of work between the roles.
struct Shares {
    partition: Mutex<Box<dyn Partition>>,
    /// The side of a CPU beside another device.
    cpu: Side,
    /// Times that the partition was replaced.
    replaced: AtomicU32,
    /// Whether background work runs, which never takes both devices.
    is_background: AtomicBool,
    /// Whether the CPU runs all of what both could.
    is_cpus: AtomicBool,
}

impl Shares {
    fn partition(&self) -> MutexGuard<'_, Box<dyn Partition>> {
        // What a panicking thread left is a whole value.
        self.partition
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl PairedRoles {
    /// For roles that run such programs, but for one that is another device.
    pub(super) fn new(setup: &PairSetup, programs: [Programs; 2]) -> Self {
        let cuts = Arc::default();
        let one_lane = || OneLane {
            shares: Arc::new(Shares {
                partition: Mutex::new(partition(setup, Side::First, &cuts)),
                cpu: setup.partner.as_ref().map_or(Side::Second, |partner| {
                    side_of(partner.role, Side::First).other()
                }),
                replaced: AtomicU32::new(0),
                is_background: AtomicBool::new(false),
                is_cpus: AtomicBool::new(false),
            }),
            device: Mutex::default(),
        };
        Self {
            one_lane: (setup.lanes == PairLanes::One).then(one_lane),
            setup: setup.clone(),
            programs,
            cuts,
            watches: Mutex::default(),
            orders: AtomicU64::new(0),
            partner_passes: AtomicU64::new(0),
            cpu_passes: AtomicU64::new(0),
            partner_ns: AtomicU64::new(0),
            only_way: Mutex::new(match (setup.pairing.level, &setup.partner) {
                (PairLevel::Layer, Some(partner)) if partner.shares_products => {
                    Some(PairWay::Together)
                }
                (PairLevel::Layer | PairLevel::Tensor, _) => None,
            }),
        }
    }

    /// The role that is another device, if one is.
    pub(super) fn partner(&self) -> Option<&PairPartner> {
        self.setup.partner.as_ref()
    }

    /// Why CPU programs alone play the role of the device that was to be the other half; `None` if that is not so.
    pub fn missing(&self) -> Option<&str> {
        self.setup.missing.as_deref()
    }

    /// Whether another device of the pair computes those areas alone that the bundle's partition cuts for it.
    pub(crate) fn cuts_as_compiled(&self) -> bool {
        let forms = self.partner().map(|partner| partner.device.forms());
        forms == Some(PartnerForms::Compiled)
    }

    /// The way without the areas that were compiled for another device, if it has any: the CPU's programs run them.
    pub(crate) fn way_of_programs(&self) -> Option<PairWay> {
        let has_both = self.cuts_as_compiled() && self.is_one_lane();
        has_both.then_some(PairWay::Cpu)
    }

    /// Announces the class of the launches that follow.
    pub(super) fn begin(&self, class: Class) {
        if let Some(OneLane { shares, .. }) = &self.one_lane {
            let is_background = class == Class::Proactive;
            shares.is_background.store(is_background, Ordering::Relaxed);
        }
    }

    /// Whether both are one lane.
    pub(crate) fn is_one_lane(&self) -> bool {
        self.one_lane.is_some()
    }

    /// Has a pair that is one lane share all work in another way from the next launch on; false where it is two.
    pub fn share_by(&self, partition: Box<dyn Partition>) -> bool {
        let Some(OneLane { shares, .. }) = &self.one_lane else {
            return false;
        };
        *shares.partition() = partition;
        shares.replaced.fetch_add(1, Ordering::Relaxed);
        self.keep_to(Some(PairWay::Together));
        true
    }

    /// Has all passes run one way, if there is a partner for it; with `None` the faster one is found by trying.
    pub fn keep_to(&self, way: Option<PairWay>) {
        let only = self.only_way.lock();
        *only.unwrap_or_else(PoisonError::into_inner) = way;
    }

    /// The way that all passes run, if that is not found by trying.
    pub(crate) fn only_way(&self) -> Option<PairWay> {
        let only = self.only_way.lock();
        *only.unwrap_or_else(PoisonError::into_inner)
    }

    /// Times that the roles took to hand over to each other so far; none before the first launch.
    pub fn hand_overs(&self) -> Option<HandOvers> {
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        let each = watches.iter().map(|(_, watch)| watch.hand_overs());
        each.reduce(|all, others| all.with(&others))
    }

    /// The role, by its place in the pair, that was lost in running kernels with the other, if one was: the other runs
    /// what they would have shared.
    pub fn lost_side(&self) -> Option<Side> {
        let lost = self.partner().filter(|partner| partner.device.is_lost());
        if let Some(partner) = lost {
            return Some(side_of(partner.role, Side::First));
        }
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.iter().find_map(|(first, watch)| {
            let lost = watch.lost_side()?;
            Some(match first {
                Side::First => lost,
                Side::Second => lost.other(),
            })
        })
    }

    /// Name of the other device of the pair, as a user reads it; `None` if both are CPU programs.
    pub fn partner_name(&self) -> Option<&str> {
        self.partner().map(|partner| partner.name.as_str())
    }

    /// The reason why another device of the pair was lost, in words; `None` if it was not, or gives no reason.
    pub fn why_lost(&self) -> Option<String> {
        self.partner()?.device.why_lost()
    }

    /// Times that parts on another device of the pair took beside its work, if it has a clock: their ways there and back;
    /// `None` if both are CPU programs.
    pub fn partner_hand_overs(&self) -> Option<HandOvers> {
        self.partner()?;
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        let each = watches.iter().map(|(_, watch)| watch.partner_hand_overs());
        each.reduce(|all, others| all.with(&others))
    }

    /// Parts of products that another device of the pair has computed; 0 if both are CPU programs.
    pub fn partner_parts(&self) -> u64 {
        self.partner().map_or(0, |partner| partner.device.parts())
    }

    /// Passes that another device of the pair ran alone.
    pub fn partner_passes(&self) -> u64 {
        self.partner_passes.load(Ordering::Relaxed)
    }

    /// Passes that the CPU ran without the areas that were compiled for another device, which takes longer for them.
    pub fn cpu_passes(&self) -> u64 {
        self.cpu_passes.load(Ordering::Relaxed)
    }

    pub(crate) fn count_pass(&self, way: PairWay) {
        let passes = match way {
            PairWay::Together => return,
            PairWay::Partner => &self.partner_passes,
            PairWay::Cpu => &self.cpu_passes,
        };
        passes.fetch_add(1, Ordering::Relaxed);
    }

    /// Has the launches that follow run one way.
    pub(crate) fn run_as(&self, way: PairWay) {
        if let Some(OneLane { shares, .. }) = &self.one_lane {
            shares.is_cpus.store(way == PairWay::Cpu, Ordering::Relaxed);
        }
    }

    /// The prospect of the partner in passes that nothing is known of.
    pub(crate) fn first_prospect(&self) -> Prospect {
        match self.partner() {
            Some(partner) if !partner.shares_products => Prospect::Whole,
            _ => Prospect::Unknown,
        }
    }

    /// The prospect of the partner in passes like the latest one, if it ran these alone.
    pub(crate) fn prospect(&self) -> Prospect {
        match self.partner_ns.load(Ordering::Relaxed) {
            0 => self.first_prospect(),
            ns => Prospect::Products { ns },
        }
    }

    pub(super) fn note_partner_ns(&self, ns: Option<u64>) {
        self.partner_ns.store(ns.unwrap_or(0), Ordering::Relaxed);
    }

    /// Products that were cut at the level of tensors so far, by what said how.
    pub fn cuts(&self) -> CutCounts {
        self.cuts.counts()
    }

    /// Reactive orders that both ran.
    pub fn orders(&self) -> u64 {
        self.orders.load(Ordering::Relaxed)
    }

    pub(super) fn count_order(&self) {
        self.orders.fetch_add(1, Ordering::Relaxed);
    }

    /// The device that both roles are; `None` where each has a lane of its own.
    pub(super) fn device(self: &Arc<Self>) -> Result<Option<Arc<RoleDevice>>, heg_cpu::CpuError> {
        let Some(OneLane { shares, device }) = &self.one_lane else {
            return Ok(None);
        };
        // What a panicking thread left is a whole value.
        let mut device = device.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = device.upgrade() {
            return Ok(Some(device));
        }
        let both = self.both(Side::First, Box::new(AsTold(Arc::clone(shares))))?;
        let made = Arc::new(RoleDevice::new(both, Some(Arc::clone(self))));
        *device = Arc::downgrade(&made);
        Ok(Some(made))
    }

    /// Lets either role take the other's device too.
    pub(super) fn lend(
        self: &Arc<Self>,
        devices: [&Arc<RoleDevice>; 2],
    ) -> Result<(), heg_cpu::CpuError> {
        let [first, second] = devices;
        for (role, own, other) in [(Side::First, first, second), (Side::Second, second, first)] {
            let both = self.both(role, partition(&self.setup, role, &self.cuts))?;
            own.may_borrow(other, both, self);
        }
        Ok(())
    }

    /// A device of both, with a role as its first side.
    fn both(
        &self,
        role: Side,
        partition: Box<dyn Partition>,
    ) -> Result<CpuDevice, heg_cpu::CpuError> {
        let [mut first, mut second] = self.programs.each_ref();
        if role == Side::Second {
            std::mem::swap(&mut first, &mut second);
        }
        let mut sides = [placement(first)?, placement(second)?];
        let partner = self.partner().map(|partner| PartnerSide {
            side: side_of(partner.role, role),
            partner: Arc::clone(&partner.device),
        });
        if let Some(partner) = &partner {
            // A thread that waits for the device.
            let [first, second] = &mut sides;
            let own = match partner.side {
                Side::First => first,
                Side::Second => second,
            };
            *own = Placement::anywhere(NonZeroUsize::MIN);
        }
        // Results are the same with any instructions, so both use those of the first.
        let isa = first.isa.unwrap_or_else(Isa::best);
        let how = self.setup.pairing.synchronisation;
        let made = CpuDevice::pair(isa, &sides, how, partition, partner)?;
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.extend(made.watch().map(|watch| (role, watch)));
        Ok(made)
    }
}

/// The side of a role in a pair whose first side is the role of `first`.
fn side_of(role: DeviceClass, first: Side) -> Side {
    match (role == PAIRED_ROLES[0], first) {
        (true, first) => first,
        (false, first) => first.other(),
    }
}

/// Shares by what the roles are told meanwhile.
struct AsTold(Arc<Shares>);

impl Partition for AsTold {
    fn cut(&self, work: WorkItem) -> Cut {
        if self.0.is_background.load(Ordering::Relaxed) {
            return Cut::Whole(Side::Second);
        }
        if self.0.is_cpus.load(Ordering::Relaxed) {
            return Cut::Whole(self.0.cpu);
        }
        self.0.partition().cut(work)
    }

    fn follows_speeds(&self, work: WorkItem) -> bool {
        // Background work runs as it is told, at any speed.
        let is_background = self.0.is_background.load(Ordering::Relaxed);
        !is_background && self.0.partition().follows_speeds(work)
    }

    fn rules(&self) -> u32 {
        let [is_background, is_cpus] = [&self.0.is_background, &self.0.is_cpus]
            .map(|is| u32::from(is.load(Ordering::Relaxed)));
        4 * self.0.replaced.load(Ordering::Relaxed) + 2 * is_cpus + is_background
    }

    fn is_told(&self) -> bool {
        self.0.partition().is_told()
    }

    fn ran(&self, times: PartTimes) {
        self.0.partition().ran(times);
    }
}
