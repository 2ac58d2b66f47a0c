//! Untrusted text that people will see: names in a manifest, messages of a library, answers of a model.
//!
//! A terminal carries out control characters (they can make it show something else, or send input as if its user had
//! typed it), and some other characters reorder the displayed text. This is the only list of them.

use std::borrow::Cow;

/// Whether a character is safe to show verbatim, whatever its source.
pub fn is_plain(c: char) -> bool {
    let turns_order = matches!(
        c,
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    !c.is_control() && !turns_order
}

/// Escapes all characters that are not plain (`\u{1b}`), except line ends and tabs.
pub fn escape(text: &str) -> Cow<'_, str> {
    let is_shown = |c: char| is_plain(c) || matches!(c, '\n' | '\t');
    if text.chars().all(is_shown) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_shown(c) {
            shown.push(c);
        } else {
            shown.extend(c.escape_unicode());
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_carry_out_is_written_out() {
        for (text, shown) in [
            ("qkv × 2, größer 日本\tx\n", "qkv × 2, größer 日本\tx\n"),
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("a\rb\u{9b}2J", "a\\u{d}b\\u{9b}2J"),
            ("abc\u{202e}gpj.exe", "abc\\u{202e}gpj.exe"),
        ] {
            assert_eq!(escape(text), shown);
        }
    }
}
