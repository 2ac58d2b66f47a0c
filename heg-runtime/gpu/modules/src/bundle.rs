//! Modules of a bundle, as read: the check of those that it carries, and the choice of those that are run.
//!
//! A module reaches memory by address, and a driver compiles it inside this process. So none is run that a stranger may
//! have written: a bundle's module is taken if its bytes are those of a module of this version, and otherwise the runtime
//! has its own, which also fits the arguments that this version passes.

use std::collections::BTreeMap;

use heg_artifacts::Bundle;
use heg_artifacts::manifest::GpuModule;

use crate::module::Module;
use crate::spirv::{self, SpirvError};

/// A fault of a bundle's modules.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// The section cannot be read.
    #[error("GPU module `{name}` cannot be read")]
    Section {
        /// Name of the module.
        name: String,
        /// Cause.
        source: Box<heg_artifacts::Error>,
    },
    /// The words are not those of a sound module.
    #[error("GPU module `{name}` is not sound")]
    Unsound {
        /// Name of the module.
        name: String,
        /// The fault.
        source: SpirvError,
    },
    /// A shape names a constant that the module lacks.
    #[error(
        "shape {shape} of GPU module `{name}` sets constant {constant}, the module has {expected:?}"
    )]
    Constant {
        /// Name of the module.
        name: String,
        /// Index of the shape.
        shape: usize,
        /// Number of the constant.
        constant: u32,
        /// Numbers of the module's constants.
        expected: Vec<u32>,
    },
}

/// Checks all modules of a bundle: no float operation that may be contracted, no capability beyond the list, and no shape
/// with a constant that its module lacks.
///
/// # Errors
///
/// The first fault, in the manifest's order.
pub fn verify(bundle: &Bundle) -> Result<(), ModuleError> {
    for module in modules(bundle) {
        let name = || module.name.clone();
        let words = words(bundle, module)?;
        let unsound = |source| ModuleError::Unsound {
            name: name(),
            source,
        };
        spirv::check(&words).map_err(unsound)?;
        let expected = spirv::constants(&words).map_err(unsound)?;
        for (shape, constants) in module.shapes.iter().enumerate() {
            let foreign = constants.keys().find(|number| !expected.contains(number));
            if let Some(constant) = foreign {
                return Err(ModuleError::Constant {
                    name: name(),
                    shape,
                    constant: *constant,
                    expected,
                });
            }
        }
    }
    Ok(())
}

/// The modules of a bundle that are run.
#[derive(Debug, Default)]
pub struct BundleModules {
    words: BTreeMap<Module, Vec<u32>>,
    unknown: Vec<String>,
}

impl BundleModules {
    /// Takes those whose bytes are a module's of this version; the hash of each is checked.
    ///
    /// # Errors
    ///
    /// [`ModuleError::Section`] if a section of one of them is damaged.
    pub fn read(bundle: &Bundle) -> Result<Self, ModuleError> {
        let mut taken = Self::default();
        for module in modules(bundle) {
            let known = Module::of_name(&module.name);
            match known.filter(|known| known.packed().section == module.section) {
                Some(known) => {
                    taken.words.insert(known, words(bundle, module)?);
                }
                None => taken.unknown.push(module.name.clone()),
            }
        }
        Ok(taken)
    }

    /// Words of a module, if the bundle has it.
    pub fn words(&self, module: Module) -> Option<&[u32]> {
        self.words.get(&module).map(Vec::as_slice)
    }

    /// Number of modules that were taken.
    pub fn count(&self) -> usize {
        self.words.len()
    }

    /// Names of the modules that are not of this version.
    pub fn unknown(&self) -> &[String] {
        &self.unknown
    }
}

fn modules(bundle: &Bundle) -> &[GpuModule] {
    let gpu = bundle.manifest().gpu.as_ref();
    gpu.map_or(&[], |gpu| &gpu.modules)
}

fn words(bundle: &Bundle, module: &GpuModule) -> Result<Vec<u32>, ModuleError> {
    let copy = bundle.section_copy(module.section);
    let copy = copy.map_err(|source| ModuleError::Section {
        name: module.name.clone(),
        source: Box::new(source),
    })?;
    spirv::unpack(&copy).map_err(|source| ModuleError::Unsound {
        name: module.name.clone(),
        source,
    })
}
