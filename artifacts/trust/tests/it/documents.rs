//! Releases and policies as documents: some are read, others refused.

use std::fmt::Write;

use heg_trust::{Release, TrustPolicy};
use proptest::prelude::*;

const RELEASE: &str = include_str!("../../testdata/release.json");
const KEY: &str = "RWS77Vzf+tUj+FVAIDASX9G2NkQmhBRmAHlKQvgf6eMKTXARelnf/G9w";

#[test]
fn a_release_is_written_as_it_was_read() {
    let release = Release::parse(RELEASE.as_bytes()).unwrap();
    assert_eq!(release.to_text().unwrap(), RELEASE);
}

#[test]
fn refused_releases() {
    let changes = [
        ("\"release/1\"", "\"release/2\""),
        ("registry.acme.example/chat", "../../etc/passwd"),
        ("registry.acme.example/chat", "registry//chat"),
        ("\"number\": 42", "\"number\": 0"),
        ("\"number\": 42", "\"number\": -1"),
        ("37", "42"),
        ("2026.11\"", "2026\\u001b[2J\""),
        ("\"2026-11-23T10:00:00Z\"", "\"yesterday\""),
        ("\"2027-02-23", "\"2025-02-23"),
        ("\"cpu\"", "\"CPU\""),
        ("a982569b", "A982569b"),
        ("\"version\"", "\"extra\": 1, \"version\""),
        ("163840", "1638.40"),
    ];
    let mut all = String::new();
    for (from, to) in changes {
        let changed = RELEASE.replacen(from, to, 1);
        assert_ne!(changed, RELEASE);
        let error = Release::parse(changed.as_bytes()).unwrap_err();
        writeln!(all, "{to}: {error}").unwrap();
    }
    let long = vec![b' '; 300_000];
    writeln!(all, "long: {}", Release::parse(&long).unwrap_err()).unwrap();
    insta::assert_snapshot!("refused_releases", all);
}

#[test]
fn refused_policies() {
    let publisher = |more: &str| format!("(revision: 1, publishers: [({more})])");
    let texts = [
        "(revision: 2)".to_owned(),
        "(revision: 1, trusted: true)".to_owned(),
        "(revision: 1, unsigned: Always)".to_owned(),
        publisher("names: [], threshold: 1, keys: []"),
        publisher(r#"names: ["*"], threshold: 1, keys: []"#),
        publisher(r#"names: ["acme*"], threshold: 1, keys: []"#),
        publisher(r#"names: ["a/*/b"], threshold: 1, keys: []"#),
        publisher(r#"names: ["a/../b"], threshold: 1, keys: []"#),
        publisher(r#"names: ["a/*"], threshold: 1, keys: []"#),
        publisher(r#"names: ["a/*"], threshold: 1, keys: ["RWS77 2026"]"#),
        publisher(&format!(
            r#"names: ["a/*"], threshold: 2, keys: ["{KEY}", "{KEY} 2"]"#
        )),
        publisher(&format!(r#"names: ["a/*"], threshold: 0, keys: ["{KEY}"]"#)),
    ];
    let mut all = String::new();
    for text in texts {
        let error = TrustPolicy::parse(&text).unwrap_err();
        writeln!(all, "{text}\n    {error}").unwrap();
    }
    insta::assert_snapshot!("refused_policies", all);
}

proptest! {
    #[test]
    fn foreign_bytes_are_an_error(bytes in prop::collection::vec(any::<u8>(), 0..500), text in ".{0,200}") {
        prop_assert!(Release::parse(&bytes).is_err());
        prop_assert!(TrustPolicy::parse(&text).is_err());
        prop_assert!(heg_trust::ReleaseSignature::parse(&bytes, 1).is_err());
        prop_assert!(text.parse::<heg_trust::PublisherKey>().is_err());
    }
}
