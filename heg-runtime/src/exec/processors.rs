//! Forms that are CPU programs: our own kernels, over the rows of the mapped bundle.
//!
//! A processor is the CPU in one role: threads, instructions and scratch memory. All forms of the role share it, as a
//! lane runs one at a time. Nothing is compiled, packed or copied: a form is a checked program and the places of its
//! weights.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use heg_artifacts::manifest::{Kernel, KernelUse, Manifest, Variant};
use heg_artifacts::program::Program;
use heg_artifacts::{Bundle, SectionId};
use heg_cpu::{AffineBytes, CpuDevice, Isa, Placement, WeightBytes};
use heg_spec::policy::Pairing;
use heg_spec::soc::Programs;
use heg_spec::{DeviceClass, Soc};

use super::pair::{self, PairLanes, PairedRoles};
use super::role_device::RoleDevice;
use crate::error::RuntimeError;
use crate::soc::device_of;

/// The processors of a SoC, by role.
pub(super) struct Processors {
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
    kernels: Mutex<BTreeMap<u32, Arc<heg_cpu::Kernel>>>,
}

/// The kernel of one place, as a program.
pub(super) struct ProgramForm {
    name: String,
    kernel: Arc<heg_cpu::Kernel>,
    weights: Vec<WeightPlace>,
    bundle: Arc<Bundle>,
    device: Arc<RoleDevice>,
}

/// Where a weight lies in the bundle, in bytes.
struct WeightPlace {
    values: Range<usize>,
    scales: Option<Range<usize>>,
    centres: Option<Range<usize>>,
}

/// What needs OpenVINO; none where programs serve every kernel of a model on every device of a SoC.
pub(super) fn need_of_plugin(manifest: &Manifest, soc: &Soc) -> Option<String> {
    let mut devices = soc.devices.iter();
    if let Some(device) = devices.find(|device| device.programs.is_none()) {
        let class = device.class.name();
        return Some(format!("which SoC `{}` needs for its {class}", soc.name));
    }
    let has_program = |kernel: &&Kernel| {
        let mut variants = kernel.variants.iter();
        variants.any(|variant| variant.program.is_some())
    };
    let mut kernels = manifest.kernels.iter();
    let kernel = kernels.find(|kernel| !has_program(kernel))?;
    let name = &kernel.name;
    Some(format!(
        "which kernel `{name}` needs: the bundle has no CPU program of it"
    ))
}

impl Processors {
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
    pub(super) fn pair_up(
        &mut self,
        pairing: Pairing,
        lanes: PairLanes,
    ) -> Result<bool, RuntimeError> {
        let [Some(first), Some(second)] = pair::ROLES.map(|role| self.of_role.get(&role)) else {
            return Ok(false);
        };
        let programs = [first, second].map(|role| role.programs.clone());
        let pair = Arc::new(PairedRoles::new(pairing, lanes, programs));
        if lanes == PairLanes::Two {
            let what = "a pair";
            let devices = [first.device(what)?, second.device(what)?];
            pair.lend(devices.each_ref()).map_err(running(what))?;
        }
        self.pair = Some(pair);
        Ok(true)
    }

    /// Two roles that run kernels together, if any do.
    pub(super) fn pair(&self) -> Option<&Arc<PairedRoles>> {
        self.pair.as_ref()
    }

    /// What runs kernels in a role.
    fn device(
        &self,
        role: DeviceClass,
        processor: &Processor,
        kernel: &str,
    ) -> Result<Arc<RoleDevice>, RuntimeError> {
        let pair = self.pair().filter(|_| pair::ROLES.contains(&role));
        let shared = pair.map(PairedRoles::device).transpose();
        match shared.map_err(running(kernel))?.flatten() {
            Some(shared) => Ok(shared),
            None => processor.device(kernel),
        }
    }

    /// What runs programs in a role, if anything does, as a user reads it.
    pub(super) fn describe(&self, role: DeviceClass) -> Option<String> {
        let name = self.name(role)?;
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
        Some(format!("CPU programs ({name}, {threads}{kept})"))
    }

    /// What runs programs in a role, if anything does: what results depend on.
    pub(super) fn name(&self, role: DeviceClass) -> Option<String> {
        let processor = self.of_role.get(&role)?;
        Some(format!(
            "{}, {:?}",
            processor.isa, processor.programs.activations
        ))
    }

    /// The program of a place, in a role. Hashes of what it is made of are checked.
    pub(super) fn form(
        &self,
        bundle: &Arc<Bundle>,
        role: DeviceClass,
        used: &KernelUse,
        kernel: &Kernel,
        variant: &Variant,
    ) -> Result<ProgramForm, RuntimeError> {
        let missing = || RuntimeError::Refused {
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
            .collect::<Result<_, RuntimeError>>()?;
        Ok(ProgramForm {
            name: kernel.name.clone(),
            kernel: processor.kernel(bundle, used, kernel, variant, section)?,
            weights,
            bundle: Arc::clone(bundle),
            device: self.device(role, processor, &kernel.name)?,
        })
    }
}

/// The place of a section, after its hash was checked.
fn verified(bundle: &Bundle, id: SectionId) -> Result<Range<usize>, RuntimeError> {
    bundle.section(id).map_err(RuntimeError::Section)?;
    let range = bundle.section_range(id).map_err(RuntimeError::Section)?;
    Ok(range.start as usize..range.end as usize)
}

/// Threads of an order and their cores, as the SoC asks for them.
pub(super) fn placement(programs: &Programs) -> Result<Placement, heg_cpu::Error> {
    let threads = programs.threads.map(|threads| threads.get() as usize);
    Placement::new(threads.and_then(NonZeroUsize::new), &programs.cores)
}

impl Processor {
    fn device(&self, kernel: &str) -> Result<Arc<RoleDevice>, RuntimeError> {
        // What a panicking thread left is a whole value.
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = &*device {
            return Ok(Arc::clone(device));
        }
        let made = placement(&self.programs);
        let made = made.and_then(|placement| CpuDevice::placed(self.isa, &placement));
        let made = made.map_err(running(kernel))?;
        let made = made.throttled(self.programs.throttle);
        let made = RoleDevice::new(made, None);
        Ok(Arc::clone(device.insert(Arc::new(made))))
    }

    fn kernel(
        &self,
        bundle: &Bundle,
        used: &KernelUse,
        kernel: &Kernel,
        variant: &Variant,
        section: SectionId,
    ) -> Result<Arc<heg_cpu::Kernel>, RuntimeError> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ready) = kernels.get(&used.kernel.0) {
            return Ok(Arc::clone(ready));
        }
        let text = bundle
            .section_copy(section)
            .map_err(RuntimeError::Section)?;
        let program = Program::read(&text, kernel).map_err(RuntimeError::Section)?;
        let kv = variant.elements().kv;
        let ready = heg_cpu::Kernel::new(program, kernel, kv, self.programs.activations);
        let ready = Arc::new(ready.map_err(running(&kernel.name))?);
        kernels.insert(used.kernel.0, Arc::clone(&ready));
        Ok(ready)
    }
}

/// An error of a program.
pub(super) fn running(kernel: &str) -> impl Fn(heg_cpu::Error) -> RuntimeError {
    let kernel = kernel.to_owned();
    move |source| RuntimeError::Program {
        kernel: kernel.clone(),
        source,
    }
}

impl ProgramForm {
    /// Name of its kernel.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The kernel.
    pub(super) fn kernel(&self) -> &heg_cpu::Kernel {
        &self.kernel
    }

    /// What runs it.
    pub(super) fn device(&self) -> &RoleDevice {
        &self.device
    }

    /// Whether both are run by the same processor.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.device, &other.device)
    }

    /// Its weights where they lie.
    pub(super) fn weights(&self) -> impl Iterator<Item = WeightBytes<'_>> {
        let bytes: &[u8] = self.bundle.mapping();
        let slice = |place: &Range<usize>| bytes.get(place.clone()).unwrap_or_default();
        self.weights.iter().map(move |weight| WeightBytes {
            values: slice(&weight.values),
            affine: weight.scales.as_ref().map(|scales| AffineBytes {
                scales: slice(scales),
                centres: weight.centres.as_ref().map(slice),
            }),
        })
    }
}
