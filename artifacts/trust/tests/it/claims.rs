//! Claims: which are accepted, and the words in which the others are refused.

use std::fmt::Write;

use heg_artifacts::SectionId;
use heg_trust::*;

const RELEASE: &[u8] = include_bytes!("../../testdata/release.json");
const A: &[u8] = include_bytes!("../../testdata/a.minisig");
const B: &[u8] = include_bytes!("../../testdata/b.minisig");
const STRANGER: &[u8] = include_bytes!("../../testdata/c.minisig");
const LEGACY: &[u8] = include_bytes!("../../testdata/legacy.minisig");
const NAME: &str = "registry.acme.example/chat";

fn key(file: &str) -> String {
    file.lines().nth(1).unwrap().to_owned()
}

/// A policy with both keys and some more fields.
pub(crate) fn policy(threshold: usize, more: &str) -> TrustPolicy {
    let a = key(include_str!("../../testdata/a.pub"));
    let b = key(include_str!("../../testdata/b.pub"));
    let text = format!(
        r#"(revision: 1, publishers: [(names: ["registry.acme.example/*"], copies: ["mirror.plant.example/acme/*"],
            threshold: {threshold}, keys: ["{a} 2026", "{b} 2027", "{a} again"], {more})])"#
    );
    TrustPolicy::parse(&text).unwrap()
}

fn bundle() -> SectionId {
    Release::parse(RELEASE).unwrap().slices[0].bundle
}

fn claim<'a>(signatures: &'a [&'a [u8]]) -> Claim<'a> {
    Claim {
        name: NAME,
        bundle: bundle(),
        release: Some(RELEASE),
        signatures,
        changes: &[],
    }
}

fn at(text: &str) -> Moment {
    Moment::Now(text.parse().unwrap())
}

fn seen(newest: u64) -> SeenReleases {
    SeenReleases {
        newest,
        withdrawn: [41].into(),
        signed: newest > 0,
        keys_serial: 0,
    }
}

fn told(outcome: Result<Word, TrustError>) -> String {
    match outcome {
        Err(error) => format!("refused: {error}"),
        Ok(Word::Unsigned) => "accepted unsigned".to_owned(),
        Ok(Word::Signed {
            release,
            keys,
            warnings,
            turned: _,
        }) => {
            let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
            let mut text = format!("release {} by {}", release.number, keys.join(" and "));
            for warning in warnings {
                write!(text, "; warning: {warning}").unwrap();
            }
            text
        }
    }
}

fn judged(policy: &TrustPolicy, claim: &Claim<'_>, seen: &SeenReleases) -> String {
    let moment = at("2026-11-24T00:00:00Z");
    told(judge(policy, claim, seen, Purpose::Update, moment))
}

#[test]
fn signatures() {
    let cases: [(&str, usize, &[&[u8]]); 9] = [
        ("one key of two", 1, &[A]),
        ("the other", 1, &[B]),
        ("both", 2, &[A, B]),
        ("one key twice", 2, &[A, A]),
        ("a stranger", 1, &[STRANGER]),
        ("a stranger beside one", 1, &[STRANGER, A]),
        ("legacy", 1, &[LEGACY]),
        ("not a signature", 1, &[b"untrusted comment: x\nRUS\n"]),
        ("none", 1, &[]),
    ];
    let mut all = String::new();
    for (name, threshold, signatures) in cases {
        let found = judged(&policy(threshold, ""), &claim(signatures), &seen(0));
        writeln!(all, "{name}: {found}").unwrap();
    }
    insta::assert_snapshot!("signatures", all);
}

/// Every byte of the release and of the signature counts, but for the untrusted comment.
#[test]
fn a_changed_byte_is_no_word() {
    let (policy, seen) = (policy(1, ""), seen(0));
    for index in 0..RELEASE.len() {
        let mut changed = RELEASE.to_vec();
        changed[index] ^= 1;
        let claim = Claim {
            release: Some(&changed),
            ..claim(&[A])
        };
        assert!(judged(&policy, &claim, &seen).contains("`0` accepted keys"));
    }
    let comment = A.iter().position(|byte| *byte == b'\n').unwrap();
    for index in comment..A.len() - 1 {
        let mut changed = A.to_vec();
        changed[index] ^= 1;
        assert!(
            judged(&policy, &claim(&[&changed]), &seen).starts_with("refused"),
            "{index}"
        );
    }
}

#[test]
fn names_and_bundles() {
    let policy = policy(1, "");
    let mut all = String::new();
    for name in [
        NAME,
        "registry.acme.example/other",
        "mirror.plant.example/acme/chat",
        "mirror.plant.example/acme/other",
        "mirror.plant.example/chat",
        "registry.acme.example",
    ] {
        let claim = Claim {
            name,
            ..claim(&[A])
        };
        writeln!(all, "{name}: {}", judged(&policy, &claim, &seen(0))).unwrap();
    }
    let claim = Claim {
        bundle: SectionId::of(b"other"),
        ..claim(&[A])
    };
    writeln!(all, "another bundle: {}", judged(&policy, &claim, &seen(0))).unwrap();
    insta::assert_snapshot!("names", all);
}

#[test]
fn numbers() {
    let warns = policy(1, "older: Warn");
    let refuses = policy(1, "");
    let mut all = String::new();
    for newest in [0, 41, 42, 43] {
        for (rule, policy) in [("refuse", &refuses), ("warn", &warns)] {
            let found = judged(policy, &claim(&[A]), &seen(newest));
            writeln!(all, "{newest} was here, {rule}: {found}").unwrap();
        }
    }
    let withdrawn = SeenReleases {
        withdrawn: [42].into(),
        ..seen(43)
    };
    let found = judged(&warns, &claim(&[A]), &withdrawn);
    writeln!(all, "withdrawn: {found}").unwrap();
    insta::assert_snapshot!("numbers", all);
}

#[test]
fn ages() {
    let policy = policy(1, "stale_days: Some(30)");
    let mut all = String::new();
    for moment in [
        "2026-11-23T09:00:00Z",
        "2026-12-23T10:00:00Z",
        "2026-12-24T10:00:00Z",
        "2027-02-23T10:00:01Z",
    ] {
        for purpose in [Purpose::Run, Purpose::Update] {
            let found = judge(&policy, &claim(&[A]), &seen(0), purpose, at(moment));
            writeln!(all, "{moment} {purpose:?}: {}", told(found)).unwrap();
        }
    }
    let found = judge(
        &policy,
        &claim(&[A]),
        &seen(0),
        Purpose::Update,
        Moment::Unknown,
    );
    writeln!(all, "no clock: {}", told(found)).unwrap();
    insta::assert_snapshot!("ages", all);
}

#[test]
fn without_a_signature() {
    let of_default =
        |rule: &str| TrustPolicy::parse(&format!("(revision: 1, unsigned: {rule})")).unwrap();
    let mut all = String::new();
    for rule in ["Ask", "Refuse", "Allow"] {
        for (whose, policy) in [
            ("nobody", of_default(rule)),
            ("a publisher", policy(1, &format!("unsigned: {rule}"))),
        ] {
            for seen in [seen(0), seen(7)] {
                let bare = Claim {
                    release: None,
                    ..claim(&[])
                };
                let found = judged(&policy, &bare, &seen);
                writeln!(
                    all,
                    "{rule} of {whose}, signed before {}: {found}",
                    seen.signed
                )
                .unwrap();
            }
        }
    }
    assert_eq!(TrustPolicy::default(), of_default("Ask"));
    insta::assert_snapshot!("unsigned", all);
}

#[test]
fn what_was_seen_is_kept() {
    let mut past = SeenReleases::default();
    let moment = at("2026-11-24T00:00:00Z");
    let word = judge(&policy(1, ""), &claim(&[A]), &past, Purpose::Update, moment).unwrap();
    past.note(&word);
    past.note(&Word::Unsigned);
    assert_eq!((past.newest, past.signed), (42, true));
    assert!(past.withdrawn.contains(&37));
}
