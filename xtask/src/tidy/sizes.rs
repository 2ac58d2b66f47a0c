//! Limits on the length of files and functions. A limit that the repository does not meet yet is a ratchet: a number of
//! exceptions that may fall and must not rise.

use super::source::{self, File};

/// Returns findings, and notes on tolerated lengths.
pub(super) fn check(files: &[File]) -> (Vec<String>, Vec<String>) {
    let (mut findings, mut notes) = (Vec::new(), Vec::new());
    let code = || {
        files
            .iter()
            .filter(|file| file.is_rust() && !file.is_test())
    };

    let long_files: Vec<String> = code()
        .filter_map(|file| {
            let lines = file.text.lines().count();
            let message = format!(
                "{}:1: {lines} lines: at most {CODE_LINES_MAX}, split it",
                file.path
            );
            (lines > CODE_LINES_MAX).then_some(message)
        })
        .collect();
    hold(long_files, LONG_FILES, &mut findings, &mut notes);

    let long_functions: Vec<String> = code().flat_map(long_functions).collect();
    hold(long_functions, LONG_FUNCTIONS, &mut findings, &mut notes);

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
    (findings, notes)
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

/// Turns up to `borne` items into notes; if there are more, all are findings.
pub(super) fn hold(
    found: Vec<String>,
    borne: usize,
    findings: &mut Vec<String>,
    notes: &mut Vec<String>,
) {
    match found.len() > borne {
        true => findings.extend(found),
        false => notes.extend(found),
    }
}

/// Most lines of a source file, its unit tests included.
const CODE_LINES_MAX: usize = 500;

/// Most lines of a function, from its signature on: a screen.
const FUNCTION_LINES_MAX: usize = 70;

/// Number of source files that are longer. Lower it with each one that is split.
const LONG_FILES: usize = 0;

/// Number of functions that are longer. Lower it with each one that is split.
const LONG_FUNCTIONS: usize = 0;

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
    fn more_long_files_than_are_borne_are_all_found() {
        let long = || "//\n".repeat(CODE_LINES_MAX + 1);
        let files: Vec<File> = (0..=LONG_FILES)
            .map(|n| rust(&format!("x/src/{n}.rs"), long()))
            .collect();
        let (findings, notes) = check(&files);
        assert_eq!((findings.len(), notes.len()), (LONG_FILES + 1, 0));
        let (findings, notes) = check(&files[1..]);
        assert_eq!((findings.len(), notes.len()), (0, LONG_FILES));
        let (findings, notes) = check(&[rust("x/tests/a.rs", long())]);
        assert_eq!((findings.len(), notes.len()), (0, 0));
    }

    #[test]
    fn a_long_function_is_named_with_its_length() {
        let text = format!("fn f() {{\n{}}}\n", "    a();\n".repeat(FUNCTION_LINES_MAX));
        let found = long_functions(&rust("x/src/a.rs", text));
        assert_eq!(found, ["x/src/a.rs:1: `f` has 72 lines: at most 70"]);
    }

    #[test]
    fn a_document_that_grows_is_found() {
        let (findings, _) = check(&[rust("README.md", "a\n".repeat(DOCUMENTS[0].1 + 1))]);
        assert_eq!(findings.len(), 1);
    }
}
