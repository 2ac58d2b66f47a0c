//! `heg inspect --program --gpu`: the modules with which a GPU runs the programs of kernels, by step.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use heg_artifacts::manifest::{GpuModule, Kernel, Manifest};
use heg_artifacts::program::Program;
use heg_spirv::{BUNDLE_ACTIVATIONS, Shapes, StepShape, constant};
use serde::Serialize;

/// The modules of a kernel's program, by step.
#[derive(Serialize)]
pub(super) struct Modules {
    kernel: String,
    steps: Vec<StepModules>,
}

/// The module of a step, or of a part of it; several are alternatives, by the rows of a call and the device.
#[derive(Serialize)]
struct StepModules {
    step: usize,
    /// Name of the buffer that it writes.
    out: String,
    modules: Vec<ModuleSize>,
    constants: BTreeMap<&'static str, u32>,
}

#[derive(Serialize)]
struct ModuleSize {
    name: &'static str,
    /// `None` if the bundle lacks it.
    bytes: Option<u64>,
}

/// Returns the modules of a kernel's program.
pub(super) fn modules(manifest: &Manifest, kernel: &Kernel, program: &Program) -> Modules {
    let mut variants = kernel.variants.iter();
    let variant = variants.find(|variant| variant.program.is_some());
    let kv = variant.map(|variant| variant.elements().kv);
    let kv = kv.unwrap_or(heg_artifacts::manifest::ElementType::F32);
    let shapes = Shapes::new(program, kernel, kv, BUNDLE_ACTIVATIONS);
    let steps = program.steps.iter().zip(shapes.steps()).enumerate();
    let steps = steps.flat_map(|(step, (done, shapes))| {
        let written = done.writes().into_iter().zip(shapes);
        written.map(move |(out, shape)| {
            let buffer = program.buffers.get(out.0 as usize);
            StepModules {
                step,
                out: buffer.map_or_else(String::new, |buffer| buffer.name.clone()),
                modules: sizes(manifest, shape),
                constants: named(shape),
            }
        })
    });
    Modules {
        kernel: kernel.name.clone(),
        steps: steps.collect(),
    }
}

fn sizes(manifest: &Manifest, shape: &StepShape) -> Vec<ModuleSize> {
    let all = shape.module.alternatives().iter();
    let size = all.map(|module| ModuleSize {
        name: module.name(),
        bytes: carried(manifest)
            .find(|found| found.name == module.name())
            .and_then(|found| bytes_of(manifest, found)),
    });
    size.collect()
}

fn carried(manifest: &Manifest) -> impl Iterator<Item = &GpuModule> {
    manifest.gpu.iter().flat_map(|gpu| &gpu.modules)
}

fn bytes_of(manifest: &Manifest, module: &GpuModule) -> Option<u64> {
    let mut sections = manifest.sections.iter();
    let section = sections.find(|section| section.id == module.section)?;
    Some(section.bytes)
}

fn named(shape: &StepShape) -> BTreeMap<&'static str, u32> {
    let name = |number: u32| constant::NAMES.get(number as usize).copied();
    let constants = shape.constants.iter();
    constants
        .filter_map(|(number, value)| Some((name(*number)?, *value)))
        .collect()
}

/// A line about the `layer` kernel: a decode step's kernels of a layer, which a GPU is given as one. None where the
/// programs are not those of a whole layer.
pub(super) fn layer(
    manifest: &Manifest,
    programs: &[(&Kernel, Option<Program>)],
) -> Option<String> {
    let first = manifest.layers.first()?;
    let (mut dispatches, mut phases) = (0, 0);
    for place in [&first.qkv, &first.mha, &first.ffn] {
        let name = &manifest.kernels.get(place.kernel.0 as usize)?.name;
        let mut programs = programs.iter();
        let (kernel, program) = programs.find(|(kernel, _)| kernel.name == *name)?;
        let program = program.as_ref()?;
        dispatches += modules(manifest, kernel, program).steps.len();
        phases += program.phases().len();
    }
    Some(format!(
        "layer: qkv, mha and ffn of a decode step as one kernel, {dispatches} dispatches in {phases} phases\n"
    ))
}

/// A line about all modules of a bundle.
pub(super) fn total(manifest: &Manifest) -> String {
    let bytes: u64 = carried(manifest)
        .filter_map(|it| bytes_of(manifest, it))
        .sum();
    let shapes: usize = carried(manifest).map(|module| module.shapes.len()).sum();
    match carried(manifest).count() {
        0 => "no modules in the bundle: a GPU runs those of the runtime\n".to_owned(),
        count => format!("{count} modules in {shapes} shapes, {bytes} B in all\n"),
    }
}

impl Modules {
    /// The modules as a table.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}:\n", self.kernel);
        let wide = |of: fn(&StepModules) -> usize| self.steps.iter().map(of).max().unwrap_or(0);
        let number = wide(|it| it.step.to_string().len());
        let out = wide(|it| it.out.chars().count());
        let name = wide(|it| it.modules.iter().map(|it| it.name.len()).max().unwrap_or(0));
        let mut last = None;
        for step in &self.steps {
            let constants = step.constants.iter();
            let constants = constants.map(|(name, value)| format!("{name} {value}"));
            let mut constants = constants.collect::<Vec<_>>().join(", ");
            let is_same = last.replace(step.step) == Some(step.step);
            let mut at = if is_same {
                String::new()
            } else {
                step.step.to_string()
            };
            let mut written = step.out.as_str();
            for module in &step.modules {
                let size = module
                    .bytes
                    .map_or("absent".to_owned(), |bytes| format!("{bytes} B"));
                let line = format!(
                    "{at:>number$}  {written:out$}  {:name$}  {size:>8}  {constants}",
                    module.name
                );
                let _ = writeln!(text, "{}", line.trim_end());
                (at, written, constants) = (String::new(), "", String::new());
            }
        }
        text
    }
}
