//! Pipelines of a device, each made once for a shape and a variant.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use heg_spirv::{BundleModules, Module, spirv};

use crate::arithmetic::Arithmetic;
use crate::error::GpuError;
use crate::vulkan::{Device, Pipeline};

/// Pipelines by what they are made of.
pub(crate) struct Pipelines {
    device: Arc<Device>,
    /// Those of a bundle.
    modules: OnceLock<BundleModules>,
    made: Mutex<HashMap<Key, Arc<Pipeline>>>,
}

/// Module, constants of its shape, and variant.
type Key = (Module, Vec<(u32, u32)>, Arithmetic);

impl Pipelines {
    pub(crate) fn new(device: &Arc<Device>) -> Self {
        Self {
            device: Arc::clone(device),
            modules: OnceLock::new(),
            made: Mutex::default(),
        }
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
        spirv::declare(&words, declared).map_err(wrong)
    }

    /// Number of pipelines.
    pub(crate) fn count(&self) -> usize {
        self.made
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// The pipeline of a module for a shape.
    pub(crate) fn of(
        &self,
        module: Module,
        shape: &[(u32, u32)],
        arithmetic: Arithmetic,
    ) -> Result<Arc<Pipeline>, GpuError> {
        let key = (module, shape.to_vec(), arithmetic);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = made.get(&key) {
            return Ok(Arc::clone(pipeline));
        }
        let constants = [shape, arithmetic.constants().as_slice()].concat();
        let words = self.specialised(module, &constants, arithmetic.declared)?;
        let pipeline = Pipeline::new(&self.device, &words)?;
        made.insert(key, Arc::clone(&pipeline));
        Ok(pipeline)
    }
}
