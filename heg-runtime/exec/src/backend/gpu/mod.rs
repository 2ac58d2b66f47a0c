//! Forms that are CPU programs, run by a GPU by way of `heg-gpu`, with the bits of the CPU programs.
//!
//! A device whose arithmetic does not give these bits runs nothing, so a request, its cache and its activations may pass
//! between lanes of the GPU and of the CPU at any kernel. Activations that others see are the host's: an order copies what it
//! reads to the device and what it wrote back. Caches are in memory that both work on where the device's memory is the
//! host's; of others the session knows which rows the device still has (`caches`). Beside an NPU activations are the host's in f16
//! (`halves`), and so are caches.

mod alone;
mod beforehand;
mod caches;
mod form;
mod halves;
mod memory;
mod moved;
mod pace;
mod partner;
mod pass;
mod recorded;
mod role;
mod session;
mod taken;

use std::collections::BTreeMap;
use std::sync::Arc;

use heg_artifacts::Bundle;
use heg_files::OwnFolder;
use heg_gpu::{CacheMemory, Fidelity, GpuDevice, GpuOptions};
use heg_spec::soc::{Device, Gpu};
use heg_spec::{Activations, DeviceClass, Soc};

use super::runner::Runner;
use super::{Backend, Origin, PAIRED_ROLES, PairPartner, PartnerOffer, Session, SessionRoom};
use crate::error::{ExecError, chain};
use crate::gpu_examiner::GpuExaminer;
use crate::ladder::{DeviceFacts, GpuFacts, Rung, RungSource};
use crate::mem::{MemoryHome, Rows};
use crate::parts::Parts;
use crate::soc::device_of;
use form::GpuForm;
pub use moved::MovedCaches;
use partner::GpuPartner;
use role::{GpuRole, Opened, failed};
use session::GpuSession;

/// The GPUs of a SoC, by role.
pub(super) struct GpuPrograms {
    /// With the reason where a device cannot be used.
    of_role: BTreeMap<DeviceClass, Result<Arc<GpuRole>, String>>,
    /// The role that is the partner in a pair, if one is.
    partner: Option<DeviceClass>,
}

impl GpuPrograms {
    /// Opens and probes the devices that a SoC asks for; Vulkan is loaded only where it asks for one. An examiner runs the
    /// bundle on a device first.
    pub(super) fn open(bundle: &Bundle, soc: &Soc, examiner: Option<&GpuExaminer>) -> Self {
        let mut opened: BTreeMap<&Gpu, Result<Opened, String>> = BTreeMap::new();
        let mut of_role = BTreeMap::new();
        for role in [DeviceClass::Npu, DeviceClass::Igpu, DeviceClass::Cpu] {
            let device = device_of(soc, role);
            let asked = device.and_then(|it| Some((it.gpu_programs()?, it.programs.is_some())));
            let Some(((gpu, activations), is_cpus)) = asked else {
                continue;
            };
            let device = opened
                .entry(gpu)
                .or_insert_with(|| open(gpu, bundle, activations, is_cpus, examiner))
                .clone();
            let played = |opened| Arc::new(GpuRole::new(opened, activations));
            of_role.insert(role, device.map(played));
        }
        Self {
            of_role,
            partner: None,
        }
    }
}

/// A device that gives the bits of the CPU programs, with the bundle's modules; or why there is none. Beside a CPU that
/// plays the same role any device will do.
fn open(
    gpu: &Gpu,
    bundle: &Bundle,
    activations: Activations,
    is_cpus: bool,
    examiner: Option<&GpuExaminer>,
) -> Result<Opened, String> {
    let mut options = GpuOptions::from_environment();
    options.name = gpu.name.clone().or(options.name);
    let failed = |error| chain(&error);
    let found = GpuDevice::find(&options).map_err(failed)?;
    let info = found.info();
    if !is_cpus && options.name.is_none() && info.kind == "software" {
        // In place of a GPU of the SoC, a device in software would be slower than all that follows it.
        let name = info.name;
        return Err(format!(
            "`{name}` is emulated on the CPU, and not asked for"
        ));
    }
    if let Some(examiner) = examiner {
        options.known = examiner.findings(&info, &options, activations, bundle)?;
    }
    let device = found.open(&options).map_err(failed)?;
    match device.fidelity() {
        Fidelity::Equal => {
            let modules = device.take_modules(bundle);
            let modules = modules.map_err(|error| chain(&error))?;
            Ok((Arc::new(device), modules))
        }
        Fidelity::Close { reason } => Err(format!(
            "{} does not compute as CPU programs do: {reason}",
            device.info().name
        )),
    }
}

impl Backend for GpuPrograms {
    fn report(&self, _: &Device, facts: &mut DeviceFacts) {
        let role = self.of_role.get(&facts.role);
        // The pair's forms are those of the CPU, which has the GPU compute parts of them.
        let role = role.filter(|_| self.partner != Some(facts.role));
        facts.gpu = role.map(|role| match role {
            Ok(role) => Ok(role.facts()),
            Err(message) => Err(message.clone()),
        });
    }

    fn describe(&self, facts: &DeviceFacts) -> Option<String> {
        let role = self.of_role.get(&facts.role)?.as_ref().ok()?;
        Some(role.describe())
    }

    fn home(&self) -> MemoryHome {
        let roles = self.of_role.values().flatten();
        let rows = match self.partner {
            Some(_) => Rows::Shared,
            None => Rows::Copied,
        };
        let homes = roles.map(|role| MemoryHome::with_gpu(&role.device, rows));
        homes.fold(MemoryHome::default(), MemoryHome::or)
    }

    fn moved_caches(&self) -> Option<MovedCaches> {
        let roles = self.of_role.values().flatten();
        let moved = roles.map(|role| role.moved.so_far());
        moved.reduce(|all, other| MovedCaches {
            to_device_bytes: all.to_device_bytes + other.to_device_bytes,
            to_host_bytes: all.to_host_bytes + other.to_host_bytes,
        })
    }

    fn keep_in(&mut self, cache: &OwnFolder, _: &[DeviceFacts]) {
        let mut seen: Vec<&Arc<GpuDevice>> = Vec::new();
        for role in self.of_role.values().flatten() {
            if !seen.iter().any(|device| Arc::ptr_eq(device, &role.device)) {
                // Without what was kept, pipelines are compiled again.
                let _ = role.device.keep_pipelines(cache);
                seen.push(&role.device);
            }
        }
    }

    fn runs(&self, rung: Rung) -> bool {
        rung.source == RungSource::Gpu
    }

    fn may_hang(&self, facts: &DeviceFacts) -> bool {
        let hangs = |facts: &GpuFacts| !facts.is_software;
        matches!(&facts.gpu, Some(Ok(facts)) if hangs(facts))
    }

    fn prepare(
        &self,
        parts: &Parts<'_>,
        rung: Rung,
        origin: Origin,
    ) -> Result<Box<dyn Runner>, ExecError> {
        let role = self.of_role.get(&rung.role);
        let role = role.and_then(|role| role.as_ref().ok());
        let role = role.ok_or_else(|| ExecError::Refused {
            kernel: parts.kernel.name.clone(),
            message: "its role has no GPU".to_owned(),
        })?;
        if origin == Origin::HashedAgain {
            role.bring_again(parts.bundle)?;
        }
        Ok(Box::new(GpuForm::new(role, parts)?))
    }

    /// A GPU that plays a role alone is lost with all of it: OpenVINO's device there is the same GPU.
    fn why_lost(&self, facts: &DeviceFacts) -> Option<String> {
        let role = self.of_role.get(&facts.role)?.as_ref().ok()?;
        let is_lost = facts.programs.is_none() && role.device.is_lost();
        is_lost.then(|| format!("the GPU {} was lost", role.device.info().name))
    }

    fn is_lost(&self, rung: Rung) -> bool {
        let role = self.of_role.get(&rung.role);
        matches!(role, Some(Ok(role)) if self.runs(rung) && role.device.is_lost())
    }

    fn give_partner(&mut self, bundle: &Arc<Bundle>) -> Result<PartnerOffer, ExecError> {
        let of_role = PAIRED_ROLES.map(|role| self.of_role.get(&role)?.as_ref().ok());
        let (class, role) = match of_role {
            [Some(role), None] => (DeviceClass::Npu, role),
            [None, Some(role)] => (DeviceClass::Igpu, role),
            [None, None] | [Some(_), Some(_)] => return Ok(PartnerOffer::None),
        };
        // Both sides of a product work on the same rows.
        let shares_products = role.device.cache_memory() != CacheMemory::Copied;
        let partner = GpuPartner::new(role, bundle, shares_products).map_err(failed("a pair"))?;
        let name = role.describe();
        self.partner = Some(class);
        Ok(PartnerOffer::Device(PairPartner {
            role: class,
            shares_products,
            device: Arc::new(partner),
            name,
        }))
    }

    fn partners_rung(&self, rung: Rung) -> Option<Rung> {
        let is_pairs = rung.source == RungSource::Program && PAIRED_ROLES.contains(&rung.role);
        Some(Rung {
            role: self.partner.filter(|_| is_pairs)?,
            source: RungSource::Gpu,
            ..rung
        })
    }

    fn session(&self, room: SessionRoom) -> Result<Box<dyn Session>, ExecError> {
        Ok(Box::new(GpuSession::new(room)))
    }
}
