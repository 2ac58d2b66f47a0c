//! The laboratory is a separate workspace, built like the one that ships: with the same lints and profiles, and the
//! same versions of shared dependencies, so that these are built once in one target folder.

use super::source::File;
use std::collections::{BTreeMap, BTreeSet};

/// Returns a line for each difference.
pub(super) fn check(files: &[File]) -> Vec<String> {
    let text = |path: &str| files.iter().find(|file| file.path == path);
    let (Some(ours), Some(theirs)) = (text("Cargo.toml"), text(MANIFEST)) else {
        return vec![format!("{MANIFEST}:1: one of the two manifests is missing")];
    };
    let mut findings = Vec::new();
    let ours = tables(&ours.text);
    for (table, (line, settings)) in tables(&theirs.text) {
        let same = match table.strip_prefix("lints.") {
            Some(lints) => format!("workspace.lints.{lints}"),
            None if table.starts_with("profile.") && table != OWN => table,
            None => continue,
        };
        if ours.get(&same).is_none_or(|(_, own)| *own != settings) {
            findings.push(format!(
                "{MANIFEST}:{line}: unlike `[{same}]` of Cargo.toml"
            ));
        }
    }
    if let (Some(ours), Some(theirs)) = (text("Cargo.lock"), text(LOCK)) {
        let ours = versions(&ours.text);
        for (name, found) in versions(&theirs.text) {
            let Some(expected) = ours.get(name) else {
                continue;
            };
            for version in found.difference(expected) {
                findings.push(format!(
                    "{LOCK}:1: `{name}` {version} is not in Cargo.lock (run there: cargo update -p {name} --precise VERSION)"
                ));
            }
        }
    }
    findings
}

/// Tables of a manifest by name, each with its line and its settings.
fn tables(text: &str) -> BTreeMap<String, (usize, Vec<&str>)> {
    let mut tables = BTreeMap::new();
    let mut current = String::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
        {
            current = name.to_owned();
            tables.insert(current.clone(), (index + 1, Vec::new()));
        } else if !line.is_empty()
            && !line.starts_with('#')
            && let Some((_, settings)) = tables.get_mut(&current)
        {
            settings.push(line);
        }
    }
    tables
}

/// Versions of each package in a lock file.
fn versions(text: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut name = "";
    for line in text.lines() {
        if let Some(found) = line.strip_prefix("name = ") {
            name = found.trim_matches('"');
        } else if let Some(version) = line.strip_prefix("version = ")
            && !name.is_empty()
        {
            versions
                .entry(name)
                .or_default()
                .insert(version.trim_matches('"'));
        }
    }
    versions
}

const MANIFEST: &str = "xtask/lab/Cargo.toml";

const LOCK: &str = "xtask/lab/Cargo.lock";

/// The profile that only the laboratory has.
const OWN: &str = "profile.dev.package.heg-lab";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lints_profiles_and_versions_are_the_same() {
        let file = |path: &str, text: &str| File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let ours = "[workspace.lints.rust]\nunsafe_code = \"deny\"\n[profile.dev]\nopt-level = 1\n";
        let same = "[lints.rust]\nunsafe_code = \"deny\"\n# as there\n[profile.dev]\nopt-level = 1\n\
                    [profile.dev.package.heg-lab]\nopt-level = 3\n";
        let other = "[lints.rust]\n\n[profile.dev]\nopt-level = 2\n[profile.release]\n";
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n";
        let newer = "[[package]]\nname = \"a\"\nversion = \"1.0.1\"\n[[package]]\nname = \"b\"\nversion = \"2.0.0\"\n";
        let found = |manifest: &str, locked: &str| {
            let files = [
                file("Cargo.toml", ours),
                file(MANIFEST, manifest),
                file("Cargo.lock", lock),
                file(LOCK, locked),
            ];
            check(&files).len()
        };
        assert_eq!(found(same, lock), 0);
        assert_eq!(found(other, newer), 4);
    }
}
