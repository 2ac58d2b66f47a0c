//! Token ids to text while they arrive.
//!
//! A letter can be split over tokens, and a model can stop, or go astray, in the middle of one. The returned
//! pieces, joined, equal the result of [`Tokenizer::decode`] for all tokens at once; a piece is returned as soon
//! as no later token can change it. With byte-level vocabularies each token is visited once, and at most three
//! bytes wait. Other vocabularies (SentencePiece with byte fallback) are decoded in a window: the tokens of the
//! last piece, as context, and the tokens since. The library's `DecodeStream` has no end that releases held-back
//! bytes, and after invalid bytes it returns nothing more, or an error.

use std::sync::Arc;

use super::tokenizer::{Form, Tokenizer, fallback_byte};
use super::{Result, ThoughtParser, ToolSyntax};

/// Turns tokens into text, one at a time.
///
/// # Invariants
/// - Byte-level: `bytes` is a proper prefix of a UTF-8 letter between calls.
/// - Otherwise: `context` decodes to `shown`, and `shown` has been handed out.
#[derive(Debug)]
pub struct TextStream {
    tokenizer: Arc<Tokenizer>,
    shown_specials: Vec<u32>,
    bytes: Vec<u8>,
    context: Vec<u32>,
    shown: String,
    pending: Vec<u32>,
}

impl TextStream {
    /// Creates a stream at the beginning of a text.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let (context, shown, pending) = (Vec::new(), String::new(), Vec::new());
        Self {
            tokenizer,
            shown_specials: Vec::new(),
            bytes: Vec::new(),
            context,
            shown,
            pending,
        }
    }

    /// Creates a stream that shows the special tokens of a syntax of calls too, for
    /// [`ToolCallParser`](super::ToolCallParser).
    pub fn with_calls(tokenizer: Arc<Tokenizer>, syntax: Option<ToolSyntax>) -> Self {
        let shown = syntax.map(|syntax| syntax.special_tokens(&tokenizer));
        Self::new(tokenizer).showing(shown.unwrap_or_default())
    }

    /// Shows the special tokens that are markers of thoughts too, for this parser.
    #[must_use]
    pub fn with_thoughts(self, thoughts: Option<&ThoughtParser>) -> Self {
        let shown = thoughts.map(|it| it.syntax().special_tokens(&self.tokenizer));
        self.showing(shown.unwrap_or_default())
    }

    /// Shows these special tokens too, as they are in the vocabulary.
    #[must_use]
    pub fn showing(mut self, special_tokens: Vec<u32>) -> Self {
        self.shown_specials.extend(special_tokens);
        self
    }

    /// Takes the next token; returns the text that is complete now, `None` if there is none.
    ///
    /// Special tokens and ids outside the vocabulary have no text, except those of [`showing`](Self::showing).
    ///
    /// # Errors
    /// `Tokenizer` if the library cannot decode the window; the text has a gap then. Never with byte-level
    /// vocabularies.
    pub fn push(&mut self, token: u32) -> Result<Option<String>> {
        if self.shown_specials.contains(&token) {
            let mut piece = self.finish()?.unwrap_or_default();
            piece.push_str(&self.tokenizer.token_text(token).unwrap_or_default());
            return Ok(Some(piece));
        }
        let piece = match self.tokenizer.form() {
            Form::ByteLevel => {
                self.tokenizer.push_bytes(token, &mut self.bytes);
                take_settled(&mut self.bytes)
            }
            Form::SentencePiece | Form::Other => self.push_in_window(token)?,
        };
        Ok(Some(piece).filter(|piece| !piece.is_empty()))
    }

    /// Ends the text; returns the text that was held back. The stream is then at the beginning of a text again.
    pub fn finish(&mut self) -> Result<Option<String>> {
        let mut piece = String::from_utf8_lossy(&self.bytes).into_owned();
        if !self.pending.is_empty() {
            piece = self.decode_pending()?.1;
        }
        self.bytes.clear();
        self.context.clear();
        self.shown.clear();
        self.pending.clear();
        Ok(Some(piece).filter(|piece| !piece.is_empty()))
    }

    fn push_in_window(&mut self, token: u32) -> Result<String> {
        let Some(text) = self.tokenizer.visible_text(token) else {
            return Ok(String::new());
        };
        self.pending.push(token);
        // A run of byte tokens is one letter or many, or none at all: only its end decides.
        if fallback_byte(&text).is_some() && self.pending.len() < RUN_TOKENS_MAX {
            return Ok(String::new());
        }
        let (whole, piece) = self.decode_pending()?;
        if piece.is_empty() {
            return Ok(piece);
        }
        if self.shown.is_empty() {
            // Without text, these tokens must be kept: a decoder may trim the first ones.
            self.context.append(&mut self.pending);
            self.shown = whole;
        } else {
            self.context = std::mem::take(&mut self.pending);
            self.shown = self.tokenizer.decode(&self.context)?;
        }
        Ok(piece)
    }

    /// Returns the text of the window, and the part of it that was not returned yet.
    fn decode_pending(&self) -> Result<(String, String)> {
        let window = [self.context.as_slice(), self.pending.as_slice()].concat();
        let whole = self.tokenizer.decode(&window)?;
        let piece = match whole.strip_prefix(self.shown.as_str()) {
            Some(piece) => piece.to_owned(),
            None => self.tokenizer.decode(&self.pending)?,
        };
        Ok((whole, piece))
    }
}

/// Takes the text out of `bytes` that no later byte can change, and leaves the beginning of a letter.
///
/// Invalid bytes become U+FFFD by the rule of `String::from_utf8_lossy`.
fn take_settled(bytes: &mut Vec<u8>) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut open = 0;
    let mut chunks = bytes.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        text.push_str(chunk.valid());
        let invalid = chunk.invalid();
        if invalid.is_empty() {
            continue;
        }
        if chunks.peek().is_none() && is_open(invalid) {
            open = invalid.len();
        } else {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    bytes.drain(..bytes.len() - open);
    text
}

/// Returns whether more bytes could complete these to a letter.
fn is_open(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(error) if error.error_len().is_none())
}

/// Maximum length of a run of byte tokens; a longer one is cut, so that a broken model cannot hold text back for
/// ever. Chosen, not measured: sixteen letters of four bytes.
const RUN_TOKENS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::super::Special;
    use super::super::random::Xoshiro256;
    use super::super::tokenizer::tests::tiny_agent;
    use super::*;

    fn stream_all(tokenizer: &Arc<Tokenizer>, tokens: &[u32]) -> Vec<String> {
        let mut stream = TextStream::new(Arc::clone(tokenizer));
        let mut pieces: Vec<String> = tokens
            .iter()
            .filter_map(|&token| stream.push(token).unwrap())
            .collect();
        pieces.extend(stream.finish().unwrap());
        pieces
    }

    fn check(tokenizer: &Arc<Tokenizer>, tokens: &[u32]) {
        let pieces = stream_all(tokenizer, tokens);
        assert_eq!(
            pieces.concat(),
            tokenizer.decode(tokens).unwrap(),
            "{tokens:?}"
        );
    }

    /// Returns a vocabulary of Llama 2's kind: `▁` for spaces, bytes for unknown letters, one space stripped.
    fn sentence_piece() -> Arc<Tokenizer> {
        let mut vocab: Vec<String> = ["<unk>", "<s>"].map(String::from).into();
        vocab.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
        vocab.extend(["▁", "▁the", "a", "b", "▁▁", ",", "\u{fffd}"].map(String::from));
        let ids: serde_json::Map<_, _> = vocab
            .into_iter()
            .enumerate()
            .map(|(id, token)| (token, id.into()))
            .collect();
        let file = serde_json::json!({
            "version": "1.0",
            "added_tokens": [{"id": 1, "content": "<s>", "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true}],
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "vocab": ids,
                "merges": []},
        });
        Arc::new(Tokenizer::from_json(file.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn pieces_join_to_the_decoded_text() {
        let tokenizer = tiny_agent();
        let mut random = Xoshiro256::from_seed(2);
        // Ids up to 300 are mostly single bytes; some ids are special, some outside the vocabulary.
        for end in (0..3000).map(|round| [300, 2060][round % 2]) {
            let tokens: Vec<u32> = (0..random.below(40))
                .map(|_| random.below(end) as u32)
                .collect();
            check(&tokenizer, &tokens);
        }
    }

    #[test]
    fn letters_over_several_tokens_come_whole() {
        let tokenizer = tiny_agent();
        let text = "Jürgen 日本 🦀👨\u{200d}👩 żółw.";
        let tokens = tokenizer.encode(text, Special::Add).unwrap();
        let pieces = stream_all(&tokenizer, &tokens);
        assert_eq!(pieces.concat(), text);
        assert!(
            pieces
                .iter()
                .all(|piece| !piece.is_empty() && !piece.contains('\u{fffd}')),
            "{pieces:?}"
        );
        assert!(pieces.len() < tokens.len() - 1);
    }

    #[test]
    fn special_tokens_are_shown_on_request() {
        let tokenizer = tiny_agent();
        let text = "Hé<|python_tag|>{<|eot_id|>";
        let tokens = tokenizer.encode(text, Special::AsWritten).unwrap();
        let tag = tokenizer.token_id("<|python_tag|>").unwrap();
        let mut stream = TextStream::new(Arc::clone(&tokenizer)).showing(vec![tag]);
        let pieces = tokens.iter().filter_map(|&id| stream.push(id).unwrap());
        assert_eq!(pieces.collect::<String>(), "Hé<|python_tag|>{");
    }

    #[test]
    fn a_broken_letter_is_shown_as_such() {
        let tokenizer = tiny_agent();
        let crab = tokenizer.encode("🦀", Special::AsWritten).unwrap();
        assert!(crab.len() > 1);
        assert_eq!(
            stream_all(&tokenizer, &crab[..crab.len() - 1]),
            ["\u{fffd}"]
        );
        let a = tokenizer.token_id("a").unwrap();
        let mut stream = TextStream::new(Arc::clone(&tokenizer));
        assert_eq!(stream.push(crab[0]), Ok(None));
        assert_eq!(stream.push(a), Ok(Some("\u{fffd}a".into())));
        assert_eq!(stream.push(a), Ok(Some("a".into())));
        assert_eq!(stream.finish(), Ok(None));
    }

    #[test]
    fn sentence_piece_joins_too() {
        let tokenizer = sentence_piece();
        assert_eq!(tokenizer.form(), Form::SentencePiece);
        let mut random = Xoshiro256::from_seed(4);
        for start in (0..4000).map(|round| [0, 200, 258][round % 3]) {
            let tokens: Vec<u32> = (0..random.below(24))
                .map(|_| (start + random.below(266 - start)) as u32)
                .collect();
            check(&tokenizer, &tokens);
        }
    }

    #[test]
    fn sentence_piece_streams_word_by_word() {
        let tokenizer = sentence_piece();
        let ids: Vec<u32> = ["<s>", "▁the", "▁the", "<0xC3>", "<0xA9>", ",", "a"]
            .map(|token| tokenizer.token_id(token).unwrap())
            .into();
        assert_eq!(stream_all(&tokenizer, &ids), ["the", " the", "é,", "a"]);
    }
}
