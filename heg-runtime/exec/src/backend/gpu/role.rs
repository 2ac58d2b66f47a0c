//! A GPU in one role: its device, and what all forms of the role share there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use heg_artifacts::manifest::{Manifest, Weight};
use heg_artifacts::program::Program;
use heg_artifacts::{Bundle, SectionId};
use heg_gpu::{GpuDevice, GpuError, GpuProgram, GpuSections, ModuleOrigin};
use heg_spec::soc::Activations;

use super::alone::Alone;
use super::moved::Moved;
use crate::error::ExecError;
use crate::ladder::GpuFacts;
use crate::parts::Parts;

/// A device, and the modules that it runs.
pub(super) type Opened = (Arc<GpuDevice>, ModuleOrigin);

/// The longest time of a launch or of a call alone: software devices need seconds for the head of a large model.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// The device of a role, with all that its forms share.
pub(super) struct GpuRole {
    pub(super) device: Arc<GpuDevice>,
    pub(super) activations: Activations,
    modules: ModuleOrigin,
    /// Programs that are ready, by kernel.
    programs: Mutex<BTreeMap<u32, Arc<GpuProgram>>>,
    /// Weights and rotary tables, brought when the first form needs them.
    sections: Mutex<Option<Arc<GpuSections>>>,
    /// Keys and values that were copied.
    pub(super) moved: Moved,
    /// The latest call of a kernel alone, which often follows itself.
    pub(super) alone: Mutex<Option<Alone>>,
}

impl GpuRole {
    pub(super) fn new((device, modules): Opened, activations: Activations) -> Self {
        Self {
            device,
            activations,
            modules,
            programs: Mutex::default(),
            sections: Mutex::default(),
            moved: Moved::default(),
            alone: Mutex::default(),
        }
    }

    pub(super) fn facts(&self) -> GpuFacts {
        let info = self.device.info();
        GpuFacts {
            is_software: info.kind == "software",
            name: info.name,
            identity: info.identity,
        }
    }

    /// The device as a user reads it.
    pub(super) fn describe(&self) -> String {
        let info = self.device.info();
        let (activations, modules) = (self.activations, self.modules);
        let caches = self.device.cache_memory();
        format!(
            "GPU programs ({}, {activations:?}, {modules}, caches {caches})",
            info.name
        )
    }

    /// The program of a kernel, made ready once.
    pub(super) fn program(&self, parts: &Parts<'_>) -> Result<Arc<GpuProgram>, ExecError> {
        let mut programs = taken(&self.programs);
        if let Some(ready) = programs.get(&parts.used.kernel.0) {
            return Ok(Arc::clone(ready));
        }
        let name = &parts.kernel.name;
        let section = parts.variant.program.ok_or_else(|| ExecError::Refused {
            kernel: name.clone(),
            message: "there is no program for it".to_owned(),
        })?;
        let text = parts.bundle.section_copy(section);
        let text = text.map_err(ExecError::Section)?;
        let program = Program::read(&text, parts.kernel).map_err(ExecError::Section)?;
        let kv = parts.elements.kv;
        let ready = GpuProgram::new(program, parts.kernel, kv, self.activations);
        let ready = Arc::new(ready.map_err(failed(name))?);
        programs.insert(parts.used.kernel.0, Arc::clone(&ready));
        Ok(ready)
    }

    /// Elements of scratch memory for each row that any of its programs takes.
    pub(super) fn scratch_elements(&self) -> u32 {
        let programs = taken(&self.programs);
        let elements = programs.values().map(|program| program.scratch_elements());
        elements.max().unwrap_or(0)
    }

    /// All sections that programs read, on the device.
    pub(super) fn sections(&self, bundle: &Arc<Bundle>) -> Result<Arc<GpuSections>, ExecError> {
        let mut sections = taken(&self.sections);
        if let Some(there) = &*sections {
            return Ok(Arc::clone(there));
        }
        let brought = bring(&self.device, bundle)?;
        Ok(Arc::clone(sections.insert(brought)))
    }

    /// Brings all sections anew, after their bytes were hashed as they are now.
    pub(super) fn bring_again(&self, bundle: &Arc<Bundle>) -> Result<(), ExecError> {
        for id in read_by_programs(bundle.manifest()) {
            let copy = bundle.section_copy(id);
            copy.map_err(|_| ExecError::ChangedInMemory {
                part: bundle.label(id),
            })?;
        }
        *taken(&self.sections) = Some(bring(&self.device, bundle)?);
        Ok(())
    }
}

fn bring(device: &GpuDevice, bundle: &Arc<Bundle>) -> Result<Arc<GpuSections>, ExecError> {
    let sections = GpuSections::new(device, bundle, read_by_programs(bundle.manifest()));
    Ok(Arc::new(sections.map_err(failed("all"))?))
}

/// Sections of the weights and rotary tables that programs read.
pub(super) fn read_by_programs(manifest: &Manifest) -> Vec<SectionId> {
    let layers = manifest.layers.iter();
    let places = layers.flat_map(|it| [&it.qkv, &it.mha, &it.ffn]);
    let used = places.chain([&manifest.head]).flat_map(|it| &it.weights);
    let weights = used.filter_map(|id| manifest.weights.get(id.0 as usize));
    let tables = manifest.rope.iter();
    let tables = tables.flat_map(|table| [table.cos, table.sin]);
    weights.flat_map(Weight::sections).chain(tables).collect()
}

/// An error of the GPU, while it was at a kernel.
pub(super) fn failed(kernel: &str) -> impl Fn(GpuError) -> ExecError {
    let kernel = kernel.to_owned();
    move |error| match error {
        GpuError::Bundle { source } => ExecError::Section(*source),
        source => ExecError::Gpu {
            kernel: kernel.clone(),
            source,
        },
    }
}

/// The value that a panicking thread left is whole.
pub(super) fn taken<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
