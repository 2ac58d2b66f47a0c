//! GPU modules of bundles: which are written, which are refused, and which are run.

use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;

use heg_artifacts::manifest::{GPU_BYTES_MAX, GpuPart};
use heg_artifacts::{Bundle, Store};
use heg_compiler::{CompileOptions, GpuModules, Silent, Target, compile};
use heg_gpu::{GpuDevice, GpuModel, GpuModelOptions, ModuleOrigin, RowState};
use heg_runtime::Loaded;
use heg_spec::{Activations, WeightForm};
use heg_spirv::{BundleModules, Module, StepShape, spirv};
use heg_tests::roles::{drop_unused, rewrite};
use heg_tests::{FAMILIES, Workbench, chain, fixture, four_bits};

use crate::gpu::device_or_skip;

const THREADS: NonZero<usize> = NonZero::<usize>::MIN;

fn tiny_agent(workbench: &Workbench) -> std::path::PathBuf {
    let compiled = workbench.compile(&fixture("tiny-agent"), "tiny", |_| {});
    compiled.unwrap().0
}

fn gpu_bytes(bundle: &Bundle) -> u64 {
    let modules = bundle.manifest().gpu.iter().flat_map(|gpu| &gpu.modules);
    let bytes = |module: &heg_artifacts::manifest::GpuModule| {
        let range = bundle.section_range(module.section).unwrap();
        range.end - range.start
    };
    modules.map(bytes).sum()
}

/// A line for each module: its name, and its shapes by the names of their constants.
fn lines(gpu: &GpuPart) -> String {
    let mut text = String::new();
    for module in &gpu.modules {
        for shape in &module.shapes {
            let constants = shape.iter().map(|(number, value)| {
                let name = heg_spirv::constant::NAMES[*number as usize];
                format!(" {name} {value}")
            });
            text.push_str(&format!(
                "{}:{}\n",
                module.name,
                constants.collect::<String>()
            ));
        }
    }
    text
}

#[test]
fn a_bundle_has_the_modules_that_its_programs_need() {
    let workbench = Workbench::new().unwrap();
    let loaded = Loaded::open(&tiny_agent(&workbench)).unwrap();
    let gpu = loaded.bundle().manifest().gpu.as_ref().unwrap();
    insta::assert_snapshot!("modules_of_tiny_agent", lines(gpu));
}

#[test]
fn modules_of_all_families_and_forms_are_sound_and_few() {
    let workbench = Workbench::new().unwrap();
    let forms = [
        WeightForm::W8A16,
        four_bits(false),
        WeightForm::F16,
        WeightForm::F32,
    ];
    for family in FAMILIES {
        for (index, weights) in forms.into_iter().enumerate() {
            let folder = fixture(&format!("golden/{family}"));
            let name = format!("{family}-{index}");
            let compiled = workbench.compile(&folder, &name, |spec| spec.weights = weights);
            let loaded = Loaded::open(&compiled.unwrap().0).unwrap();
            loaded.verify(THREADS).unwrap();
            let bytes = gpu_bytes(loaded.bundle());
            assert!(
                (50_000..=GPU_BYTES_MAX).contains(&bytes),
                "{name}: {bytes} bytes"
            );
            let taken = BundleModules::read(loaded.bundle()).unwrap();
            let declared = &loaded.bundle().manifest().gpu.as_ref().unwrap().modules;
            assert_eq!(
                (taken.count(), taken.unknown().len()),
                (declared.len(), 0),
                "{name}"
            );
        }
    }
}

#[test]
fn modules_are_left_out_on_request_and_change_nothing_else() {
    let workbench = Workbench::new().unwrap();
    let target = Target::read(&fixture("tiny-agent")).unwrap();
    let manifest = |name: &str, gpu_modules| {
        let options = CompileOptions {
            name: Some("tiny".to_owned()),
            gpu_modules,
            ..CompileOptions::default()
        };
        let places = workbench.places(name);
        compile(&target, &places, &options, &Silent).unwrap();
        Bundle::open(&places.bundle).unwrap().manifest().clone()
    };
    let mut with = manifest("with", GpuModules::Included);
    let without = manifest("without", GpuModules::Off);
    assert!(with.gpu.take().is_some());
    drop_unused(&mut with);
    assert_eq!(with, without);
}

/// A copy of a bundle in which a module's words are changed, and its section named by their hash.
fn with_changed_module(
    workbench: &Workbench,
    bundle: &Path,
    name: &str,
    module: Module,
    change: impl FnOnce(&mut Vec<u32>),
) -> std::path::PathBuf {
    rewrite(workbench, bundle, name, |manifest, store: &Store| {
        let mut words = module.words();
        change(&mut words);
        let section = store.put_bytes(&spirv::pack(&words)).unwrap();
        manifest.sections.push(section);
        let modules = manifest.gpu.iter_mut().flat_map(|gpu| &mut gpu.modules);
        for changed in modules.filter(|it| it.name == module.name()) {
            changed.section = section.id;
        }
        drop_unused(manifest);
    })
}

/// Writes a word `behind` the begin of the first place where all of `found` are.
fn put_word(words: &mut [u32], found: &[u32], behind: usize, word: u32) {
    let mut windows = words.windows(found.len());
    let at = windows.position(|window| window == found).unwrap();
    words[at + behind] = word;
}

/// `OpCapability Shader`, and `Float64`.
const CAPABILITY_SHADER: [u32; 2] = [2 << 16 | 17, 1];
const FLOAT64: u32 = 10;

#[test]
fn modules_that_no_gpu_should_run_are_refused() {
    let workbench = Workbench::new().unwrap();
    let bundle = tiny_agent(&workbench);
    let refusal = |name: &str, change: fn(&mut Vec<u32>)| {
        let changed = with_changed_module(&workbench, &bundle, name, Module::RmsNorm, change);
        let loaded = Loaded::open(&changed).unwrap();
        let taken = BundleModules::read(loaded.bundle()).unwrap();
        assert_eq!(taken.unknown(), ["rms_norm"], "{name}");
        assert!(taken.words(Module::RmsNorm).is_none(), "{name}");
        let error = loaded.verify(THREADS).unwrap_err();
        assert_eq!(error.exit_status(), heg_runtime::ExitStatus::Incompatible);
        chain(&error, workbench.folder())
    };
    let texts = [
        refusal("capability", |words| {
            put_word(words, &CAPABILITY_SHADER, 1, FLOAT64);
        }),
        refusal("contractible", |words| {
            // The first operation that must not be contracted is told to have relaxed precision instead.
            let mut windows = words.windows(3);
            let fixed = windows.position(|it| it[0] == (3 << 16 | 71) && it[2] == 42);
            words[fixed.unwrap() + 2] = 0;
        }),
        refusal("short", |words| {
            let decoration = words.iter().position(|word| *word == (3 << 16 | 71));
            words.truncate(decoration.unwrap() + 2);
        }),
    ];
    insta::assert_snapshot!("refused_modules", texts.join("\n\n"));
    let unpacked = rewrite(&workbench, &bundle, "unpacked", |manifest, store| {
        let section = store.put_bytes(&[1, 0x80]).unwrap();
        manifest.sections.push(section);
        manifest.gpu.as_mut().unwrap().modules[0].section = section.id;
        drop_unused(manifest);
    });
    let error = Loaded::open(&unpacked)
        .unwrap()
        .verify(THREADS)
        .unwrap_err();
    insta::assert_snapshot!("refused_bytes", chain(&error, workbench.folder()));
    let foreign = rewrite(&workbench, &bundle, "constant", |manifest, _| {
        let modules = manifest.gpu.iter_mut().flat_map(|gpu| &mut gpu.modules);
        for module in modules.filter(|module| module.name == "gather") {
            module.shapes[0].insert(99, 1);
        }
    });
    let error = Loaded::open(&foreign).unwrap().verify(THREADS).unwrap_err();
    insta::assert_snapshot!("refused_shape", chain(&error, workbench.folder()));
}

/// A model on a device, after passes of four rows and of one.
struct Ran {
    origin: ModuleOrigin,
    /// Logits of the first pass.
    logits: Vec<u32>,
    /// Pipelines that no shape of the bundle is a part of: what a call adds to a shape are the constants of calls.
    unlisted: Vec<StepShape>,
}

fn run(device: &Arc<GpuDevice>, bundle: &Path) -> Ran {
    // Of the probe, and of models before.
    let before = device.pipeline_shapes();
    let opened = Arc::new(Bundle::open(bundle).unwrap());
    let origin = device.take_modules(&opened).unwrap();
    let options = GpuModelOptions {
        activations: Activations::I8,
        rows: 4,
        cache_rows: 64,
    };
    let mut model = GpuModel::new(Arc::clone(device), Arc::clone(&opened), options).unwrap();
    let row = |position: u32| RowState {
        position,
        cache_row: position,
        token: 7 + position,
        ..RowState::default()
    };
    let rows: Vec<_> = (0..5).map(row).collect();
    let logits = model.run(&rows[..4], &[3]).unwrap();
    model.run(&rows[4..], &[0]).unwrap();
    assert_eq!(device.complaints(), [""; 0]);
    let gpu = opened.manifest().gpu.as_ref();
    let is_listed = |made: &StepShape| {
        let mut modules = gpu.iter().flat_map(|gpu| &gpu.modules);
        let module = modules.find(|module| module.name == made.module.name());
        let mut shapes = module.iter().flat_map(|module| &module.shapes);
        shapes.any(|shape| {
            let mut constants = shape.iter();
            constants.all(|(number, value)| made.constants.contains(&(*number, *value)))
        })
    };
    let made = device.pipeline_shapes().into_iter();
    Ran {
        origin,
        logits: logits.into_iter().map(f32::to_bits).collect(),
        unlisted: made
            .filter(|it| !before.contains(it) && !is_listed(it))
            .collect(),
    }
}

#[test]
fn all_that_runs_is_among_the_shapes_of_the_bundle() {
    let test = "all_that_runs_is_among_the_shapes_of_the_bundle";
    let Some(device) = device_or_skip(test) else {
        return;
    };
    let workbench = Workbench::new().unwrap();
    for family in FAMILIES {
        for (index, weights) in [WeightForm::W8A16, WeightForm::F16].into_iter().enumerate() {
            let folder = fixture(&format!("golden/{family}"));
            let name = format!("{family}-{index}");
            let compiled = workbench.compile(&folder, &name, |spec| spec.weights = weights);
            let ran = run(&device, &compiled.unwrap().0);
            assert_eq!(ran.origin, ModuleOrigin::Bundle, "{name}");
            assert_eq!(ran.unlisted, [], "{name}");
        }
    }
}

#[test]
fn a_device_runs_the_bundles_modules_and_else_its_own() {
    let test = "a_device_runs_the_bundles_modules_and_else_its_own";
    let workbench = Workbench::new().unwrap();
    let bundle = tiny_agent(&workbench);
    let Some(device) = device_or_skip(test) else {
        return;
    };
    let expected = run(&device, &bundle);
    assert_eq!(expected.origin, ModuleOrigin::Bundle);
    let without = rewrite(&workbench, &bundle, "without", |manifest, _| {
        manifest.gpu = None;
        drop_unused(manifest);
    });
    let other = with_changed_module(&workbench, &bundle, "other", Module::Product, |words| {
        put_word(words, &CAPABILITY_SHADER, 1, FLOAT64);
    });
    let unknown = ModuleOrigin::OtherVersion { unknown: 1 };
    for (bundle, origin) in [(without, ModuleOrigin::Own), (other, unknown)] {
        // A device keeps the modules that it took first.
        let ran = run(&device_or_skip(test).unwrap(), &bundle);
        assert_eq!(ran.origin, origin);
        assert_eq!(ran.logits, expected.logits, "{origin:?}");
        assert_eq!(ran.unlisted.is_empty(), origin != ModuleOrigin::Own);
    }
    // A section whose bytes have not its hash is no module at all.
    let mut bytes = std::fs::read(&bundle).unwrap();
    let opened = Bundle::open(&bundle).unwrap();
    let range = opened
        .section_range(Module::Product.packed().section)
        .unwrap();
    bytes[range.start as usize + 100] ^= 1;
    let damaged = Bundle::from_bytes(&bytes).unwrap();
    let error = BundleModules::read(&damaged).unwrap_err();
    assert!(
        error.to_string().contains("`product` cannot be read"),
        "{error}"
    );
}
