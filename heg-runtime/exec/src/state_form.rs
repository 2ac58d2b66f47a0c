//! The arithmetic that decides the bits of keys and values on a machine.

use heg_artifacts::manifest::{ElementType, StateForm};
use heg_openvino::TensorType;
use heg_spec::Activations;

use crate::executor::{Executor, Sequence};
use crate::loader::Loader;
use crate::mem::KvShape;

impl Loader {
    /// Returns the forms of activations of the machine's devices, in ascending order, each once.
    ///
    /// # Errors
    ///
    /// The reason why keys and values cannot be told from these: bits of other arithmetic than that of our own programs
    /// vary with the version of a library and with the company that a row has.
    pub fn activations(&self) -> Result<Vec<Activations>, String> {
        if let Some(version) = self.plugin_version() {
            return Err(format!(
                "kernels run on OpenVINO {version}, whose results differ between versions and batches"
            ));
        }
        let mut forms = Vec::new();
        for device in &self.soc().devices {
            let mut facts = self.devices().iter();
            let facts = facts.find(|facts| facts.role == device.class);
            if facts.is_some_and(|facts| facts.missing.is_some()) {
                continue;
            }
            match &device.programs {
                Some(programs) => forms.push(programs.activations),
                None => return Err(format!("{} has no programs of ours", device.class.name())),
            }
        }
        forms.sort_unstable();
        forms.dedup();
        Ok(forms)
    }

    /// Returns the form of keys and values in caches of a shape.
    ///
    /// # Errors
    ///
    /// The reason why they have no form of their own.
    pub fn state_form(&self, shape: KvShape) -> Result<StateForm, String> {
        let activations = match self.activations()?[..] {
            [only] => only,
            ref several => {
                return Err(format!(
                    "devices have activations of different forms: {several:?}"
                ));
            }
        };
        let kv_cache = match shape.element {
            TensorType::I8 => ElementType::I8,
            TensorType::F16 => ElementType::F16,
            TensorType::Bf16 => ElementType::Bf16,
            TensorType::F32 => ElementType::F32,
            other => return Err(format!("keys and values are {other:?}")),
        };
        Ok(StateForm {
            arithmetic: heg_cpu::ARITHMETIC_REVISION,
            activations,
            kv_cache,
        })
    }
}

impl Executor {
    /// Returns the form of the keys and values that it computes.
    ///
    /// # Errors
    ///
    /// As [`Loader::state_form`].
    pub fn state_form(&self) -> Result<StateForm, String> {
        self.needs.loader.state_form(self.kv_shape())
    }
}

impl Sequence {
    /// Returns rows [first, first + count) of every half of every layer, one half after the other; `None` if it does not
    /// have as many tokens.
    pub fn rows(&self, first: usize, count: usize) -> Option<Vec<u8>> {
        let cache = self.cache();
        if first.checked_add(count)? > cache.tokens() {
            return None;
        }
        let half_bytes = count.checked_mul(cache.row_bytes())?;
        let mut rows = vec![0; half_bytes.checked_mul(cache.halves().count())?];
        let halves = rows.chunks_exact_mut(half_bytes.max(1));
        for ((layer, half), into) in cache.halves().zip(halves) {
            cache.read_rows(layer, half, first, into).ok()?;
        }
        Some(rows)
    }
}
