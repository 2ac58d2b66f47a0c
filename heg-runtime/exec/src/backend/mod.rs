//! Back ends: what can prepare and run kernels. Each has a folder of its own and knows nothing of the others.
//!
//! A [`Backend`] belongs to a loader: it says which rungs of the ladder it runs, and prepares forms of them, on any
//! thread. It gives each executor a [`Session`], which carries out orders: launches whose forms are all its own. The
//! executor finds the back end of each launch by the form that admits it, so neither road is an exception to the other.
//!
//! To add one: a folder here, and a line in [`all`].

mod gpu;
mod openvino;
mod programs;
mod runner;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use heg_artifacts::Bundle;
use heg_cpu::Partner;
use heg_files::OwnFolder;
use heg_openvino::{Core, Memory};
use heg_sched::{Class, Launch, Switching};
use heg_spec::policy::Pairing;
use heg_spec::soc::Device;
use heg_spec::{DeviceClass, Soc};

use crate::batch::{Batch, Coming, GoesOn};
use crate::error::{ExecError, Loss};
use crate::form::Form;
use crate::gpu_examiner::GpuExaminer;
use crate::known_cuts::KnownCuts;
use crate::ladder::{DeviceFacts, Rung};
use crate::mem::{MemoryHome, Scratch};
use crate::npu::NpuSetup;
use crate::parts::Parts;
use crate::place::Place;
use crate::table::FormTable;
pub(crate) use runner::{AloneCall, BoundPort, Runner};

pub use gpu::MovedCaches;
pub(crate) use programs::TILE_ROWS;
pub use programs::{CutCounts, HandOvers, PairLanes, PairedRoles, Partition, WorkItem};

/// Prepares and runs kernels of one kind.
pub(crate) trait Backend: Send + Sync {
    /// Adds what it knows of the device that plays a role.
    fn report(&self, device: &Device, facts: &mut DeviceFacts);

    /// Name of the program that runs kernels on a device, as a user reads it; `None` where it runs nothing there.
    fn describe(&self, facts: &DeviceFacts) -> Option<String>;

    /// Its version, where results and names of cached files depend on it.
    fn version(&self) -> Option<&str> {
        None
    }

    /// Whether it runs a rung.
    fn runs(&self, rung: Rung) -> bool;

    /// Makes a form ready, with buffers of no call bound yet.
    fn prepare(
        &self,
        parts: &Parts<'_>,
        rung: Rung,
        origin: Origin,
    ) -> Result<Box<dyn Runner>, ExecError>;

    /// Whether kernels may hang on a device: they are then cancelled, and the lane is lost if that does not end them.
    fn may_hang(&self, _: &DeviceFacts) -> bool {
        false
    }

    /// Facts about the machine's NPU; `None` if that is none of its devices.
    fn npu_setup(&self) -> Option<NpuSetup> {
        None
    }

    /// Why a device that was there is lost; `None` if it is not. All rungs of its role go with it, and the element types
    /// of the others may change, so every kernel is prepared anew.
    fn why_lost(&self, _: &DeviceFacts) -> Option<String> {
        None
    }

    /// Whether a device is asked for known answers again while it serves.
    fn is_asked_again(&self, _: &DeviceFacts) -> bool {
        false
    }

    /// Gives up a device that computes wrongly, for this reason; `None` where the device is none of its own.
    fn give_up(&self, _: &DeviceFacts, _: Loss, _: &str) -> Option<ExecError> {
        None
    }

    /// Keys and values that were copied between the host and its devices; `None` if it has none with caches of their own.
    fn moved_caches(&self) -> Option<MovedCaches> {
        None
    }

    /// The home that its devices want for rows and caches.
    fn home(&self) -> MemoryHome {
        MemoryHome::default()
    }

    /// Whether the device of a rung is lost: no form of it runs again. Other rungs of its role go on, as the CPU programs
    /// below those of a GPU do.
    fn is_lost(&self, _: Rung) -> bool {
        false
    }

    /// Its part of an executor.
    fn session(&self, room: SessionRoom) -> Result<Box<dyn Session>, ExecError>;

    /// Keeps what it compiles in a folder, for the next start.
    fn keep_in(&mut self, _: &OwnFolder, _: &[DeviceFacts]) {}

    /// Takes sections from memory that is laid out like the bundle's file.
    fn read_from(&mut self, _: &Arc<dyn Memory>) {}

    /// The device that a pair would have beside the CPU programs of a role, as a user reads it; `None` if that is no device of
    /// this kind, or one that the role has anyway.
    fn describe_partner(&self, _: DeviceClass) -> Option<String> {
        None
    }

    /// Gives the device of a role up to a pair, whose partner it becomes: its role has no rungs of its own from then on.
    fn give_partner(&mut self, _: &Arc<Bundle>) -> Result<PartnerOffer, ExecError> {
        Ok(PartnerOffer::None)
    }

    /// The rung on which its device, which is a pair's partner, runs alone what the pair runs on another; `None` where it
    /// does not.
    fn partners_rung(&self, _: Rung) -> Option<Rung> {
        None
    }

    /// Has the roles of NPU and iGPU run kernels together, one of them by a device of another back end if that gave one;
    /// false where it cannot.
    fn pair_up(&mut self, _: &PairSetup) -> Result<bool, ExecError> {
        Ok(false)
    }

    /// The roles that run kernels together, if any do.
    fn pair(&self) -> Option<&Arc<PairedRoles>> {
        None
    }
}

/// The roles that run kernels together in a pair: first and second side.
pub(crate) const PAIRED_ROLES: [DeviceClass; 2] = [DeviceClass::Npu, DeviceClass::Igpu];

/// The parts of a pair.
#[derive(Clone)]
pub(crate) struct PairSetup {
    pub(crate) pairing: Pairing,
    pub(crate) lanes: PairLanes,
    /// The device that one of the roles is, if it is not a CPU.
    pub(crate) partner: Option<PairPartner>,
    /// Why CPU programs alone play a role whose device was to be the partner, if they do.
    pub(crate) missing: Option<String>,
    pub(crate) known: KnownCuts,
}

/// The device that a back end has for a pair, if it has one.
pub(crate) enum PartnerOffer {
    /// No device that computes parts of kernels.
    None,
    /// Such a device, which cannot be used for this reason.
    Missing(String),
    /// A device.
    Device(PairPartner),
}

/// A device that computes parts of the products of CPU programs.
#[derive(Clone)]
pub(crate) struct PairPartner {
    /// The role that it has in the pair.
    pub(crate) role: DeviceClass,
    /// Whether it computes parts of products; otherwise it runs whole passes alone.
    pub(crate) shares_products: bool,
    pub(crate) device: Arc<dyn Partner>,
    /// Its name, as a user reads it.
    pub(crate) name: String,
}

/// Source that a form is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The mapped bundle, whose sections are hashed once.
    Mapped,
    /// Sections that are hashed again.
    HashedAgain,
}

/// The sizes of an executor's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionRoom {
    /// Most rows of a call, including padding.
    pub(crate) rows: usize,
    /// Sequences of a pass at most, each with a row for the head.
    pub(crate) batch: usize,
    pub(crate) switching: Switching,
}

/// A back end's part of an executor: its state between launches.
pub(crate) trait Session: Send {
    /// Runs the launches of an order one after the other, and returns the number of those that ran: it asks before each
    /// but the first whether to go on, and cancels the running kernel, where it can, once the flag is set.
    fn carry_out(&mut self, order: Order<'_>) -> Result<usize, ExecError>;

    /// Takes notice that all kernels are ready. `tailor` makes further forms of them, on any thread.
    fn begin(&mut self, _: &Tailor, _: &mut FormTable) {}

    /// Announces what the launches that follow are for.
    fn expect(&mut self, _: Coming) {}

    /// Uses a time without launches. Says whether there is more to do.
    fn rest(&mut self, _: &mut FormTable) -> bool {
        false
    }

    /// Whether a launch waits for no load of a graph.
    fn is_at_hand(&mut self, _: Launch, _: &mut FormTable) -> bool {
        true
    }

    /// Asks before every load of a graph whether it may succeed.
    #[cfg(feature = "faults")]
    fn permit_loads(&mut self, _: &LoadPermit) {}

    /// Switches every block of layers each time before it computes.
    #[cfg(feature = "faults")]
    fn switch_always(&mut self) {}
}

/// Launches that one back end carries out, over the same rows.
pub(crate) struct Order<'a> {
    pub(crate) launches: &'a [Launch],
    pub(crate) batch: &'a Batch<'a>,
    pub(crate) forms: &'a mut FormTable,
    pub(crate) scratch: &'a Scratch,
    /// Class of the work, for devices with priorities; none if unknown.
    pub(crate) class: Option<Class>,
    /// Flag that cancels the running kernel.
    pub(crate) cancel: Option<&'a AtomicBool>,
    pub(crate) goes_on: &'a GoesOn<'a>,
}

/// Makes the form of a place on a rung, for calls of just so many rows if there is a number, and has it compute its known
/// answer.
pub(crate) type Tailor =
    Arc<dyn Fn(Place, Rung, Option<u32>) -> Result<Form, ExecError> + Send + Sync>;

/// Whether the next load may succeed.
pub type LoadPermit = Arc<dyn Fn() -> Result<(), ExecError> + Send + Sync>;

/// The back ends of a machine. GPUs are examined in a process of their own first, if there is a program for that.
///
/// # Errors
///
/// [`ExecError::OpenVino`] where OpenVINO's libraries are needed and missing.
pub(crate) fn all(
    bundle: &Arc<Bundle>,
    soc: &Soc,
    core: Option<Core>,
    examiner: Option<&GpuExaminer>,
) -> Result<Vec<Box<dyn Backend>>, ExecError> {
    Ok(vec![
        Box::new(gpu::GpuPrograms::open(bundle, soc, examiner)),
        Box::new(programs::CpuPrograms::new(soc)),
        Box::new(openvino::OpenVino::open(bundle, soc, core)?),
    ])
}
