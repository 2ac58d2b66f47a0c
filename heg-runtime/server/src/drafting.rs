//! The drafting memory of a request's answers, for which its client is charged.

use heg_runtime::engine::DraftTexts;

/// Returns the memory of the drafting texts of a request's answers, in bytes: the texts that they share, and each
/// answer's own tokens. 0 if nothing is drafted.
pub(super) fn draft_bytes(texts: Option<&DraftTexts>, choices: u32, answer_tokens: u32) -> usize {
    texts.map_or(0, |texts| {
        bytes(texts.bytes(), choices as usize, answer_tokens as usize)
    })
}

fn bytes(texts_bytes: usize, choices: usize, answer_tokens: usize) -> usize {
    let copied_bytes = match choices {
        0 | 1 => 0,
        // At most the whole of the texts is copied.
        _ => texts_bytes.min(answer_tokens.saturating_mul(COPIED_TOKEN_BYTES)),
    };
    let own_bytes = answer_tokens.saturating_mul(TOKEN_BYTES);
    let each = own_bytes.saturating_add(copied_bytes);
    each.saturating_mul(choices).saturating_add(texts_bytes)
}

/// Drafting memory of an answer's token, in bytes: its states and edges. Measured: 43 to 46.
const TOKEN_BYTES: usize = 48;

/// Further memory of an answer's token if several answers share their texts, in bytes: its own copies of the parts that
/// it changes. Measured: 128 for an answer that repeats its prompt.
const COPIED_TOKEN_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_charged_once_and_answers_each() {
        let prompt = 100_000 * 46;
        assert_eq!(bytes(prompt, 1, 100), prompt + 4800);
        assert_eq!(bytes(prompt, 8, 100), prompt + 8 * (4800 + 12_800));
        // A short prompt has little that can be copied.
        assert_eq!(bytes(500, 2, 100), 500 + 2 * (4800 + 500));
        assert_eq!(bytes(usize::MAX, 8, 1), usize::MAX);
        assert_eq!(draft_bytes(None, 8, 100), 0);
    }
}
