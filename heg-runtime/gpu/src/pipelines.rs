//! Pipelines of a device, each made once for a shape and a variant.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::arithmetic::Arithmetic;
use crate::error::GpuError;
use crate::module::Module;
use crate::vulkan::{Device, Pipeline};

/// Pipelines by what they are made of.
pub(crate) struct Pipelines {
    device: Arc<Device>,
    made: Mutex<HashMap<Key, Arc<Pipeline>>>,
}

/// Module, constants of its shape, and variant.
type Key = (Module, Vec<(u32, u32)>, Arithmetic);

impl Pipelines {
    pub(crate) fn new(device: &Arc<Device>) -> Self {
        Self {
            device: Arc::clone(device),
            made: Mutex::default(),
        }
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
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
        let words = module.specialised(&constants, arithmetic.declared)?;
        let pipeline = Pipeline::new(&self.device, &words)?;
        made.insert(key, Arc::clone(&pipeline));
        Ok(pipeline)
    }
}
