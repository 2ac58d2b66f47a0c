//! `cargo xtask tidy`: the house rules that no compiler checks. Reports all findings at once as `path:line: message`. A
//! rule here is a function from one file's lines to findings; rules about all files at once, or about cargo's data,
//! have files of their own.

mod features;
mod glossary;
mod paths;
mod sizes;
mod source;
mod trees;
mod variables;

use anyhow::{Context, Result};
use source::File;
use std::path::Path;
use std::process::Command;
use xtask::fail::Fail;
use xtask::workspace::{self, root};

/// Arguments of `cargo xtask tidy`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> Result<()> {
    let root = root();
    let paths = repository_files(&root)?;
    let top_level = paths::top_level_folders(&paths);
    let count = paths.len();
    let files: Vec<File> = paths
        .into_iter()
        .filter_map(|path| read(&root, path))
        .collect();
    let mut findings = Vec::new();
    for File { path, text } in &files {
        let mut found = check_file(path, text);
        if path.ends_with(".md") {
            found.extend(paths::check(&root, text, &top_level));
        }
        found.sort();
        findings.extend(found.into_iter().map(|f| f.render(path)));
    }
    findings.extend(sizes::check(&files));
    findings.extend(glossary::check(&files));
    findings.extend(variables::check(&files));
    findings.extend(trees::check(&root)?);
    findings.extend(features::check()?);
    if findings.is_empty() {
        println!("tidy: {count} files, nothing found");
        return Ok(());
    }
    println!("{}", findings.join("\n"));
    Err(Fail::check(format!("tidy found {} problems", findings.len())).into())
}

/// Reads a text file; `None` for a binary one, and for one that is deleted in the work tree but still in the index.
fn read(root: &Path, path: String) -> Option<File> {
    let text = std::fs::read_to_string(root.join(&path)).ok()?;
    Some(File { path, text })
}

/// A finding of a rule, and its place.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    line: usize,
    message: String,
}

impl Finding {
    fn render(&self, path: &str) -> String {
        format!("{path}:{}: {}", self.line, self.message)
    }
}

fn check_file(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_rust = path.ends_with(".rs");
    let in_src = path.starts_with("src/") || path.contains("/src/");
    let mut report = |line: usize, message: String| findings.push(Finding { line, message });
    if is_rust && in_src && !text.starts_with("//!") {
        report(1, "no `//!` header that says what lives here".to_string());
    }
    let lines = text.lines().count();
    if lines > LINES_MAX && is_written_by_hand(path) {
        report(1, format!("{lines} lines: at most {LINES_MAX}, split it"));
    }
    for (index, line) in text.lines().enumerate() {
        for (word, instead) in BANNED {
            if line.contains(word) {
                report(index + 1, format!("`{word}`: {instead}"));
            }
        }
        for (word, instead) in BANNED_IN_RUST {
            if is_rust && line.contains(word) {
                report(index + 1, format!("`{word}`: {instead}"));
            }
        }
        if let Some(found) = paths::machine_path(line) {
            report(index + 1, format!("`{found}` is a path of one machine"));
        }
    }
    findings
}

fn is_written_by_hand(path: &str) -> bool {
    let extension = Path::new(path).extension().and_then(|e| e.to_str());
    matches!(extension, Some("rs" | "md" | "ron" | "py" | "sh" | "toml"))
}

/// Lists tracked files, and new ones that git does not ignore.
fn repository_files(root: &Path) -> Result<Vec<String>> {
    let mut command = Command::new("git");
    command
        .args(["ls-files", "-z", "--cached", "--others"])
        .args(["--exclude-standard", "--deduplicate"])
        .current_dir(root);
    let text = workspace::capture(&mut command, "git ls-files")
        .context(Fail::environment("tidy needs a git work tree"))?;
    Ok(text
        .split('\0')
        .filter(|path| !path.is_empty())
        .map(String::from)
        .collect())
}

const LINES_MAX: usize = 800;

// The words are split here so that this file does not find itself.
const BANNED: [(&str, &str); 1] = [(
    concat!("FIX", "ME"),
    "finish it, or write `TODO(#n)` with an issue",
)];

const BANNED_IN_RUST: [(&str, &str); 3] = [
    (concat!("todo", "!("), "finish it, or return an error"),
    (
        concat!("unimplemented", "!("),
        "return an error that says so",
    ),
    (
        concat!("#[ign", "ore"),
        "assert today's behaviour instead of leaving the test out",
    ),
];

const AFTER_HELP: &str = "\
Checks, in tracked and new files:
  a `//!` header in every Rust file below a src folder
  words that mean unfinished work, and tests that never run
  files of more than 800 lines, files of code of more than 500, functions of more than 70
  public types of one name
  environment variables that are not declared in one place and described
  crates in the dependencies of those that promise to be without them
  paths in backticks in *.md that do not exist
  absolute paths of somebody's machine

Example:
  cargo xtask tidy";

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str, expected: &[(usize, &str)]) {
        let found = check_file(path, text);
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, (line, part)) in found.iter().zip(expected) {
            assert_eq!(found.line, *line);
            assert!(found.message.contains(part), "{found:?}");
        }
    }

    #[test]
    fn a_clean_file_has_no_findings() {
        check("x/src/lib.rs", "//! Header.\n\nfn main() {}\n", &[]);
        check("x/build.rs", "fn main() {}\n", &[]);
    }

    #[test]
    fn each_rule_finds_its_case() {
        check("x/src/lib.rs", "fn main() {}\n", &[(1, "header")]);
        let unfinished = concat!("//! H\n// FIX", "ME\ntodo", "!()\nunimplemented", "!()\n");
        let expected = [(2, "TODO(#n)"), (3, "finish it"), (4, "return an error")];
        check("x/src/lib.rs", unfinished, &expected);
        let never = concat!("#[ign", "ore]\nfn f() {}\n");
        check("x/tests/a.rs", never, &[(1, "leaving the test out")]);
        check("README.md", &"line\n".repeat(801), &[(1, "801 lines")]);
        check("data.jsonl", &"line\n".repeat(801), &[]);
        let machine = concat!("see /ho", "me/me/x");
        check("README.md", machine, &[(1, "one machine")]);
    }
}
