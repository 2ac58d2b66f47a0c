//! Refused manifests, and the message to the user: one case per rule.

use heg_artifacts::manifest::*;
use heg_artifacts::{Manifest, SectionId, write_bundle};

use crate::tiny::{self, Plan};

/// Breaks a manifest and returns the error of writing it. Reading shares the check: see `reject::readers_check_too`.
fn refuse(plan: &Plan, damage: impl FnOnce(&mut Manifest)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (store, mut manifest) = tiny::stored(plan, folder.path());
    damage(&mut manifest);
    let path = folder.path().join("bundle.heg");
    let error = write_bundle(&path, &manifest, &store, &|_| {})
        .unwrap_err()
        .to_string();
    assert!(!path.exists());
    error
        .strip_prefix("the manifest is invalid: ")
        .map_or(error.clone(), str::to_owned)
}

/// Tests one rule: `damage` breaks it; `expected` is the message without its common start.
pub(crate) fn check(expected: &str, damage: impl FnOnce(&mut Manifest)) {
    check_plan(&Plan::default(), expected, damage);
}

/// The same of a plan's manifest.
pub(crate) fn check_plan(plan: &Plan, expected: &str, damage: impl FnOnce(&mut Manifest)) {
    assert_eq!(refuse(plan, damage), expected);
}

#[test]
fn models() {
    check(
        "manifest revision `2` is too new: this program reads up to `1`",
        |manifest| manifest.revision = 2,
    );
    check("`revision` is `0`, expected `1` to `1`", |manifest| {
        manifest.revision = 0
    });
    check("`model.name` is empty, expected a name", |manifest| {
        manifest.model.name.clear()
    });
    check(
        "`model.architecture` is empty, expected a name",
        |manifest| manifest.model.architecture.clear(),
    );
    check("`model.hidden` is `0`, expected at least `1`", |manifest| {
        manifest.model.hidden = 0
    });
    check(
        "`model.kv_heads` is `0`, expected at least `1`",
        |manifest| manifest.model.kv_heads = 0,
    );
    check(
        "`model.parameters` is `0`, expected at least `1`",
        |manifest| manifest.model.parameters = 0,
    );
    check(
        "`model.heads` is `5`, expected a multiple of `model.kv_heads`: `2`",
        |manifest| manifest.model.heads = 5,
    );
    let expected = "`model.head_dim` is `4294967295` with `4` heads, expected a product of at most `4294967295`";
    check(expected, |manifest| manifest.model.head_dim = u32::MAX);
    let expected = "`model.chunk_tokens` is [16, 16], expected nonzero and strictly ascending";
    check(expected, |manifest| {
        manifest.model.chunk_tokens = vec![16, 16]
    });
    let expected = "`model.chunk_tokens` is [0, 16], expected nonzero and strictly ascending";
    check(expected, |manifest| {
        manifest.model.chunk_tokens = vec![0, 16]
    });
    let expected = "`text.eos_ids[1]` is `16`, expected less than `model.vocab`: `16`";
    check(expected, |manifest| manifest.text.eos_ids = vec![0, 16]);
    let expected = "`embedding.scale` is `NaN`, expected a finite number";
    check(expected, |manifest| manifest.embedding.scale = f32::NAN);
    let expected = "`embedding.table` is `77`, expected less than the number of weights: `6`";
    check(expected, |manifest| manifest.embedding.table = WeightId(77));
    let expected = "`weights[1].shape` is `[16, 8]`, expected `[17, 8]`, as the embedding's table";
    check(expected, |manifest| {
        manifest.model.vocab = 17;
        manifest.embedding.table = WeightId(1);
    });
}

#[test]
fn sections() {
    let id = SectionId::of(b"other");
    check(
        &format!("`text.tokenizer` is `{id}`, expected one of `sections`"),
        |manifest| {
            manifest.text.tokenizer = Some(id);
        },
    );
    check(
        &format!("`kernels[1].variants[0].ir` is `{id}`, expected one of `sections`"),
        |manifest| {
            manifest.kernels[1].variants[0].ir = id;
        },
    );
    let expected = format!("is `{id}`, which nothing refers to, expected a section that is used");
    check(&format!("`sections[1].id` {expected}"), |manifest| {
        manifest.sections.insert(1, Section { id, bytes: 3 });
    });
    let twice = |manifest: &mut Manifest| manifest.sections.push(manifest.sections[0]);
    let message = refuse(&Plan::default(), twice);
    assert!(
        message.ends_with("once more, expected every section once"),
        "{message}"
    );
    check(
        "the bundle is too large: the bundle has `18446744073709551615` bytes, at most `9223372036854775807` are possible",
        |manifest| {
            let literals = manifest.literals;
            for section in manifest
                .sections
                .iter_mut()
                .filter(|section| section.id == literals)
            {
                section.bytes = u64::MAX;
            }
        },
    );
}

#[test]
fn weights() {
    check("`weights[1].name` is empty, expected a name", |manifest| {
        manifest.weights[1].name.clear()
    });
    check(
        "`weights[1].shape` is [1, 1, 1], expected one or two dimensions",
        |manifest| {
            manifest.weights[1].shape = vec![1, 1, 1];
        },
    );
    check(
        "`weights[1].shape` is [], expected one or two dimensions",
        |manifest| manifest.weights[1].shape.clear(),
    );
    check(
        "`weights[1].shape` is [0, 8], expected dimensions of at least `1`",
        |manifest| {
            manifest.weights[1].shape[0] = 0;
        },
    );
    let expected =
        "`weights[1].values` is a section of `128` bytes, expected `256` bytes for [16, 16] of I8";
    check(expected, |manifest| manifest.weights[1].shape[1] = 16);
    let expected = "`weights[2].values` is a section of `32` bytes, expected fewer than 2^64 bytes for [4294967295, 4294967295] of F32";
    check(expected, |manifest| {
        manifest.weights[2].shape = vec![u32::MAX; 2]
    });
    check(
        "`weights[1].scales` is `None`, expected scales for I8 rows",
        |manifest| {
            // The section of the scales stays in use; otherwise the list of sections would be wrong first.
            manifest.literals = manifest.weights[1].scales.take().unwrap();
            let literals = SectionId::of(b"literals");
            manifest.sections.retain(|section| section.id != literals);
        },
    );
    check(
        "`layers[0].qkv.weights[0]` is weight `model.layers.0.q_proj`, [16, 8] of I8, \
         expected [16, 8] of I8 with centres, parameter `q_proj` of kernel `qkv`",
        |manifest| {
            manifest.literals = manifest.weights[1].centres.take().unwrap();
            let literals = SectionId::of(b"literals");
            manifest.sections.retain(|section| section.id != literals);
        },
    );
    check(
        "`weights[1].shape` is [128], expected two dimensions for I8",
        |manifest| {
            manifest.weights[1].shape = vec![128];
        },
    );
    let scales = SectionId::of(b"literals");
    check(
        &format!("`weights[2].scales` is `{scales}`, expected `None` for F32"),
        |manifest| {
            manifest.weights[2].scales = Some(scales);
        },
    );
    check(
        &format!("`weights[2].centres` is `{scales}`, expected `None` for F32"),
        |manifest| {
            manifest.weights[2].centres = Some(scales);
        },
    );
    let expected =
        "`weights[1].scales` is a section of `8` bytes, expected `64` bytes for [16] of F32";
    check(expected, |manifest| {
        manifest.literals = manifest.weights[1].scales.replace(scales).unwrap();
    });
    let expected =
        "`weights[1].centres` is a section of `8` bytes, expected `64` bytes for [16] of F32";
    check(expected, |manifest| {
        manifest.literals = manifest.weights[1].centres.replace(scales).unwrap();
    });
}

#[test]
fn rotary_tables() {
    check(
        "`rope[0].width` is `0`, expected at least `1`",
        |manifest| manifest.rope[0].width = 0,
    );
    let expected = "`rope[0].width` is `3`, expected at most half of `model.head_dim`: `4`";
    check(expected, |manifest| manifest.rope[0].width = 3);
    let expected = "`rope[0].rows` is `31`, expected at least `model.context_tokens`: `32`";
    check(expected, |manifest| manifest.rope[0].rows = 31);
    let expected =
        "`rope[0].cos` is a section of `256` bytes, expected `264` bytes for [33, 2] of F32";
    check(expected, |manifest| manifest.rope[0].rows = 33);
}

#[test]
fn ports() {
    let hidden = Port {
        role: Role::Hidden,
        rows: Rows::Tokens,
        width: 8,
    };
    let expected =
        "`kernels[1].inputs[4].role` is Hidden, expected one of [Query, Key, Value, Position]";
    check(expected, |manifest| {
        manifest.kernels[1].inputs.push(hidden.clone())
    });
    let expected = "`kernels[0].inputs[3].role` is Hidden once more, expected every role once";
    check(expected, |manifest| {
        manifest.kernels[0].inputs.push(hidden.clone())
    });
    let expected = "`kernels[0].outputs` is without Value, expected [Query, Key, Value]";
    check(expected, |manifest| manifest.kernels[0].outputs.truncate(2));
    let expected = "`kernels[0].outputs[1].width` is `9`, expected `8`, as `model` says";
    check(expected, |manifest| {
        manifest.kernels[0].outputs[1].width = 9
    });
    let expected = "`kernels[1].inputs[1].rows` is Tokens, expected one of [Context] for Key";
    check(expected, |manifest| {
        manifest.kernels[1].inputs[1].rows = Rows::Tokens
    });
    let expected = "`kernels[1].inputs[3].rows` is Tokens, expected one of [One] for Position";
    check(expected, |manifest| {
        manifest.kernels[1].inputs[3].rows = Rows::Tokens
    });
    let expected = "`kernels[0].inputs[1].width` is `0`, expected at least `1`";
    check(expected, |manifest| manifest.kernels[0].inputs[1].width = 0);
    let expected = "`kernels[0].inputs` is with cosines `1` wide and sines `2` wide, expected both of one width, or neither";
    check(expected, |manifest| manifest.kernels[0].inputs[1].width = 1);
    let expected = "`kernels[0].inputs` is with cosines none and sines `2` wide, expected both of one width, or neither";
    check(expected, |manifest| {
        manifest.kernels[0]
            .inputs
            .retain(|port| port.role != Role::Cos)
    });
}

#[test]
fn kernels() {
    check("`kernels[1].name` is empty, expected a name", |manifest| {
        manifest.kernels[1].name.clear()
    });
    check(
        "`kernels[1].name` is `qkv` once more, expected unique names",
        |manifest| {
            manifest.kernels[1].name = "qkv".to_owned();
        },
    );
    check(
        "`kernels[2].parameters[0].shape` is [0], expected dimensions of at least `1`",
        |manifest| {
            manifest.kernels[2].parameters[0].shape = vec![0];
        },
    );
    check(
        "`kernels[2].parameters[1].name` is `norm` once more, expected unique names",
        |manifest| {
            let parameter = manifest.kernels[2].parameters[0].clone();
            manifest.kernels[2].parameters.push(parameter);
        },
    );
    check(
        "`kernels[0].variants[0].activations` is I8, expected `F16` or `F32`",
        |manifest| {
            manifest.kernels[0].variants[0].activations = ElementType::I8;
        },
    );
    check(
        "`kernels[0].variants[0].kv_cache` is F16, expected `Bf16`, `I8` beside a program, or nothing",
        |manifest| {
            manifest.kernels[0].variants[0].kv_cache = Some(ElementType::F16);
        },
    );
    check(
        "`kernels[0].variants[1].kv_cache` is I8, expected `Bf16`, `I8` beside a program, or nothing",
        |manifest| {
            manifest.kernels[0].variants[1].kv_cache = Some(ElementType::I8);
        },
    );
    check(
        "`kernels[0].variants[1].takes_trees` is trees in Static { tokens: 4 }, expected trees in a `Bucket` only",
        |manifest| {
            manifest.kernels[0].variants[1].takes_trees = true;
        },
    );
    check(
        "`kernels[0].variants[1].shape.tokens` is `0`, expected at least `1`",
        |manifest| {
            manifest.kernels[0].variants[1].shape = ShapeClass::Static { tokens: 0 };
        },
    );
    let expected = "`kernels[0].variants[3]` is Cpu, Dynamic, Constant, F32 once more, expected variants that differ";
    check(expected, |manifest| {
        let variant = manifest.kernels[0].variants[0].clone();
        manifest.kernels[0].variants.push(variant);
    });
    check(
        "`kernels[4].variants` is empty, expected at least one variant",
        |manifest| {
            let kernel = Kernel {
                name: "new".to_owned(),
                variants: Vec::new(),
                ..manifest.kernels[3].clone()
            };
            manifest.kernels.push(kernel);
        },
    );
}

#[test]
fn uses() {
    check(
        "`layers` is empty, expected at least one layer",
        |manifest| {
            let answers: Vec<_> = manifest
                .layers
                .iter()
                .flat_map(|layer| [&layer.qkv, &layer.mha, &layer.ffn].map(|place| place.answer))
                .collect();
            manifest
                .sections
                .retain(|section| !answers.contains(&Some(section.id)));
            manifest.layers.clear();
        },
    );
    let expected = "`layers[1].ffn.kernel` is `4`, expected less than the number of kernels: `4`";
    check(expected, |manifest| {
        manifest.layers[1].ffn.kernel = KernelId(4)
    });
    let expected = "`head.kernel` is `ffn`, of group Ffn, expected a kernel of group Head";
    check(expected, |manifest| manifest.head.kernel = KernelId(2));
    let expected =
        "`layers[0].qkv.weights.len()` is `2`, expected `1`, the parameters of kernel `qkv`";
    check(expected, |manifest| {
        manifest.layers[0].qkv.weights.push(WeightId(0))
    });
    let expected =
        "`layers[0].qkv.weights[0]` is `6`, expected less than the number of weights: `6`";
    check(expected, |manifest| {
        manifest.layers[0].qkv.weights[0] = WeightId(6)
    });
    let expected = "`head.weights[0]` is weight `model.layers.0.q_proj`, [16, 8] of I8 with centres, \
                    expected [8] of F32, parameter `norm` of kernel `head`";
    check(expected, |manifest| manifest.head.weights[0] = WeightId(1));
    let expected =
        "`layers[0].qkv.rope` is `None`, expected a rotary table, which kernel `qkv` takes";
    check(expected, |manifest| manifest.layers[0].qkv.rope = None);
    let expected =
        "`layers[0].mha.rope` is `0`, expected `None`: kernel `mha` has no rotary inputs";
    check(expected, |manifest| {
        manifest.layers[0].mha.rope = Some(RopeId(0))
    });
    let expected = "`layers[0].qkv.rope` is `1`, expected less than the number of rope tables: `1`";
    check(expected, |manifest| {
        manifest.layers[0].qkv.rope = Some(RopeId(1))
    });
    let expected =
        "`rope[0].width` is `2`, expected `1`, the width of the rotary inputs of kernel `qkv`";
    check(expected, |manifest| {
        manifest.kernels[0].inputs[1].width = 1;
        manifest.kernels[0].inputs[2].width = 1;
    });
}

#[test]
fn known_answers() {
    check(
        "`known_answers.rows` is `0`, expected at least `1`",
        |manifest| manifest.known_answers.as_mut().unwrap().rows = 0,
    );
    check(
        "`known_answers.context` is `33`, expected `1` to `32`",
        |manifest| manifest.known_answers.as_mut().unwrap().context = 33,
    );
    check(
        "`layers[0].qkv.answer` is an answer without `known_answers`, \
         expected `None`, or `known_answers`",
        |manifest| manifest.known_answers = None,
    );
    check(
        "`layers[0].qkv.answer` is a section of `128` bytes, expected `256` bytes",
        |manifest| manifest.known_answers.as_mut().unwrap().rows = 2,
    );
}

#[test]
fn blobs_and_buckets() {
    check(
        "`kernels[0].variants[1].blobs[1].platform` is `3720` once more, \
         expected one blob for a platform",
        |manifest| {
            let blobs = &mut manifest.kernels[0].variants[1].blobs;
            blobs.push(blobs[0].clone());
        },
    );
    check(
        "`kernels[1].variants[1].shape.context` is `3`, expected at least the chunk, `4`",
        |manifest| {
            manifest.kernels[1].variants[1].shape = ShapeClass::Bucket {
                tokens: 4,
                context: 3,
            };
        },
    );
    check(
        "`kernels[0].variants[1].shape` is a bucket for a kernel of group Qkv, \
         expected buckets for attention only",
        |manifest| {
            manifest.kernels[0].variants[1].shape = ShapeClass::Bucket {
                tokens: 4,
                context: 8,
            };
        },
    );
    check(
        "`kernels[0].variants[1].program` is a program for Npu, Static { tokens: 4 }, \
         expected `None`, or a dynamic variant for the CPU",
        |manifest| {
            manifest.kernels[0].variants[1].program = manifest.kernels[0].variants[0].program;
        },
    );
    check(
        "`kernels[0].variants[0].tolerance` is `NaN`, expected a finite share above `0`",
        |manifest| manifest.kernels[0].variants[0].tolerance = f32::NAN,
    );
}

/// A terminal would carry such characters out, or reorder the text.
#[test]
fn names_that_are_not_shown_as_they_are() {
    let expected = r"`model.name` is `tiny\u{1b}[2J`, expected text without control characters";
    check(expected, |manifest| {
        manifest.model.name = "tiny\u{1b}[2J".into()
    });
    let expected = r"`kernels[0].name` is `a\nb`, expected text without control characters";
    check(expected, |manifest| {
        manifest.kernels[0].name = "a\nb".into()
    });
    let expected = r"`kernels[0].ops` is `\u{9b}m`, expected text without control characters";
    check(expected, |manifest| {
        manifest.kernels[0].ops = vec!["\u{9b}m".into()]
    });
    let expected = r"`weights[0].name` is `\u{202e}x`, expected text without control characters";
    check(expected, |manifest| {
        manifest.weights[0].name = "\u{202e}x".into()
    });
    let expected = r"`provenance.compiler` is `\u{7}`, expected text without control characters";
    check(expected, |manifest| {
        manifest.provenance.compiler = "\u{7}".into()
    });
}

/// Gathering rows of the table needs floating-point numbers.
#[test]
fn an_embedding_of_whole_numbers() {
    let expected = "`weights[0].element` is `I64`, expected numbers that a row of the embedding's table can have: \
                    `I8`, `F16`, `Bf16` or `F32`";
    check(expected, |manifest| {
        let table = &mut manifest.weights[0];
        let values = table.values;
        let gone = [table.scales.take(), table.centres.take()];
        table.element = ElementType::I64;
        let elements: u64 = table.shape.iter().map(|dim| u64::from(*dim)).product();
        manifest
            .sections
            .retain(|section| !gone.contains(&Some(section.id)));
        for section in &mut manifest.sections {
            if section.id == values {
                section.bytes = elements * ElementType::I64.bytes();
            }
        }
    });
}
