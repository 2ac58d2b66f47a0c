//! Collects failures from libtest's output, to print them again at the end of a long log.

use std::fmt::Write;

/// The failures reported so far.
#[derive(Debug, Default)]
pub(super) struct Failures {
    lines: Vec<String>,
    /// Whether the present program is listing its failures.
    telling: bool,
}

impl Failures {
    /// Reads a printed line.
    pub(super) fn line(&mut self, line: &str) {
        if line == "failures:" {
            self.telling = true;
        } else if line.starts_with("test result: ") {
            self.telling = false;
        } else if line.starts_with("error: ") || self.telling && !is_frame(line) {
            self.lines.push(line.to_owned());
        }
    }

    /// All failures as text; empty if there are none.
    pub(super) fn report(&self) -> String {
        let mut text = String::new();
        if !self.lines.is_empty() {
            text.push_str("what failed, again:\n");
        }
        for line in &self.lines {
            let _ = writeln!(text, "  {line}");
        }
        text
    }
}

/// Whether a line belongs to a backtrace: `  12: name::of::function` or `      at file:line:column`.
fn is_frame(line: &str) -> bool {
    let line = line.trim_start();
    let numbered = line.split_once(": ").map(|(number, _)| number);
    line.starts_with("at ") || numbered.is_some_and(|number| number.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::Failures;

    #[test]
    fn failures_are_said_again_without_backtraces() {
        let mut failures = Failures::default();
        let printed = "running 2 tests\n\
            test good ... ok\n\
            test bad ... FAILED\n\
            \n\
            failures:\n\
            \n\
            ---- bad stdout ----\n\
            thread 'bad' (7) panicked at src/lib.rs:3:5:\n\
            expected 1, found 2\n\
            stack backtrace:\n   \
               0: core::panicking::panic_fmt\n             \
                         at /rustc/1/panicking.rs:80:14\n\
            \n\
            failures:\n    \
                bad\n\
            test result: FAILED. 1 passed; 1 failed\n\
            error: test failed, to rerun pass `-p x --lib`\n";
        assert_eq!(failures.report(), "");
        for line in printed.lines() {
            failures.line(line);
        }
        assert_eq!(
            failures.report(),
            "what failed, again:\n  \
             \n  \
             ---- bad stdout ----\n  \
             thread 'bad' (7) panicked at src/lib.rs:3:5:\n  \
             expected 1, found 2\n  \
             stack backtrace:\n  \
             \n  \
             \u{20}   bad\n  \
             error: test failed, to rerun pass `-p x --lib`\n"
        );
    }
}
