//! One form made ready: its IR read and compiled for its device, its weights bound.
//!
//! Constant-bound kernels are compiled once per place, since their weights are part of them; input-bound ones
//! once per variant and device, with a request per place whose weights are bound once. Which forms there are
//! is decided elsewhere (`ladder`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use heg_artifacts::manifest::{Binding, ElementType, Kernel, KernelUse, ShapeClass, Variant};
use heg_artifacts::{Bundle, SectionId};
use heg_openvino::{CompiledModel, Core, ElementType as TensorElement, Memory, Request, Tensor};
use heg_spec::Soc;
use heg_spec::soc::Device;

use super::ir;
use super::place::{Place, place_kernel, place_use, unknown, use_sections};
use crate::bind::{Rung, device_of};
use crate::error::{RuntimeError, openvino};
use crate::mem::BundleMemory;

/// One compiled form of the kernel at one place.
pub(super) struct Form {
    pub(super) shape: ShapeClass,
    pub(super) request: Request,
}

impl Form {
    /// Rows that it computes for `tokens` tokens: those, or a static form's chunk.
    pub(super) fn rows(&self, tokens: usize) -> usize {
        let chunk = self.shape.chunk();
        chunk.map_or(tokens, |chunk| chunk as usize)
    }

    /// Rows of the KV cache that it reads where `context` are visible: those, or a static form's bucket.
    pub(super) fn context(&self, context: usize) -> usize {
        let bucket = self.shape.bucket();
        bucket.map_or(context, |bucket| bucket as usize)
    }
}

/// Makes forms ready. Shared by the threads that load.
pub struct Loader {
    core: Core,
    bundle: Arc<Bundle>,
    memory: Arc<dyn Memory>,
    soc: Soc,
    /// Input-bound forms serve all layers: compiled on first use, by kernel.
    shared_forms: Mutex<BTreeMap<(u32, Rung), CompiledModel>>,
}

/// A place, with what its kernel is made of.
struct Parts<'m> {
    used: &'m KernelUse,
    kernel: &'m Kernel,
    variant: &'m Variant,
    device: &'m Device,
    /// Its sections, in the order in which IRs count them.
    sections: Vec<SectionId>,
}

impl Loader {
    /// A loader for one bundle on the devices of `soc`.
    pub fn new(core: Core, bundle: Arc<Bundle>, soc: Soc) -> Self {
        let memory: Arc<dyn Memory> = Arc::new(BundleMemory(Arc::clone(&bundle)));
        Self {
            core,
            bundle,
            memory,
            soc,
            shared_forms: Mutex::default(),
        }
    }

    /// The bundle that forms are made from.
    pub fn bundle(&self) -> &Arc<Bundle> {
        &self.bundle
    }

    /// The devices that forms are made for.
    pub fn soc(&self) -> &Soc {
        &self.soc
    }

    /// Makes the kernel of `place` ready on a rung of its ladder.
    pub(super) fn form(&self, place: Place, rung: Rung) -> Result<Form, RuntimeError> {
        let parts = self.parts(place, rung)?;
        let compiled = match parts.variant.binding {
            Binding::Constant => self.compile(&parts, &parts.sections)?,
            Binding::Input => self.compiled_once(&parts, rung)?,
        };
        let request = compiled
            .request()
            .map_err(openvino(format!("request for `{}`", parts.kernel.name)))?;
        let mut form = Form {
            shape: parts.variant.shape,
            request,
        };
        if parts.variant.binding == Binding::Input {
            self.bind_weights(&parts, &mut form)?;
        }
        Ok(form)
    }

    fn parts(&self, place: Place, rung: Rung) -> Result<Parts<'_>, RuntimeError> {
        let manifest = self.bundle.manifest();
        let used = place_use(manifest, place)?;
        let kernel = place_kernel(manifest, place)?;
        Ok(Parts {
            used,
            kernel,
            variant: kernel.variants.get(rung.variant).ok_or(unknown(place))?,
            device: device_of(&self.soc, rung.role).ok_or(unknown(place))?,
            sections: use_sections(manifest, used),
        })
    }

    /// An input-bound form: compiled for the first place that asks, shared by the others.
    fn compiled_once(&self, parts: &Parts<'_>, rung: Rung) -> Result<CompiledModel, RuntimeError> {
        // What a panicking thread left is a map of whole entries.
        let mut shared = self
            .shared_forms
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let key = (parts.used.kernel.0, rung);
        if let Some(compiled) = shared.get(&key) {
            return Ok(compiled.clone());
        }
        let compiled = self.compile(parts, &[])?;
        shared.insert(key, compiled.clone());
        Ok(compiled)
    }

    /// Compiles a variant, with constants at `sections`. Hashes are checked before OpenVINO sees a byte.
    fn compile(
        &self,
        parts: &Parts<'_>,
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
            .section(parts.variant.ir)
            .map_err(RuntimeError::Section)?;
        let xml = ir::resolve(&String::from_utf8_lossy(text), name, &offsets, literals)?;
        let weights = self.view(0, TensorElement::U8, &[self.memory.len()], "the bundle")?;
        let model = self
            .core
            .read_model(xml.as_bytes(), Some(&weights))
            .map_err(openvino(format!("read the IR of kernel `{name}`")))?;
        let device = parts.device;
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

/// The boundary's name of a bundle's element type.
pub(super) fn tensor_element(element: ElementType) -> TensorElement {
    match element {
        ElementType::I8 => TensorElement::I8,
        ElementType::F16 => TensorElement::F16,
        ElementType::F32 => TensorElement::F32,
        ElementType::I64 => TensorElement::I64,
    }
}
