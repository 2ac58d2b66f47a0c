//! Untrusted tokenizers, and texts for them: up to the first byte 0 a `tokenizer.json`, after it a text.
//!
//! A tokenizer is refused with an error, or its tokens are in its vocabulary and decode; a text has tokens, or is
//! refused. Files whose normalizers multiply a text are skipped here: in the product, the process that tokenizes bounds
//! the memory.

use std::sync::LazyLock;

use heg_text::{Special, Tokenizer};

/// Panics within the library are errors of the file: they are caught, and only those of this target are shown.
static QUIET: LazyLock<()> = LazyLock::new(|| {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location();
        if place.is_some_and(|place| place.file().contains("fuzz_targets")) {
            eprintln!("{panic}");
        }
    }));
});

pub(crate) fn run(input: &[u8]) {
    let () = *QUIET;
    let mut parts = input.splitn(2, |byte| *byte == 0);
    let (file, text) = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    if file.len() > FILE_BYTES_MAX || multiplies(file) {
        return;
    }
    let Ok(tokenizer) = Tokenizer::from_json(file) else {
        return;
    };
    let text = String::from_utf8_lossy(text.get(..TEXT_BYTES_MAX).unwrap_or(text));
    if let Ok((tokens, second_at)) = tokenizer.encode_pair(&text, &text) {
        assert!(second_at <= tokens.len(), "{second_at}");
    }
    for special in [Special::Add, Special::AsWritten] {
        let Ok(tokens) = tokenizer.encode(&text, special) else {
            continue;
        };
        for token in &tokens {
            assert!(
                tokenizer.token_text(*token).is_some(),
                "{token} is in the vocabulary"
            );
            let _ = tokenizer.token_bytes(*token);
        }
        let _ = tokenizer.decode(&tokens);
        assert_eq!(
            tokenizer.encode(&text, special),
            Ok(tokens),
            "the same once more"
        );
    }
}

/// Returns whether more than one step of a file may lengthen a text by as much as the file's length.
fn multiplies(file: &[u8]) -> bool {
    let file = String::from_utf8_lossy(file);
    ["Replace", "Prepend", "content\\"]
        .map(|step| file.matches(step).count())
        .iter()
        .sum::<usize>()
        > 1
}

/// Maximum size of a tokenizer file, in bytes. Chosen: a few hundred tokens, and every kind of step.
const FILE_BYTES_MAX: usize = 8 << 10;

/// Maximum size of a text, in bytes. Chosen: patterns that backtrack repeatedly take a second for it.
const TEXT_BYTES_MAX: usize = 32;
