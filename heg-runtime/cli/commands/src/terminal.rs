//! Printing of text that others wrote: answers of a model, and errors that quote their input.

use std::borrow::Cow;
use std::io::IsTerminal;

use heg_artifacts::plain::escape;

/// Text for standard error that is not the answer itself: dim on a terminal.
pub(crate) fn dimmed(text: &str) -> Cow<'_, str> {
    match std::io::stderr().is_terminal() && !text.is_empty() {
        true => format!("\x1b[2m{}\x1b[22m", escape(text)).into(),
        false => Cow::Borrowed(text),
    }
}

/// Text for standard output: unchanged if a program reads it; on a terminal, without characters that it would
/// interpret.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    match std::io::stdout().is_terminal() {
        true => escape(text),
        false => Cow::Borrowed(text),
    }
}
