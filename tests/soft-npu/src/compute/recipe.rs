//! The computation of a blob: the program of its kernel, and the part of each port in it.

use heg_artifacts::manifest::{ElementType, Kernel, Parameter, Port, Role, Rows, ShapeClass};
use heg_artifacts::program::Program;
use heg_cpu::{Activations, CacheForm, CpuKernel};

use super::catalog::{self, BlobSource, CatalogEntry};
use crate::blob::BlobFacts;
use crate::error::SoftNpuError;

/// The computation of a blob.
pub(crate) struct Recipe {
    pub(super) kernel: String,
    pub(super) program: CpuKernel,
    pub(super) shape: ShapeClass,
    /// The first of the blob's ports.
    pub(super) inputs: Vec<RecipePort>,
    /// The port behind these that says which token sees which.
    pub(super) tree: Option<RecipePort>,
    /// The ports behind all of these.
    pub(super) weights: Vec<RecipeWeight>,
    /// The last ports.
    pub(super) outputs: Vec<RecipePort>,
}

/// An activation at a port.
pub(super) struct RecipePort {
    pub(super) role: Role,
    pub(super) element: ElementType,
    pub(super) rows: usize,
    pub(super) width: usize,
}

/// Ports of a weight: values, then scales and centres if it has any.
pub(super) struct RecipeWeight {
    pub(super) value_bytes: usize,
    /// Zero for weights without scales.
    pub(super) scale_bytes: usize,
    pub(super) has_centres: bool,
}

impl RecipePort {
    fn new(port: &Port, entry: &CatalogEntry<'_>) -> Self {
        let shape = entry.variant.shape;
        let rows = match port.rows {
            Rows::Tokens => shape.chunk(),
            Rows::Context => shape.bucket(),
            Rows::One => Some(1),
        };
        Self {
            role: port.role,
            element: entry.variant.port_element(port.role),
            rows: rows.unwrap_or(0) as usize,
            width: port.width as usize,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let elements = (self.rows as u64).saturating_mul(self.width as u64);
        let bytes = self.element.bytes_of(elements).unwrap_or(u64::MAX);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

impl RecipeWeight {
    pub(super) fn new(parameter: &Parameter) -> Self {
        let elements = parameter.shape.iter().map(|dim| u64::from(*dim));
        let elements = elements.fold(1, u64::saturating_mul);
        let values = parameter.element.bytes_of(elements).unwrap_or(u64::MAX);
        let counted = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            value_bytes: counted(values),
            scale_bytes: counted(parameter.affine_bytes()),
            has_centres: parameter.centred,
        }
    }

    /// Sizes of its ports.
    fn ports(&self) -> impl Iterator<Item = usize> {
        let scales = (self.scale_bytes > 0).then_some(self.scale_bytes);
        let centres = self.has_centres.then_some(self.scale_bytes);
        [Some(self.value_bytes), scales, centres]
            .into_iter()
            .flatten()
    }
}

impl Recipe {
    /// The recipe of a blob.
    ///
    /// # Errors
    ///
    /// [`SoftNpuError::Unknown`] if no bundle has it, [`SoftNpuError::NoProgram`], [`SoftNpuError::Port`] if the blob
    /// has other ports than its kernel, and errors of the program.
    pub(crate) fn of(bytes: &[u8], facts: &BlobFacts) -> Result<Self, SoftNpuError> {
        let recipe = match catalog::find(catalog::bundles(), bytes, &facts.name)? {
            BlobSource::Kernel(entry) => Self::from_entry(&entry)?,
            BlobSource::Piece(piece) => Self::of_piece(piece)?,
        };
        recipe.check(facts)?;
        Ok(recipe)
    }

    fn from_entry(entry: &CatalogEntry<'_>) -> Result<Self, SoftNpuError> {
        let kernel = entry.kernel;
        let missing = || SoftNpuError::NoProgram {
            kernel: kernel.name.clone(),
        };
        let mut programs = kernel.variants.iter().filter_map(|variant| variant.program);
        let section = programs.next().ok_or_else(missing)?;
        Ok(Self {
            program: program(entry, section)?,
            kernel: kernel.name.clone(),
            shape: entry.variant.shape,
            inputs: ports(&kernel.inputs, entry),
            tree: tree(entry),
            weights: kernel.parameters.iter().map(RecipeWeight::new).collect(),
            outputs: ports(&kernel.outputs, entry),
        })
    }

    /// Name of the kernel.
    pub(crate) fn kernel(&self) -> &str {
        &self.kernel
    }

    /// Checks that the blob's ports have the sizes of the kernel's, one after the other.
    fn check(&self, facts: &BlobFacts) -> Result<(), SoftNpuError> {
        let inputs = self.inputs.iter().map(|port| (true, port.bytes()));
        let inputs = inputs.chain(self.tree.iter().map(|port| (true, port.bytes())));
        let weights = self.weights.iter().flat_map(RecipeWeight::ports);
        let outputs = self.outputs.iter().map(|port| (false, port.bytes()));
        let mut expected = inputs
            .chain(weights.map(|bytes| (true, bytes)))
            .chain(outputs);
        let mut found = facts.ports.iter().map(|port| (port.is_input, port.bytes()));
        let describe = |port: Option<(bool, usize)>| match port {
            Some((true, bytes)) => format!("an input of {bytes} bytes"),
            Some((false, bytes)) => format!("an output of {bytes} bytes"),
            None => "none".to_owned(),
        };
        for port in 0.. {
            let (expected, found) = (expected.next(), found.next());
            if expected != found {
                return Err(SoftNpuError::Port {
                    kernel: self.kernel.clone(),
                    port,
                    expected: describe(expected),
                    found: describe(found),
                });
            }
            if expected.is_none() {
                break;
            }
        }
        Ok(())
    }
}

/// The program, for rows and a cache in f32: ports are converted.
fn program(
    entry: &CatalogEntry<'_>,
    section: heg_artifacts::SectionId,
) -> Result<CpuKernel, SoftNpuError> {
    let kernel: &Kernel = entry.kernel;
    let unreadable = |source| SoftNpuError::Bundle {
        path: kernel.name.clone(),
        source,
    };
    let text = entry.bundle.section_copy(section).map_err(unreadable)?;
    let program = Program::read(&text, kernel).map_err(unreadable)?;
    let program = CpuKernel::new(program, kernel, CacheForm::F32, Activations::F32);
    program.map_err(|source| SoftNpuError::Compute {
        kernel: kernel.name.clone(),
        source,
    })
}

fn ports(ports: &[Port], entry: &CatalogEntry<'_>) -> Vec<RecipePort> {
    let ports = ports.iter();
    ports.map(|port| RecipePort::new(port, entry)).collect()
}

/// The port for trees, if the blob has one: a row and a column for each token.
fn tree(entry: &CatalogEntry<'_>) -> Option<RecipePort> {
    let variant = entry.variant;
    let tokens = variant.shape.chunk().filter(|_| variant.takes_trees)?;
    let port = Port {
        role: Role::Query,
        rows: Rows::Tokens,
        width: tokens,
    };
    Some(RecipePort::new(&port, entry))
}
