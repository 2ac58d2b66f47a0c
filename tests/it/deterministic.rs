//! The same model gives the same bytes: in any folder, with any store and number of threads, after any interruption;
//! and a changed weight changes only the sections that depend on it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use heg_artifacts::manifest::{KernelUse, Manifest, Weight, WeightId};
use heg_artifacts::{Bundle, SectionId};
use heg_compiler::{CompileError, CompileOptions, Phase, Progress, Summary, Target};
use heg_spec::{GroupColumns, WeightForm};
use heg_tests::model_folder::ModelFolder;
use heg_tests::{Workbench, files_below, fixture};

const FORMS: [WeightForm; 4] = [
    WeightForm::F32,
    WeightForm::F16,
    WeightForm::W8A16,
    WeightForm::W4A16 {
        group: GroupColumns::SMALLEST,
        symmetric: false,
    },
];

/// Returns a copy of a fixture in a workbench of its own.
fn copied(model: &str) -> (Workbench, ModelFolder) {
    let workbench = Workbench::new().unwrap();
    let name = Path::new(model).file_name().unwrap();
    let folder = workbench.path("models").join(name);
    let folder = ModelFolder::copy(&fixture(model), &folder).unwrap();
    (workbench, folder)
}

fn compile(
    workbench: &Workbench,
    model: &ModelFolder,
    name: &str,
    form: WeightForm,
) -> (PathBuf, Summary) {
    compile_with_threads(workbench, model, name, form, 2).unwrap()
}

fn compile_with_threads(
    workbench: &Workbench,
    model: &ModelFolder,
    name: &str,
    form: WeightForm,
    threads: usize,
) -> Result<(PathBuf, Summary), CompileError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    pool.build()
        .unwrap()
        .install(|| workbench.compile(model.path(), name, |spec| spec.weights = form))
}

/// Asserts that two bundles are equal; reports where they begin to differ, instead of printing megabytes.
fn assert_same(found: &Path, expected: &[u8], name: &str) {
    let found = fs::read(found).unwrap();
    let differs = found.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{name}: first byte that differs");
    assert_eq!(found.len(), expected.len(), "{name}");
}

#[test]
fn folders_stores_and_threads_do_not_matter() {
    for model in ["tiny-agent", "golden/gemma3"] {
        let ((first, first_model), (second, second_model)) = (copied(model), copied(model));
        for form in FORMS {
            let name = format!("{form:?}");
            let one = compile_with_threads(&first, &first_model, &name, form, 1).unwrap();
            let two = compile_with_threads(&second, &second_model, "other", form, 2).unwrap();
            assert_same(
                &two.0,
                &fs::read(one.0).unwrap(),
                &format!("{model}, {name}"),
            );
            assert_eq!(one.1.manifest, two.1.manifest);
        }
    }
}

#[test]
fn a_second_compile_leaves_the_bundle_alone() {
    let (workbench, model) = copied("tiny-agent");
    for form in FORMS {
        let name = format!("{form:?}");
        let (bundle, first) = compile(&workbench, &model, &name, form);
        let before = identity(&bundle);
        let (_, second) = compile(&workbench, &model, &name, form);
        assert!(first.rewritten && !second.rewritten, "{name}");
        assert_eq!(first.manifest, second.manifest, "{name}");
        assert_eq!(identity(&bundle), before, "{name}");
    }
}

/// Returns the identity of a file, which changes as soon as it is written again, with any content.
fn identity(path: &Path) -> (u64, i64, i64) {
    let metadata = fs::metadata(path).unwrap();
    (metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
}

/// Returns the objects of a store with their identities.
fn objects(workbench: &Workbench) -> BTreeMap<String, (u64, i64, i64)> {
    let folder = workbench.path("store/blake3");
    let files = files_below(&folder).unwrap();
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    files
        .iter()
        .map(|path| (name(path), identity(&folder.join(path))))
        .collect()
}

/// A change to a tensor's bytes, in bf16.
type Change = fn(&mut [u8]);

/// Exchanges the first two elements: the range of their row stays, and so do its scale and centre.
fn exchange_two(bytes: &mut [u8]) {
    bytes[..4].rotate_left(2);
}

/// Makes the largest element larger: scale and centre of its row change.
fn double_largest(bytes: &mut [u8]) {
    let largest = (0..bytes.len() / 2)
        .max_by_key(|index| magnitude(bytes, *index))
        .unwrap();
    let doubled = magnitude(bytes, largest) + 0x80;
    bytes[2 * largest..][..2].copy_from_slice(&doubled.to_le_bytes());
}

fn magnitude(bytes: &[u8], index: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]) & 0x7fff
}

/// Compiles, changes one tensor, compiles again with the same store, and checks the changes in everything.
fn check_changed_weight(form: WeightForm, tensor: &str, change: Change, range_changes: bool) {
    let name = format!("{tensor}, {form:?}");
    let (workbench, model) = copied("tiny-agent");
    let (before, _) = compile(&workbench, &model, "before", form);
    let stored_before = objects(&workbench);
    model.change_tensor(tensor, change).unwrap();
    let (after, summary) = compile(&workbench, &model, "after", form);
    assert!(summary.rewritten, "{name}");
    let (before, after) = (Bundle::open(before).unwrap(), Bundle::open(after).unwrap());
    let (before, after) = (before.manifest(), after.manifest());
    let (old, new) = (weight(before, tensor), weight(after, tensor));
    assert_ne!(old.values, new.values, "{name}");
    assert_ne!(old.source, new.source, "{name}");
    assert_eq!(old.scales != new.scales, range_changes, "{name}");
    let moved = range_changes && old.centres.is_some();
    assert_eq!(old.centres != new.centres, moved, "{name}");
    let expected = replaced(before, after, old, new);
    assert_eq!(&expected, after, "{name}: the rest");
    let (gone, fresh) = (answers(before, tensor), answers(after, tensor));
    assert!(
        gone.iter()
            .flatten()
            .all(|answer| !fresh.contains(&Some(*answer)))
    );

    let stored = objects(&workbench);
    let expected: BTreeSet<String> = std::iter::once(new.values)
        .chain(new.sections().skip(1).filter(|_| range_changes))
        .chain(answers(after, tensor).into_iter().flatten())
        .map(|id| id.to_string())
        .collect();
    let gained: BTreeSet<String> = stored
        .keys()
        .filter(|object| !stored_before.contains_key(*object))
        .cloned()
        .collect();
    assert_eq!(gained, expected, "{name}: new objects");
    for weight in after.weights.iter().filter(|weight| weight.name != tensor) {
        let object = weight.values.to_string();
        let unchanged = stored[&object] == stored_before[&object];
        assert!(unchanged, "{name}: `{}` was written again", weight.name);
    }
}

fn weight<'m>(manifest: &'m Manifest, name: &str) -> &'m Weight {
    let mut weights = manifest.weights.iter();
    weights.find(|weight| weight.name == name).unwrap()
}

/// Returns the known answers of the places that use a weight, others as `None`.
fn answers(manifest: &Manifest, tensor: &str) -> Vec<Option<SectionId>> {
    let takes = |id: &WeightId| manifest.weights[id.0 as usize].name == tensor;
    let place = |place: &KernelUse| place.answer.filter(|_| place.weights.iter().any(takes));
    places(manifest).map(place).collect()
}

fn places(manifest: &Manifest) -> impl Iterator<Item = &KernelUse> {
    let layers = manifest.layers.iter();
    let places = layers.flat_map(|layer| [&layer.qkv, &layer.mha, &layer.ffn]);
    places.chain([&manifest.head])
}

/// Returns the manifest with one weight in place of another, and its consequences from `after`.
fn replaced(before: &Manifest, after: &Manifest, old: &Weight, new: &Weight) -> Manifest {
    let (gone, fresh) = (answers(before, &old.name), answers(after, &old.name));
    let exchange = |id: SectionId| match id {
        id if id == old.values => new.values,
        id if Some(id) == old.scales => new.scales.unwrap(),
        id if Some(id) == old.centres => new.centres.unwrap(),
        id => match gone.iter().position(|gone| *gone == Some(id)) {
            Some(place) => fresh[place].unwrap(),
            None => id,
        },
    };
    let mut manifest = before.clone();
    let layers = manifest.layers.iter_mut();
    let places = layers.flat_map(|layer| [&mut layer.qkv, &mut layer.mha, &mut layer.ffn]);
    for place in places.chain([&mut manifest.head]) {
        place.answer = place.answer.map(exchange);
    }
    for weight in &mut manifest.weights {
        if weight.name == old.name {
            *weight = new.clone();
        }
    }
    for section in &mut manifest.sections {
        section.id = exchange(section.id);
    }
    manifest
}

#[test]
fn a_changed_weight_changes_only_what_hangs_on_it() {
    let matrix = "model.layers.3.mlp.down_proj.weight";
    let vector = "model.layers.0.input_layernorm.weight";
    check_changed_weight(WeightForm::W8A16, matrix, exchange_two, false);
    check_changed_weight(WeightForm::W8A16, matrix, double_largest, true);
    check_changed_weight(WeightForm::F32, matrix, exchange_two, false);
    check_changed_weight(WeightForm::F16, matrix, double_largest, false);
    check_changed_weight(WeightForm::W8A16, vector, double_largest, false);
    // The embedding, which is the output projection too.
    let table = "model.embed_tokens.weight";
    check_changed_weight(WeightForm::W8A16, table, double_largest, true);
}

/// Puts a store into the state after an interrupted run, or a power cut after it.
type Interruption = fn(&Workbench);

/// A process id above Linux's largest (2^22), which no process has.
const DEAD: u32 = 4_194_305;

fn leave_temporary_files(workbench: &Workbench) {
    for name in ["store/tmp", ".after.heg.tmp"] {
        let separator = if name.starts_with('.') { '-' } else { '/' };
        let path = workbench.path(&format!("{name}{separator}{DEAD}-0"));
        fs::write(path, "half of something").unwrap();
    }
}

fn lose_objects(workbench: &Workbench) {
    for object in every_third(workbench, "store/blake3") {
        fs::remove_file(object).unwrap();
    }
}

fn cut_objects(workbench: &Workbench) {
    for (index, object) in every_third(workbench, "store/blake3")
        .into_iter()
        .enumerate()
    {
        let bytes = fs::read(&object).unwrap();
        let kept = if index % 2 == 0 { 0 } else { bytes.len() / 2 };
        fs::write(object, &bytes[..kept]).unwrap();
    }
}

fn spoil_recipes(workbench: &Workbench) {
    for (index, recipe) in every_third(workbench, "store/recipes")
        .into_iter()
        .enumerate()
    {
        let text = fs::read(&recipe).unwrap();
        fs::write(recipe, &text[..text.len() * (index % 3) / 3]).unwrap();
    }
}

fn spoil_memory(workbench: &Workbench) {
    for file in files_below(&workbench.path("store/sources")).unwrap() {
        fs::write(workbench.path("store/sources").join(file), "(stamp: [(").unwrap();
    }
}

fn every_third(workbench: &Workbench, folder: &str) -> Vec<PathBuf> {
    let folder = workbench.path(folder);
    let files = files_below(&folder).unwrap();
    assert!(files.len() > 10, "{}", folder.display());
    files
        .into_iter()
        .step_by(3)
        .map(|file| folder.join(file))
        .collect()
}

#[test]
fn what_an_interrupted_run_left_does_not_matter() {
    let interruptions: [(&str, Interruption); 5] = [
        ("temporary files", leave_temporary_files),
        ("missing objects", lose_objects),
        ("truncated objects", cut_objects),
        ("truncated recipes", spoil_recipes),
        ("an unreadable memory of sources", spoil_memory),
    ];
    let (workbench, model) = copied("tiny-agent");
    let (bundle, _) = compile(&workbench, &model, "before", WeightForm::W8A16);
    let expected = fs::read(bundle).unwrap();
    for (name, interrupt) in interruptions {
        interrupt(&workbench);
        let (bundle, summary) = compile(&workbench, &model, "after", WeightForm::W8A16);
        assert!(summary.rewritten, "{name}");
        assert_same(&bundle, &expected, name);
        fs::remove_file(bundle).unwrap();
        let left = files_below(workbench.folder()).unwrap();
        let is_temporary = |path: &&PathBuf| path.to_string_lossy().contains(&DEAD.to_string());
        assert_eq!(left.iter().find(is_temporary), None, "{name}");
    }
}

#[test]
fn a_killed_writer_leaves_nothing_for_long() {
    let (workbench, model) = copied("tiny-agent");
    let (bundle, _) = compile(&workbench, &model, "tiny-agent", WeightForm::W8A16);
    let left = workbench.path(&format!(".tiny-agent.heg.tmp-{DEAD}-1"));
    fs::write(&left, "half of a bundle").unwrap();
    let (_, summary) = compile(&workbench, &model, "tiny-agent", WeightForm::W8A16);
    assert!(!summary.rewritten && bundle.exists());
    assert!(!left.exists());
}

#[test]
fn a_damaged_bundle_is_written_anew() {
    let (workbench, model) = copied("tiny-agent");
    let (bundle, _) = compile(&workbench, &model, "tiny-agent", WeightForm::W8A16);
    let expected = fs::read(&bundle).unwrap();
    let mut damaged = expected.clone();
    damaged[expected.len() / 2] ^= 1;
    fs::remove_file(&bundle).unwrap();
    fs::write(&bundle, damaged).unwrap();
    let (bundle, summary) = compile(&workbench, &model, "tiny-agent", WeightForm::W8A16);
    assert!(summary.rewritten);
    assert_same(&bundle, &expected, "repaired");
}

/// Pins every hash, so that a machine that computes other bytes is noticed.
#[test]
fn the_same_bytes_on_any_machine() {
    let (workbench, model) = copied("golden/llama");
    let (bundle, _) = compile(&workbench, &model, "llama", WeightForm::W8A16);
    let bundle = Bundle::open(bundle).unwrap();
    let style = ron::ser::PrettyConfig::new().new_line("\n").depth_limit(2);
    let manifest = ron::ser::to_string_pretty(bundle.manifest(), style).unwrap();
    insta::assert_snapshot!("manifest_llama", manifest);
}

/// Collects the messages of a compile.
#[derive(Default)]
struct Noted(Mutex<Vec<String>>);

impl Progress for Noted {
    fn begin(&self, _phase: Phase, _total: u64) {}

    fn advance(&self, _amount: u64) {}

    fn note(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

/// Changes one byte of the object, but not its length.
fn flip(workbench: &Workbench, id: SectionId) {
    let name = id.to_string();
    let object = workbench.path("store/blake3").join(&name[..2]).join(&name);
    let mut bytes = fs::read(&object).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::remove_file(&object).unwrap();
    fs::write(&object, bytes).unwrap();
}

#[test]
fn an_object_that_changed_is_made_again_by_the_compile_that_meets_it() {
    let (workbench, model) = copied("tiny-agent");
    let (bundle, _) = compile(&workbench, &model, "tiny-agent", WeightForm::W8A16);
    let expected = fs::read(&bundle).unwrap();
    let manifest = Bundle::open(&bundle).unwrap().manifest().clone();
    let weight = &manifest.weights[3];
    let changed = [
        weight.values,
        weight.scales.unwrap_or(weight.values),
        weight.centres.unwrap_or(weight.values),
        manifest.weights[5].values,
        manifest.layers[0].ffn.answer.unwrap(),
    ];
    for id in changed {
        flip(&workbench, id);
    }
    fs::remove_file(&bundle).unwrap();
    let target = Target::read(model.path()).unwrap();
    let noted = Noted::default();
    let places = workbench.places("tiny-agent");
    let summary =
        heg_compiler::compile(&target, &places, &CompileOptions::default(), &noted).unwrap();
    assert!(summary.rewritten);
    assert_same(&bundle, &expected, "made again");
    let threads = std::num::NonZero::<usize>::MIN;
    Bundle::open(&bundle).unwrap().verify(threads).unwrap();
    let noted = noted.0.into_inner().unwrap();
    assert_eq!(noted.len(), 1, "all are met at once: {noted:?}");
    assert!(noted[0].contains("has changed"), "{noted:?}");
}
