//! Limits on the length of files and functions.

use super::source::{self, File};

/// Returns what is longer than it may be.
pub(super) fn check(files: &[File]) -> Vec<String> {
    let code = || {
        files
            .iter()
            .filter(|file| file.is_rust() && !file.is_test())
    };
    let long_files = code().filter_map(|file| {
        let lines = file.text.lines().count();
        let message = format!(
            "{}:1: {lines} lines: at most {CODE_LINES_MAX}, split it",
            file.path
        );
        (lines > CODE_LINES_MAX).then_some(message)
    });
    let mut findings: Vec<String> = long_files.collect();
    findings.extend(code().flat_map(long_functions));

    for (path, lines_max) in DOCUMENTS {
        let document = files.iter().find(|file| file.path == path);
        let lines = document.map_or(0, |file| file.text.lines().count());
        if lines > lines_max {
            let message = format!(
                "{path}:1: {lines} lines: at most {lines_max}, move depth to pages beside the crates"
            );
            findings.push(message);
        }
    }
    findings
}

fn long_functions(file: &File) -> Vec<String> {
    let code: Vec<&str> = file.code().collect();
    let functions = source::functions(&code);
    let long = functions
        .iter()
        .filter(|function| function.lines > FUNCTION_LINES_MAX);
    long.map(|function| {
        let (path, line, lines) = (&file.path, function.line, function.lines);
        format!(
            "{path}:{line}: `{}` has {lines} lines: at most {FUNCTION_LINES_MAX}",
            function.name
        )
    })
    .collect()
}

/// Most lines of a source file, its unit tests included.
const CODE_LINES_MAX: usize = 500;

/// Most lines of a function, from its signature on: a screen.
const FUNCTION_LINES_MAX: usize = 70;

/// The documents that everybody reads, and their largest number of lines.
const DOCUMENTS: [(&str, usize); 2] = [("README.md", 300), ("ARCHITECTURE.md", 350)];

#[cfg(test)]
mod tests {
    use super::*;

    fn rust(path: &str, text: String) -> File {
        File {
            path: path.to_owned(),
            text,
        }
    }

    #[test]
    fn a_long_file_is_found_if_it_is_no_test() {
        let long = || "//\n".repeat(CODE_LINES_MAX + 1);
        let file = rust("x/src/0.rs", long());
        assert_eq!(check(&[file]).len(), 1);
        let findings = check(&[rust("x/tests/a.rs", long())]);
        assert_eq!(findings.len(), 0);
    }

    #[test]
    fn a_long_function_is_named_with_its_length() {
        let text = format!("fn f() {{\n{}}}\n", "    a();\n".repeat(FUNCTION_LINES_MAX));
        let found = long_functions(&rust("x/src/a.rs", text));
        assert_eq!(found, ["x/src/a.rs:1: `f` has 72 lines: at most 70"]);
    }

    #[test]
    fn a_document_that_grows_is_found() {
        let findings = check(&[rust("README.md", "a\n".repeat(DOCUMENTS[0].1 + 1))]);
        assert_eq!(findings.len(), 1);
    }
}
