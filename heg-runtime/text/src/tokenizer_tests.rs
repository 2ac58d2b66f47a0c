//! Tokenizers of several files against the library and against themselves.

use std::sync::Arc;

use super::*;

macro_rules! fixture {
    ($name:literal) => {
        concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/fixtures/tiny-agent/",
            $name
        )
    };
}
pub(in super::super) use fixture;

pub(in super::super) fn tiny_agent() -> Arc<Tokenizer> {
    let bytes = std::fs::read(fixture!("tokenizer.json")).unwrap();
    Arc::new(Tokenizer::from_json(&bytes).unwrap())
}

#[test]
fn the_fast_reader_agrees_with_the_library() {
    let agree = |bytes: &[u8]| {
        let slow = read_with_library(bytes).unwrap();
        let fast = tokenizer_file::read(bytes).unwrap();
        assert_eq!(fast.declared, slow.declared);
        assert_eq!(fast.longest, slow.longest);
        let json = |file: &TokenizerFile| file.tokenizer.to_string(true).unwrap();
        assert_eq!(json(&fast), json(&slow));
        let (count, all) = (token_count(&fast.tokenizer), fast.tokenizer.get_vocab(true));
        assert_eq!(count, all.len());
    };
    agree(&std::fs::read(fixture!("tokenizer.json")).unwrap());
    agree(WORD_PIECES.as_bytes());
}

/// A file with words and their ends, and a token that is not among them.
const WORD_PIECES: &str = r###"{"version": "1.0", "truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0},
    "added_tokens": [
        {"id": 0, "content": "[UNK]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
        {"id": 4, "content": "<more>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": true, "special": false}],
    "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
    "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null,
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9,
        "vocab": {"[UNK]": 0, "rain": 1, "##s": 2, "snow": 3}}}"###;

#[test]
fn word_pieces_are_read_without_the_library() {
    let file = tokenizer_file::read(WORD_PIECES.as_bytes()).unwrap();
    let encoding = file.tokenizer.encode("Rains <more> snowed", false).unwrap();
    assert_eq!(encoding.get_ids(), [1, 2, 4, 0]);
    let without = WORD_PIECES.replace(r###""continuing_subword_prefix": "##", "###, "");
    assert!(tokenizer_file::read(without.as_bytes()).is_err());
    assert!(Tokenizer::from_json(without.as_bytes()).is_err());
}

#[test]
fn a_token_that_the_vocabulary_lacks_is_not_added() {
    let file = |added: &str| {
        format!(
            r#"{{
            "added_tokens": [{added}],
            "post_processor": {{
                "type": "TemplateProcessing",
                "single": [{{"SpecialToken": {{"id": "<x>", "type_id": 0}}}}, {{"Sequence": {{"id": "A", "type_id": 0}}}}],
                "pair": [{{"Sequence": {{"id": "A", "type_id": 0}}}}],
                "special_tokens": {{"<x>": {{"id": "<x>", "ids": [1], "tokens": ["<x>"]}}}}
            }},
            "model": {{"type": "BPE", "vocab": {{"a": 0}}, "merges": []}}
            }}"#
        )
    };
    let known = r#"{"id": 1, "content": "<x>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}"#;
    let whole = Tokenizer::from_json(file(known).as_bytes()).unwrap();
    assert_eq!(whole.encode("a", Special::Add), Ok(vec![1, 0]));
    let broken = Tokenizer::from_json(file("").as_bytes()).unwrap();
    assert_eq!(broken.encode("a", Special::AsWritten), Ok(vec![0]));
    assert_eq!(
        broken.encode("a", Special::Add).unwrap_err().to_string(),
        "tokenizer: the post-processor adds token 1, which the vocabulary does not have"
    );
}

#[test]
fn a_pair_is_joined_by_the_file() {
    let file = |second_type: u32| {
        format!(
            r#"{{
            "added_tokens": [{{"id": 2, "content": "<x>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}}],
            "post_processor": {{
                "type": "TemplateProcessing",
                "single": [{{"Sequence": {{"id": "A", "type_id": 0}}}}],
                "pair": [{{"Sequence": {{"id": "A", "type_id": 0}}}}, {{"SpecialToken": {{"id": "<x>", "type_id": 0}}}},
                    {{"Sequence": {{"id": "B", "type_id": {second_type}}}}},
                    {{"SpecialToken": {{"id": "<x>", "type_id": 0}}}}],
                "special_tokens": {{"<x>": {{"id": "<x>", "ids": [2], "tokens": ["<x>"]}}}}
            }},
            "model": {{"type": "BPE", "vocab": {{"a": 0, "b": 1}}, "merges": []}}
            }}"#
        )
    };
    let untyped = Tokenizer::from_json(file(0).as_bytes()).unwrap();
    let pair = untyped.encode_pair("ab", "b").unwrap();
    assert_eq!(pair, (vec![0, 1, 2, 1, 2], 5));
    let odd = Tokenizer::from_json(file(1).as_bytes()).unwrap();
    let said = odd.encode_pair("a", "b").unwrap_err().to_string();
    assert!(
        said.contains("other types than 0 for its first text"),
        "{said}"
    );
    let bert = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/golden/bert/tokenizer.json"
    );
    let bert = Tokenizer::from_json(&std::fs::read(bert).unwrap()).unwrap();
    let (tokens, second_at) = bert.encode_pair("The cat", "sat on").unwrap();
    let texts: Vec<_> = tokens
        .iter()
        .filter_map(|id| bert.token_text(*id))
        .collect();
    assert_eq!(
        texts,
        ["[CLS]", "the", "cat", "[SEP]", "sat", "on", "[SEP]"]
    );
    assert_eq!(second_at, 4);
    let (tokens, second_at) = bert.encode_pair("", "").unwrap();
    assert_eq!((tokens.len(), second_at), (3, 2));
}

#[test]
fn special_tokens_are_added_on_request() {
    let tokenizer = tiny_agent();
    let bare = tokenizer
        .encode("hi<|eot_id|>", Special::AsWritten)
        .unwrap();
    let full = tokenizer.encode("hi<|eot_id|>", Special::Add).unwrap();
    assert_eq!(full[0], tokenizer.token_id("<|begin_of_text|>").unwrap());
    assert_eq!(full[1..], bare);
    assert_eq!(tokenizer.token_text(2041).as_deref(), Some("<|eot_id|>"));
    assert!(tokenizer.is_special(2041) && !tokenizer.is_special(5));
    assert_eq!(tokenizer.decode(&full), Ok("hi".into()));
    assert_eq!(tokenizer.token_count(), 2048);
    assert_eq!(
        (tokenizer.token_text(2048), tokenizer.decode(&[2048])),
        (None, Ok(String::new()))
    );
}

proptest::proptest! {
    /// A text is refused by its length only if it has too many tokens.
    #[test]
    fn no_token_is_longer_than_the_longest(text in r"(?s)(<\|eot_id\|>|  {0,40}|the |\n|.){0,60}") {
        let tokenizer = tiny_agent();
        let tokens = tokenizer.encode(&text, Special::AsWritten).unwrap().len();
        proptest::prop_assert!(text.len() <= tokens * tokenizer.token_bytes_max());
    }
}

#[test]
fn the_longest_token_is_known() {
    let tokenizer = tiny_agent();
    let text = tokenizer.token_id("<|start_header_id|>");
    assert!(text.is_some() && tokenizer.token_bytes_max() >= "<|start_header_id|>".len());
    assert_eq!(tokenizer.token_bytes_max(), 28);
}

#[test]
fn truncation_in_the_file_is_switched_off() {
    let text = std::fs::read_to_string(fixture!("tokenizer.json")).unwrap();
    let short = r#""truncation": {"max_length":2,"strategy":"LongestFirst","stride":0,"direction":"Right"}"#;
    let text = text.replacen(r#""truncation": null"#, short, 1);
    assert!(text.contains("max_length"));
    let tokenizer = Tokenizer::from_json(text.as_bytes()).unwrap();
    assert!(
        tokenizer
            .encode("one two three four", Special::Add)
            .unwrap()
            .len()
            > 3
    );
    let slow = read_with_library(text.as_bytes()).unwrap().tokenizer;
    assert!(slow.encode("one two three four", true).unwrap().len() > 3);
}

/// After a million blanks, the library used to stop splitting words, without an error.
#[test]
fn no_run_of_blanks_changes_how_the_rest_is_cut() {
    let tokenizer = tiny_agent();
    let rest = "the rest of it, 12345 words";
    let encode = |blanks: usize| {
        let text = format!("so{}\n{rest}", " ".repeat(blanks));
        tokenizer.encode(&text, Special::AsWritten)
    };
    let expected = tokenizer.encode(rest, Special::AsWritten).unwrap();
    for blanks in [10, BLANKS_MAX - 1] {
        assert!(encode(blanks).unwrap().ends_with(&expected), "{blanks}");
    }
    for blanks in [BLANKS_MAX, 1_000_100, 3_000_000] {
        let found = blanks + 1;
        let most = BLANKS_MAX;
        assert_eq!(encode(blanks), Err(TextError::Blanks { found, most }));
    }
}

/// A file that the fast reader leaves to the library.
#[test]
fn other_models_load_too() {
    let json =
        r#"{"version":"1.0","model":{"type":"WordLevel","unk_token":"?","vocab":{"?":0,"hi":1}}}"#;
    let tokenizer = Tokenizer::from_json(json.as_bytes()).unwrap();
    assert_eq!(tokenizer.encode("hi", Special::AsWritten), Ok(vec![1]));
    assert_eq!(tokenizer.form(), Form::Other);
}

#[test]
fn shifted_added_tokens_are_refused() {
    let json = r#"{"added_tokens":[{"id":7,"content":"<x>","single_word":false,"lstrip":false,
        "rstrip":false,"normalized":false,"special":true}],
        "model":{"type":"BPE","vocab":{"a":0},"merges":[]}}"#;
    let error = Tokenizer::from_json(json.as_bytes()).unwrap_err();
    let expect = "added token `<x>`: file says id 7, the vocabulary gives id 1";
    assert_eq!(error.to_string(), expect);
}

#[test]
fn broken_files_are_errors() {
    let bytes = std::fs::read(fixture!("tokenizer.json")).unwrap();
    for length in (0..bytes.len()).step_by(bytes.len() / 40) {
        let error = Tokenizer::from_json(&bytes[..length]).unwrap_err();
        assert!(error.to_string().starts_with("tokenizer: "), "{error}");
    }
    for json in [
        "",
        "null",
        "[]",
        "{}",
        r#"{"model":{"type":"BPE"}}"#,
        r#"{"model":3}"#,
        "\0",
    ] {
        assert!(Tokenizer::from_json(json.as_bytes()).is_err(), "{json}");
    }
}
