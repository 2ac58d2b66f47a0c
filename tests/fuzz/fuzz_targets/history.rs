//! Reads arbitrary bytes as a file of finished answers.
//!
//! An accepted file has only tokens of the vocabulary, and can be written and read again.

use heg_runtime::history::{PastAnswers, TokenSet};

const VOCAB: u32 = 1000;

pub(crate) fn run(input: &[u8]) {
    let token_set = || TokenSet::new("fuzz", VOCAB);
    let Ok(answers) = PastAnswers::parse(input, token_set()) else {
        return;
    };
    for past in answers.iter() {
        assert!(past.prompt_end.len() <= 4 && !past.answer.is_empty());
        let mut tokens = past.prompt_end.iter().chain(&past.answer);
        assert!(tokens.all(|token| *token < VOCAB));
    }
    let again = PastAnswers::parse(answers.to_text().as_bytes(), token_set());
    assert_eq!(again.expect("what was written is read"), answers);
}
