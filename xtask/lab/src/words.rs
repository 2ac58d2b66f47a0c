//! Texts of known lengths: words that BERT's vocabulary has as one token each.

use heg_spec::Seeded;

/// Texts of `tokens` tokens, with the two that a model adds.
pub(crate) fn texts(tokens: usize, count: usize) -> Vec<String> {
    let mut seeded = Seeded::new(tokens as u64);
    let words = tokens.saturating_sub(ADDED).max(1);
    (0..count).map(|_| text(&mut seeded, words)).collect()
}

/// Texts of different lengths, for comparisons of vectors.
pub(crate) fn different(count: usize) -> Vec<String> {
    let mut seeded = Seeded::new(0);
    (0..count)
        .map(|_| {
            let words = seeded.within(3..60);
            text(&mut seeded, words)
        })
        .collect()
}

fn text(seeded: &mut Seeded, words: usize) -> String {
    let words = (0..words).filter_map(|_| WORDS.get(seeded.below(WORDS.len())));
    words.copied().collect::<Vec<_>>().join(" ")
}

/// The tokens at both ends of a text.
const ADDED: usize = 2;

const WORDS: [&str; 48] = [
    "rain", "house", "river", "music", "table", "water", "light", "north", "paper", "garden",
    "train", "doctor", "summer", "winter", "bread", "stone", "letter", "market", "window", "story",
    "school", "street", "village", "morning", "evening", "number", "people", "mother", "father",
    "green", "blue", "small", "large", "early", "late", "under", "over", "between", "with", "from",
    "writes", "reads", "sleeps", "works", "travels", "the", "and", "not",
];
