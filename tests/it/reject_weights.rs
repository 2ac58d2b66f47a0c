//! Weight files that cannot be compiled: each is refused with the file and the tensor, and nothing is left behind.
//!
//! All are copies of a golden family with one thing broken. The messages are pinned in `snapshots/`.

use std::fs;

use heg_spec::WeightForm;
use heg_tests::model_folder::{INDEX, ModelFolder, SHARDS, Safetensors, WEIGHTS};
use heg_tests::{Workbench, fixture, refused};
use serde_json::{Value, json};

/// A matrix of 64 rows in the golden llama.
const MATRIX: &str = "model.layers.1.self_attn.q_proj.weight";

/// Returns a copy of the golden llama in a workbench of its own.
fn copied() -> (Workbench, ModelFolder) {
    let workbench = Workbench::new().unwrap();
    let folder = workbench.path("models/llama");
    let model = ModelFolder::copy(&fixture("golden/llama"), &folder).unwrap();
    (workbench, model)
}

/// Breaks a fresh copy, compiles it, and describes the outcome.
fn check(name: &str, form: WeightForm, spoil: impl FnOnce(&ModelFolder)) -> String {
    let (workbench, model) = copied();
    spoil(&model);
    let refusal = refused(&workbench, model.path(), |spec| spec.weights = form);
    assert!(refusal.starts_with("error: "), "{name}: {refusal}");
    assert!(!refusal.contains("left behind"), "{name}: {refusal}");
    format!("# {name}\n{refusal}\n\n")
}

/// A name, and a change that breaks the parts of the safetensors file.
type PartsCase = (&'static str, fn(&mut Safetensors));

/// Checks a table of copies, each broken in its own way.
fn check_parts(cases: &[PartsCase]) -> String {
    cases
        .iter()
        .map(|(name, spoil)| {
            check(name, WeightForm::W8A16, |model| {
                model.change_weights(spoil).unwrap();
            })
        })
        .collect()
}

fn cut_weights(model: &ModelFolder, bytes: usize) {
    let path = model.file(WEIGHTS);
    let file = fs::read(&path).unwrap();
    let length = bytes.min(file.len() - 1);
    fs::write(path, &file[..length]).unwrap();
}

#[test]
fn truncated_files() {
    let lengths = [0, 7, 8, 100, 4000, 20_000, 200_000, usize::MAX];
    let text: String = lengths
        .iter()
        .map(|length| {
            let name = match length {
                &usize::MAX => "all but the last byte".to_owned(),
                length => format!("{length} bytes"),
            };
            check(&name, WeightForm::W8A16, |model| {
                cut_weights(model, *length)
            })
        })
        .collect();
    insta::assert_snapshot!("truncated_weights", text);
}

#[test]
fn files_cut_anywhere() {
    let (workbench, model) = copied();
    let path = model.file(WEIGHTS);
    let file = fs::read(&path).unwrap();
    for length in (0..file.len()).step_by(file.len() / 100) {
        // A new file each time: mapped files are never written in place.
        fs::remove_file(&path).unwrap();
        fs::write(&path, &file[..length]).unwrap();
        let refusal = refused(&workbench, model.path(), |_| {});
        assert!(refusal.contains("is truncated"), "{length}: {refusal}");
        assert!(refusal.contains(WEIGHTS), "{length}: {refusal}");
        assert!(!refusal.contains("left behind"), "{length}: {refusal}");
    }
}

fn say(weights: &mut Safetensors, key: &str, value: Value) {
    weights.say(MATRIX, key, value);
}

/// Claims another type for the same number of bytes.
fn retype(weights: &mut Safetensors, dtype: &str, factor: [usize; 2]) {
    let shape = weights.tensor(MATRIX).unwrap().shape;
    let shape = [shape[0], shape[1] * factor[0] / factor[1]];
    say(weights, "dtype", json!(dtype));
    say(weights, "shape", json!(shape));
}

#[test]
fn headers_that_contradict_themselves() {
    let cases: [PartsCase; 9] = [
        ("two tensors share bytes", |weights| {
            let range = weights.tensor(MATRIX).unwrap().bytes;
            let moved = [range.start - 128, range.end - 128];
            say(weights, "data_offsets", json!(moved));
        }),
        ("a hole before a tensor", |weights| {
            let range = weights.tensor(MATRIX).unwrap().bytes;
            let moved = [range.start + 128, range.end + 128];
            say(weights, "data_offsets", json!(moved));
        }),
        ("bytes behind the last tensor", |weights| {
            weights.data.extend([0; 16]);
        }),
        ("end before start", |weights| {
            let range = weights.tensor(MATRIX).unwrap().bytes;
            say(weights, "data_offsets", json!([range.end, range.start]));
        }),
        ("offsets beyond 64 bits", |weights| {
            say(weights, "data_offsets", json!([0, 1e30]));
        }),
        ("a negative offset", |weights| {
            say(weights, "data_offsets", json!([-4, 0]));
        }),
        ("a shape of more bytes than there are", |weights| {
            say(weights, "shape", json!([64, 1_u64 << 40]));
        }),
        ("a shape of more bytes than can be counted", |weights| {
            say(weights, "shape", json!([1_u64 << 40, 1_u64 << 40]));
        }),
        ("no offsets", |weights| {
            let entry = weights.header.get_mut(MATRIX).unwrap();
            entry.as_object_mut().unwrap().remove("data_offsets");
        }),
    ];
    insta::assert_snapshot!("contradicting_headers", check_parts(&cases));
}

#[test]
fn tensors_of_the_wrong_type_shape_or_name() {
    let cases: [PartsCase; 9] = [
        ("type I64", |weights| retype(weights, "I64", [1, 2])),
        ("type F8_E4M3", |weights| retype(weights, "F8_E4M3", [4, 1])),
        ("type F64", |weights| retype(weights, "F64", [1, 2])),
        ("a type that does not exist", |weights| {
            say(weights, "dtype", json!("F31"));
        }),
        ("transposed shape", |weights| {
            let shape = weights.tensor(MATRIX).unwrap().shape;
            say(weights, "shape", json!([shape[1] / 2, shape[0] * 2]));
        }),
        ("one dimension", |weights| {
            let shape = weights.tensor(MATRIX).unwrap().shape;
            say(weights, "shape", json!([shape[0] * shape[1]]));
        }),
        ("a tensor renamed", |weights| {
            weights.rename(MATRIX, "model.layers.1.self_attn.query_proj.weight");
        }),
        ("a prefix on every tensor", |weights| {
            for name in weights.names().collect::<Vec<_>>() {
                weights.rename(&name, &format!("language_model.{name}"));
            }
        }),
        ("a tensor without a like", |weights| {
            weights.rename("model.norm.weight", "z");
        }),
    ];
    insta::assert_snapshot!("wrong_tensors", check_parts(&cases));
}

/// Writes a number into a tensor of the golden llama, which is in f32.
fn put(model: &ModelFolder, tensor: &str, index: usize, number: f32) {
    let write = |bytes: &mut [u8]| bytes[4 * index..][..4].copy_from_slice(&number.to_le_bytes());
    model.change_tensor(tensor, write).unwrap();
}

#[test]
fn numbers_that_are_none_or_do_not_fit() {
    let norm = "model.layers.0.input_layernorm.weight";
    let text = [
        check("NaN in a matrix", WeightForm::W8A16, |model| {
            put(model, MATRIX, 3 * 64 + 7, f32::NAN);
        }),
        check("infinity in a matrix, f16", WeightForm::F16, |model| {
            put(model, MATRIX, 64, f32::NEG_INFINITY);
        }),
        check("NaN in a matrix, f32", WeightForm::F32, |model| {
            put(model, MATRIX, 0, f32::NAN);
        }),
        check("NaN in a norm", WeightForm::W8A16, |model| {
            put(model, norm, 5, f32::NAN);
        }),
        check("too large for f16", WeightForm::F16, |model| {
            put(model, MATRIX, 64, 1e6);
        }),
    ];
    insta::assert_snapshot!("wrong_numbers", text.concat());
}

/// Checks a broken sharded copy.
fn check_shards(name: &str, spoil: impl FnOnce(&ModelFolder)) -> String {
    check(name, WeightForm::W8A16, |model| {
        model.shard().unwrap();
        spoil(model);
    })
}

fn write_index(model: &ModelFolder, change: impl FnOnce(&mut Value)) {
    let path = model.file(INDEX);
    let mut index: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut index);
    fs::write(path, serde_json::to_vec(&index).unwrap()).unwrap();
}

#[test]
fn shards_that_do_not_belong_together() {
    let text = [
        check_shards("a shard is missing", |model| {
            fs::remove_file(model.file(SHARDS[1])).unwrap();
        }),
        check_shards("a shard is cut", |model| {
            let file = fs::read(model.file(SHARDS[1])).unwrap();
            fs::write(model.file(SHARDS[1]), &file[..file.len() / 2]).unwrap();
        }),
        check_shards("one shard twice", |model| {
            fs::copy(model.file(SHARDS[0]), model.file(SHARDS[1])).unwrap();
        }),
        check_shards("the index lists a tensor in the other shard", |model| {
            write_index(model, |index| {
                let map = &mut index["weight_map"];
                let other = map[MATRIX] == SHARDS[0];
                map[MATRIX] = json!(SHARDS[usize::from(other)]);
            });
        }),
        check_shards("the index names a file elsewhere", |model| {
            write_index(model, |index| {
                index["weight_map"][MATRIX] = json!("../x.safetensors")
            });
        }),
        check_shards("the index is empty", |model| {
            write_index(model, |index| index["weight_map"] = json!({}));
        }),
        check_shards("the index is no JSON", |model| {
            fs::write(model.file(INDEX), "{\n  \"weight_map\": {").unwrap();
        }),
        check_shards("the index is missing", |model| {
            fs::remove_file(model.file(INDEX)).unwrap();
        }),
        check("no weights at all", WeightForm::W8A16, |model| {
            fs::remove_file(model.file(WEIGHTS)).unwrap();
        }),
        check(
            "the weights are a Git LFS pointer",
            WeightForm::W8A16,
            |model| {
                let pointer =
                    "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 429408\n";
                fs::write(model.file(WEIGHTS), pointer).unwrap();
            },
        ),
    ];
    insta::assert_snapshot!("shards", text.concat());
}

#[test]
fn a_sharded_copy_gives_the_same_bundle() {
    let (workbench, model) = copied();
    let (whole, _) = workbench.compile(model.path(), "whole", |_| {}).unwrap();
    model.shard().unwrap();
    let (sharded, _) = workbench.compile(model.path(), "sharded", |_| {}).unwrap();
    assert!(fs::read(whole).unwrap() == fs::read(sharded).unwrap());
}
