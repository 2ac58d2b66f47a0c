//! Tidy's view of a Rust file without parsing it: which files and lines are tests, and where functions end. It relies
//! on the layout of `cargo fmt`.

/// A text file of the repository.
pub(super) struct File {
    /// Path from the repository's root.
    pub(super) path: String,
    pub(super) text: String,
}

impl File {
    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether the whole file is for tests or benchmarks.
    pub(super) fn is_test(&self) -> bool {
        let path = &self.path;
        path.starts_with("tests/")
            || ["/tests/", "/benches/", "_tests/"]
                .iter()
                .any(|part| path.contains(part))
            || path.ends_with("tests.rs")
    }

    /// The lines before the module of unit tests.
    pub(super) fn code(&self) -> impl Iterator<Item = &str> {
        let mut lines = self.text.lines().peekable();
        std::iter::from_fn(move || {
            let line = lines.next()?;
            let opens = |next: &&str| next.starts_with("mod ") && next.ends_with('{');
            let is_end = line == "#[cfg(test)]" && lines.peek().is_some_and(opens);
            (!is_end).then_some(line)
        })
    }
}

/// A function's name, its first line (from 1) and its number of lines.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function<'a> {
    pub(super) name: &'a str,
    pub(super) line: usize,
    pub(super) lines: usize,
}

/// The functions in `code` whose body has lines of its own.
pub(super) fn functions<'a>(code: &[&'a str]) -> Vec<Function<'a>> {
    let begins = code.iter().enumerate();
    begins
        .filter_map(|(index, line)| {
            let name = function_name(line)?;
            let indent = &line[..line.len() - line.trim_start().len()];
            let at_indent = |line: &&&str| {
                line.strip_prefix(indent)
                    .is_some_and(|rest| !rest.starts_with([' ', '/']) && !rest.is_empty())
            };
            // The signature's last line opens the body, if there is one.
            let opening = code[index..]
                .iter()
                .filter(at_indent)
                .find(|line| line.ends_with(['{', '}', ';']))?;
            if !opening.ends_with('{') {
                return None;
            }
            let is_end = |line: &&str| line.strip_prefix(indent) == Some("}");
            let last = code[index..].iter().position(is_end)?;
            Some(Function {
                name,
                line: index + 1,
                lines: last + 1,
            })
        })
        .collect()
}

fn function_name(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    loop {
        let word = words.next()?;
        if word == "fn" {
            return words.next()?.split(['(', '<']).next();
        }
        let is_modifier = word.starts_with("pub")
            || matches!(
                word,
                "const" | "async" | "unsafe" | "extern" | "\"C\"" | "\"system\""
            );
        if !is_modifier {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn code_ends_where_its_tests_begin() {
        let text = "//! H\n#[cfg(test)]\nmod a;\nstruct S;\n#[cfg(test)]\nmod tests {\n}\n";
        let file = file("x/src/a.rs", text);
        assert_eq!(file.code().count(), 4);
        assert!(!file.is_test());
        assert!(self::file("x/src/a_tests.rs", "").is_test());
        assert!(self::file("x/tests/it/main.rs", "").is_test());
    }

    #[test]
    fn functions_are_measured_from_their_signature() {
        let code = [
            "impl A {",
            "    pub(crate) fn one(",
            "        a: u8,",
            "    ) -> u8 {",
            "        a",
            "    }",
            "    fn none(&self);",
            "    fn short() {}",
            "}",
            "const fn two() {",
            "    if a {",
            "    }",
            "}",
        ];
        let found = functions(&code);
        assert_eq!(
            found,
            [
                Function {
                    name: "one",
                    line: 2,
                    lines: 5
                },
                Function {
                    name: "two",
                    line: 10,
                    lines: 4
                }
            ]
        );
    }
}
