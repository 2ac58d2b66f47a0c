//! Stop strings in text that arrives in pieces.
//!
//! A stop string may begin in one piece and end in another, so text that may be its beginning is held back
//! until it is clear. The stop string that is complete first ends the text, the longest one if several
//! end at the same place; the answer does not depend on how the text was cut. Matching is
//! Knuth-Morris-Pratt on bytes, one state a stop string, so that no byte is looked at twice.

/// Looks for stop strings in a text that arrives in pieces.
///
/// # Invariants
/// - `held` is the longest suffix of the text so far with which a stop string begins.
/// - `held` is empty once a stop string was found.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    held: String,
    found: Option<usize>,
}

/// The text that can be shown after another piece, and whether a stop string was found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct StopOutput {
    /// Text that certainly is not part of a stop string.
    pub text: String,
    /// Whether a stop string was found, now or before. No text comes after it.
    pub stopped: bool,
}

impl StopMatcher {
    /// Creates a matcher for any of these strings. Empty strings are ignored.
    pub fn new<S: Into<String>>(stop_strings: impl IntoIterator<Item = S>) -> Self {
        let strings = stop_strings.into_iter().map(Into::into);
        let patterns = strings
            .filter(|text| !text.is_empty())
            .map(Pattern::new)
            .collect();
        Self {
            patterns,
            held: String::new(),
            found: None,
        }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, piece: &str) -> StopOutput {
        if self.found.is_some() {
            return StopOutput {
                text: String::new(),
                stopped: true,
            };
        }
        let mut text = std::mem::take(&mut self.held);
        let held_bytes = text.len();
        text.push_str(piece);
        if let Some((pattern, end)) = self.first_end(piece) {
            self.found = Some(pattern);
            text.truncate(held_bytes + end - self.patterns[pattern].text.len());
            return StopOutput {
                text,
                stopped: true,
            };
        }
        let open = self
            .patterns
            .iter()
            .map(|pattern| pattern.matched)
            .max()
            .unwrap_or(0);
        self.held = text.split_off(text.len() - open);
        StopOutput {
            text,
            stopped: false,
        }
    }

    /// Ends the text; returns the text that was held back, since it is no stop string any more.
    pub fn finish(&mut self) -> String {
        for pattern in &mut self.patterns {
            pattern.matched = 0;
        }
        std::mem::take(&mut self.held)
    }

    /// Returns the stop string that was found.
    pub fn found(&self) -> Option<&str> {
        Some(self.patterns.get(self.found?)?.text.as_str())
    }

    /// Returns the pattern that is complete first, and its end in bytes of `piece`.
    fn first_end(&mut self, piece: &str) -> Option<(usize, usize)> {
        for (at, byte) in piece.bytes().enumerate() {
            let complete =
                |(index, pattern): (usize, &mut Pattern)| pattern.step(byte).then_some(index);
            // Every pattern takes its step, even after another one is complete.
            let ends: Vec<usize> = self
                .patterns
                .iter_mut()
                .enumerate()
                .filter_map(complete)
                .collect();
            if let Some(longest) = ends
                .into_iter()
                .max_by_key(|&index| self.patterns[index].text.len())
            {
                return Some((longest, at + 1));
            }
        }
        None
    }
}

/// A stop string, and the length of its longest beginning that ends the text.
#[derive(Debug, Clone)]
struct Pattern {
    text: String,
    /// For each matched length, the next shorter one that still fits.
    fallback: Vec<usize>,
    matched: usize,
}

impl Pattern {
    fn new(text: String) -> Self {
        let bytes = text.as_bytes();
        let mut fallback = vec![0; bytes.len() + 1];
        let mut length = 0;
        for at in 1..bytes.len() {
            while length > 0 && bytes[at] != bytes[length] {
                length = fallback[length];
            }
            if bytes[at] == bytes[length] {
                length += 1;
            }
            fallback[at + 1] = length;
        }
        Self {
            text,
            fallback,
            matched: 0,
        }
    }

    /// Takes a byte; returns whether it completes the stop string.
    fn step(&mut self, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        while self.matched > 0 && bytes.get(self.matched) != Some(&byte) {
            self.matched = self.fallback[self.matched];
        }
        if bytes.get(self.matched) == Some(&byte) {
            self.matched += 1;
        }
        self.matched == bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::Xoshiro256;
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut matcher = StopMatcher::new(stops.iter().copied());
        let mut text = String::new();
        for piece in pieces {
            text.push_str(&matcher.push(piece).text);
        }
        let stopped = matcher.push("").stopped;
        text.push_str(&matcher.finish());
        (text, stopped)
    }

    fn check(stops: &[&str], pieces: &[&str], expect: &str, stopped: bool) {
        assert_eq!(
            run(stops, pieces),
            (expect.to_owned(), stopped),
            "{stops:?} in {pieces:?}"
        );
    }

    #[test]
    fn finds_stop_strings_across_pieces() {
        check(&["\n\n"], &["one\n", "two\n", "\nthree"], "one\ntwo", true);
        check(&["</s>"], &["a<", "/", "s", "b"], "a</sb", false);
        check(&["</s>"], &["a<", "/", "s", ">b"], "a", true);
        check(&["aab"], &["aa", "ab", "c"], "a", true);
        check(&["é"], &["cafe", "é!"], "cafe", true);
        check(&["abcd", "bc"], &["xabcd"], "xa", true);
        check(&["c", "bc"], &["abcd"], "a", true);
        check(&[""], &["a"], "a", false);
        check(&[], &["a", "b"], "ab", false);
    }

    #[test]
    fn holds_back_no_more_than_needed() {
        let mut matcher = StopMatcher::new(["STOP"]);
        assert_eq!(matcher.push("abST").text, "ab");
        assert_eq!(matcher.push("x").text, "STx");
        assert_eq!(
            matcher.push("ST"),
            StopOutput {
                text: String::new(),
                stopped: false
            }
        );
        assert_eq!(
            matcher.push("OP after"),
            StopOutput {
                text: String::new(),
                stopped: true
            }
        );
        assert_eq!(matcher.found(), Some("STOP"));
        assert_eq!(matcher.finish(), "");
        assert_eq!(
            matcher.push("more"),
            StopOutput {
                text: String::new(),
                stopped: true
            }
        );
    }

    /// Returns a literal reading of the definition: the first end of any stop string, the longest one
    /// there.
    fn naive(stops: &[String], text: &str) -> (String, bool) {
        for (end, _) in text.char_indices().chain([(text.len(), ' ')]) {
            let ending = stops
                .iter()
                .filter(|stop| text[..end].ends_with(stop.as_str()));
            if let Some(stop) = ending.max_by_key(|stop| stop.len()) {
                return (text[..end - stop.len()].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    fn random_text(random: &mut Xoshiro256, letters_max: u64) -> String {
        let letters = ['a', 'b', 'é', '日'];
        (0..random.below(letters_max))
            .map(|_| letters[random.below(4) as usize])
            .collect()
    }

    #[test]
    fn equals_the_naive_search_however_the_text_is_cut() {
        let mut random = Xoshiro256::from_seed(11);
        for _ in 0..20_000 {
            let stops: Vec<String> = (0..1 + random.below(3))
                .map(|_| random_text(&mut random, 5))
                .filter(|stop| !stop.is_empty())
                .collect();
            let text = random_text(&mut random, 24);
            let mut pieces = vec![String::new()];
            for letter in text.chars() {
                if random.below(3) == 0 {
                    pieces.push(String::new());
                }
                pieces.last_mut().unwrap().push(letter);
            }
            let stops_given: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (text_out, stopped) = run(&stops_given, &pieces);
            assert_eq!(
                (text_out, stopped),
                naive(&stops, &text),
                "{stops:?} in {pieces:?}"
            );
        }
    }
}
