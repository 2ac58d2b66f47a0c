//! What is printed that somebody else wrote: answers of a model, and errors that name what they found.

use std::borrow::Cow;
use std::io::IsTerminal;

use heg_artifacts::plain::escape;

/// Text for standard output: as it is where a program reads it; on a terminal, without what that would carry out.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    match std::io::stdout().is_terminal() {
        true => escape(text),
        false => Cow::Borrowed(text),
    }
}
