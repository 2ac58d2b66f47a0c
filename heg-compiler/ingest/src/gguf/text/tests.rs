//! The tokenizers that vocabularies give, and the errors of those that give none. Token ids are pinned in
//! `tests/it/gguf_text.rs`, with the runtime's tokenizer.

use proptest::prelude::*;
use serde_json::Value;

use super::{NamedIds, TemplateOf, TextAssets, Vocabulary, VocabularyMistake};

/// A byte-level vocabulary: two merges, a begin token, two ends.
fn byte_level() -> Vocabulary<'static> {
    Vocabulary {
        architecture: "llama",
        model: "gpt2",
        pre: Some("smollm"),
        tokens: vec![
            "<|bos|>",
            "<|im_end|>",
            "<|endoftext|>",
            "a",
            "b",
            "Ġ",
            "ab",
            "Ġab",
            "  ",
        ],
        token_types: Some(vec![3, 3, 3, 1, 1, 1, 1, 1, 4]),
        merges: Some(vec!["a b", "Ġ ab"]),
        ids: NamedIds {
            bos: Some(0),
            eos: Some(1),
            ..NamedIds::default()
        },
        ..Vocabulary::default()
    }
}

/// A vocabulary with scores: `ab` before `bc`; tokens of spaces are user-defined.
fn sentence_piece() -> Vocabulary<'static> {
    Vocabulary {
        architecture: "gemma3",
        model: "llama",
        pre: Some("default"),
        tokens: vec![
            "<unk>", "<s>", "</s>", "▁", "a", "b", "c", "ab", "bc", "abc", "  ", "xyz",
        ],
        token_types: Some(vec![2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 4, 1]),
        scores: Some(vec![
            0., 0., 0., -7., -4., -5., -6., -1., -2., -3., -1000., -0.,
        ]),
        add_space_prefix: Some(false),
        ..Vocabulary::default()
    }
}

fn mistake(vocabulary: &Vocabulary<'_>) -> String {
    TextAssets::from_vocabulary(vocabulary)
        .unwrap_err()
        .to_string()
}

fn file(vocabulary: &Vocabulary<'_>) -> Value {
    let assets = TextAssets::from_vocabulary(vocabulary).unwrap();
    serde_json::from_slice(&assets.tokenizer.unwrap()).unwrap()
}

#[test]
fn a_byte_level_vocabulary_becomes_a_file() {
    let file = file(&byte_level());
    insta::assert_snapshot!(serde_json::to_string_pretty(&file).unwrap());
}

#[test]
fn scores_become_merges() {
    let file = file(&sentence_piece());
    insta::assert_snapshot!(serde_json::to_string_pretty(&file).unwrap());
}

#[test]
fn the_same_metadata_give_the_same_bytes() {
    for vocabulary in [byte_level(), sentence_piece()] {
        let once = TextAssets::from_vocabulary(&vocabulary).unwrap();
        assert_eq!(
            once,
            TextAssets::from_vocabulary(&vocabulary.clone()).unwrap()
        );
    }
}

#[test]
fn what_a_file_leaves_out_is_as_llama_cpp_has_it() {
    let mut scores = sentence_piece();
    scores.add_space_prefix = None;
    let whole = file(&scores);
    assert_eq!(
        whole["post_processor"]["single"][0]["SpecialToken"]["id"],
        "<s>"
    );
    assert_eq!(whole["normalizer"]["normalizers"][0]["prepend"], "▁");
    // User-defined spaces are searched for in the text as written.
    assert_eq!(whole["added_tokens"][3]["content"], "  ");
    assert_eq!(whole["added_tokens"][3]["normalized"], false);

    let mut bytes = byte_level();
    assert_eq!(file(&bytes)["post_processor"], Value::Null);
    assert_eq!(file(&bytes)["model"]["ignore_merges"], false);
    bytes.pre = Some("llama-bpe");
    let whole = file(&bytes);
    assert_eq!(
        whole["post_processor"]["single"][0]["SpecialToken"]["id"],
        "<|bos|>"
    );
    assert_eq!(whole["model"]["ignore_merges"], true);
    bytes.add_bos_token = Some(false);
    bytes.add_eos_token = Some(true);
    let single = &file(&bytes)["post_processor"]["single"];
    assert_eq!(single[1]["SpecialToken"]["id"], "<|im_end|>");
    assert_eq!(single[2], Value::Null);
}

#[test]
fn ends_are_the_named_ids_and_the_known_names() {
    let ends =
        |vocabulary: &Vocabulary<'_>| TextAssets::from_vocabulary(vocabulary).unwrap().eos_ids;
    assert_eq!(ends(&byte_level()), [1, 2]);
    let mut other = byte_level();
    other.ids = NamedIds {
        eot: Some(4),
        eom: Some(3),
        ..NamedIds::default()
    };
    assert_eq!(ends(&other), [4, 3, 1, 2]);
    // `</s>` is a tag of HTML in some vocabularies, and an end if it is a control token.
    let mut tags = sentence_piece();
    assert_eq!(ends(&tags), [2]);
    tags.token_types.as_mut().unwrap()[2] = 4;
    assert_eq!(ends(&tags), [0_u32; 0]);
    tags.token_types = None;
    tags.ids.unk = Some(0);
    assert_eq!(ends(&tags), [0_u32; 0]);
}

#[test]
fn special_tokens_have_their_names() {
    let tokens = TextAssets::from_vocabulary(&sentence_piece())
        .unwrap()
        .special_tokens;
    let tokens: Vec<_> = tokens
        .iter()
        .map(|(name, text)| format!("{name} {text}"))
        .collect();
    assert_eq!(
        tokens,
        ["bos_token <s>", "eos_token </s>", "unk_token <unk>"]
    );
}

#[test]
fn phi_swallows_white_space_behind_its_tokens() {
    let mut phi = sentence_piece();
    let stripped = |file: &Value| {
        let tokens = file["added_tokens"].as_array().unwrap().iter();
        let stripped = tokens.filter(|token| token["rstrip"] == true);
        stripped
            .map(|token| token["content"].to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(stripped(&file(&phi)), [""; 0]);
    phi.architecture = "phi3";
    assert_eq!(stripped(&file(&phi)), ["\"</s>\"", "\"▁▁\""]);
}

#[test]
fn the_main_template_wins_then_the_default_then_the_only_one() {
    let chosen = |templates: &[(Option<&'static str>, &'static str)]| {
        let templates = templates
            .iter()
            .map(|&(name, source)| TemplateOf { name, source });
        let templates = templates.collect();
        let assets = TextAssets::from_vocabulary(&Vocabulary {
            templates,
            ..byte_level()
        });
        assets.map(|assets| assets.chat_template)
    };
    let (main, default, rag) = ((None, "m"), (Some("default"), "d"), (Some("rag"), "r"));
    assert_eq!(chosen(&[]).unwrap(), None);
    assert_eq!(chosen(&[rag, default, main]).unwrap().as_deref(), Some("m"));
    assert_eq!(chosen(&[rag, default]).unwrap().as_deref(), Some("d"));
    assert_eq!(chosen(&[rag]).unwrap().as_deref(), Some("r"));
    let error = chosen(&[rag, (Some("tool_use"), "t")]).unwrap_err();
    let expected = "chat templates `rag`, `tool_use`, expected `tokenizer.chat_template` or one named `default`";
    assert_eq!(error.to_string(), expected);
    let long: &'static str = Box::leak("x".repeat((1 << 20) + 1).into_boxed_str());
    let error = chosen(&[(None, long)]).unwrap_err();
    assert!(matches!(
        error,
        VocabularyMistake::TooLarge {
            found_bytes: 1_048_577,
            ..
        }
    ));
}

#[test]
fn mistakes_say_what_was_found_and_expected() {
    type Change = fn(&mut Vocabulary<'static>);
    let bytes: [Change; 17] = [
        |v| v.model = "",
        |v| v.model = "t5",
        |v| v.tokens = Vec::new(),
        |v| v.pre = None,
        |v| v.pre = Some("default"),
        |v| v.pre = Some("klingon"),
        |v| v.merges = None,
        |v| v.merges = Some(vec!["a b", "b a"]),
        |v| v.merges = Some(vec!["ab"]),
        |v| v.merges = Some(vec!["a  b"]),
        |v| v.tokens[4] = "a",
        |v| v.token_types = Some(vec![1; 8]),
        |v| v.token_types.as_mut().unwrap()[3] = 7,
        |v| v.ids.eos = Some(9),
        |v| v.ids.pad = Some(u64::MAX),
        |v| {
            v.add_bos_token = Some(true);
            v.ids.bos = None;
        },
        |v| v.scores = Some(vec![0.0; 10]),
    ];
    let scores: [Change; 6] = [
        |v| v.scores = None,
        |v| v.scores.as_mut().unwrap()[5] = f32::NAN,
        |v| v.remove_extra_whitespaces = Some(true),
        |v| v.token_types.as_mut().unwrap()[0] = 1,
        |v| v.tokens[11] = Box::leak("y".repeat(257).into_boxed_str()),
        |v| v.tokens.push("more"),
    ];
    let changed = |mut vocabulary: Vocabulary<'static>, change: Change| {
        change(&mut vocabulary);
        mistake(&vocabulary)
    };
    let bytes = bytes.map(|change| changed(byte_level(), change));
    let scores = scores.map(|change| changed(sentence_piece(), change));
    insta::assert_snapshot!([bytes.join("\n"), scores.join("\n")].join("\n"));
}

/// A list of up to `length` entries, sometimes absent.
fn maybe<T: std::fmt::Debug + Clone + 'static>(
    entry: impl Strategy<Value = T> + 'static,
    length: usize,
) -> impl Strategy<Value = Option<Vec<T>>> {
    prop::option::weighted(0.9, prop::collection::vec(entry, length))
}

prop_compose! {
    fn any_vocabulary()(length in 0_usize..12)(
        model in prop::sample::select(vec!["gpt2", "llama", "bert", ""]),
        pre in prop::sample::select(vec![Some("smollm"), Some("tekken"), Some("default"), None]),
        tokens in prop::collection::vec("[ab▁ ]{0,4}|<unk>|</s>|<\\|end\\|>", length),
        scores in maybe(any::<f32>(), length),
        token_types in maybe(-1_i32..8, length),
        merges in maybe("[ab]{0,2} ?[ab]{0,2}", length),
        ids in prop::array::uniform4(prop::option::of(0_u64..14)),
        flags in prop::array::uniform4(any::<Option<bool>>()),
    ) -> Vocabulary<'static> {
        let leaked = |texts: Vec<String>| -> Vec<&'static str> {
            texts.into_iter().map(|text| -> &'static str { Box::leak(text.into_boxed_str()) }).collect()
        };
        Vocabulary {
            architecture: "llama",
            model,
            pre,
            tokens: leaked(tokens),
            scores,
            token_types,
            merges: merges.map(leaked),
            ids: NamedIds { bos: ids[0], eos: ids[1], unk: ids[2], eot: ids[3], ..NamedIds::default() },
            add_bos_token: flags[0],
            add_eos_token: flags[1],
            add_space_prefix: flags[2],
            remove_extra_whitespaces: flags[3],
            templates: Vec::new(),
        }
    }
}

proptest! {
    /// Any vocabulary gives either a tokenizer or an error.
    #[test]
    fn no_vocabulary_panics(vocabulary in any_vocabulary()) {
        if let Ok(assets) = TextAssets::from_vocabulary(&vocabulary) {
            let file: Value = serde_json::from_slice(&assets.tokenizer.unwrap()).unwrap();
            prop_assert_eq!(file["model"]["vocab"].as_object().unwrap().len(), vocabulary.tokens.len());
            prop_assert!(assets.eos_ids.iter().all(|id| (*id as usize) < vocabulary.tokens.len()));
        }
    }
}

/// A GGUF file of metadata alone: keys with type and value in the format's encoding.
fn container(entries: &[(&str, u32, Vec<u8>)]) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend(0_u64.to_le_bytes());
    file.extend((entries.len() as u64).to_le_bytes());
    for (key, kind, value) in entries {
        file.extend(text(key));
        file.extend(kind.to_le_bytes());
        file.extend(value);
    }
    file
}

#[test]
fn the_keys_of_a_file_are_read() {
    let text = |text: &[u8]| [&(text.len() as u64).to_le_bytes(), text].concat();
    let array = |kind: u32, entries: &[Vec<u8>]| {
        let count = (entries.len() as u64).to_le_bytes();
        [&kind.to_le_bytes(), count.as_slice(), &entries.concat()].concat()
    };
    let texts =
        |list: &[&[u8]]| array(8, &list.iter().map(|entry| text(entry)).collect::<Vec<_>>());
    let number = |number: u32| number.to_le_bytes().to_vec();
    let mut entries = vec![
        ("general.architecture", 8, text(b"llama")),
        ("tokenizer.ggml.model", 8, text(b"gpt2")),
        ("tokenizer.ggml.pre", 8, text(b"smollm")),
        (
            "tokenizer.ggml.tokens",
            9,
            texts(&[b"<e>", b"a", b"b", b"ab"]),
        ),
        (
            "tokenizer.ggml.token_type",
            9,
            array(5, &[3, 1, 1, 1].map(number)),
        ),
        ("tokenizer.ggml.merges", 9, texts(&[b"a b"])),
        ("tokenizer.ggml.eos_token_id", 4, number(0)),
        ("tokenizer.ggml.add_eos_token", 7, vec![1]),
        ("tokenizer.chat_template.rag", 8, text(b"r")),
        ("tokenizer.chat_template", 8, text(b"main")),
        ("tokenizer.chat_templates", 9, texts(&[b"rag"])),
    ];
    let path = std::path::Path::new("model.gguf");
    let file = container(&entries);
    let vocabulary = Vocabulary::read(path, &file).unwrap();
    assert_eq!(vocabulary.tokens, ["<e>", "a", "b", "ab"]);
    assert_eq!(vocabulary.merges.as_deref(), Some(&["a b"][..]));
    assert_eq!((vocabulary.ids.eos, vocabulary.ids.bos), (Some(0), None));
    assert_eq!(vocabulary.add_eos_token, Some(true));
    let assets = TextAssets::from_vocabulary(&vocabulary).unwrap();
    assert_eq!(assets.chat_template.as_deref(), Some("main"));
    assert_eq!(assets.eos_ids, [0]);

    entries[3].2 = texts(&[b"<e>", b"a", b"\xff", b"ab"]);
    let error = Vocabulary::read(path, &container(&entries)).unwrap_err();
    let expected = "tokenizer of `model.gguf`: key `tokenizer.ggml.tokens`, entry 2: not UTF-8";
    assert_eq!(error.to_string(), expected);
    // A file without a tokenizer has an empty vocabulary, which is refused.
    let bare = container(&entries[..1]);
    let bare = TextAssets::from_vocabulary(&Vocabulary::read(path, &bare).unwrap());
    assert!(matches!(
        bare,
        Err(VocabularyMistake::Missing {
            key: "tokenizer.ggml.model"
        })
    ));
}
