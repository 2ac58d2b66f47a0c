//! The real `minisign`: it signs what we check, and checks what we were given.

use std::path::Path;
use std::process::Command;

use heg_artifacts::SectionId;
use heg_trust::{Claim, Moment, Purpose, SeenReleases, TrustError, TrustPolicy, Word, judge};

const RELEASE: &str = include_str!("../../testdata/release.json");

/// Runs `minisign`; `None` where it is not installed, which is said.
fn minisign(folder: &Path, arguments: &[&str]) -> Option<bool> {
    match Command::new("minisign")
        .args(arguments)
        .current_dir(folder)
        .output()
    {
        Ok(output) => Some(output.status.success()),
        Err(_) => {
            eprintln!("skipped: `minisign` is not installed (Debian: minisign)");
            None
        }
    }
}

#[test]
fn minisign_signs_what_we_check() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let Some(made) = minisign(
        folder,
        &["-G", "-W", "-f", "-p", "key.pub", "-s", "key.sec"],
    ) else {
        return;
    };
    assert!(made);
    std::fs::write(folder.join("release.json"), RELEASE).unwrap();
    let sign = [
        "-S",
        "-W",
        "-s",
        "key.sec",
        "-m",
        "release.json",
        "-t",
        "release 42",
    ];
    assert_eq!(minisign(folder, &sign), Some(true));
    let key = std::fs::read_to_string(folder.join("key.pub")).unwrap();
    let key = key.lines().nth(1).unwrap();
    let signature = std::fs::read(folder.join("release.json.minisig")).unwrap();
    let policy = format!(
        "(revision: 1, publishers: [(names: [\"registry.acme.example/chat\"], threshold: 1, keys: [\"{key}\"])])"
    );
    let policy = TrustPolicy::parse(&policy).unwrap();
    let bundle: SectionId = RELEASE
        .split('"')
        .find_map(|text| text.parse().ok())
        .unwrap();
    let judged = |release: &str, signature: &[u8]| {
        let claim = Claim {
            name: "registry.acme.example/chat",
            bundle,
            release: Some(release.as_bytes()),
            signatures: &[signature],
            changes: &[],
        };
        let (seen, moment) = (SeenReleases::default(), Moment::Unknown);
        judge(&policy, &claim, &seen, Purpose::Update, moment)
    };
    assert!(matches!(
        judged(RELEASE, &signature),
        Ok(Word::Signed { .. })
    ));
    let other = RELEASE.replace("42", "43");
    assert!(matches!(
        judged(&other, &signature),
        Err(TrustError::TooFewKeys { .. })
    ));
    let comment = String::from_utf8(signature)
        .unwrap()
        .replace("release 42", "release 43");
    let refused = judged(RELEASE, comment.as_bytes());
    assert!(matches!(refused, Err(TrustError::TooFewKeys { .. })));
}

/// The committed vectors are what the program itself accepts and refuses.
#[test]
fn minisign_checks_our_vectors() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let check = |key: &str, signature: &str| {
        minisign(
            &folder,
            &["-V", "-p", key, "-m", "release.json", "-x", signature],
        )
    };
    for (key, signature, expected) in [
        ("a.pub", "a.minisig", true),
        ("b.pub", "b.minisig", true),
        ("a.pub", "b.minisig", false),
        ("a.pub", "c.minisig", false),
    ] {
        if let Some(found) = check(key, signature) {
            assert_eq!(found, expected, "{key} {signature}");
        }
    }
}
