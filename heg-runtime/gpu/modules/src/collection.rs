//! Modules of a bundle, gathered while it is compiled.

use std::collections::{BTreeMap, BTreeSet};

use heg_artifacts::manifest::{ElementType, GpuModule, GpuPart, Kernel};
use heg_artifacts::program::Program;
use heg_spec::Activations;

use crate::module::{Module, constant};
use crate::shapes::{Shapes, StepShape, element_number};
use crate::spirv;

/// The modules that some programs need, each with its shapes.
#[derive(Debug, Default)]
pub struct Collection {
    modules: BTreeMap<Module, Needed>,
}

/// A module's constants, and the shapes that are needed of it.
#[derive(Debug)]
struct Needed {
    constants: Vec<u32>,
    shapes: BTreeSet<BTreeMap<u32, u32>>,
}

impl Needed {
    fn new(module: Module) -> Self {
        Self {
            // Committed modules are sound, as tests say.
            constants: spirv::constants(&module.words()).unwrap_or_default(),
            shapes: BTreeSet::new(),
        }
    }
}

/// Activations beside integer weights for which bundles have modules: those of all SoCs that ship with HEG.
pub const BUNDLE_ACTIVATIONS: Activations = Activations::I8;

impl Collection {
    /// Adds what a kernel's program needs, for keys and values of type `kv`.
    pub fn add_program(&mut self, program: &Program, kernel: &Kernel, kv: ElementType) {
        let shapes = Shapes::new(program, kernel, kv, BUNDLE_ACTIVATIONS);
        for shape in shapes.steps().iter().flatten() {
            self.add(shape);
        }
    }

    /// Adds what goes on between programs: embeddings of tokens, from a table of `element`s, and the rows that the head
    /// takes, all of `width` elements.
    pub fn add_rows(&mut self, width: u32, element: ElementType) {
        let width = (constant::WIDTH, width);
        self.add(&StepShape {
            module: Module::Embedding,
            constants: vec![width, (constant::ELEMENT, element_number(element))],
        });
        self.add(&StepShape {
            module: Module::Gather,
            constants: vec![width],
        });
    }

    fn add(&mut self, shape: &StepShape) {
        for module in shape.module.alternatives() {
            let needed = self.modules.entry(*module);
            let needed = needed.or_insert_with(|| Needed::new(*module));
            let own = shape.constants.iter();
            let own = own.filter(|(number, _)| needed.constants.contains(number));
            needed.shapes.insert(own.copied().collect());
        }
    }

    /// The modules, ascending.
    pub fn modules(&self) -> impl Iterator<Item = Module> {
        self.modules.keys().copied()
    }

    /// The GPU's part of the manifest; `None` if no program was added.
    pub fn part(self) -> Option<GpuPart> {
        let modules = self.modules.into_iter().map(|(module, needed)| GpuModule {
            name: module.name().to_owned(),
            section: module.packed().section,
            shapes: needed.shapes.into_iter().collect(),
        });
        let mut modules: Vec<GpuModule> = modules.collect();
        modules.sort_by(|one, other| one.name.cmp(&other.name));
        (!modules.is_empty()).then_some(GpuPart { modules })
    }
}
