//! GGUF files against the folders from which they were made: the same model results.
//!
//! `fixtures/gguf` has the golden folders as llama.cpp's own conversion writes them (`convert_hf_to_gguf.py` of the
//! package llama-cpp-python 0.3.36, f32, with a vocabulary of 256 bytes, since the folders have none).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use heg_artifacts::manifest::{ElementType, KernelUse, Manifest, Weight};
use heg_artifacts::{Bundle, SectionId};
use heg_compiler::{CompileOptions, Silent, Target, compile};
use heg_runtime::score::{Passage, RowKind, score_against};
use heg_spec::{GroupColumns, WeightForm};
use heg_tests::fetched::smollm2;
use heg_tests::model_folder::ModelFolder;
use heg_tests::{FAMILIES, Workbench, executor, fixture, greedy, openvino_or_skip, refused};
use serde::Deserialize;
use serde_json::{Value, json};

/// Returns the values in a family's golden folder that a GGUF file cannot express: llama.cpp has these numbers in its
/// code, or not at all. The folder is compiled with llama.cpp's values.
fn unsaid(family: &str) -> Vec<(&'static str, Value)> {
    let sliding = json!(["sliding_attention", "sliding_attention"]);
    match family {
        "gemma2" => vec![("query_pre_attn_scalar", json!(16))],
        "gemma3" => vec![
            ("query_pre_attn_scalar", json!(16)),
            ("layer_types", sliding),
        ],
        "mistral" => vec![
            ("model_type", json!("llama")),
            ("sliding_window", json!(null)),
        ],
        "smollm3" => vec![("no_rope_layers", json!([1, 1]))],
        _ => Vec::new(),
    }
}

/// Returns the bundles of a family's folder and of its GGUF file, in the same form and under the same name.
fn both(workbench: &Workbench, family: &str, form: WeightForm) -> (PathBuf, PathBuf) {
    let folder = workbench.path("folder").join(family);
    let folder = ModelFolder::copy(&fixture(&format!("golden/{family}")), &folder).unwrap();
    for (key, value) in unsaid(family) {
        folder.set_config(key, value).unwrap();
    }
    let compile = |model: &Path, name: &str| {
        let change = |spec: &mut heg_spec::ModelSpec| spec.weights = form;
        workbench.compile(model, name, change).unwrap().0
    };
    let file = fixture(&format!("gguf/{family}.gguf"));
    (
        compile(folder.path(), &format!("folder-{family}")),
        compile(&file, &format!("file-{family}")),
    )
}

fn is_shifted(family: &str, weight: &Weight) -> bool {
    family.starts_with("gemma") && weight.name.contains("norm")
}

/// Returns the sections of the weights that must be equal, by name.
fn weights(family: &str, manifest: &Manifest) -> BTreeMap<String, Weight> {
    let same = manifest.weights.iter();
    same.filter(|weight| !is_shifted(family, weight))
        .map(|weight| (weight.name.clone(), weight.clone()))
        .collect()
}

/// Returns the uses of kernels. If norms differ in their last bits, so do the known answers.
fn uses(family: &str, manifest: &Manifest) -> Vec<KernelUse> {
    let layers = manifest.layers.iter();
    let uses = layers.flat_map(|layer| [&layer.qkv, &layer.mha, &layer.ffn]);
    let mut uses: Vec<KernelUse> = uses.chain([&manifest.head]).cloned().collect();
    if family.starts_with("gemma") {
        uses.iter_mut().for_each(|kernel| kernel.answer = None);
    }
    uses
}

fn floats(bundle: &Bundle, section: SectionId) -> Vec<f32> {
    let bytes = bundle.section(section).unwrap();
    let (numbers, _) = bytes.as_chunks();
    numbers.iter().map(|raw| f32::from_le_bytes(*raw)).collect()
}

#[test]
fn a_gguf_file_gives_what_its_folder_gives() {
    let workbench = Workbench::new().unwrap();
    for family in FAMILIES {
        for form in [WeightForm::F32, WeightForm::W8A16] {
            let (folder, file) = both(&workbench, family, form);
            let (folder, file) = (Bundle::open(&folder).unwrap(), Bundle::open(&file).unwrap());
            let (a, b) = (folder.manifest(), file.manifest());
            assert_eq!(weights(family, a), weights(family, b), "{family}");
            assert_eq!(a.weights.len(), b.weights.len(), "{family}");
            assert_eq!(a.kernels, b.kernels, "{family}");
            assert_eq!(a.literals, b.literals, "{family}");
            assert_eq!(a.rope, b.rope, "{family}");
            assert_eq!(uses(family, a), uses(family, b), "{family}");
            assert_eq!(a.model.architecture, b.model.architecture, "{family}");
            assert_eq!(b.model.name, family);
            // A norm that adds 1 itself sees the same sum.
            for (a, b) in a.weights.iter().zip(&b.weights) {
                if is_shifted(family, a) {
                    let sums = |bundle, weight: &Weight| -> Vec<f32> {
                        let numbers = floats(bundle, weight.values);
                        numbers.iter().map(|number| number + 1.0).collect()
                    };
                    assert_eq!(sums(&folder, a), sums(&file, b), "{family}, {}", a.name);
                }
            }
        }
    }
}

#[test]
fn a_given_name_gives_the_same_bytes_whatever_the_path_says() {
    let workbench = Workbench::new().unwrap();
    let named = |model: &Path, bundle: &str| {
        let target = Target::read(model).unwrap();
        let places = workbench.places(bundle);
        let options = CompileOptions {
            name: Some("given".to_owned()),
            ..CompileOptions::default()
        };
        compile(&target, &places, &options, &Silent).unwrap();
        let bundle = Bundle::open(&places.bundle).unwrap();
        assert_eq!(bundle.manifest().model.name, "given");
        std::fs::read(&places.bundle).unwrap()
    };
    let (folder, file) = (fixture("golden/llama"), fixture("gguf/llama.gguf"));
    let other = ModelFolder::copy(&folder, &workbench.path("other")).unwrap();
    let renamed = workbench.path("renamed");
    std::fs::copy(&file, &renamed).unwrap();
    assert!(named(&folder, "a") == named(other.path(), "b"));
    // The beginning shows that it is a GGUF file, if the name does not.
    assert!(named(&file, "c") == named(&renamed, "d"));
}

/// Returns the file with the first occurrence of a text replaced by another of the same length.
fn replaced(content: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let places = content.windows(from.len());
    let at = places.clone().position(|place| place == from.as_bytes());
    let mut content = content.to_vec();
    content[at.unwrap()..][..from.len()].copy_from_slice(to.as_bytes());
    content
}

#[test]
fn bad_files_are_named_and_leave_nothing_behind() {
    let workbench = Workbench::new().unwrap();
    let good = std::fs::read(fixture("gguf/llama.gguf")).unwrap();
    let length = good.len();
    let cases: [(&str, Vec<u8>, &str); 8] = [
        ("empty", Vec::new(), "this is no GGUF file"),
        (
            "header",
            good[..20].to_vec(),
            "the file ends within the header",
        ),
        ("keys", good[..200].to_vec(), "26 keys cannot be"),
        (
            "data",
            good[..length / 2].to_vec(),
            "the file is truncated: tensor",
        ),
        (
            "last",
            good[..length - 64].to_vec(),
            "the file is truncated: tensor",
        ),
        (
            "architecture",
            replaced(
                &good,
                "architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama",
                "architecture\x08\0\0\0\x05\0\0\0\0\0\0\0lhama",
            ),
            "architecture `lhama` is not compiled, expected one of llama, qwen2",
        ),
        (
            "tokenizer",
            replaced(&good, "tokenizer.ggml.model", "tokenizer.ggml.xodel"),
            "no key `tokenizer.ggml.model`",
        ),
        (
            "unused",
            replaced(
                &good,
                "llama.block_count\x04\0\0\0\x02",
                "llama.block_count\x04\0\0\0\x01",
            ),
            "is not used by the architecture",
        ),
    ];
    std::fs::create_dir(workbench.path("models")).unwrap();
    for (name, content, expected) in cases {
        let file = workbench.path(&format!("models/{name}.gguf"));
        std::fs::write(&file, content).unwrap();
        let error = refused(&workbench, &file, |_| {});
        assert!(error.contains(expected), "{name}: {error}");
        assert!(!error.contains("left behind"), "{name}: {error}");
    }
}

#[derive(Deserialize)]
struct References {
    cases: Vec<Reference>,
}

#[derive(Deserialize)]
struct Reference {
    input_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
}

/// Checks greedy tokens of a real model against transformers over the same dequantised weights in f32: every third of
/// the references with short prompts, and all with `HEG_FULL=1`.
fn check_real(model: &Path, references: &Path) {
    let text = std::fs::read_to_string(references).unwrap();
    let references: References = serde_json::from_str(&text).unwrap();
    let workbench = Workbench::new().unwrap();
    let change = |spec: &mut heg_spec::ModelSpec| spec.weights = WeightForm::F32;
    let (bundle, _) = workbench.compile(model, "real", change).unwrap();
    let mut executor = executor(&bundle, "host-cpu-f32", 256).unwrap();
    let mut different = Vec::new();
    let full = std::env::var_os("HEG_FULL").is_some();
    let cases = references.cases.iter().enumerate();
    let chosen =
        cases.filter(|(number, case)| full || (number % 12 == 0 && case.input_ids.len() <= 64));
    let chosen: Vec<_> = chosen.collect();
    for &(number, case) in &chosen {
        let mut sequence = executor.sequence().unwrap();
        let tokens = case.greedy_ids.len();
        let found = greedy(&mut executor, &mut sequence, &case.input_ids, tokens).unwrap();
        if found != case.greedy_ids {
            let at = found.iter().zip(&case.greedy_ids).position(|(a, b)| a != b);
            different.push((number, at));
        }
    }
    let all = chosen.len();
    println!("{} of {all} identical", all - different.len());
    assert_eq!(different, [], "(case, first token that differs)");
}

/// The references are transformers' (5.5.4, eager attention).
#[test]
fn smollm2_answers_as_its_reference_does() {
    if let Some(model) = smollm2("smollm2_answers_as_its_reference_does")
        && openvino_or_skip("smollm2")
    {
        check_real(&model, &fixture("smollm2/greedy.json"));
    }
}

/// Dequantises the unsigned integers of a weight's groups.
fn unpacked(bundle: &Bundle, weight: &Weight) -> Vec<f32> {
    let halves = |section: SectionId| -> Vec<f32> {
        let (numbers, _) = bundle.section(section).unwrap().as_chunks();
        let number = |raw: &[u8; 2]| half::f16::from_le_bytes(*raw).to_f32();
        numbers.iter().map(number).collect()
    };
    let (scales, centres) = (
        halves(weight.scales.unwrap()),
        halves(weight.centres.unwrap()),
    );
    let columns = weight.group_columns.unwrap().count() as usize;
    let values = bundle.section(weight.values).unwrap().iter();
    let integers = values.flat_map(|byte| [byte & 0x0f, byte >> 4]);
    let number = |(at, q): (usize, u8)| f32::from(q) * scales[at / columns] + centres[at / columns];
    integers.enumerate().map(number).collect()
}

/// Returns the distance from the model in f32, with exact activations and with 8-bit ones, in nats a token.
fn distances([exact, taken]: [&Path; 2]) -> [f64; 2] {
    let text = std::fs::read_to_string(fixture("smollm2/greedy.json")).unwrap();
    let references: References = serde_json::from_str(&text).unwrap();
    ["host-cpu-f32", "host-cpu"].map(|soc| {
        let mut reference = executor(exact, "host-cpu-f32", 256).unwrap();
        let mut model = executor(taken, soc, 256).unwrap();
        let passage = |case: &Reference| {
            let tokens = [case.input_ids.as_slice(), &case.greedy_ids].concat();
            Passage::new(tokens, case.input_ids.len(), model.manifest()).unwrap()
        };
        let passages: Vec<Passage> = references.cases.iter().take(3).map(passage).collect();
        let rows = RowKind::Prefill;
        let scores = score_against(&mut model, &mut reference, &passages, rows, &mut |_| ());
        scores.unwrap().kl.unwrap()
    })
}

/// Blocks of 4 bits have the same values in groups as in f32, bit for bit: they are not rounded a second time. The
/// remaining difference is from the embedding and the head in 8 bits.
#[test]
fn blocks_of_four_bits_are_taken_over() {
    let Some(model) = smollm2("blocks_of_four_bits_are_taken_over") else {
        return;
    };
    let workbench = Workbench::new().unwrap();
    let compiled = |name, form| {
        let change = |spec: &mut heg_spec::ModelSpec| spec.weights = form;
        workbench.compile(&model, name, change).unwrap().0
    };
    let exact_bundle = compiled("exact", WeightForm::F32);
    let group = GroupColumns::SMALLEST;
    let form = WeightForm::W4A16 {
        group,
        symmetric: false,
    };
    let taken_bundle = compiled("taken", form);
    let [exact, taken] = [&exact_bundle, &taken_bundle].map(|path| Bundle::open(path).unwrap());
    let pairs = exact
        .manifest()
        .weights
        .iter()
        .zip(&taken.manifest().weights);
    let mut matrices = 0;
    for (exact_weight, weight) in pairs.filter(|(_, weight)| weight.element == ElementType::U4) {
        assert_eq!(exact_weight.name, weight.name);
        let expected = floats(&exact, exact_weight.values);
        let found = unpacked(&taken, weight);
        let bits = |numbers: &[f32]| -> Vec<u32> { numbers.iter().map(|x| x.to_bits()).collect() };
        assert!(bits(&found) == bits(&expected), "{}", weight.name);
        matrices += 1;
    }
    assert_eq!(matrices, 210);
    let [precise, rounded] = distances([&exact_bundle, &taken_bundle]);
    println!("KL {precise:.6} with exact activations, {rounded:.6} with 8 bits");
    assert!(precise <= 0.001, "{precise}");
    let change = |spec: &mut heg_spec::ModelSpec| {
        let [_, group, _] = GroupColumns::ALL;
        spec.weights = WeightForm::W4A16 {
            group,
            symmetric: false,
        };
    };
    let error = refused(&workbench, &model, change);
    assert!(
        error.contains("is Q4_1 and would be rounded to 4 bits a second time"),
        "{error}"
    );
}

/// Any model with your own references: `HEG_TEST_MODEL=FILE.gguf HEG_TEST_REFERENCES=FILE.json`.
#[test]
fn another_real_model_answers_as_its_reference_does() {
    let paths = ["HEG_TEST_MODEL", "HEG_TEST_REFERENCES"].map(std::env::var_os);
    let [Some(model), Some(references)] = paths else {
        heg_tests::skipped(
            "a real GGUF file: neither HEG_TEST_MODEL nor HEG_TEST_REFERENCES is set",
        );
        return;
    };
    if openvino_or_skip("another real model") {
        check_real(Path::new(&model), Path::new(&references));
    }
}
