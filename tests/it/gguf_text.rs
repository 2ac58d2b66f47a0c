//! Tokenizers of GGUF files, in the runtime that reads them: the ids are the reference's, and decode to the text.
//!
//! SentencePiece's own algorithm is here in twenty lines, as the reference for scores. SmolLM2's ids and chats in
//! `fixtures/gguf` are those of Hugging Face's Python `tokenizers` and `transformers`; the file itself is not kept, so
//! its tests are skipped if `cargo xtask fetch-model smollm2-135m-instruct` was not run.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use heg_ingest::{NamedIds, TextAssets, Vocabulary};
use heg_tests::{fetched, fixture};
use heg_text::{ChatTemplate, Conversation, Message, Special, Tokenizer};
use proptest::prelude::*;
use serde::Deserialize;

fn tokenizer(vocabulary: &Vocabulary<'_>) -> Tokenizer {
    let assets = TextAssets::from_vocabulary(vocabulary).unwrap();
    Tokenizer::from_json(&assets.tokenizer.unwrap()).unwrap()
}

/// Encodes a text, and checks that the ids decode to it; returns the ids.
fn there_and_back(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let ids = tokenizer.encode(text, Special::AsWritten).unwrap();
    assert_eq!(tokenizer.decode(&ids).unwrap(), text, "{text:?}");
    ids
}

/// A byte-level vocabulary: the letters of the printable bytes, then `pieces`, then a begin and an end token.
struct ByteLevel {
    tokens: Vec<String>,
    merges: Vec<String>,
}

impl ByteLevel {
    fn new(merges: &[&str]) -> Self {
        let letters = ('!'..='~').chain(['Ġ', 'Ċ', 'č', 'Ã', '©', 'Ì', 'ģ']);
        let mut tokens: Vec<String> = letters.map(String::from).collect();
        tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
        tokens.extend(["<|bos|>", "<|end|>", "<tool>", "    "].map(String::from));
        let merges = merges.iter().map(|merge| (*merge).to_owned()).collect();
        Self { tokens, merges }
    }

    fn vocabulary(&self, pre: &'static str) -> Vocabulary<'_> {
        let count = self.tokens.len();
        let mut types = vec![1; count];
        types[count - 4..].copy_from_slice(&[3, 3, 4, 4]);
        Vocabulary {
            architecture: "llama",
            model: "gpt2",
            pre: Some(pre),
            tokens: self.tokens.iter().map(String::as_str).collect(),
            token_types: Some(types),
            merges: Some(self.merges.iter().map(String::as_str).collect()),
            ids: NamedIds {
                bos: Some(count as u64 - 4),
                eos: Some(count as u64 - 3),
                ..NamedIds::default()
            },
            ..Vocabulary::default()
        }
    }
}

/// Returns the tokens of a text, in the notation of the vocabulary.
fn words(tokenizer: &Tokenizer, text: &str) -> String {
    let ids = there_and_back(tokenizer, text);
    let words = ids.iter().map(|&id| tokenizer.token_text(id).unwrap());
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn names_cut_text_as_their_models_do() {
    let merges = [
        "1 2", "12 3", "Ġ Ġ", "a b", "ab c", "Ġ abc", "' s", "' S", "b c",
    ];
    let vocabulary = ByteLevel::new(&merges);
    let check = |pre: &'static str, text: &str, expected: &str| {
        let tokenizer = tokenizer(&vocabulary.vocabulary(pre));
        assert_eq!(words(&tokenizer, text), expected, "{pre}");
    };
    // Runs of digits: whole, one by one, or in threes.
    check("gpt-2", "1231", "123 1");
    check("smollm", "1231", "1 2 3 1");
    check("llama-bpe", "12312", "123 12");
    check("dbrx", "12312", "123 12");
    check("qwen2", "12312", "1 2 3 1 2");
    check("tekken", "123", "1 2 3");
    check("gpt-4o", "123123", "123 123");
    check("deepseek-coder", "123", "1 2 3");
    // Spaces before a digit stay together in tokenizers that split the digit off first.
    check("gpt-2", "a  1", "a Ġ Ġ 1");
    check("smollm", "a  1", "a ĠĠ 1");
    // Capitalised endings, and words that continue in capitals.
    check("gpt-2", "x'S", "x ' S");
    check("llama-bpe", "x'S", "x 'S");
    check("llama-bpe", "aBc abc", "a B c Ġabc");
    check("tekken", "bcBC", "bc B C");
    // Some tokenizers take a word that is a token as a whole, others build it by its merges.
    let mut whole = ByteLevel::new(&["a b", "ab c"]);
    whole.merges.pop();
    assert_eq!(
        words(&tokenizer(&whole.vocabulary("llama-bpe")), "abc"),
        "abc"
    );
    assert_eq!(
        words(&tokenizer(&whole.vocabulary("smaug-bpe")), "abc"),
        "ab c"
    );
}

#[test]
fn accents_are_composed_where_the_model_composes_them() {
    let vocabulary = ByteLevel::new(&["Ã ©"]);
    let (composed, apart) = ("\u{e9}", "e\u{301}");
    let words = |pre: &'static str, text: &str| {
        let tokenizer = tokenizer(&vocabulary.vocabulary(pre));
        let ids = tokenizer.encode(text, Special::AsWritten).unwrap();
        let words = ids.iter().map(|&id| tokenizer.token_text(id).unwrap());
        words.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(words("qwen2", apart), words("qwen2", composed));
    assert_eq!(words("llama-bpe", composed), "Ã©");
    assert_eq!(words("llama-bpe", apart), "e Ì ģ");
}

#[test]
fn written_tokens_are_found_and_begin_tokens_added() {
    let vocabulary = ByteLevel::new(&["h i"]);
    let tokenizer = tokenizer(&vocabulary.vocabulary("llama-bpe"));
    let [bos, end, tool, spaces] =
        ["<|bos|>", "<|end|>", "<tool>", "    "].map(|text| tokenizer.token_id(text).unwrap());
    let hi = tokenizer.token_id("hi").unwrap();
    let text = "hi<|end|><tool>    hi";
    let bare = tokenizer.encode(text, Special::AsWritten).unwrap();
    assert_eq!(bare, [hi, end, tool, spaces, hi]);
    let full = tokenizer.encode(text, Special::Add).unwrap();
    assert_eq!(full, [&[bos], bare.as_slice()].concat());
    // User-defined tokens are text, special tokens are not.
    assert_eq!(tokenizer.decode(&bare).unwrap(), "hi<tool>    hi");
}

/// A vocabulary with scores: specials, bytes if requested, pieces in the order of their scores, user-defined tokens.
struct Scores {
    tokens: Vec<String>,
    types: Vec<i32>,
    add_space_prefix: bool,
}

impl Scores {
    fn new(pieces: &[&str], users: &[&str], add_space_prefix: bool) -> Self {
        let mut tokens = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
        tokens.extend((0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")));
        let mut types = [vec![2, 3, 3], vec![6; 256]].concat();
        for (texts, number) in [(pieces, 1), (users, 4)] {
            tokens.extend(texts.iter().map(|text| (*text).to_owned()));
            types.extend(texts.iter().map(|_| number));
        }
        Self {
            tokens,
            types,
            add_space_prefix,
        }
    }

    fn vocabulary(&self) -> Vocabulary<'_> {
        Vocabulary {
            architecture: "llama",
            model: "llama",
            tokens: self.tokens.iter().map(String::as_str).collect(),
            token_types: Some(self.types.clone()),
            scores: Some((0..self.tokens.len()).map(|id| -(id as f32)).collect()),
            add_space_prefix: Some(self.add_space_prefix),
            ..Vocabulary::default()
        }
    }

    /// SentencePiece's tokens of a text: of all neighbours that form a piece, those with the highest score are merged,
    /// the leftmost first, until there are none. Letters without a token become bytes.
    fn reference(&self, text: &str) -> Vec<u32> {
        let ids: HashMap<&str, u32> = self.tokens.iter().map(String::as_str).zip(0..).collect();
        let piece = |text: &str| ids.get(text).filter(|id| self.types[**id as usize] == 1);
        let mut symbols: Vec<String> = text.replace(' ', "▁").chars().map(String::from).collect();
        loop {
            let pairs = symbols.windows(2).enumerate();
            let pairs = pairs.filter_map(|(left, pair)| Some((*piece(&pair.concat())?, left)));
            let Some((_, left)) = pairs.min() else { break };
            let right = symbols.remove(left + 1);
            symbols[left].push_str(&right);
        }
        let mut found = Vec::new();
        for symbol in &symbols {
            match piece(symbol) {
                Some(id) => found.push(*id),
                None => found.extend(
                    symbol
                        .bytes()
                        .map(|byte| ids[format!("<0x{byte:02X}>").as_str()]),
                ),
            }
        }
        found
    }
}

#[test]
fn scores_are_the_order_of_merges() {
    let pieces = ["▁a", "ab", "bc", "▁ab", "abc", "▁", "a", "b", "c", "d"];
    let plain = Scores::new(&pieces, &["\n", "\n\n", "  ", "<b>"], false);
    let tokenizer_of = tokenizer(&plain.vocabulary());
    let check = |text: &str, expected: &str| {
        assert_eq!(words(&tokenizer_of, text), expected, "{text:?}");
    };
    check("abc", "abc");
    check("abbc", "ab bc");
    check(" abcd", "▁a bc d");
    check("é", "<0xC3> <0xA9>");
    // User-defined tokens are found before spaces are marked and merged, the longest first.
    check("a\n\n\nb", "a \n\n \n b");
    check("a   a", "a ▁▁ ▁a");
    check("<b>a</b>", "<b> a <0x3C> <0x2F> b <0x3E>");
    // A space is added before the text, and removed again.
    let prefixed = Scores::new(&pieces, &[], true);
    let tokenizer_of = tokenizer(&prefixed.vocabulary());
    assert_eq!(words(&tokenizer_of, "abc"), "▁a bc");
    assert_eq!(words(&tokenizer_of, " a"), "▁ ▁a");
    let full = tokenizer_of.encode("a", Special::Add).unwrap();
    assert_eq!(tokenizer_of.token_text(full[0]).as_deref(), Some("<s>"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// With few letters there are many ways to make a piece, and pieces that overlap themselves.
    #[test]
    fn scores_give_what_sentence_piece_gives(
        pieces in prop::collection::hash_set("[ab▁]{2,6}", 1..30),
        order in any::<prop::sample::Index>(),
        texts in prop::collection::vec("[ab ]{0,30}|[abé ]{0,12}", 8),
    ) {
        let mut pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        pieces.sort_unstable();
        let start = order.index(pieces.len());
        pieces.rotate_left(start);
        pieces.extend(["a", "b", "▁"]);
        let scores = Scores::new(&pieces, &[], false);
        let tokenizer = tokenizer(&scores.vocabulary());
        for text in &texts {
            let found = tokenizer.encode(text, Special::AsWritten).unwrap();
            prop_assert_eq!(&found, &scores.reference(text), "{:?}", text);
            prop_assert_eq!(&tokenizer.decode(&found).unwrap(), text);
        }
    }
}

/// SmolLM2's text assets, if the file was fetched.
fn smollm2() -> Option<TextAssets> {
    let path = fetched::smollm2("SmolLM2's text assets")?;
    let file = fs::read(&path).unwrap();
    let vocabulary = Vocabulary::read(&path, &file).unwrap();
    Some(TextAssets::from_vocabulary(&vocabulary).unwrap())
}

/// Returns the lines of a fixture.
fn lines<T: for<'a> Deserialize<'a>>(name: &str) -> Vec<T> {
    let path: PathBuf = fixture("gguf").join(name);
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn smollm2_gives_the_reference_ids() {
    #[derive(Deserialize)]
    struct Line {
        text: String,
        ids: Vec<u32>,
    }
    let lines: Vec<Line> = lines("smollm2_ids.jsonl");
    assert_eq!(lines.len(), 201);
    let Some(assets) = smollm2() else { return };
    assert_eq!(assets.eos_ids, [2, 0]);
    let tokenizer = Tokenizer::from_json(&assets.tokenizer.unwrap()).unwrap();
    for line in lines {
        let found = tokenizer.encode(&line.text, Special::Add).unwrap();
        assert_eq!(found, line.ids, "{:?}", line.text);
        if !found.iter().any(|&id| tokenizer.is_special(id)) {
            assert_eq!(tokenizer.decode(&found).unwrap(), line.text);
        }
    }
}

#[test]
fn smollm2_writes_chats_as_transformers_does() {
    #[derive(Deserialize)]
    struct Chat {
        messages: Vec<Message>,
        add_generation_prompt: bool,
        text: String,
    }
    let chats: Vec<Chat> = lines("smollm2_chats.jsonl");
    assert_eq!(chats.len(), 16);
    let Some(assets) = smollm2() else { return };
    let template = ChatTemplate::new(&assets.chat_template.unwrap(), assets.special_tokens);
    let template = template.unwrap();
    for chat in chats {
        let written = template.render(&Conversation {
            messages: chat.messages,
            add_generation_prompt: chat.add_generation_prompt,
            ..Conversation::default()
        });
        assert_eq!(written.unwrap(), chat.text);
    }
}
