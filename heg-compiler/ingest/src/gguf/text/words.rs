//! The ways in which byte-level tokenizers split text into words before their merges, by their names in GGUF.
//!
//! The names are llama.cpp's; the patterns are those of the models' own `tokenizer.json`.

use serde_json::{Value, json};

/// A way of splitting, and the properties that llama.cpp ties to its names.
#[derive(Debug)]
pub(super) struct Words {
    /// Names in `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    cut: Cut,
    pub(super) form: UnicodeForm,
    pub(super) whole_words: WholeWords,
    /// Whether text begins with the begin token unless the file says otherwise.
    pub(super) adds_bos: bool,
}

#[derive(Debug)]
enum Cut {
    /// GPT-2's words.
    Gpt2,
    /// Each digit alone, then GPT-2's words.
    DigitsThenGpt2,
    /// The matches of each pattern, one pattern after the other; then each digit alone if the flag is set.
    Patterns(&'static [&'static str]),
    PatternsThenDigits(&'static [&'static str]),
}

/// Normalisation of the text before it is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnicodeForm {
    AsWritten,
    /// Canonical composition.
    Nfc,
}

/// Whether a word that is a token is taken whole, or made by merges like any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WholeWords {
    Merged,
    Taken,
}

impl Words {
    /// The way with this name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        WORDS.iter().find(|words| words.names.contains(&name))
    }

    /// The value of `pre_tokenizer` in a `tokenizer.json`.
    pub(super) fn pre_tokenizer(&self) -> Value {
        let split = |pattern: &&str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let digits = json!({"type": "Digits", "individual_digits": true});
        let bytes = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
        let steps: Vec<Value> = match self.cut {
            Cut::Gpt2 => return bytes(true),
            Cut::DigitsThenGpt2 => vec![digits, bytes(true)],
            Cut::Patterns(patterns) => patterns.iter().map(split).chain([bytes(false)]).collect(),
            Cut::PatternsThenDigits(patterns) => {
                let splits = patterns.iter().map(split);
                splits.chain([digits, bytes(false)]).collect()
            }
        };
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}

/// All names, for a message.
pub(super) fn names() -> String {
    let mut names: Vec<&str> = WORDS
        .iter()
        .flat_map(|words| words.names)
        .copied()
        .collect();
    names.sort_unstable();
    format!("`{}`", names.join("`, `"))
}

/// The ways of splitting that models of the known architectures use.
const WORDS: &[Words] = &[
    Words {
        names: &[
            "gpt-2",
            "phi-2",
            "mellum",
            "a.x-4.0",
            "trillion",
            "granite-docling",
        ],
        cut: Cut::Gpt2,
        form: UnicodeForm::AsWritten,
        whole_words: WholeWords::Merged,
        adds_bos: false,
    },
    Words {
        names: &["olmo"],
        cut: Cut::Gpt2,
        form: UnicodeForm::Nfc,
        whole_words: WholeWords::Merged,
        adds_bos: false,
    },
    Words {
        names: &["smollm", "starcoder", "refact", "minerva-7b", "mellum2"],
        cut: Cut::DigitsThenGpt2,
        form: UnicodeForm::AsWritten,
        whole_words: WholeWords::Merged,
        adds_bos: false,
    },
    Words {
        names: &["command-r"],
        cut: Cut::DigitsThenGpt2,
        form: UnicodeForm::Nfc,
        whole_words: WholeWords::Merged,
        adds_bos: false,
    },
    Words {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "lfm2",
            "midm-2.0",
            "pixtral",
        ],
        cut: Cut::Patterns(&[CL100K]),
        form: UnicodeForm::AsWritten,
        whole_words: WholeWords::Taken,
        adds_bos: true,
    },
    Words {
        names: &["smaug-bpe", "dbrx"],
        cut: Cut::Patterns(&[CL100K]),
        form: UnicodeForm::AsWritten,
        whole_words: WholeWords::Merged,
        adds_bos: false,
    },
    Words {
        names: &["qwen2", "deepseek-r1-qwen", "megrez", "f2llmv2"],
        cut: Cut::Patterns(&[QWEN2]),
        form: UnicodeForm::Nfc,
        whole_words: WholeWords::Merged,
        adds_bos: false,
    },
    Words {
        names: &["stablelm2", "kormo"],
        cut: Cut::Patterns(&[QWEN2]),
        form: UnicodeForm::AsWritten,
        whole_words: WholeWords::Merged,
        adds_bos: false,
    },
    Words {
        names: &["qwen35"],
        cut: Cut::Patterns(&[QWEN35]),
        form: UnicodeForm::Nfc,
        whole_words: WholeWords::Merged,
        adds_bos: false,
    },
    Words {
        names: &["tekken"],
        cut: Cut::Patterns(&[TEKKEN]),
        form: UnicodeForm::AsWritten,
        whole_words: WholeWords::Taken,
        adds_bos: true,
    },
    Words {
        names: &["gpt-4o", "llama4", "kanana2"],
        cut: Cut::Patterns(&[O200K]),
        form: UnicodeForm::AsWritten,
        whole_words: WholeWords::Merged,
        adds_bos: false,
    },
    Words {
        names: &["seed-coder"],
        cut: Cut::Patterns(&[SEED_CODER]),
        form: UnicodeForm::AsWritten,
        whole_words: WholeWords::Merged,
        adds_bos: false,
    },
    Words {
        names: &["deepseek-coder"],
        cut: Cut::PatternsThenDigits(&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+"]),
        form: UnicodeForm::AsWritten,
        whole_words: WholeWords::Merged,
        adds_bos: false,
    },
];

/// GPT-4's pattern, also used by Llama 3: up to three digits together.
const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Like GPT-4's, with each digit alone.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Like Qwen 2's, with marks as parts of words.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Mistral's pattern: words end where lower case becomes upper case; each digit alone.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// GPT-4o's pattern: like Mistral's, with English endings and up to three digits together.
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Like Qwen 2's, but a line end never belongs to a symbol.
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
