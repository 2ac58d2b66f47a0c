//! Makes a form ready to run: imports or compiles it for its device, and binds its weights.
//!
//! Forms that hold weights are made once per place; input-bound ones once per rung, with a request per place whose
//! weights are bound once. Which forms there are is decided elsewhere (`ladder`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use heg_artifacts::manifest::{Binding, ElementType, Kernel, KernelUse, ShapeClass, Variant};
use heg_artifacts::{Bundle, SectionId};
use heg_files::OwnFolder;
use heg_openvino::{CompiledModel, Core, InferRequest, Memory, TensorType};
use heg_sched::MachineLanes;
use heg_spec::soc::Device;
use heg_spec::{DeviceClass, Soc};

use super::band::Band;
use super::compiled::{CompiledCache, is_cpu, plugin_properties};
use super::place::{Place, place_kernel, place_use, unknown, use_sections};
use super::processors::{self, Processors, ProgramForm};
use super::sections::Sections;
use super::streams::Streams;
use super::{devices, ir};
use crate::error::{RuntimeError, openvino};
use crate::ladder::{DeviceFacts, Ladder, Rung, Source, holds_weights};
use crate::mem::BundleMemory;
use crate::soc::{device_of, properties_of};

/// One form of the kernel at one place, ready to run.
pub(super) struct Form {
    pub(super) rung: Rung,
    pub(super) shape: ShapeClass,
    pub(super) runner: Runner,
}

/// What runs a form.
pub(super) enum Runner {
    /// A device of OpenVINO.
    Plugin(PluginForm),
    /// Our own kernels on the CPU.
    Program(ProgramForm),
}

impl Runner {
    /// The program, if it is one.
    pub(super) fn program(&self) -> Option<&ProgramForm> {
        match self {
            Self::Program(program) => Some(program),
            Self::Plugin(_) => None,
        }
    }
}

/// A form that OpenVINO runs.
pub(super) struct PluginForm {
    pub(super) request: InferRequest,
    /// Priority of the compiled model, shared by all its requests.
    pub(super) band: Arc<Band>,
}

/// A compiled model and its priority.
#[derive(Clone)]
struct Compiled {
    model: CompiledModel,
    band: Arc<Band>,
}

impl Form {
    /// Rows that it computes for `tokens` tokens: the chunk of a static form, else those of a program, or [`padded`].
    pub(super) fn rows(&self, tokens: usize) -> usize {
        match (&self.runner, self.shape.chunk()) {
            (_, Some(chunk)) => chunk as usize,
            (Runner::Program(_), None) => tokens,
            (Runner::Plugin(_), None) => padded(tokens),
        }
    }

    /// Rows of the KV cache that it reads when `context` are visible: the bucket of a static form, else those.
    pub(super) fn context(&self, context: usize) -> usize {
        let bucket = self.shape.bucket();
        bucket.map_or(context, |bucket| bucket as usize)
    }
}

/// The number of rows of a dynamic form is a multiple of this. Chosen: at most 15 rows of padding; a prompt of a length
/// that was not seen before takes a third longer, because every kernel is planned again (100 tokens, 1B model, two
/// cores).
pub(crate) const ROW_STEP: usize = 16;

/// Rows that a dynamic form computes for `tokens` tokens: those of a small batch, else a multiple of [`ROW_STEP`].
pub(crate) fn padded(tokens: usize) -> usize {
    match tokens {
        0..=ROW_STEP => tokens,
        _ => tokens.next_multiple_of(ROW_STEP),
    }
}

/// Makes forms ready to run. The threads that load share it.
pub struct Loader {
    /// OpenVINO: loaded at once, or when a kernel first needs it.
    core: OnceLock<Core>,
    /// Version of OpenVINO if it was loaded at once.
    first_version: Option<String>,
    bundle: Arc<Bundle>,
    processors: Processors,
    sections: Sections,
    soc: Soc,
    ladder: Ladder,
    cache: Option<OwnFolder>,
    compiled: Option<CompiledCache>,
    /// Compiled forms without weights, which serve all layers, by kernel and rung; or why they could not be made.
    shared: Mutex<BTreeMap<(u32, Rung), Result<Compiled, String>>>,
}

/// A place, and what its kernel is made from.
struct Parts<'m> {
    used: &'m KernelUse,
    kernel: &'m Kernel,
    variant: &'m Variant,
    /// Shape of the variant, or one with fewer rows of context.
    shape: ShapeClass,
    device: &'m Device,
    /// Sections of its weights, in the order in which IRs number them.
    weights: Vec<SectionId>,
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
    fn core(&self) -> Result<&Core, RuntimeError> {
        if let Some(core) = self.core.get() {
            return Ok(core);
        }
        let core = load_core("which runs what CPU programs cannot")?;
        Ok(self.core.get_or_init(|| core))
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

    /// The lanes that its devices give.
    pub fn lanes(&self) -> MachineLanes {
        MachineLanes::of(|role| self.has(role))
    }

    /// Whether the CPU plays every role. Its kernels do not hang: one that takes long waits for cores that other
    /// programs use.
    pub(crate) fn has_only_cpu(&self) -> bool {
        let mut devices = self.devices().iter();
        devices.all(|device| is_cpu(&device.name))
    }

    /// Version of OpenVINO; none where it was not needed.
    pub(crate) fn plugin_version(&self) -> Option<&str> {
        self.core.get().map(Core::version)
    }

    /// As [`plugin_version`](Self::plugin_version), and the same before and after it is loaded for a single kernel: a name
    /// for what is remembered.
    pub(super) fn first_version(&self) -> Option<&str> {
        self.first_version.as_deref()
    }

    pub(super) fn ladder(&self) -> &Ladder {
        &self.ladder
    }

    /// The folder in which verdicts are kept.
    pub(super) fn cache(&self) -> Option<&OwnFolder> {
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

    fn request(
        &self,
        parts: &Parts<'_>,
        rung: Rung,
        compiled: &Compiled,
        sections: &Sections,
    ) -> Result<Form, RuntimeError> {
        let request = compiled
            .model
            .request()
            .map_err(openvino(format!("request for `{}`", parts.kernel.name)))?;
        let mut form = PluginForm {
            request,
            band: Arc::clone(&compiled.band),
        };
        if parts.variant.binding == Binding::Input {
            self.bind_weights(parts, &mut form, sections)?;
        }
        Ok(Form {
            rung,
            shape: parts.shape,
            runner: Runner::Plugin(form),
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

    /// Compiles a form without weights for the first place that needs it; the other places share it.
    fn compiled_once(&self, parts: &Parts<'_>, rung: Rung) -> Result<Compiled, RuntimeError> {
        // What a panicking thread left is a map of whole entries.
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (parts.used.kernel.0, rung);
        match shared.get(&key) {
            Some(Ok(compiled)) => return Ok(compiled.clone()),
            Some(Err(message)) => {
                return Err(RuntimeError::Refused {
                    kernel: parts.kernel.name.clone(),
                    message: message.clone(),
                });
            }
            None => {}
        }
        let outcome = self.compiled(parts, rung, &self.sections);
        match &outcome {
            Ok(compiled) => {
                shared.insert(key, Ok(compiled.clone()));
            }
            Err(error) => {
                if let Some(message) = refusal(error) {
                    shared.insert(key, Err(message));
                }
            }
        }
        outcome
    }

    /// Imports or compiles a form, with a priority of its own.
    fn compiled(
        &self,
        parts: &Parts<'_>,
        rung: Rung,
        sections: &Sections,
    ) -> Result<Compiled, RuntimeError> {
        Ok(Compiled {
            model: self.model(parts, rung, sections)?,
            band: Arc::default(),
        })
    }

    /// Imports a blob, takes a compiled IR from the cache, or compiles the IR.
    fn model(
        &self,
        parts: &Parts<'_>,
        rung: Rung,
        sections: &Sections,
    ) -> Result<CompiledModel, RuntimeError> {
        let name = &parts.kernel.name;
        let device = &parts.device.openvino;
        if let Source::Blob(at) = rung.source {
            let blob = parts
                .variant
                .blobs
                .get(at)
                .ok_or(RuntimeError::LoaderGone)?;
            let bytes = sections.bytes(blob.section)?;
            // Import takes no properties; what is compiled is given its own, and heeds none of these.
            for (property, value) in properties_of(parts.device, parts.kernel.group, parts.variant)
            {
                self.core()?
                    .set_property(device, property, value)
                    .map_err(openvino(format!("set `{property}` of `{device}`")))?;
            }
            return self
                .core()?
                .import(&bytes, device)
                .map_err(openvino(format!("import a blob of `{name}` on `{device}`")));
        }
        // What is cached is no part of a copy that is there to make everything anew.
        let cache = self.compiled.as_ref().filter(|_| !sections.is_copy());
        let keep = cache.and_then(|cache| {
            let literals = self.bundle.manifest().literals;
            cache
                .key(
                    rung.role,
                    parts.device,
                    (parts.variant, parts.shape),
                    literals,
                )
                .map(|key| (cache, key))
        });
        if let Some((cache, key)) = &keep
            && let Some(compiled) = cache.recall(key, self.core()?, device)
        {
            return Ok(compiled);
        }
        let compiled = self.compile(parts, sections, &[])?;
        if let Some((cache, key)) = &keep {
            cache.remember(key, &compiled);
        }
        Ok(compiled)
    }

    /// Compiles a variant whose constants are the sections of the place. Properties in `own` are added to the device's,
    /// or replace them. Hashes are checked before OpenVINO sees a byte.
    fn compile(
        &self,
        parts: &Parts<'_>,
        sections: &Sections,
        own: &[(&str, String)],
    ) -> Result<CompiledModel, RuntimeError> {
        let name = &parts.kernel.name;
        let constants = if holds_weights(parts.kernel, parts.variant) {
            parts.weights.as_slice()
        } else {
            &[]
        };
        let extents = constants
            .iter()
            .map(|id| sections.extent(*id))
            .collect::<Result<Vec<_>, RuntimeError>>()?;
        let literals = sections.extent(self.bundle.manifest().literals)?;
        let text = self
            .bundle
            .section_copy(parts.variant.ir)
            .map_err(RuntimeError::Section)?;
        let mut xml = ir::resolve(&text, name, &extents, literals)?;
        if let (Some(from), Some(to)) = (parts.variant.shape.bucket(), parts.shape.bucket())
            && from != to
        {
            xml = ir::narrow(&xml, name, from, to)?;
        }
        let model = self
            .core()?
            .read_model(xml.as_bytes(), Some(&sections.whole()?))
            .map_err(openvino(format!("read the IR of kernel `{name}`")))?;
        let device = parts.device;
        let kept = match &self.cache {
            Some(cache) => plugin_properties(cache, &device.openvino),
            None => Vec::new(),
        };
        let of_device = properties_of(device, parts.kernel.group, parts.variant);
        let of_device = of_device.chain(kept.iter().map(|(name, value)| (name, value)));
        let bound = is_cpu(&device.openvino).then_some(SHAPES_KEPT);
        let properties: BTreeMap<&str, &str> = bound
            .into_iter()
            .chain(of_device.map(|(name, value)| (name.as_str(), value.as_str())))
            .chain(own.iter().map(|(name, value)| (*name, value.as_str())))
            .collect();
        let properties: Vec<(&str, &str)> = properties.into_iter().collect();
        self.core()?
            .compile(&model, &device.openvino, &properties)
            .map_err(openvino(format!(
                "compile kernel `{name}` for `{}`",
                device.openvino
            )))
    }

    /// Binds the weights of a place behind the activation ports: values and scales, weight after weight.
    fn bind_weights(
        &self,
        parts: &Parts<'_>,
        form: &mut PluginForm,
        sections: &Sections,
    ) -> Result<(), RuntimeError> {
        let weights = &self.bundle.manifest().weights;
        let used = parts.used.weights.iter();
        let tensors = used
            .filter_map(|id| weights.get(id.0 as usize))
            .flat_map(|weight| {
                let shape: Vec<usize> = weight.shape.iter().map(|dim| *dim as usize).collect();
                let row_count = shape[0];
                let values = (weight.values, tensor_element(weight.element), shape);
                let scales = weight
                    .scales
                    .map(|scales| (scales, TensorType::F32, vec![1, row_count]));
                std::iter::once(values).chain(scales)
            });
        for (port, (id, element, shape)) in (parts.kernel.inputs.len()..).zip(tensors) {
            let tensor = sections.tensor(id, element, &shape)?;
            form.request
                .bind_input(port, tensor)
                .map_err(openvino(format!("bind {}", self.bundle.label(id))))?;
        }
        Ok(())
    }
}

/// Number of input shapes for which the CPU plugin keeps code, for each compiled kernel and kind of node. Chosen: a
/// decode batch of each size and some lengths of prompts. With the plugin's default of 5000 a server of short prompts
/// grew from 80 to 700 MB.
const SHAPES_KEPT: (&str, &str) = ("CPU_RUNTIME_CACHE_CAPACITY", "64");

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
        ElementType::I8 => TensorType::I8,
        ElementType::F16 => TensorType::F16,
        ElementType::Bf16 => TensorType::Bf16,
        ElementType::F32 => TensorType::F32,
        ElementType::I64 => TensorType::I64,
    }
}
