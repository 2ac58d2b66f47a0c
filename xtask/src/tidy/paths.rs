//! Paths in text: those in backticks in Markdown must exist in the repository, and none may be a place on a particular
//! machine.

use super::Finding;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The repository's top-level folders, from its list of files.
pub(super) fn top_level_folders(files: &[String]) -> BTreeSet<String> {
    files
        .iter()
        .filter_map(|path| Some(path.split_once('/')?.0.to_string()))
        .collect()
}

/// Findings for backticked paths of `text` that start with a top-level folder and do not exist.
pub(super) fn check(root: &Path, text: &str, top_level: &BTreeSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_fence = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
            continue;
        }
        if in_fence {
            continue;
        }
        for span in line.split('`').skip(1).step_by(2) {
            if let Some(path) = repository_path(span, top_level)
                && !root.join(path).exists()
                && !is_ignored(root, path)
            {
                findings.push(Finding {
                    line: index + 1,
                    message: format!("`{path}` does not exist"),
                });
            }
        }
    }
    findings
}

/// The first absolute path of a machine in `line`, if there is one.
pub(super) fn machine_path(line: &str) -> Option<&str> {
    for prefix in MACHINE_PREFIXES {
        for (at, _) in line.match_indices(prefix) {
            let before = line[..at].chars().next_back();
            // Part of a longer path or of an address: not the machine's root.
            if before.is_some_and(|c| c.is_alphanumeric() || "._-~$}>)/\\".contains(c)) {
                continue;
            }
            let rest = &line[at..];
            let end = rest.find(|c: char| c.is_whitespace() || "\"'`)>,;".contains(c));
            return Some(&rest[..end.unwrap_or(rest.len())]);
        }
    }
    None
}

fn repository_path<'a>(span: &'a str, top_level: &BTreeSet<String>) -> Option<&'a str> {
    let (first, _) = span.split_once('/')?;
    let is_pattern = span.contains(|c: char| c.is_whitespace() || "*<>{}$…|()[],".contains(c));
    if is_pattern || !top_level.contains(first) {
        return None;
    }
    // `path:12` names a line, `path#part` a heading.
    span.split([':', '#']).next()
}

/// Whether git ignores a path: places that builds create, such as the folder of bundles, may be named without existing.
fn is_ignored(root: &Path, path: &str) -> bool {
    let status = Command::new("git")
        .args(["check-ignore", "--quiet", "--no-index", path])
        .current_dir(root)
        .stderr(std::process::Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

const MACHINE_PREFIXES: [&str; 3] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_paths_must_exist() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("docs")).unwrap();
        std::fs::write(dir.path().join("docs/a.md"), "").unwrap();
        let top = top_level_folders(&["docs/a.md".to_string(), "README.md".to_string()]);
        let text = "`docs/a.md`, `docs/a.md:3` and `docs/b.md`\n`docs/*.md` `other/x` `a/b c`\n\
                    ```\n`docs/c.md`\n```\n";
        let found = check(dir.path(), text, &top);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].line, found[0].message.as_str()),
            (1, "`docs/b.md` does not exist")
        );
    }

    #[test]
    fn machine_paths_are_seen_and_addresses_are_not() {
        let home = concat!("/ho", "me/me/models");
        assert_eq!(machine_path(&format!("in \"{home}\" there")), Some(home));
        assert_eq!(machine_path(home), Some(home));
        assert_eq!(machine_path(&format!("https://example.org{home}")), None);
        assert_eq!(machine_path("a/home/b and /opt/intel"), None);
    }
}
