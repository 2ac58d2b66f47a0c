//! Pipelines of a device, each made once for a shape and a variant.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use heg_files::OwnFolder;
use heg_spirv::{BundleModules, Module, StepShape, spirv};

use crate::arithmetic::Arithmetic;
use crate::error::GpuError;
use crate::kept::{KeptFile, KeptPipelines};
use crate::vulkan::{Candidate, Device, Pipeline, PipelineCache};

/// Pipelines by what they are made of.
pub(crate) struct Pipelines {
    device: Arc<Device>,
    /// The bundle.
    modules: OnceLock<BundleModules>,
    made: Mutex<HashMap<Key, Arc<Slot>>>,
    memory: Mutex<Memory>,
}

/// The driver's cache of pipelines, and the file that keeps it between processes.
struct Memory {
    cache: Arc<PipelineCache>,
    file: Option<KeptFile>,
    /// The bytes of the file.
    kept: Vec<u8>,
}

/// A pipeline, or the place for one. While it is made, others can be taken.
type Slot = Mutex<Option<Arc<Pipeline>>>;

/// Module, constants of its shape, and variant.
type Key = (Module, Vec<(u32, u32)>, Arithmetic);

impl Pipelines {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, GpuError> {
        Ok(Self {
            memory: Mutex::new(Memory {
                cache: Arc::new(PipelineCache::new(device, &[])?),
                file: None,
                kept: Vec::new(),
            }),
            device: Arc::clone(device),
            modules: OnceLock::new(),
            made: Mutex::default(),
        })
    }

    /// Makes further pipelines from what an earlier process kept, and keeps all at the end of this one.
    pub(crate) fn keep(&self, folder: &OwnFolder) -> Result<KeptPipelines, GpuError> {
        let Candidate {
            identity,
            cache_owner,
            ..
        } = &self.device.candidate;
        let file = match KeptFile::new(folder, identity, *cache_owner) {
            Ok(file) => file,
            Err(reason) => return Ok(KeptPipelines::Ignored { reason }),
        };
        let (kept, found) = match file.read() {
            Ok(Some(kept)) => {
                let bytes = kept.len();
                (kept, KeptPipelines::Taken { bytes })
            }
            Ok(None) => (Vec::new(), KeptPipelines::Nothing),
            Err(reason) => (Vec::new(), KeptPipelines::Ignored { reason }),
        };
        let mut memory = taken(&self.memory);
        let mut cache = PipelineCache::new(&self.device, &kept)?;
        cache.take(&memory.cache)?;
        *memory = Memory {
            cache: Arc::new(cache),
            file: Some(file),
            kept,
        };
        Ok(found)
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Takes modules from a bundle instead of those of this program. Modules of one name have the same bytes, so those of
    /// another bundle change nothing.
    pub(crate) fn take_modules(&self, modules: BundleModules) -> &BundleModules {
        self.modules.get_or_init(|| modules)
    }

    /// Words of a module for a shape and a driver.
    fn specialised(
        &self,
        module: Module,
        constants: &[(u32, u32)],
        declared: spirv::Declarations,
    ) -> Result<Vec<u32>, GpuError> {
        let wrong = |source| GpuError::Module {
            name: module.name(),
            source,
        };
        let bundled = self.modules.get().and_then(|them| them.words(module));
        let mut words = bundled.map_or_else(|| module.words(), <[u32]>::to_vec);
        spirv::specialise(&mut words, constants).map_err(wrong)?;
        spirv::fold(&mut words).map_err(wrong)?;
        spirv::declare(&words, declared).map_err(wrong)
    }

    /// Modules and constants of the pipelines made so far, without the driver's variant.
    pub(crate) fn shapes(&self) -> Vec<StepShape> {
        let made = taken(&self.made);
        let made = made.iter().filter(|(_, slot)| is_made(slot));
        let shapes = made.map(|((module, constants, _), _)| StepShape {
            module: *module,
            constants: constants.clone(),
        });
        shapes.collect()
    }

    /// Number of pipelines.
    pub(crate) fn count(&self) -> usize {
        let made = taken(&self.made);
        made.values().filter(|slot| is_made(slot)).count()
    }

    /// The pipeline of a module for a shape.
    pub(crate) fn of(
        &self,
        module: Module,
        shape: &[(u32, u32)],
        arithmetic: Arithmetic,
    ) -> Result<Arc<Pipeline>, GpuError> {
        let key = (module, shape.to_vec(), arithmetic);
        let slot = Arc::clone(taken(&self.made).entry(key).or_default());
        let mut slot = taken(&slot);
        if let Some(pipeline) = &*slot {
            return Ok(Arc::clone(pipeline));
        }
        let constants = [shape, arithmetic.constants().as_slice()].concat();
        let words = self.specialised(module, &constants, arithmetic.declared)?;
        let cache = Arc::clone(&taken(&self.memory).cache);
        Ok(Arc::clone(slot.insert(Pipeline::new(
            &self.device,
            &words,
            &cache,
        )?)))
    }
}

impl Drop for Pipelines {
    /// Keeps what the driver has compiled, unless it is what was there.
    fn drop(&mut self) {
        let memory = self.memory.get_mut();
        let memory = memory.unwrap_or_else(PoisonError::into_inner);
        let Some(file) = memory.file.as_ref().filter(|_| !self.device.is_stuck()) else {
            return;
        };
        match memory.cache.data() {
            Ok(data) if data != memory.kept => file.write(&data),
            Ok(_) | Err(_) => {}
        }
    }
}

/// Whether a pipeline is there already, and not under way.
fn is_made(slot: &Slot) -> bool {
    slot.try_lock().is_ok_and(|pipeline| pipeline.is_some())
}

/// The value that a panicking thread left is whole.
fn taken<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
