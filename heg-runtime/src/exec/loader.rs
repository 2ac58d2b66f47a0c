//! Makes a form ready to run: a CPU program (`processors`), or what OpenVINO compiles or imports (`plugin`).
//!
//! Forms that hold weights are made once per place; input-bound ones once per rung, with a request per place whose
//! weights are bound once. Which forms there are is decided elsewhere (`ladder`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use heg_artifacts::manifest::{ElementType, Kernel, KernelUse, ShapeClass, Variant};
use heg_artifacts::{Bundle, SectionId};
use heg_costs::first_kernels;
use heg_files::OwnFolder;
use heg_openvino::{Core, Memory, TensorType};
use heg_sched::MachineLanes;
use heg_spec::policy::Pairing;
use heg_spec::soc::Device;
use heg_spec::{DeviceClass, Group, Soc};

use super::compiled::{CompiledCache, is_cpu};
use super::devices;
use super::form::{Form, Runner};
use super::pair::{PairLanes, PairedRoles};
use super::place::{Place, place_kernel, place_use, unknown, use_sections};
use super::plugin::Compiled;
use super::processors::{self, Processors};
use super::sections::Sections;
use super::streams::Streams;
use crate::error::{RuntimeError, openvino};
use crate::ladder::{DeviceFacts, Ladder, Rung, Source, holds_weights};
use crate::mem::BundleMemory;
use crate::soc::device_of;

/// Makes forms ready to run. The threads that load share it.
pub struct Loader {
    /// OpenVINO: loaded at once, or when a kernel first needs it.
    core: OnceLock<Core>,
    /// Version of OpenVINO if it was loaded at once.
    first_version: Option<String>,
    pub(super) bundle: Arc<Bundle>,
    processors: Processors,
    pub(super) sections: Sections,
    soc: Soc,
    ladder: Ladder,
    pub(super) cache: Option<OwnFolder>,
    pub(super) compiled: Option<CompiledCache>,
    /// Compiled forms without weights, which serve all layers, by kernel and rung; or why they could not be made.
    pub(super) shared: Mutex<BTreeMap<(u32, Rung), Result<Compiled, String>>>,
}

/// A place, and what its kernel is made from.
pub(super) struct Parts<'m> {
    pub(super) used: &'m KernelUse,
    pub(super) kernel: &'m Kernel,
    pub(super) variant: &'m Variant,
    /// Shape of the variant, or one with fewer rows of context.
    pub(super) shape: ShapeClass,
    pub(super) device: &'m Device,
    /// Sections of its weights, in the order in which IRs number them.
    pub(super) weights: Vec<SectionId>,
}

impl Loader {
    /// A loader for one bundle on the devices of `soc`, whose names and drivers it reads. OpenVINO is loaded only where a
    /// device needs it: a CPU that runs programs does not.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::OpenVino`] where its libraries are needed and missing.
    pub fn open(bundle: Arc<Bundle>, soc: Soc) -> Result<Self, RuntimeError> {
        let core = match processors::need_of_plugin(bundle.manifest(), &soc) {
            None => OnceLock::new(),
            Some(need) => OnceLock::from(load_core(&need)?),
        };
        Ok(Self::over(core, bundle, soc))
    }

    /// As [`open`](Self::open), with OpenVINO loaded already.
    pub fn new(core: Core, bundle: Arc<Bundle>, soc: Soc) -> Self {
        Self::over(OnceLock::from(core), bundle, soc)
    }

    fn over(core: OnceLock<Core>, bundle: Arc<Bundle>, soc: Soc) -> Self {
        let memory: Arc<dyn Memory> = Arc::new(BundleMemory(Arc::clone(&bundle)));
        let processors = Processors::new(&soc);
        let devices = devices::read(core.get(), &soc, &processors);
        let ladder = Ladder::new(bundle.manifest(), devices);
        Self {
            sections: Sections::mapped(Arc::clone(&bundle), memory),
            first_version: core.get().map(|core| core.version().to_owned()),
            core,
            processors,
            bundle,
            soc,
            ladder,
            cache: None,
            compiled: None,
            shared: Mutex::default(),
        }
    }

    /// OpenVINO, loaded now if it was not.
    pub(super) fn core(&self) -> Result<&Core, RuntimeError> {
        if let Some(core) = self.core.get() {
            return Ok(core);
        }
        let core = load_core("which runs what CPU programs cannot")?;
        Ok(self.core.get_or_init(|| core))
    }

    /// Has the roles of NPU and iGPU run kernels together.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Pair`] where one of them has no CPU programs.
    pub fn paired(mut self, pairing: Pairing, lanes: PairLanes) -> Result<Self, RuntimeError> {
        match self.processors.pair_up(pairing, lanes)? {
            true => Ok(self),
            false => Err(RuntimeError::Pair { soc: self.soc.name }),
        }
    }

    /// The roles that run kernels together, if any do.
    pub fn pair(&self) -> Option<&Arc<PairedRoles>> {
        self.processors.pair()
    }

    /// Keeps verdicts and compiled forms in a folder, for the next start.
    #[must_use]
    pub fn with_cache(mut self, folder: OwnFolder) -> Self {
        if !self.has_only_cpu()
            && let Some(core) = self.core.get()
        {
            self.compiled = CompiledCache::open(&folder, core, self.ladder.devices());
        }
        self.cache = Some(folder);
        self
    }

    /// Takes sections from `memory`, laid out like the bundle's file, instead of the mapped bundle.
    #[must_use]
    pub fn with_memory(mut self, memory: Arc<dyn Memory>) -> Self {
        self.sections = Sections::mapped(Arc::clone(&self.bundle), memory);
        self
    }

    /// Uses `devices` in place of what the devices report about themselves.
    #[must_use]
    pub fn with_devices(mut self, devices: Vec<DeviceFacts>) -> Self {
        self.ladder = Ladder::new(self.bundle.manifest(), devices);
        self
    }

    /// The bundle that forms are made from.
    pub fn bundle(&self) -> &Arc<Bundle> {
        &self.bundle
    }

    /// The devices that forms are made for.
    pub fn soc(&self) -> &Soc {
        &self.soc
    }

    /// Facts about these devices, one for each role.
    pub fn devices(&self) -> &[DeviceFacts] {
        self.ladder.devices()
    }

    /// What runs kernels in each role, a line each: `CPU programs (avx2, I8, 4 threads)`, or a device of OpenVINO.
    pub fn what_runs(&self) -> Vec<String> {
        let devices = self.devices().iter();
        let line = |device: &DeviceFacts| {
            let programs = self.processors.describe(device.role);
            let runs = programs.unwrap_or_else(|| {
                let version = self.plugin_version().unwrap_or_default();
                let name = if device.full_name.is_empty() {
                    &device.name
                } else {
                    &device.full_name
                };
                format!("{name}, OpenVINO {version}")
            });
            match device.role {
                DeviceClass::Cpu => runs,
                role => format!("{}: {runs}", role.name()),
            }
        };
        devices.map(line).collect()
    }

    /// Whether a device with this role can be used.
    fn has(&self, role: DeviceClass) -> bool {
        let mut devices = self.devices().iter();
        devices.any(|device| device.role == role && device.missing.is_none())
    }

    /// Shapes of the variants that the device of a role can run, by group, of the kernels that stand for all.
    pub(crate) fn shapes(&self, role: DeviceClass) -> BTreeMap<Group, Vec<ShapeClass>> {
        first_kernels(self.bundle.manifest())
            .map(|kernel| (kernel.group, self.ladder.shapes(kernel, role)))
            .collect()
    }

    /// The lanes that its devices give; a pair may be one.
    pub fn lanes(&self) -> MachineLanes {
        let is_paired = self.pair().is_some_and(|pair| pair.is_one_lane());
        MachineLanes::of(|role| self.has(role) && !(is_paired && role == DeviceClass::Npu))
    }

    /// Whether the CPU plays every role. Its kernels do not hang: one that takes long waits for cores that other
    /// programs use.
    pub(crate) fn has_only_cpu(&self) -> bool {
        let mut devices = self.devices().iter();
        devices.all(|device| is_cpu(&device.name))
    }

    /// Version of OpenVINO; none where it was not needed when the bundle was opened. That a kernel has it loaded later
    /// changes nothing here: names are made of it.
    pub(crate) fn plugin_version(&self) -> Option<&str> {
        self.first_version.as_deref()
    }

    pub(super) fn ladder(&self) -> &Ladder {
        &self.ladder
    }

    /// The folder in which verdicts are kept.
    pub(crate) fn cache(&self) -> Option<&OwnFolder> {
        self.cache.as_ref()
    }

    /// Makes the kernel of `place` ready on a rung of its ladder.
    pub(super) fn form(&self, place: Place, rung: Rung) -> Result<Form, RuntimeError> {
        let parts = self.parts(place, rung)?;
        if rung.source == Source::Program {
            return self.program(&parts, rung);
        }
        let compiled = if holds_weights(parts.kernel, parts.variant) {
            self.compiled(&parts, rung, &self.sections)?
        } else {
            self.compiled_once(&parts, rung)?
        };
        self.request(&parts, rung, &compiled, &self.sections)
    }

    /// As [`form`](Self::form), narrowed to `context` rows of the KV cache: for rungs of static attention, and no more
    /// rows than they have.
    pub(super) fn form_over(
        &self,
        place: Place,
        rung: Rung,
        context: u32,
    ) -> Result<Form, RuntimeError> {
        let mut parts = self.parts(place, rung)?;
        let tokens = parts.variant.shape.chunk().ok_or(unknown(place))?;
        let shape = ShapeClass::Bucket { tokens, context };
        if shape == parts.shape {
            return self.form(place, rung);
        }
        parts.shape = shape;
        let compiled = self.compiled(&parts, rung, &self.sections)?;
        self.request(&parts, rung, &compiled, &self.sections)
    }

    /// As [`form`](Self::form), for calls of just so many rows, which are padded: for rungs that take any number of rows and
    /// have their weights inside.
    pub(super) fn form_of_rows(
        &self,
        place: Place,
        rung: Rung,
        rows: u32,
    ) -> Result<Form, RuntimeError> {
        let mut parts = self.parts(place, rung)?;
        parts.shape = ShapeClass::Static { tokens: rows };
        let compiled = self.compiled(&parts, rung, &self.sections)?;
        self.request(&parts, rung, &compiled, &self.sections)
    }

    /// As [`form`](Self::form), from a copy of its sections that is hashed again.
    pub(super) fn form_from_copy(&self, place: Place, rung: Rung) -> Result<Form, RuntimeError> {
        let parts = self.parts(place, rung)?;
        if rung.source == Source::Program {
            // Its weights are read where they lie, again and again: a copy would tell nothing of them.
            self.verify_again(&parts)?;
            return self.program(&parts, rung);
        }
        let mut ids = parts.weights.clone();
        ids.push(self.bundle.manifest().literals);
        if let Source::Blob(at) = rung.source {
            ids.extend(parts.variant.blobs.get(at).map(|blob| blob.section));
        }
        let sections = Sections::copied(&self.bundle, &ids)?;
        let compiled = self.compiled(&parts, rung, &sections)?;
        self.request(&parts, rung, &compiled, &sections)
    }

    /// Compiles a rung without weights a second time, as streams that run up to `calls` calls side by side, each on one
    /// thread unless there are more threads than calls. None where one thread is all there is.
    pub(super) fn streams(
        &self,
        place: Place,
        rung: Rung,
        calls: usize,
    ) -> Result<Option<Streams>, RuntimeError> {
        let parts = self.parts(place, rung)?;
        if rung.source == Source::Program || holds_weights(parts.kernel, parts.variant) {
            return Ok(None);
        }
        let threads = self
            .compiled_once(&parts, rung)?
            .model
            .property(THREADS)
            .map_err(openvino(format!("read `{THREADS}`")))?;
        let count = threads.parse().unwrap_or(1).min(calls);
        if count < 2 {
            return Ok(None);
        }
        let properties = [("NUM_STREAMS", count.to_string()), (THREADS, threads)];
        let compiled = self.compile(&parts, &self.sections, &properties)?;
        Ok(Some(Streams::new(compiled, count)))
    }

    fn parts(&self, place: Place, rung: Rung) -> Result<Parts<'_>, RuntimeError> {
        let manifest = self.bundle.manifest();
        let used = place_use(manifest, place)?;
        let kernel = place_kernel(manifest, place)?;
        let variant = kernel.variants.get(rung.variant).ok_or(unknown(place))?;
        Ok(Parts {
            used,
            kernel,
            variant,
            shape: variant.shape,
            device: device_of(&self.soc, rung.role).ok_or(unknown(place))?,
            weights: use_sections(manifest, used),
        })
    }

    /// Makes a place's CPU program ready.
    fn program(&self, parts: &Parts<'_>, rung: Rung) -> Result<Form, RuntimeError> {
        let form = self.processors.form(
            &self.bundle,
            rung.role,
            parts.used,
            parts.kernel,
            parts.variant,
        )?;
        Ok(Form {
            rung,
            shape: parts.shape,
            runner: Runner::Program(form),
        })
    }

    /// Hashes the sections of a place as they are now.
    fn verify_again(&self, parts: &Parts<'_>) -> Result<(), RuntimeError> {
        for id in &parts.weights {
            self.bundle
                .section_copy(*id)
                .map_err(|_| RuntimeError::ChangedInMemory {
                    part: self.bundle.label(*id),
                })?;
        }
        Ok(())
    }
}

fn load_core(need: &str) -> Result<Core, RuntimeError> {
    Core::load().map_err(openvino(format!("load the libraries, {need}")))
}

/// Property for the number of CPU threads that a form runs on.
const THREADS: &str = "INFERENCE_NUM_THREADS";

/// OpenVINO's message if a device refused something; none for errors of another kind.
pub(super) fn refusal(error: &RuntimeError) -> Option<String> {
    match error {
        RuntimeError::OpenVino { doing, source } => {
            Some(format!("{doing}: {}", devices::last_line(source)))
        }
        RuntimeError::Refused { message, .. } => Some(message.clone()),
        RuntimeError::Program { source, .. } => Some(source.to_string()),
        _ => None,
    }
}

/// The element type of a bundle, as OpenVINO names it.
pub(super) fn tensor_element(element: ElementType) -> TensorType {
    match element {
        ElementType::I4 => TensorType::I4,
        ElementType::U4 => TensorType::U4,
        ElementType::I8 => TensorType::I8,
        ElementType::F16 => TensorType::F16,
        ElementType::Bf16 => TensorType::Bf16,
        ElementType::F32 => TensorType::F32,
        ElementType::I64 => TensorType::I64,
    }
}

/// OpenVINO, for tests; none where it is not there, which is said.
#[cfg(test)]
pub(super) fn core_or_skip() -> Option<Core> {
    match heg_openvino::find_libraries() {
        Ok(folder) => Some(Core::load_from(&folder).unwrap()),
        Err(error) => {
            assert!(
                std::env::var_os("HEG_REQUIRE_OPENVINO").is_none(),
                "{error}"
            );
            println!("skipped: {error} (run: cargo xtask setup)");
            None
        }
    }
}
