//! Tests of `heg inspect --program`, as people see it, on the tiny bundle with programs for two of its kernels.

use std::path::Path;

use crate::command::heg;
use crate::tiny::TINY;
use heg_artifacts::manifest::ElementType;
use heg_artifacts::program::Program;
use heg_artifacts::{Bundle, Manifest, SectionId, Store, write_bundle};
use heg_spirv::{Collection, Module};

/// A program for attention with four query heads and two KV heads.
const MHA: &str = r#"(
    buffers: [(name: "attended", width: 16, form: Plain, place: Output(0))],
    steps: [
        Attention(
            attributes: (heads: 4, kv_heads: 2, head_dim: 4, scale: 0.5, window: Some(512), softcap: None),
            out: (0),
        ),
    ],
)"#;

/// A program with the only parameter that the kernel has.
const FFN: &str = r#"(
    buffers: [
        (name: "hidden", width: 8, form: Plain, place: Input(1)),
        (name: "normed", width: 8, form: Plain, place: Scratch(first: 0)),
        (name: "capped", width: 8, form: Plain, place: Scratch(first: 64)),
        (name: "out", width: 8, form: Plain, place: Output(0)),
    ],
    steps: [
        RmsNorm(x: (0), weight: (0), eps: 1e-6, offset: 1.0, groups: 1, out: (1)),
        SoftCap(x: (1), cap: 30.0, out: (2)),
        Add(a: (0), b: (2), b_scale: 0.22, out: (3)),
    ],
)"#;

/// Writes the tiny bundle with these programs; the other kernels have none.
fn write_programs(folder: &Path) {
    write(folder, "programs.heg", |_, _| ());
}

/// The same with the GPU modules of these programs, but for one of them.
fn write_modules(folder: &Path) {
    write(folder, "modules.heg", |manifest, store| {
        let mut collection = Collection::default();
        for kernel in &manifest.kernels {
            let Some(section) = kernel.variants[0].program else {
                continue;
            };
            let program = store.map(section).unwrap();
            let program = Program::read(&program, kernel).unwrap();
            collection.add_program(&program, kernel, ElementType::F32);
        }
        for module in collection.modules() {
            manifest
                .sections
                .push(store.put_bytes(module.packed().bytes).unwrap());
        }
        let mut part = collection.part().unwrap();
        part.modules.retain(|module| module.name != "attention");
        let attention = Module::Attention.packed().section;
        manifest.sections.retain(|section| section.id != attention);
        manifest.gpu = Some(part);
    });
}

fn write(folder: &Path, name: &str, change: impl FnOnce(&mut Manifest, &Store)) {
    let tiny = Bundle::open(TINY).unwrap();
    let store = Store::open(folder.join("store")).unwrap();
    let mut manifest: Manifest = tiny.manifest().clone();
    for section in &manifest.sections {
        store.put_bytes(tiny.section(section.id).unwrap()).unwrap();
    }
    let mut noise: Vec<SectionId> = Vec::new();
    for kernel in &mut manifest.kernels {
        noise.extend(kernel.variants[0].program.take());
        let text = match kernel.name.as_str() {
            "mha" => MHA,
            "ffn" => FFN,
            _ => continue,
        };
        let section = store.put_bytes(text.as_bytes()).unwrap();
        kernel.variants[0].program = Some(section.id);
        manifest.sections.push(section);
    }
    let kept = |id: &SectionId| !noise.contains(id);
    manifest.sections.retain(|section| kept(&section.id));
    change(&mut manifest, &store);
    write_bundle(&folder.join(name), &manifest, &store, &|_| ()).unwrap();
}

/// Runs `heg inspect BUNDLE …`; returns its output for a person.
fn inspect(folder: &Path, bundle: &str, arguments: &[&str]) -> String {
    heg(folder, &[&["inspect", bundle], arguments].concat())
}

#[test]
fn programs() {
    let folder = tempfile::tempdir().unwrap();
    write_programs(folder.path());
    let inspect = |arguments: &[&str]| inspect(folder.path(), "programs.heg", arguments);
    insta::assert_snapshot!("programs", inspect(&["--program"]));
    insta::assert_snapshot!("program_json", inspect(&["--program", "mha", "--json"]));
}

#[test]
fn modules() {
    let folder = tempfile::tempdir().unwrap();
    write_programs(folder.path());
    write_modules(folder.path());
    let inspect = |bundle: &str, arguments: &[&str]| {
        let arguments = [&["--program"], arguments, &["--gpu"]].concat();
        inspect(folder.path(), bundle, &arguments)
    };
    insta::assert_snapshot!("modules", inspect("modules.heg", &[]));
    insta::assert_snapshot!("modules_json", inspect("modules.heg", &["ffn", "--json"]));
    insta::assert_snapshot!("modules_absent", inspect("programs.heg", &["mha"]));
}

/// A decode step's kernels of a layer are one on a GPU.
#[test]
fn a_layer_is_one_kernel() {
    let workbench = heg_tests::Workbench::new().unwrap();
    let model = heg_tests::fixture("tiny-agent");
    let bundle = workbench.compile(&model, "agent", |_| ()).unwrap().0;
    let name = bundle.file_name().unwrap().to_str().unwrap();
    let said = inspect(bundle.parent().unwrap(), name, &["--program", "--gpu"]);
    let layer: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("layer: "))
        .collect();
    insta::assert_snapshot!("layer", layer.join("\n"));
}

#[test]
fn mistakes() {
    let folder = tempfile::tempdir().unwrap();
    write_programs(folder.path());
    let mistakes = [
        inspect(folder.path(), "programs.heg", &["--program", "moe"]),
        inspect(folder.path(), "programs.heg", &["--program", "--kernels"]),
        inspect(folder.path(), "programs.heg", &["--gpu"]),
        // The bundle of the format's tests has noise in this section.
        inspect(folder.path(), TINY, &["--program"]),
    ];
    insta::assert_snapshot!("program_mistakes", mistakes.join("\n"));
}
