//! Messages on the terminal.

use std::env;
use std::path::Path;

/// Prints a line about the present step, after the name of this program, on standard error: standard output is for
/// results.
pub fn note(text: impl AsRef<str>) {
    let program = env::args_os().next().unwrap_or_default();
    let name = Path::new(&program).file_stem().unwrap_or_default();
    eprintln!("{}: {}", name.to_string_lossy(), text.as_ref());
}

/// The last lines of a program's error output: enough to understand it without filling the screen.
pub fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    match lines.len().checked_sub(8) {
        _ if lines.is_empty() => "it said nothing".to_string(),
        Some(skip) => lines[skip..].join("\n  "),
        None => lines.join("\n  "),
    }
}
