//! OpenVINO: imports blobs and compiles IRs, for any device that it has a plugin for.
//!
//! Forms that hold weights are made once per place; input-bound ones once per rung, with a request per place whose
//! weights are bound once.

mod band;
mod compile;
mod compiled;
mod devices;
mod form;
mod ir;
mod launch;
mod lending;
mod marks;
mod partner;
mod rotary;
mod sections;
mod switching;
mod tree;
mod watch;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use heg_artifacts::Bundle;
use heg_artifacts::manifest::{ElementType, Kernel, Manifest, Role};
use heg_files::OwnFolder;
use heg_openvino::{Core, Memory};
use heg_sched::Launch;
use heg_spec::soc::Device;
use heg_spec::{DeviceClass, Group, Soc};

use super::runner::Runner;
use super::{Backend, Order, Origin, PairPartner, PartnerOffer, Session, SessionRoom, Tailor};
use crate::batch::Coming;
use crate::error::{ExecError, Loss, chain, openvino};
use crate::ladder::{DeviceFacts, Rung, RungSource, holds_weights};
use crate::mem::{BundleMemory, MemoryHome};
use crate::npu::NpuSetup;
use crate::parts::Parts;
use crate::soc::has_npu_beside;
use crate::table::FormTable;
use compiled::{CompiledCache, is_cpu};
use form::Compiled;
use launch::Running;
use lending::Lending;
use partner::{NpuPartner, PartnerPlace};
use rotary::RotaryRows;
use sections::Sections;
use switching::GraphSwitch;
use watch::DeviceWatch;

/// OpenVINO, with the bundle that its kernels are made from.
pub(super) struct OpenVino {
    /// Loaded at once, or when a kernel first needs it.
    core: OnceLock<Core>,
    /// Version if it was loaded at once.
    first_version: Option<String>,
    bundle: Arc<Bundle>,
    sections: Sections,
    /// OpenVINO's name of the machine's NPU, if it has one.
    npu: Option<String>,
    /// The NPU that computes parts of a role's CPU programs in a pair, and nothing else.
    of_pair: Option<Device>,
    /// The NPU's access to the weights: settled before the first form is made on it.
    lending: OnceLock<Lending>,
    cache: Option<OwnFolder>,
    compiled: Option<CompiledCache>,
    /// The watch over each device, by OpenVINO's name.
    watches: Mutex<BTreeMap<String, Arc<DeviceWatch>>>,
    /// Compiled forms without weights, which serve all layers, by kernel and rung; or why they could not be made.
    shared: Mutex<BTreeMap<(u32, Rung), Result<Compiled, String>>>,
}

/// OpenVINO's part of an executor.
struct OpenVinoSession {
    bundle: Arc<Bundle>,
    rotary: RotaryRows,
    row: Vec<u8>,
    rows: usize,
    switching: GraphSwitch,
}

impl OpenVino {
    /// OpenVINO where a device needs it: `core`, or the libraries that are loaded now. Otherwise it is loaded when a
    /// kernel first needs it.
    pub(super) fn open(
        bundle: &Arc<Bundle>,
        soc: &Soc,
        core: Option<Core>,
    ) -> Result<Self, ExecError> {
        let core = match (core, need_of_plugin(bundle.manifest(), soc)) {
            (Some(core), _) => OnceLock::from(core),
            (None, Some(need)) => OnceLock::from(load_core(&need)?),
            (None, None) => OnceLock::new(),
        };
        let memory: Arc<dyn Memory> = Arc::new(BundleMemory(Arc::clone(bundle)));
        Ok(Self {
            first_version: core.get().map(|core| core.version().to_owned()),
            core,
            sections: Sections::mapped(Arc::clone(bundle), memory),
            bundle: Arc::clone(bundle),
            npu: npu_of(soc),
            of_pair: npu_of_pair(soc),
            lending: OnceLock::new(),
            cache: None,
            compiled: None,
            watches: Mutex::default(),
            shared: Mutex::default(),
        })
    }

    /// The way in which the NPU has the weights. The device is asked when this is first called.
    fn lending(&self) -> &Lending {
        self.lending.get_or_init(|| {
            let (Some(core), Some(npu)) = (self.core.get(), &self.npu) else {
                return Lending::Nothing;
            };
            match core.device_property(npu, devices::NAME) {
                Ok(_) => Lending::to(core, npu, &self.bundle, self.sections.memory()),
                Err(_) => Lending::Nothing,
            }
        })
    }

    /// The watch over a device.
    fn watch(&self, device: &str) -> Arc<DeviceWatch> {
        let watches = &self.watches;
        let mut watches = watches.lock().unwrap_or_else(PoisonError::into_inner);
        let watch = watches.entry(device.to_owned());
        Arc::clone(watch.or_insert_with(|| Arc::new(DeviceWatch::new(device))))
    }

    /// The sections of a device's forms.
    fn sections_of(&self, device: &Device) -> Sections {
        let is_npu = self.npu.as_ref() == Some(&device.openvino);
        let copy = self.lending().copy().filter(|_| is_npu);
        self.sections.known_as(copy)
    }

    /// OpenVINO, loaded now if it was not.
    fn core(&self) -> Result<&Core, ExecError> {
        if let Some(core) = self.core.get() {
            return Ok(core);
        }
        let core = load_core("which runs what CPU programs cannot")?;
        Ok(self.core.get_or_init(|| core))
    }
}

impl Backend for OpenVino {
    fn report(&self, device: &Device, facts: &mut DeviceFacts) {
        if let Some(core) = self.core.get() {
            devices::read(core, device, facts);
        }
        if let Some(Ok(gpu)) = facts.gpu.as_ref().filter(|_| facts.missing.is_some()) {
            // The role is played all the same. What the GPU refuses finds no plugin, and says so then.
            facts.full_name.clone_from(&gpu.name);
            facts.missing = None;
        }
    }

    fn describe(&self, facts: &DeviceFacts) -> Option<String> {
        let name = if facts.full_name.is_empty() {
            &facts.name
        } else {
            &facts.full_name
        };
        let version = self.version().unwrap_or_default();
        Some(format!("{name}, OpenVINO {version}"))
    }

    /// None where it was not needed when the bundle was opened. Fixed from then on, because names of cached files
    /// contain it.
    fn version(&self) -> Option<&str> {
        self.first_version.as_deref()
    }

    fn runs(&self, rung: Rung) -> bool {
        matches!(rung.source, RungSource::Ir | RungSource::Blob(_))
    }

    fn may_hang(&self, facts: &DeviceFacts) -> bool {
        facts.missing.is_none() && !is_cpu(&facts.name)
    }

    fn npu_setup(&self) -> Option<NpuSetup> {
        self.npu.as_ref()?;
        let files = self.core.get()?.npu_files();
        Some(NpuSetup {
            files: files.to_string(),
            firmware: files.firmware.clone(),
            weights: self.lending().to_string(),
        })
    }

    fn why_lost(&self, facts: &DeviceFacts) -> Option<String> {
        self.watch(&facts.name).why_lost().map(str::to_owned)
    }

    fn is_asked_again(&self, facts: &DeviceFacts) -> bool {
        self.may_hang(facts)
    }

    fn give_up(&self, facts: &DeviceFacts, loss: Loss, why: &str) -> Option<ExecError> {
        let is_own = self.is_asked_again(facts);
        is_own.then(|| self.watch(&facts.name).lose(loss, why.to_owned()))
    }

    fn home(&self) -> MemoryHome {
        match self.of_pair {
            // It has memory of its own, and rows are the CPU's.
            Some(_) => MemoryHome::default(),
            None => self.lending().home(),
        }
    }

    fn describe_partner(&self, role: DeviceClass) -> Option<String> {
        let device = self
            .of_pair
            .as_ref()
            .filter(|device| device.class == role)?;
        let pieces = self.bundle.manifest().pieces.len();
        let name = &device.openvino;
        Some(format!("`{name}` by {pieces} pieces of products"))
    }

    fn give_partner(&mut self, bundle: &Arc<Bundle>) -> Result<PartnerOffer, ExecError> {
        let Some(device) = &self.of_pair else {
            return Ok(PartnerOffer::None);
        };
        if bundle.manifest().pieces.is_empty() {
            let why = "the bundle has no pieces of products for an NPU: expected one compiled with \
                       `hegc compile --partition` for this machine";
            return Ok(PartnerOffer::Missing(why.to_owned()));
        }
        let core = match self.core() {
            Ok(core) => core,
            Err(error) => return Ok(PartnerOffer::Missing(chain(&error))),
        };
        let mut facts = DeviceFacts::of(device);
        devices::read(core, device, &mut facts);
        if let Some(why) = facts.missing {
            return Ok(PartnerOffer::Missing(why));
        }
        let place = PartnerPlace {
            core,
            facts: &facts,
            // Before a blob is imported, so that a device that takes it out of the bundle finds it lent.
            sections: self.sections_of(device),
            home: self.lending().home(),
        };
        let Some(partner) = NpuPartner::new(bundle, place)? else {
            let why = format!("no piece of a product fits {}", facts.full_name);
            return Ok(PartnerOffer::Missing(why));
        };
        Ok(PartnerOffer::Device(PairPartner {
            shares_products: true,
            role: device.class,
            device: Arc::new(partner),
            name: format!("{}, OpenVINO {}", facts.full_name, core.version()),
        }))
    }

    fn prepare(
        &self,
        parts: &Parts<'_>,
        rung: Rung,
        origin: Origin,
    ) -> Result<Box<dyn Runner>, ExecError> {
        check_cache(parts)?;
        if origin == Origin::HashedAgain {
            let mut ids = parts.weights.clone();
            ids.push(self.bundle.manifest().literals);
            if let RungSource::Blob(at) = rung.source {
                ids.extend(parts.variant.blobs.get(at).map(|blob| blob.section));
            }
            let sections = Sections::copied(&self.bundle, &ids, &self.home())?;
            let compiled = self.compiled(parts, rung, &sections)?;
            return Ok(Box::new(self.request(parts, &compiled, &sections)?));
        }
        // Before a blob is imported, so that a device that takes it out of the bundle finds it lent.
        let sections = self.sections_of(parts.device);
        let is_tailored = parts.shape != parts.variant.shape;
        let compiled = if is_tailored || holds_weights(parts.kernel, parts.variant) {
            self.compiled(parts, rung, &self.sections)?
        } else {
            self.compiled_once(parts, rung)?
        };
        Ok(Box::new(self.request(parts, &compiled, &sections)?))
    }

    fn session(&self, room: SessionRoom) -> Result<Box<dyn Session>, ExecError> {
        Ok(Box::new(OpenVinoSession {
            rotary: RotaryRows::new(
                &self.bundle,
                self.sections.known_as(self.lending().copy()),
                room.rows,
                &self.home(),
            )?,
            bundle: Arc::clone(&self.bundle),
            row: Vec::new(),
            rows: room.rows,
            switching: GraphSwitch::new(room.switching),
        }))
    }

    fn keep_in(&mut self, cache: &OwnFolder, devices: &[DeviceFacts]) {
        let has_only_cpu = devices.iter().all(|device| is_cpu(&device.name));
        if !has_only_cpu && let Some(core) = self.core.get() {
            self.compiled = CompiledCache::open(cache, core, devices);
        }
        self.cache = Some(cache.clone());
    }

    fn read_from(&mut self, memory: &Arc<dyn Memory>) {
        self.sections = Sections::mapped(Arc::clone(&self.bundle), Arc::clone(memory));
    }
}

/// Refuses kernels that read or write a cache of 8-bit integers, for which no IR is made.
fn check_cache(parts: &Parts<'_>) -> Result<(), ExecError> {
    let mut ports = parts.kernel.inputs.iter().chain(&parts.kernel.outputs);
    let is_cached = ports.any(|port| matches!(port.role, Role::Key | Role::Value));
    if !is_cached || parts.elements.kv != ElementType::I8 {
        return Ok(());
    }
    Err(ExecError::Refused {
        kernel: parts.kernel.name.clone(),
        message: "keys and values of the bundle are I8, which CPU programs alone take: give the SoC programs, or compile \
                  the model with `--kv bf16`"
            .to_owned(),
    })
}

impl Session for OpenVinoSession {
    fn carry_out(&mut self, order: Order<'_>) -> Result<usize, ExecError> {
        let mut done = 0;
        for launch in order.launches {
            if done > 0 && !(order.goes_on)(*launch) {
                break;
            }
            if matches!(launch.group, Group::Qkv | Group::Ffn) {
                let tokens = order.batch.tokens();
                let (forms, cancel) = (&mut *order.forms, order.cancel);
                self.switching
                    .switch_before(*launch, tokens, forms, cancel)?;
            }
            let mut running = Running {
                bundle: &self.bundle,
                rotary: &self.rotary,
                row: &mut self.row,
                rows: self.rows,
                forms: &mut *order.forms,
                scratch: order.scratch,
                class: order.class,
                cancel: order.cancel,
                watch: None,
            };
            running.launch_again(*launch, order.batch)?;
            done += 1;
        }
        Ok(done)
    }

    fn begin(&mut self, tailor: &Tailor, forms: &mut FormTable) {
        self.switching.begin(tailor, self.bundle.manifest(), forms);
    }

    fn expect(&mut self, coming: Coming) {
        self.switching.expect(coming);
    }

    fn rest(&mut self, forms: &mut FormTable) -> bool {
        self.switching.rest(forms)
    }

    fn is_at_hand(&mut self, launch: Launch, forms: &mut FormTable) -> bool {
        self.switching.is_at_hand(launch, forms)
    }

    #[cfg(feature = "faults")]
    fn permit_loads(&mut self, permit: &super::LoadPermit) {
        self.switching.permit_loads(permit);
    }

    #[cfg(feature = "faults")]
    fn switch_always(&mut self) {
        self.switching.switch_always();
    }
}

/// OpenVINO's name of a SoC's NPU.
fn npu_of(soc: &Soc) -> Option<String> {
    let mut names = soc.devices.iter().map(|device| &device.openvino);
    let npu = names.find(|name| DeviceClass::of_openvino(name) == Some(DeviceClass::Npu));
    npu.cloned()
}

/// The NPU that computes parts of products where a role that CPU programs play is one of a pair.
fn npu_of_pair(soc: &Soc) -> Option<Device> {
    let mut devices = soc.devices.iter();
    devices.find(|device| has_npu_beside(device)).cloned()
}

/// The need for OpenVINO; `None` where programs serve every kernel of a model on every device of a SoC.
fn need_of_plugin(manifest: &Manifest, soc: &Soc) -> Option<String> {
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

fn load_core(need: &str) -> Result<Core, ExecError> {
    Core::load().map_err(openvino(format!("load the libraries, {need}")))
}
