//! One name, one meaning: a public type's name is unique in the workspace, so that a reader who sees it in a message or
//! a signature knows which type is meant.

use super::source::File;
use std::collections::BTreeMap;

/// Returns public types whose names are not unique, and unnecessary exceptions.
pub(super) fn check(files: &[File]) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for file in files
        .iter()
        .filter(|file| file.is_rust() && !file.is_test())
    {
        for (index, line) in file.code().enumerate() {
            if let Some(name) = public_type(line) {
                let place = format!("{}:{}", file.path, index + 1);
                places.entry(name).or_default().push(place);
            }
        }
    }
    let mut findings = Vec::new();
    places.retain(|_, places| places.len() > 1);
    for (name, places) in &places {
        if EXCEPTIONS.iter().all(|(known, _)| known != name) {
            let others = places[1..].join(", ");
            findings.push(format!(
                "{}: `{name}` is also the name of {others}",
                places[0]
            ));
        }
    }
    let unused = EXCEPTIONS
        .iter()
        .filter(|(name, _)| !places.contains_key(name));
    findings.extend(
        unused.map(|(name, _)| format!("{OWN_PATH}:1: `{name}` exists once: remove its exception")),
    );
    findings
}

/// The public type that `line` declares.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let (kind, rest) = rest.split_once(' ')?;
    let is_type = matches!(kind, "struct" | "enum" | "union" | "trait" | "type");
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
    is_type.then(|| &rest[..end.unwrap_or(rest.len())])
}

/// Names that several types may have, with the reason. At most five.
const EXCEPTIONS: [(&str, &str); 5] = [
    (
        "Args",
        "a command's arguments, named with its module: `setup::Args`",
    ),
    (
        "Model",
        "the manifest's description, and OpenVINO's own term at its boundary",
    ),
    (
        "Op",
        "an operator as an architecture declares it, and as the graph holds it",
    ),
    (
        "Progress",
        "of a compile, and of an inference in OpenVINO's terms; no code sees both",
    ),
    (
        "Work",
        "a kernel's operations and bytes, and what the scheduler gives a lane",
    ),
];

const OWN_PATH: &str = "xtask/src/tidy/glossary.rs";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_declarations_for_other_crates_count() {
        assert_eq!(public_type("pub struct Soc {"), Some("Soc"));
        assert_eq!(public_type("    pub type Result<T> = X;"), Some("Result"));
        assert_eq!(public_type("pub unsafe trait T: Send {"), Some("T"));
        assert_eq!(public_type("pub(crate) struct Soc {"), None);
        assert_eq!(public_type("pub fn struct_of() {"), None);
    }

    #[test]
    fn a_second_type_of_a_name_is_found() {
        let file = |path: &str, text: &str| File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let files = [
            file(
                "a/src/x.rs",
                "pub struct Plan;\n#[cfg(test)]\nmod tests {\n    pub struct Other;\n}\n",
            ),
            file(
                "b/src/y.rs",
                "//! H\npub enum Plan {}\npub struct Other;\npub struct Model;\n",
            ),
            file("c/src/z.rs", "pub struct Args;\npub struct Model;\n"),
            file("c/src/u.rs", "pub struct Args;\n"),
            file("c/tests/z.rs", "pub struct Plan;\n"),
        ];
        let mut found = check(&files);
        found.retain(|finding| !finding.ends_with("remove its exception"));
        assert_eq!(
            found,
            ["a/src/x.rs:1: `Plan` is also the name of b/src/y.rs:2"]
        );
        let unused = check(&files[..1]);
        assert_eq!(unused.len(), EXCEPTIONS.len());
    }

    #[test]
    fn exceptions_are_few_and_have_reasons() {
        assert!(EXCEPTIONS.len() <= 5);
        assert!(EXCEPTIONS.iter().all(|(_, why)| !why.is_empty()));
    }
}
