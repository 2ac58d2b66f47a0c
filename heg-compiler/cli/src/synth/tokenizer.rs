//! The small files of a synthesised folder: a byte-level BPE tokenizer without merges (256 bytes
//! and two special tokens), and configuration that agrees with it. Any text can be encoded, and
//! the begin and end tokens exist under the ids that config.json gives.

use serde_json::{Map, Value, json};

/// A tokenizer.json for the `tokenizers` library.
pub(super) fn tokenizer() -> Value {
    let mut vocab: Map<String, Value> = (0..=u8::MAX)
        .map(|byte| (printable(byte).to_string(), json!(byte)))
        .collect();
    vocab.insert(BEGIN.to_string(), json!(BEGIN_ID));
    vocab.insert(END.to_string(), json!(END_ID));
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [added(BEGIN_ID, BEGIN), added(END_ID, END)],
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [special(), sequence("A", 0)],
            "pair": [special(), sequence("A", 0), special(), sequence("B", 1)],
            "special_tokens": {
                BEGIN: { "id": BEGIN, "ids": [BEGIN_ID], "tokens": [BEGIN] },
            },
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [],
        },
    })
}

pub(super) fn config() -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "clean_up_tokenization_spaces": false,
        "model_max_length": 131072,
        "chat_template": CHAT_TEMPLATE,
    })
}

pub(super) fn generation_config() -> Value {
    json!({ "_from_model_config": true, "bos_token_id": BEGIN_ID, "eos_token_id": END_ID })
}

/// The published configuration with the ids of our tokens in place of the published ones.
pub(super) fn with_token_ids(published: &Value) -> Value {
    let mut config = published.clone();
    for (key, id) in [
        ("bos_token_id", BEGIN_ID),
        ("eos_token_id", END_ID),
        ("pad_token_id", END_ID),
    ] {
        if let Some(value) = config.get_mut(key) {
            *value = json!(id);
        }
    }
    config
}

/// GPT-2's map of bytes to printable characters: most stand for themselves, the others follow
/// from U+0100 on in order.
fn printable(byte: u8) -> char {
    let itself = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if itself(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|b| !itself(*b)).count();
    u32::try_from(before)
        .ok()
        .and_then(|n| char::from_u32(0x100 + n))
        .unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn added(id: u16, content: &str) -> Value {
    json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    })
}

fn special() -> Value {
    json!({ "SpecialToken": { "id": BEGIN, "type_id": 0 } })
}

fn sequence(id: &str, kind: u8) -> Value {
    json!({ "Sequence": { "id": id, "type_id": kind } })
}

const BEGIN: &str = "<|begin_of_text|>";
const BEGIN_ID: u16 = 256;
const END: &str = "<|eot_id|>";
const END_ID: u16 = 257;

const CHAT_TEMPLATE: &str = "{{- bos_token }}{%- for message in messages %}\
{{- message['role'] + ': ' + message['content'] + eos_token }}{%- endfor %}\
{%- if add_generation_prompt %}{{- 'assistant: ' }}{%- endif %}";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_byte_has_its_own_character() {
        let all: BTreeSet<char> = (0..=u8::MAX).map(printable).collect();
        assert_eq!(all.len(), 256);
        assert_eq!(
            (printable(b'a'), printable(b' '), printable(0)),
            ('a', 'Ġ', 'Ā')
        );
        assert_eq!((printable(0xad), printable(0x7f)), ('Ń', 'ġ'));
    }

    #[test]
    fn published_token_ids_are_replaced_where_present() {
        let config = with_token_ids(&json!({ "eos_token_id": [1, 106], "vocab_size": 9 }));
        assert_eq!(config, json!({ "eos_token_id": 257, "vocab_size": 9 }));
    }
}
