//! The text of an answer while its tokens arrive: which text may be shown now, and whether a stop text ended it.
//!
//! Joins [`TextStream`] and [`StopMatcher`]. Without a tokenizer an answer has tokens and no text.

use super::{Result, StopMatcher, StopOutput, TextStream};

/// The text of one answer.
#[derive(Debug)]
pub struct AnswerText {
    stream: Option<TextStream>,
    stop: StopMatcher,
    eos_ids: Vec<u32>,
    chars: usize,
}

impl AnswerText {
    /// Creates the text of an answer that ends before any of the stop texts, or at one of `eos_ids`, which have no
    /// text. `stream` is at its beginning.
    pub fn new<S: Into<String>>(
        stream: Option<TextStream>,
        stop_texts: impl IntoIterator<Item = S>,
        eos_ids: &[u32],
    ) -> Self {
        Self {
            stream,
            stop: StopMatcher::new(stop_texts),
            eos_ids: eos_ids.to_vec(),
            chars: 0,
        }
    }

    /// Takes the next token; returns the text that can be shown now.
    ///
    /// # Errors
    /// As [`TextStream::push`].
    pub fn push(&mut self, token: u32) -> Result<StopOutput> {
        let piece = match &mut self.stream {
            Some(stream) if !self.eos_ids.contains(&token) => stream.push(token)?,
            _ => None,
        };
        let piece = piece.unwrap_or_default();
        self.chars += piece.chars().count();
        Ok(self.stop.push(&piece))
    }

    /// Returns the number of characters of the answer's tokens so far, including those that are held back or part
    /// of a stop text.
    pub fn chars(&self) -> usize {
        self.chars
    }

    /// Returns the stop text that ended the answer.
    pub fn stop_text(&self) -> Option<&str> {
        self.stop.found()
    }

    /// Ends the answer; returns the text that was held back, which is empty after a stop text.
    pub fn finish(&mut self) -> Result<String> {
        let held = match &mut self.stream {
            Some(stream) if self.stop.found().is_none() => stream.finish()?,
            _ => None,
        };
        let mut text = self.stop.push(&held.unwrap_or_default()).text;
        text.push_str(&self.stop.finish());
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Special;
    use super::super::tokenizer::tests::tiny_agent;
    use super::*;

    fn answer(text: &str, stop: &[&str], eos_ids: &[u32]) -> (String, bool) {
        let tokenizer = tiny_agent();
        let tokens = tokenizer.encode(text, Special::AsWritten).unwrap();
        let mut answer = AnswerText::new(
            Some(TextStream::new(tokenizer)),
            stop.iter().copied(),
            eos_ids,
        );
        let mut shown = String::new();
        let mut stopped = false;
        for token in tokens {
            let emit = answer.push(token).unwrap();
            shown.push_str(&emit.text);
            stopped |= emit.stopped;
        }
        shown.push_str(&answer.finish().unwrap());
        (shown, stopped)
    }

    #[test]
    fn ends_before_a_stop_text() {
        let text = "call Ana at 5 pm";
        assert_eq!(answer(text, &["na at"], &[]), ("call A".into(), true));
        assert_eq!(answer(text, &["pm."], &[]), (text.into(), false));
    }

    #[test]
    fn the_stop_text_that_was_met_is_named() {
        let tokenizer = tiny_agent();
        let tokens = tokenizer.encode("call Ana", Special::AsWritten).unwrap();
        let mut answer = AnswerText::new(Some(TextStream::new(tokenizer)), ["x", "An"], &[]);
        assert_eq!(answer.stop_text(), None);
        let stopped = tokens.iter().any(|id| answer.push(*id).unwrap().stopped);
        assert!(stopped && answer.stop_text() == Some("An"));
    }

    #[test]
    fn an_end_token_has_no_text() {
        let tokenizer = tiny_agent();
        let [a, b] = ["a", "b"].map(|text| tokenizer.token_id(text).unwrap());
        let stream = TextStream::new(tokenizer);
        let mut answer = AnswerText::new(Some(stream), [""; 0], &[a]);
        let shown: Vec<String> = [a, b, a]
            .map(|token| answer.push(token).unwrap().text)
            .into();
        assert_eq!(shown, ["", "b", ""]);
    }

    #[test]
    fn there_is_no_text_without_a_tokenizer() {
        let mut answer = AnswerText::new(None, ["x"], &[]);
        assert_eq!(answer.push(7).unwrap().text, "");
        assert_eq!(answer.finish(), Ok(String::new()));
    }
}
