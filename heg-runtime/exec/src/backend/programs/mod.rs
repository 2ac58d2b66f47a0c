//! Forms that are CPU programs: our own kernels, over the rows of the mapped bundle.
//!
//! A processor is the CPU in one role: threads, instructions and scratch memory. All forms of the role share it, as a
//! lane runs one at a time. Nothing is compiled, packed or copied: a form is a checked program and the places of its
//! weights.

mod alone;
mod cut_counts;
mod form;
mod informed;
mod order;
mod pair;
mod partition;
mod placement;
mod role_device;
mod session;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use heg_artifacts::program::Program;
use heg_artifacts::{Bundle, SectionId};
use heg_cpu::{CacheForm, CpuDevice, Isa, Partner};
use heg_spec::soc::{Device, Programs};
use heg_spec::{DeviceClass, Soc};

use super::runner::Runner;
use super::{Backend, Origin, PAIRED_ROLES, PairSetup, Session, SessionRoom};
use crate::error::ExecError;
use crate::ladder::{DeviceFacts, Rung, RungSource};
use crate::parts::Parts;
use crate::soc::device_of;
pub use cut_counts::CutCounts;
use form::{ProgramForm, WeightPlace, running};
pub use pair::{HandOvers, PairLanes, PairedRoles, Partition, WorkItem};
pub(crate) use partition::TILE_ROWS;
use placement::placement;
use role_device::RoleDevice;
use session::ProgramsSession;

/// The processors of a SoC, by role.
pub(super) struct CpuPrograms {
    of_role: BTreeMap<DeviceClass, Processor>,
    /// Two roles that are one device.
    pair: Option<Arc<PairedRoles>>,
}

/// The CPU in one role.
struct Processor {
    programs: Programs,
    isa: Isa,
    /// Made when the first kernel needs it.
    device: Mutex<Option<Arc<RoleDevice>>>,
    /// Kernels that are ready, by index.
    kernels: Mutex<BTreeMap<u32, Arc<heg_cpu::CpuKernel>>>,
}

impl CpuPrograms {
    /// For the devices of a SoC that the CPU plays with programs.
    pub(super) fn new(soc: &Soc) -> Self {
        let processor = |role| {
            let programs = device_of(soc, role)?.programs.clone()?;
            let processor = Processor {
                isa: programs.isa.unwrap_or_else(Isa::best),
                programs,
                device: Mutex::default(),
                kernels: Mutex::default(),
            };
            Some((role, processor))
        };
        let roles = [DeviceClass::Npu, DeviceClass::Igpu, DeviceClass::Cpu];
        Self {
            of_role: roles.into_iter().filter_map(processor).collect(),
            pair: None,
        }
    }

    /// Has two roles run kernels together; false where programs do not run in both.
    fn pair_roles(&mut self, setup: &PairSetup) -> Result<bool, ExecError> {
        let [Some(first), Some(second)] = PAIRED_ROLES.map(|role| self.of_role.get(&role)) else {
            return Ok(false);
        };
        let programs = [first, second].map(|role| role.programs.clone());
        let pair = Arc::new(PairedRoles::new(setup, programs));
        if setup.lanes == PairLanes::Two {
            let what = "a pair";
            let devices = [first.device(what)?, second.device(what)?];
            pair.lend(devices.each_ref()).map_err(running(what))?;
        }
        self.pair = Some(pair);
        Ok(true)
    }

    /// The device that runs kernels in a role.
    fn device(
        &self,
        role: DeviceClass,
        processor: &Processor,
        kernel: &str,
    ) -> Result<Arc<RoleDevice>, ExecError> {
        let pair = self.pair.as_ref().filter(|_| PAIRED_ROLES.contains(&role));
        let shared = pair.map(PairedRoles::device).transpose();
        match shared.map_err(running(kernel))?.flatten() {
            Some(shared) => Ok(shared),
            None => processor.device(kernel),
        }
    }

    /// The partner in the pair that a role is in.
    fn partner(&self, role: DeviceClass) -> Option<&Arc<dyn Partner>> {
        let pair = self.pair.as_ref().filter(|_| PAIRED_ROLES.contains(&role));
        Some(&pair?.partner()?.device)
    }

    /// The threads that run programs in a role, if any do, as a user reads it.
    fn describe_role(&self, role: DeviceClass) -> Option<String> {
        let name = self.name(role)?;
        let partner = self.pair.as_ref().and_then(|pair| pair.partner());
        if let Some(partner) = partner.filter(|partner| partner.role == role) {
            return Some(partner.name.clone());
        }
        let placement = placement(&self.of_role.get(&role)?.programs).ok()?;
        let threads = match placement.threads().get() {
            1 => "1 thread".to_owned(),
            threads => format!("{threads} threads"),
        };
        let cores: Vec<String> = placement.kept_on().iter().map(usize::to_string).collect();
        let kept = match cores.is_empty() {
            true => String::new(),
            false => format!(" on cores {}", cores.join(", ")),
        };
        let missing = self.pair.as_ref().and_then(|pair| pair.missing());
        let missing = missing.filter(|_| role == DeviceClass::Npu);
        let missing = missing.map_or(String::new(), |why| format!(", without the NPU: {why}"));
        Some(format!("CPU programs ({name}, {threads}{kept}){missing}"))
    }

    /// The device that runs programs in a role, if any does: results depend on it.
    fn name(&self, role: DeviceClass) -> Option<String> {
        let processor = self.of_role.get(&role)?;
        Some(format!(
            "{}, {:?}",
            processor.isa, processor.programs.activations
        ))
    }

    /// The program of a place, in a role. Hashes of what it is made of are checked.
    fn form(&self, parts: &Parts<'_>, role: DeviceClass) -> Result<ProgramForm, ExecError> {
        let Parts {
            bundle,
            used,
            kernel,
            variant,
            ..
        } = parts;
        let missing = || ExecError::Refused {
            kernel: kernel.name.clone(),
            message: "there is no program for it".to_owned(),
        };
        let processor = self.of_role.get(&role).ok_or_else(missing)?;
        let section = variant.program.ok_or_else(missing)?;
        let weights = used
            .weights
            .iter()
            .filter_map(|id| bundle.manifest().weights.get(id.0 as usize))
            .map(|weight| {
                let of_rows = |id: Option<SectionId>| id.map(|id| verified(bundle, id)).transpose();
                Ok(WeightPlace {
                    values: verified(bundle, weight.values)?,
                    scales: of_rows(weight.scales)?,
                    centres: of_rows(weight.centres)?,
                })
            })
            .collect::<Result<_, ExecError>>()?;
        Ok(ProgramForm {
            name: kernel.name.clone(),
            kernel: processor.kernel(parts, section, self.partner(role))?,
            weights,
            bundle: Arc::clone(bundle),
            device: self.device(role, processor, &kernel.name)?,
        })
    }
}

/// The place of a section, after its hash was checked.
fn verified(bundle: &Bundle, id: SectionId) -> Result<Range<usize>, ExecError> {
    bundle.section(id).map_err(ExecError::Section)?;
    let range = bundle.section_range(id).map_err(ExecError::Section)?;
    Ok(range.start as usize..range.end as usize)
}

impl Processor {
    fn device(&self, kernel: &str) -> Result<Arc<RoleDevice>, ExecError> {
        // What a panicking thread left is a whole value.
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = &*device {
            return Ok(Arc::clone(device));
        }
        let made = placement(&self.programs);
        let made = made.and_then(|placement| CpuDevice::placed(self.isa, &placement));
        let made = made.map_err(running(kernel))?;
        let made = RoleDevice::new(made, None);
        Ok(Arc::clone(device.insert(Arc::new(made))))
    }

    fn kernel(
        &self,
        parts: &Parts<'_>,
        section: SectionId,
        partner: Option<&Arc<dyn Partner>>,
    ) -> Result<Arc<heg_cpu::CpuKernel>, ExecError> {
        let Parts {
            bundle,
            used,
            kernel,
            variant,
            ..
        } = parts;
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ready) = kernels.get(&used.kernel.0) {
            return Ok(Arc::clone(ready));
        }
        let text = bundle.section_copy(section).map_err(ExecError::Section)?;
        let program = Program::read(&text, kernel).map_err(ExecError::Section)?;
        let kv = variant.elements().kv;
        let partner = partner.and_then(|partner| partner.kernel(&program, kernel, kv));
        let form = CacheForm::new(kv, bundle.manifest().model.head_dim);
        let form = form.map_err(running(&kernel.name))?;
        let ready = heg_cpu::CpuKernel::new(program, kernel, form, self.programs.activations);
        let ready = ready.map_err(running(&kernel.name))?.with_partner(partner);
        let ready = Arc::new(ready);
        kernels.insert(used.kernel.0, Arc::clone(&ready));
        Ok(ready)
    }
}

impl Backend for CpuPrograms {
    fn report(&self, _: &Device, facts: &mut DeviceFacts) {
        facts.programs = self.name(facts.role);
    }

    fn describe(&self, facts: &DeviceFacts) -> Option<String> {
        self.describe_role(facts.role)
    }

    fn runs(&self, rung: Rung) -> bool {
        rung.source == RungSource::Program
    }

    fn prepare(
        &self,
        parts: &Parts<'_>,
        rung: Rung,
        origin: Origin,
    ) -> Result<Box<dyn Runner>, ExecError> {
        if origin == Origin::HashedAgain {
            // Its weights are read where they lie, again and again: a copy would tell nothing of them.
            verify_again(parts)?;
        }
        Ok(Box::new(self.form(parts, rung.role)?))
    }

    fn session(&self, _: SessionRoom) -> Result<Box<dyn Session>, ExecError> {
        Ok(Box::new(ProgramsSession::new(self.pair.clone())))
    }

    fn pair_up(&mut self, setup: &PairSetup) -> Result<bool, ExecError> {
        self.pair_roles(setup)
    }

    fn pair(&self) -> Option<&Arc<PairedRoles>> {
        self.pair.as_ref()
    }
}

/// Hashes the sections of a place as they are now.
fn verify_again(parts: &Parts<'_>) -> Result<(), ExecError> {
    for id in &parts.weights {
        let copy = parts.bundle.section_copy(*id);
        copy.map_err(|_| ExecError::ChangedInMemory {
            part: parts.bundle.label(*id),
        })?;
    }
    Ok(())
}
