//! Times of test programs and their tests, from the output of cargo and libtest.
//!
//! libtest names a test when it ends, and stable Rust has no option for more. The start of a test follows from that:
//! tests start in the order of their names, as many at once as there are threads, and the next one starts when one
//! ends.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// The times read so far.
#[derive(Debug)]
pub(super) struct Timing {
    /// Packages of test programs, by the program's file name.
    packages: BTreeMap<String, String>,
    /// Number of tests that a program runs at once.
    threads: usize,
    running: Option<Program>,
    programs: Vec<(Duration, String)>,
    tests: Vec<(Duration, String)>,
}

/// A running test program.
#[derive(Debug)]
struct Program {
    name: String,
    began: Duration,
    /// Tests in the order in which they ended.
    ended: Vec<(Duration, String)>,
}

impl Timing {
    pub(super) fn new(packages: BTreeMap<String, String>, threads: usize) -> Self {
        Self {
            packages,
            threads: threads.max(1),
            running: None,
            programs: Vec::new(),
            tests: Vec::new(),
        }
    }

    /// Reads a line that was printed `at` this time since the start.
    pub(super) fn line(&mut self, line: &str, at: Duration) {
        let line = line.trim();
        if let Some(name) = self.begun(line) {
            self.running = Some(Program {
                name,
                began: at,
                ended: Vec::new(),
            });
        } else if let Some(program) = &mut self.running {
            if line.starts_with("test result: ") {
                self.end(at);
            } else if let Some((test, outcome)) = tested(line)
                && outcome != "ignored"
            {
                program.ended.push((at, test.to_owned()));
            }
        }
    }

    /// The name of the program that a line of cargo's output announces.
    fn begun(&self, line: &str) -> Option<String> {
        if let Some(library) = line.strip_prefix("Doc-tests ") {
            return Some(format!("{library} doc-tests"));
        }
        let rest = line.strip_prefix("Running ")?.strip_suffix(')')?;
        let (_, path) = rest.rsplit_once('(')?;
        let file = path.rsplit(['/', '\\']).next()?;
        let name = file.rsplit_once('-').map_or(file, |(name, _)| name);
        Some(match self.packages.get(file) {
            Some(package) if package.replace('-', "_") != name => format!("{package} {name}"),
            Some(package) => package.clone(),
            None => name.to_owned(),
        })
    }

    fn end(&mut self, at: Duration) {
        let Some(program) = self.running.take() else {
            return;
        };
        let starts = (0..program.ended.len()).map(|place| match place.checked_sub(self.threads) {
            None => program.began,
            Some(before) => program.ended[before].0,
        });
        let mut by_name: Vec<_> = program.ended.iter().collect();
        by_name.sort_by(|a, b| a.1.cmp(&b.1));
        for (start, (ended, test)) in starts.zip(by_name) {
            let name = format!("{} {test}", program.name);
            self.tests.push((ended.saturating_sub(start), name));
        }
        let took = at.saturating_sub(program.began);
        self.programs.push((took, program.name));
    }

    /// The slowest programs and tests, as tables.
    pub(super) fn slowest(mut self) -> String {
        let mut text = String::new();
        for (title, lines) in [
            ("slowest test programs", &mut self.programs),
            ("slowest tests", &mut self.tests),
        ] {
            lines.sort_by(|a, b| b.cmp(a));
            let _ = writeln!(text, "{title}:");
            for (took, name) in lines.iter().take(LINES) {
                let _ = writeln!(text, "  {:7.1} s  {name}", took.as_secs_f64());
            }
        }
        text
    }
}

/// A test and its outcome, from libtest's line for it.
fn tested(line: &str) -> Option<(&str, &str)> {
    let (test, outcome) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let known = ["ok", "FAILED"].contains(&outcome) || outcome.starts_with("ignored");
    let outcome = outcome.split(',').next()?;
    known.then_some((test.trim_end_matches(" - should panic"), outcome))
}

/// Number of lines in a table.
const LINES: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_begins_when_another_ends() {
        let packages = [("it-12ab".to_owned(), "heg-tests".to_owned())];
        let mut timing = Timing::new(packages.into(), 2);
        for (seconds, line) in [
            (
                1,
                "     Running tests/it/main.rs (target/debug/deps/it-12ab)",
            ),
            (1, "running 4 tests"),
            // `a` and `b` start at 1, `c` at 3 when `b` ends, `d` at 4 when `c` does.
            (3, "test b ... ok"),
            (4, "test c ... FAILED"),
            (9, "test d ... ok"),
            (11, "test a ... ok"),
            (11, "test e ... ignored, no reason"),
            (
                11,
                "test result: FAILED. 3 passed; 1 failed; finished in 10.00s",
            ),
            (12, "   Doc-tests heg_spec"),
            (13, "test result: ok. 0 passed; finished in 0.00s"),
        ] {
            timing.line(line, Duration::from_secs(seconds));
        }
        assert_eq!(
            timing.slowest(),
            "slowest test programs:\n     10.0 s  heg-tests it\n      1.0 s  heg_spec doc-tests\n\
             slowest tests:\n     10.0 s  heg-tests it a\n      5.0 s  heg-tests it d\n      \
             2.0 s  heg-tests it b\n      1.0 s  heg-tests it c\n"
        );
    }
}
