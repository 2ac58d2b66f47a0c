//! Shared parts of the ladder's tests: bundles that run on roles played by the CPU, and that are damaged on the way.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use heg_artifacts::manifest::Manifest;
use heg_artifacts::{Bundle, SectionId, Store, references, write_bundle};
use heg_openvino::HostBuffer;
use heg_runtime::exec::{Executor, ExecutorOptions, Loader};
use heg_runtime::{Descent, Loaded};
use heg_spec::{ModelSpec, Soc, Source};

use crate::{Workbench, fixture, greedy};

/// An arbitrary prompt.
const PROMPT: [u32; 11] = [1, 15, 27, 300, 12, 77, 501, 9, 44, 230, 8];
const TOKENS: usize = 12;

/// Returns a SoC with these devices.
pub fn soc(devices: &str) -> Soc {
    let text = format!("(name: \"test\", devices: [{devices}])");
    let source = Source {
        file: "test.ron",
        text: &text,
    };
    Soc::parse(source).unwrap()
}

/// Returns a SoC with the CPU plugin in these roles.
pub fn roles(classes: &[&str]) -> Soc {
    let device = |class: &&str| {
        format!(
            "(class: {class}, openvino: \"CPU\", \
             properties: {{\"INFERENCE_PRECISION_HINT\": \"f32\", \"NUM_STREAMS\": \"1\"}}),"
        )
    };
    soc(&classes.iter().map(device).collect::<String>())
}

/// Compiles `tiny-agent` with few and small static forms.
pub fn compile(workbench: &Workbench, change: fn(&mut ModelSpec)) -> PathBuf {
    let compiled = workbench.compile(&fixture("tiny-agent"), "tiny", |spec| {
        spec.chunk_tokens = vec![8, 32];
        spec.mha_context_tokens = vec![64, 4096];
        change(spec);
    });
    compiled.unwrap().0
}

/// Returns a loader of a bundle on a SoC.
pub fn loader(bundle: &Path, soc: &Soc) -> Loader {
    Loaded::open(bundle).unwrap().loader(soc).unwrap()
}

/// Runs the prompt; returns the greedy tokens, and the descents.
pub fn run(loader: Loader) -> (Vec<u32>, Vec<Descent>) {
    let options = ExecutorOptions {
        chunk_tokens: 32,
        batch: 2,
        ..ExecutorOptions::default()
    };
    let mut executor = Executor::new(loader, options).unwrap();
    let mut sequence = executor.sequence().unwrap();
    let tokens = greedy(&mut executor, &mut sequence, &PROMPT, TOKENS).unwrap();
    (tokens, executor.descents().get().to_vec())
}

/// Returns the memory with the bundle's bytes, in which `change` has changed one section.
pub fn changed(bundle: &Path, section: SectionId, change: fn(&mut [u8])) -> Arc<HostBuffer> {
    let mut bytes = std::fs::read(bundle).unwrap();
    let range = Bundle::open(bundle)
        .unwrap()
        .section_range(section)
        .unwrap();
    change(&mut bytes[range.start as usize..range.end as usize]);
    let buffer = HostBuffer::new(bytes.len()).unwrap();
    buffer.write(0, &bytes).unwrap();
    Arc::new(buffer)
}

/// Writes the bundle with another manifest over sections of the same store, and new ones.
pub fn rewrite(
    workbench: &Workbench,
    bundle: &Path,
    name: &str,
    change: impl FnOnce(&mut Manifest, &Store),
) -> PathBuf {
    let store = Store::open(workbench.places(name).store).unwrap();
    let mut manifest = Bundle::open(bundle).unwrap().manifest().clone();
    change(&mut manifest, &store);
    let path = workbench.path(&format!("{name}.heg"));
    write_bundle(&path, &manifest, &store, &|_| ()).unwrap();
    path
}

/// Drops unused sections: a manifest lists only the sections that it names.
pub fn drop_unused(manifest: &mut Manifest) {
    let used: Vec<_> = references(manifest).into_iter().map(|(_, id)| id).collect();
    manifest
        .sections
        .retain(|section| used.contains(&section.id));
}
