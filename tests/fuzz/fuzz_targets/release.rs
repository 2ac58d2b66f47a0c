//! A release, a change of keys, a signature, a policy or a key of a stranger.

use heg_artifacts::SectionId;
use heg_trust::{
    Claim, KeyChange, Moment, PublisherKey, Purpose, Release, ReleaseSignature, SeenReleases,
    SignedKeys, TrustPolicy, Word, judge,
};

const POLICY: &str = include_str!("../seeds/release/trust.ron");
const SIGNATURE: &[u8] = include_bytes!("../seeds/release/a.minisig");
const SIGNED: &[u8] = include_bytes!("../seeds/release/release.json");

pub(crate) fn run(bytes: &[u8]) {
    if let Ok(release) = Release::parse(bytes) {
        let text = release.to_text().expect("what was read can be written");
        assert_eq!(Release::parse(text.as_bytes()).as_ref(), Ok(&release));
    }
    if let Ok(change) = KeyChange::parse(bytes) {
        let text = change.to_text().expect("what was read can be written");
        assert_eq!(KeyChange::parse(text.as_bytes()).as_ref(), Ok(&change));
        assert!((1..=change.keys.len()).contains(&change.threshold));
    }
    let _ = ReleaseSignature::parse(bytes, 1);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = text.parse::<PublisherKey>();
        if let Ok(policy) = TrustPolicy::parse(text) {
            for publisher in &policy.publishers {
                assert!((1..=publisher.keys.len()).contains(&publisher.threshold));
            }
        }
    }
    let policy = TrustPolicy::parse(POLICY).expect("the seed is a policy");
    let signatures = [SIGNATURE.to_vec(), bytes.to_vec()];
    let change = SignedKeys {
        bytes,
        signatures: &signatures,
    };
    let claim = Claim {
        name: "registry.acme.example/chat",
        bundle: SectionId::of(b""),
        release: Some(bytes),
        signatures: &[SIGNATURE, bytes],
        changes: &[],
    };
    let (seen, purpose) = (SeenReleases::default(), Purpose::Update);
    let judged = judge(&policy, &claim, &seen, purpose, Moment::Unknown);
    assert!(bytes == SIGNED || !matches!(judged, Ok(Word::Signed { .. })));
    // Nobody who signed the release signed these keys too.
    let changed = Claim {
        release: Some(SIGNED),
        signatures: &[SIGNATURE],
        changes: &[change],
        ..claim
    };
    let judged = judge(&policy, &changed, &seen, purpose, Moment::Unknown);
    assert!(!matches!(
        judged,
        Ok(Word::Signed {
            turned: Some(_),
            ..
        })
    ));
}
