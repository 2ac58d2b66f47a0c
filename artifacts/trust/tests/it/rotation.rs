//! Changes of keys: a machine follows its publisher, and nobody else.

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use heg_artifacts::SectionId;
use heg_trust::*;

const NAME: &str = "registry.acme.example/chat";

/// Keys of the real `minisign`, each in a folder of its own; `None`, after saying so, where it is not installed.
struct Keys {
    folder: tempfile::TempDir,
}

impl Keys {
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        for key in ["old", "new", "third", "thief"] {
            let (public, secret) = (format!("{key}.pub"), format!("{key}.sec"));
            if !minisign(folder.path(), &["-G", "-W", "-p", &public, "-s", &secret]) {
                eprintln!("skipped: `minisign` is not installed (Debian: minisign)");
                return None;
            }
        }
        Some(Self { folder })
    }

    fn public(&self, key: &str) -> String {
        let text = std::fs::read_to_string(self.folder.path().join(format!("{key}.pub"))).unwrap();
        text.lines().nth(1).unwrap().to_owned()
    }

    fn policy(&self, key: &str) -> TrustPolicy {
        let key = self.public(key);
        let text = format!(
            r#"(revision: 1, publishers: [(names: ["registry.acme.example/*"], threshold: 1, keys: ["{key}"])])"#
        );
        TrustPolicy::parse(&text).unwrap()
    }

    /// The signatures of some keys over a text.
    fn signed(&self, text: &str, keys: &[&str]) -> Vec<Vec<u8>> {
        let folder = self.folder.path();
        std::fs::write(folder.join("text"), text).unwrap();
        let sign = |key: &&str| {
            let secret = format!("{key}.sec");
            assert!(minisign(folder, &["-S", "-s", &secret, "-m", "text"]));
            std::fs::read(folder.join("text.minisig")).unwrap()
        };
        keys.iter().map(sign).collect()
    }

    /// A change to one key, signed by some.
    fn change(&self, serial: u64, to: &str, by: &[&str]) -> Change {
        self.change_with(serial, to, by, "")
    }

    fn change_with(&self, serial: u64, to: &str, by: &[&str], more: &str) -> Change {
        let text = format!(
            r#"{{"heg": "keys/1", "names": ["registry.acme.example/*"], "serial": {serial}, "threshold": 1,
                "keys": ["{} {to}"]{more}}}"#,
            self.public(to)
        );
        let signatures = self.signed(&text, by);
        Change { text, signatures }
    }

    /// Judges release `number`, signed by a key, behind some changes; what is accepted is remembered.
    fn judge(&self, machine: &mut Machine, number: u64, by: &str, changes: &[&Change]) -> String {
        let mut release = Release::parse(RELEASE.as_bytes()).unwrap();
        release.number = number;
        release.withdrawn.clear();
        let release = release.to_text().unwrap();
        let signature = self.signed(&release, &[by]).remove(0);
        let changes: Vec<SignedKeys<'_>> = changes.iter().map(|change| change.signed()).collect();
        let claim = Claim {
            name: NAME,
            bundle: bundle(),
            release: Some(release.as_bytes()),
            signatures: &[&signature],
            changes: &changes,
        };
        let policy = machine.policy.remembering(&machine.keys).unwrap();
        let moment = Moment::Unknown;
        match judge(&policy, &claim, &machine.seen, Purpose::Update, moment) {
            Ok(word) => machine.accept(&word),
            Err(error) => format!("refused: {error}"),
        }
    }
}

struct Change {
    text: String,
    signatures: Vec<Vec<u8>>,
}

impl Change {
    fn signed(&self) -> SignedKeys<'_> {
        SignedKeys {
            bytes: self.text.as_bytes(),
            signatures: &self.signatures,
        }
    }
}

/// A machine's policy, and its memory.
struct Machine {
    policy: TrustPolicy,
    keys: Vec<TurnedKeys>,
    seen: SeenReleases,
}

impl Machine {
    fn new(policy: TrustPolicy) -> Self {
        Self {
            policy,
            keys: Vec::new(),
            seen: SeenReleases::default(),
        }
    }

    fn accept(&mut self, word: &Word) -> String {
        self.seen.note(word);
        let Word::Signed {
            release, turned, ..
        } = word
        else {
            return "accepted unsigned".to_owned();
        };
        let serial = turned.as_ref().map_or(0, |turned| turned.serial);
        self.keys = turned.iter().map(|it| TurnedKeys::clone(it)).collect();
        // As a store keeps it.
        let text = serde_json::to_string(&self.keys).unwrap();
        self.keys = serde_json::from_str(&text).unwrap();
        format!("release {} by keys of change {serial}", release.number)
    }
}

const RELEASE: &str = include_str!("../../testdata/release.json");

fn bundle() -> SectionId {
    Release::parse(RELEASE.as_bytes()).unwrap().slices[0].bundle
}

fn minisign(folder: &Path, arguments: &[&str]) -> bool {
    let mut command = Command::new("minisign");
    command.args(arguments).current_dir(folder);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// A publisher hears of what is missing before it sends anything.
#[test]
fn changes_that_no_machine_would_follow_are_known_beforehand() {
    let Some(keys) = Keys::new() else {
        return;
    };
    let checked = |by: &str, changes: &[&Change]| {
        let signed = keys.signed(RELEASE, &[by]);
        let changes: Vec<SignedKeys<'_>> = changes.iter().map(|change| change.signed()).collect();
        check_changes(RELEASE.as_bytes(), &signed, &changes).map_err(|error| error.to_string())
    };
    let first = keys.change(1, "new", &["old", "new"]);
    let second = keys.change(2, "third", &["new", "third"]);
    let alone = keys.change(2, "third", &["third"]);
    assert_eq!(checked("old", &[]), Ok(()));
    assert_eq!(checked("new", &[&first]), Ok(()));
    assert_eq!(checked("third", &[&second, &first]), Ok(()));
    let of_release =
        "`registry.acme.example/chat` has the signatures of `0` accepted keys, expected `1`";
    assert_eq!(checked("old", &[&first]), Err(of_release.to_owned()));
    let of_change =
        "the change of keys `2` has the signatures of `0` keys that counted before, expected `1`";
    let refused = checked("third", &[&first, &alone]);
    assert_eq!(refused, Err(of_change.to_owned()));
}

#[test]
fn a_machine_follows_its_publisher_from_key_to_key() {
    let Some(keys) = Keys::new() else {
        return;
    };
    let first = keys.change(1, "new", &["old", "new"]);
    let second = keys.change(2, "third", &["new", "third"]);
    let mut told = String::new();
    let mut step = |what: &str, outcome: String| writeln!(told, "{what}: {outcome}").unwrap();
    let mut machine = Machine::new(keys.policy("old"));
    let machine = &mut machine;
    step("before", keys.judge(machine, 1, "old", &[]));
    step("by the new key alone", keys.judge(machine, 2, "new", &[]));
    for (what, by) in [
        ("the old", "old"),
        ("the new", "new"),
        ("a stranger", "thief"),
    ] {
        let half = keys.change(1, "new", &[by]);
        step(
            &format!("a change by {what} key"),
            keys.judge(machine, 2, "new", &[&half]),
        );
    }
    step("a change by both", keys.judge(machine, 2, "new", &[&first]));
    step("the old key now", keys.judge(machine, 3, "old", &[]));
    step("the change again", keys.judge(machine, 3, "new", &[&first]));
    let back = keys.change(1, "thief", &["old", "thief"]);
    step(
        "another with its serial",
        keys.judge(machine, 4, "thief", &[&back]),
    );
    let back = keys.change(2, "thief", &["old", "thief"]);
    step(
        "a thief of the old key",
        keys.judge(machine, 4, "thief", &[&back]),
    );
    step(
        "a second change",
        keys.judge(machine, 5, "third", &[&second, &first]),
    );
    let mut late = Machine::new(keys.policy("old"));
    step(
        "a machine that missed both",
        keys.judge(&mut late, 5, "third", &[&second, &first]),
    );
    let mut late = Machine::new(keys.policy("old"));
    step(
        "one that is told the second alone",
        keys.judge(&mut late, 5, "third", &[&second]),
    );
    machine.policy = keys.policy("thief");
    step(
        "a new policy begins anew",
        keys.judge(machine, 6, "third", &[]),
    );
    insta::assert_snapshot!("followed", told);
}

#[test]
fn numbers_that_a_thief_spent_are_taken_back() {
    let Some(keys) = Keys::new() else {
        return;
    };
    let mut machine = Machine::new(keys.policy("old"));
    let machine = &mut machine;
    let mut told = String::new();
    let mut step = |what: &str, outcome: String| writeln!(told, "{what}: {outcome}").unwrap();
    step("honest", keys.judge(machine, 7, "old", &[]));
    step("a thief", keys.judge(machine, u64::MAX - 1, "old", &[]));
    step("the next", keys.judge(machine, 8, "old", &[]));
    let reset = format!(r#", "numbers": {{"{NAME}": 7}}"#);
    let change = keys.change_with(1, "new", &["old", "new"], &reset);
    step(
        "an older one with the change",
        keys.judge(machine, 6, "new", &[&change]),
    );
    step(
        "the next with the change",
        keys.judge(machine, 8, "new", &[&change]),
    );
    step(
        "an older one later",
        keys.judge(machine, 7, "new", &[&change]),
    );
    step("the thief again", keys.judge(machine, u64::MAX, "old", &[]));
    insta::assert_snapshot!("reset", told);
}

#[test]
fn refused_changes() {
    let right = r#"{"heg": "keys/1", "names": ["a.example/*"], "serial": 1, "threshold": 1,
        "keys": ["RWS77Vzf+tUj+FVAIDASX9G2NkQmhBRmAHlKQvgf6eMKTXARelnf/G9w 2026"], "numbers": {"a.example/b": 1}}"#;
    let change = KeyChange::parse(right.as_bytes()).unwrap();
    let text = change.to_text().unwrap();
    assert_eq!(KeyChange::parse(text.as_bytes()).unwrap(), change);
    let changes = [
        ("keys/1", "keys/2"),
        ("a.example/*", "a.example*"),
        ("[\"a.example/*\"]", "[]"),
        ("\"serial\": 1", "\"serial\": 0"),
        ("\"threshold\": 1", "\"threshold\": 2"),
        ("RWS77", "RWS7"),
        ("a.example/b", "../b"),
        ("\"serial\"", "\"extra\": 1, \"serial\""),
    ];
    let mut told = String::new();
    for (from, to) in changes {
        let changed = right.replacen(from, to, 1);
        let error = KeyChange::parse(changed.as_bytes()).unwrap_err();
        writeln!(told, "{to}: {error}").unwrap();
    }
    let long = KeyChange::parse(&vec![b' '; 300_000]).unwrap_err();
    writeln!(told, "long: {long}").unwrap();
    insta::assert_snapshot!("refused_changes", told);
}

/// Keys for some of a publisher's names are not followed for all of them.
#[test]
fn a_change_has_all_names_of_the_policy() {
    let Some(keys) = Keys::new() else {
        return;
    };
    let mut change = keys.change(1, "new", &[]);
    change.text = change.text.replace("example/*", "example/chat");
    change.signatures = keys.signed(&change.text, &["old", "new"]);
    let mut machine = Machine::new(keys.policy("old"));
    assert_eq!(
        keys.judge(&mut machine, 1, "new", &[&change]),
        "refused: the change of keys `1` does not name `registry.acme.example/*`, which the policy does"
    );
}
