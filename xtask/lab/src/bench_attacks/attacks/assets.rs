//! Untrusted models with a hostile chat template or tokenizer. A clear refusal by the compiler or at the start of the
//! server is as good as an error for each request.

use super::super::attack::{Act, Attack, TextAssets};
use serde_json::{Value, json};
use std::time::Duration;

pub(super) fn attacks() -> Vec<Attack> {
    let template = hostile(
        "deep-template",
        "07",
        "a chat template that nests a list deeply",
        |assets| assets.template = format!("{DEEP_LIST}{PLAIN_MESSAGES}"),
    );
    let ids = hostile(
        "added-ids",
        "23",
        "an added token with the largest id",
        |assets| add_token(assets, u32::MAX),
    );
    let normalizers = NORMALIZERS.map(|(name, about, normalizer)| {
        hostile(name, "23", about, move |assets| {
            let normalizer = normalizer();
            assets.tokenizer.insert("normalizer".to_owned(), normalizer);
        })
    });
    let splits = SPLITS.map(|(name, about, pattern)| {
        hostile(name, "23", about, move |assets| split(assets, &pattern()))
    });
    [template, ids]
        .into_iter()
        .chain(normalizers)
        .chain(splits)
        .collect()
}

/// The name of an attack, its short description, and the normalizer.
type HostileNormalizer = (&'static str, &'static str, fn() -> Value);

const NORMALIZERS: [HostileNormalizer; 4] = [
    (
        "growing-tokenizer",
        "a becomes 100 a, five times over",
        || {
            let grow = replacement("a", &"a".repeat(100));
            json!({ "type": "Sequence", "normalizers": vec![grow; 5] })
        },
    ),
    ("empty-replacement", "nothing becomes 1 000 letters", || {
        replacement("", &"x".repeat(1000))
    }),
    (
        "deep-normalizers",
        "60 sequences of normalizers, each in another",
        || {
            let wrap = |inner, _| json!({ "type": "Sequence", "normalizers": [inner] });
            (0..60).fold(json!({ "type": "NFC" }), wrap)
        },
    ),
    (
        "broken-charsmap",
        "a precompiled map that is cut off",
        || json!({ "type": "Precompiled", "precompiled_charsmap": "AAAAAP////8=" }),
    ),
];

fn replacement(of: &str, by: &str) -> Value {
    json!({ "type": "Replace", "pattern": { "String": of }, "content": by })
}

fn add_token(assets: &mut TextAssets, id: u32) {
    let token = json!({
        "id": id, "content": "<x>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    });
    let added = assets.tokenizer.get_mut("added_tokens");
    if let Some(added) = added.and_then(Value::as_array_mut) {
        added.push(token);
    }
}

/// The name of an attack, its short description, and the pattern.
type HostileSplit = (&'static str, &'static str, fn() -> String);

/// Patterns at which a tokenizer splits text.
const SPLITS: [HostileSplit; 5] = [
    ("counted-split", "counted repetitions in each other", || {
        "(?:(?:(?:(?=a)a|b){1,500}){1,500}){1,500}".to_owned()
    }),
    ("catastrophic-split", "a pattern that backtracks", || {
        r"(?:a|a|aa)+(?=!)|\s".to_owned()
    }),
    ("deep-split", "20 000 groups", || nested("(?:")),
    ("deep-lookaheads", "20 000 look-aheads", || nested("(?=")),
    ("backreferences", "a pattern of back-references", || {
        r"(a*)*\1\1\1b".to_owned()
    }),
];

fn hostile(
    name: &'static str,
    script: &'static str,
    about: &'static str,
    change: impl Fn(&mut TextAssets) + Send + Sync + 'static,
) -> Attack {
    Attack {
        budget: Some(TEXT_BUDGET),
        ..Attack::new(name, script, about, Act::Folder(Box::new(change)))
    }
}

/// Chosen: the same as for compiling a form.
const TEXT_BUDGET: Duration = Duration::from_secs(2);

/// A million levels.
const DEEP_LIST: &str = "{%- set ns = namespace(x=[]) -%}\
    {%- for i in range(1000) -%}{%- for j in range(1000) -%}\
    {%- set ns.x = [ns.x] -%}{%- endfor -%}{%- endfor -%}";

const PLAIN_MESSAGES: &str = "{%- for message in messages -%}{{ message.content }}{%- endfor -%}";

fn split(assets: &mut TextAssets, pattern: &str) {
    let steps = json!([
        {
            "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated",
            "invert": false,
        },
        {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false,
        },
    ]);
    let sequence = json!({ "type": "Sequence", "pretokenizers": steps });
    assets
        .tokenizer
        .insert("pre_tokenizer".to_owned(), sequence);
}

fn nested(open: &str) -> String {
    const LEVELS: usize = 20_000;
    format!("{}a{}", open.repeat(LEVELS), ")".repeat(LEVELS))
}
