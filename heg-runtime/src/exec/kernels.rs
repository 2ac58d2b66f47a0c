//! Kernels made ready: IR read, compiled for its device, and a request for each place.
//!
//! Constant-bound kernels are compiled once per place, since their weights are part of them; input-bound ones
//! once per chunk size, with a request per place whose weights are bound once. Threads of their own prepare
//! them while the caller reads the tokenizer and the prompt.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use heg_artifacts::manifest::{
    self, Binding, ElementType, Group, KernelUse, Manifest, ShapeClass, Variant,
};
use heg_artifacts::{Bundle, SectionId};
use heg_openvino::{CompiledModel, Core, ElementType as TensorElement, Memory, Request, Tensor};
use heg_spec::Soc;

use super::ir;
use crate::bind::{Bound, bind, shared_activations};
use crate::error::{RuntimeError, openvino};
use crate::mem::BundleMemory;
use crate::sched::Launch;

/// Compiled forms of the kernel at one place, static ones in ascending order of tokens.
pub(super) struct Prepared {
    pub(super) forms: Vec<Form>,
    /// Sections that nobody reads any more once the plugin has packed them in its own layout, which it does
    /// in the first inference. Empty once they were given back.
    pub(super) packed: Vec<SectionId>,
}

/// One compiled form.
pub(super) struct Form {
    pub(super) shape: ShapeClass,
    pub(super) request: Request,
}

/// Where a kernel is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) layer: Option<u32>,
    pub(super) group: Group,
}

impl From<Launch> for Place {
    fn from(launch: Launch) -> Self {
        Self {
            layer: launch.layer,
            group: launch.group,
        }
    }
}

/// All places of a model, being prepared.
pub(super) struct Kernels {
    workers: Vec<thread::JoinHandle<Share>>,
    abandoned: Arc<AtomicBool>,
}

/// The places that one worker prepared.
type Share = Result<Vec<(Place, Prepared)>, RuntimeError>;

/// A place, with what its kernel is made of.
struct Parts<'m> {
    used: &'m KernelUse,
    kernel: &'m manifest::Kernel,
    bound: Bound<'m>,
    /// Its sections, in the order in which IRs count them.
    sections: Vec<SectionId>,
}

/// What a loader needs to make a kernel ready.
pub(super) struct Loader {
    pub(super) core: Core,
    pub(super) bundle: Arc<Bundle>,
    pub(super) memory: Arc<dyn Memory>,
    pub(super) soc: Soc,
    /// Input-bound kernels serve all layers: compiled on first use, by kernel and variant.
    shared_forms: Mutex<BTreeMap<(u32, usize), CompiledModel>>,
}

impl Loader {
    pub(super) fn new(core: Core, bundle: Arc<Bundle>, soc: Soc) -> Self {
        let memory: Arc<dyn Memory> = Arc::new(BundleMemory(Arc::clone(&bundle)));
        Self {
            core,
            bundle,
            memory,
            soc,
            shared_forms: Mutex::default(),
        }
    }

    /// Checks that every kernel has a device and a variant, and that their activations agree.
    pub(super) fn plan(&self) -> Result<LoadPlan, RuntimeError> {
        let manifest = self.bundle.manifest();
        let bound: Vec<(&manifest::Kernel, Bound<'_>)> = manifest
            .kernels
            .iter()
            .map(|kernel| Ok((kernel, bind(&self.soc, kernel)?)))
            .collect::<Result<_, RuntimeError>>()?;
        let variants = bound.iter().flat_map(|(kernel, bound)| {
            bound
                .variants
                .iter()
                .map(move |variant| (*kernel, *variant))
        });
        let activations = shared_activations(variants.clone())?;
        let chunk = |variant: &Variant| {
            let chunk = variant.shape.chunk();
            chunk.map_or(usize::MAX, |tokens| tokens as usize)
        };
        // The largest chunk that every token-wise kernel takes.
        let chunk_max = bound
            .iter()
            .filter(|(kernel, _)| kernel.group != Group::Mha)
            .map(|(_, bound)| {
                bound
                    .variants
                    .iter()
                    .map(|variant| chunk(variant))
                    .max()
                    .unwrap_or(0)
            })
            .min()
            .unwrap_or(usize::MAX);
        Ok(LoadPlan {
            activations,
            chunk_max,
        })
    }

    /// Prepares one place after the other until there are no more, or somebody fails.
    fn work(&self, next: &AtomicUsize, abandoned: &AtomicBool) -> Share {
        let places = all_places(self.bundle.manifest());
        let mut ready = Vec::new();
        while let Some(place) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
            if abandoned.load(Ordering::Relaxed) {
                break;
            }
            let prepared = self.prepare(*place);
            abandoned.fetch_or(prepared.is_err(), Ordering::Relaxed);
            ready.push((*place, prepared?));
        }
        Ok(ready)
    }

    fn prepare(&self, place: Place) -> Result<Prepared, RuntimeError> {
        let manifest = self.bundle.manifest();
        let used = place_use(manifest, place)?;
        let kernel = manifest
            .kernels
            .get(used.kernel.0 as usize)
            .ok_or(unknown(place))?;
        let bound = bind(&self.soc, kernel)?;
        let sections = use_sections(manifest, used);
        if place.group == Group::Head {
            // The embedding is no kernel's weight, unless the head is tied to it: its hash is checked here.
            let table = manifest.embedding.table.0 as usize;
            let table = manifest.weights.get(table).ok_or(unknown(place))?;
            self.bundle
                .section(table.values)
                .map_err(RuntimeError::Section)?;
        }
        let constant = bound
            .variants
            .iter()
            .all(|variant| variant.binding == Binding::Constant);
        let parts = Parts {
            used,
            kernel,
            bound,
            sections,
        };
        let forms = (0..parts.bound.variants.len())
            .map(|index| self.form(&parts, index))
            .collect::<Result<_, RuntimeError>>()?;
        let packed = if constant { parts.sections } else { Vec::new() };
        Ok(Prepared { forms, packed })
    }

    fn form(&self, parts: &Parts<'_>, index: usize) -> Result<Form, RuntimeError> {
        let variant = parts.bound.variants[index];
        let compiled = match variant.binding {
            Binding::Constant => self.compile(parts, variant, &parts.sections)?,
            Binding::Input => self.compiled_once(parts, index)?,
        };
        let request = compiled
            .request()
            .map_err(openvino(format!("request for `{}`", parts.kernel.name)))?;
        let mut form = Form {
            shape: variant.shape,
            request,
        };
        if variant.binding == Binding::Input {
            self.bind_weights(parts, &mut form)?;
        }
        Ok(form)
    }

    /// An input-bound form: compiled for the first place that asks, shared by the others.
    fn compiled_once(
        &self,
        parts: &Parts<'_>,
        index: usize,
    ) -> Result<CompiledModel, RuntimeError> {
        // What a panicking thread left is a map of whole entries.
        let mut shared = self
            .shared_forms
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let key = (parts.used.kernel.0, index);
        if let Some(compiled) = shared.get(&key) {
            return Ok(compiled.clone());
        }
        let compiled = self.compile(parts, parts.bound.variants[index], &[])?;
        shared.insert(key, compiled.clone());
        Ok(compiled)
    }

    /// Compiles a variant, with constants at `sections`. Hashes are checked before OpenVINO sees a byte.
    fn compile(
        &self,
        parts: &Parts<'_>,
        variant: &Variant,
        sections: &[SectionId],
    ) -> Result<CompiledModel, RuntimeError> {
        let name = &parts.kernel.name;
        let offsets = sections
            .iter()
            .map(|id| self.checked_offset(*id))
            .collect::<Result<Vec<_>, RuntimeError>>()?;
        let literals = self.checked_offset(self.bundle.manifest().literals)?;
        let text = self
            .bundle
            .section(variant.ir)
            .map_err(RuntimeError::Section)?;
        let xml = ir::resolve(&String::from_utf8_lossy(text), name, &offsets, literals)?;
        let weights = self.view(0, TensorElement::U8, &[self.memory.len()], "the bundle")?;
        let model = self
            .core
            .read_model(xml.as_bytes(), Some(&weights))
            .map_err(openvino(format!("read the IR of kernel `{name}`")))?;
        let device = &parts.bound.device;
        let properties: Vec<(&str, &str)> = device
            .properties
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        self.core
            .compile(&model, &device.openvino, &properties)
            .map_err(openvino(format!(
                "compile kernel `{name}` for `{}`",
                device.openvino
            )))
    }

    /// Where a section lies in the file, after its hash was checked.
    fn checked_offset(&self, id: SectionId) -> Result<u64, RuntimeError> {
        self.bundle.section(id).map_err(RuntimeError::Section)?;
        let range = self
            .bundle
            .section_range(id)
            .map_err(RuntimeError::Section)?;
        Ok(range.start)
    }

    fn view(
        &self,
        offset: u64,
        element: TensorElement,
        shape: &[usize],
        label: &str,
    ) -> Result<Tensor, RuntimeError> {
        Tensor::new(Arc::clone(&self.memory), offset as usize, element, shape)
            .map_err(openvino(format!("view of {label}")))
    }

    /// Binds the weights of a place behind the activation ports: values and scales, weight after weight.
    fn bind_weights(&self, parts: &Parts<'_>, form: &mut Form) -> Result<(), RuntimeError> {
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
                    .map(|scales| (scales, TensorElement::F32, vec![1, row_count]));
                std::iter::once(values).chain(scales)
            });
        for (port, (id, element, shape)) in (parts.kernel.inputs.len()..).zip(tensors) {
            let label = self.bundle.label(id);
            let tensor = self.view(self.checked_offset(id)?, element, &shape, &label)?;
            form.request
                .bind_input(port, tensor)
                .map_err(openvino(format!("bind {label}")))?;
        }
        Ok(())
    }
}

/// What all kernels agree on.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadPlan {
    pub(super) activations: ElementType,
    /// Largest number of tokens a call can have.
    pub(super) chunk_max: usize,
}

impl Kernels {
    /// Begins to prepare all places, on `threads` threads.
    pub(super) fn load(loader: Arc<Loader>, threads: usize) -> Self {
        let abandoned = Arc::new(AtomicBool::new(false));
        let next = Arc::new(AtomicUsize::new(0));
        let workers = (0..threads.max(1))
            .map(|_| {
                let (loader, next, abandoned) = (
                    Arc::clone(&loader),
                    Arc::clone(&next),
                    Arc::clone(&abandoned),
                );
                thread::spawn(move || loader.work(&next, &abandoned))
            })
            .collect();
        Self { workers, abandoned }
    }

    /// Waits until all places are ready.
    ///
    /// The first request does not begin before: compiling takes all cores, and an inference that runs
    /// meanwhile, on threads of its own, is six times as slow as after (1B model, two cores). The first
    /// inference of each kernel packs its weights, which is better left to one kernel at a time with all
    /// threads than to several at once: 1.32 s from start to first token against 1.58 s.
    pub(super) fn join(&mut self) -> Result<BTreeMap<Place, Prepared>, RuntimeError> {
        let mut ready = BTreeMap::new();
        for worker in self.workers.drain(..) {
            ready.extend(worker.join().map_err(|_| RuntimeError::LoaderGone)??);
        }
        Ok(ready)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            // Nobody wants what it prepared, nor why it could not.
            let _ = worker.join();
        }
    }
}

/// Places in the order in which they are prepared: that of execution, but for the head, which comes after the
/// first layer. It is the longest of all to prepare, and at the end it would keep one thread busy alone.
/// Attention of the same kernel is one place for all its layers.
fn all_places(manifest: &Manifest) -> Vec<Place> {
    let mut places = Vec::new();
    let mut attention = Vec::new();
    for (index, layer) in (0..).zip(&manifest.layers) {
        let place = |group| Place {
            layer: Some(index),
            group,
        };
        places.push(place(Group::Qkv));
        if !attention.contains(&layer.mha.kernel) {
            attention.push(layer.mha.kernel);
            places.push(place(Group::Mha));
        }
        places.push(place(Group::Ffn));
        if index == 0 {
            places.push(Place {
                layer: None,
                group: Group::Head,
            });
        }
    }
    places
}

/// The place that stands for this one: attention of the same kernel shares the first layer's.
pub(super) fn shared_place(manifest: &Manifest, place: Place) -> Place {
    let Place {
        layer: Some(layer),
        group: Group::Mha,
    } = place
    else {
        return place;
    };
    let kernel = manifest
        .layers
        .get(layer as usize)
        .map(|layer| layer.mha.kernel);
    let first = manifest
        .layers
        .iter()
        .position(|layer| Some(layer.mha.kernel) == kernel);
    Place {
        layer: first.map(|first| first as u32),
        group: Group::Mha,
    }
}

pub(super) fn place_use(manifest: &Manifest, place: Place) -> Result<&KernelUse, RuntimeError> {
    let Some(layer) = place.layer else {
        return Ok(&manifest.head);
    };
    let layer = manifest.layers.get(layer as usize).ok_or(unknown(place))?;
    match place.group {
        Group::Qkv => Ok(&layer.qkv),
        Group::Mha => Ok(&layer.mha),
        Group::Ffn => Ok(&layer.ffn),
        Group::Head => Err(unknown(place)),
    }
}

/// Sections of a place in the order in which IRs count them.
fn use_sections(manifest: &Manifest, used: &KernelUse) -> Vec<SectionId> {
    used.weights
        .iter()
        .filter_map(|id| manifest.weights.get(id.0 as usize))
        .flat_map(|weight| std::iter::once(weight.values).chain(weight.scales))
        .collect()
}

fn unknown(place: Place) -> RuntimeError {
    RuntimeError::Launch {
        group: place.group,
        layer: place.layer,
    }
}

/// The boundary's name of a bundle's element type.
pub(super) fn tensor_element(element: ElementType) -> TensorElement {
    match element {
        ElementType::I8 => TensorElement::I8,
        ElementType::F16 => TensorElement::F16,
        ElementType::F32 => TensorElement::F32,
        ElementType::I64 => TensorElement::I64,
    }
}
