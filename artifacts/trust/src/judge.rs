//! The decision: may this bundle be used under this name.
//!
//! Signatures come first, and nothing of a release is believed before they count. Then its name, its slices, and its
//! number against what was here before: an old release with a good signature is what an attacker has.

use heg_artifacts::SectionId;
use jiff::Timestamp;

use crate::error::TrustError;
use crate::key::{PublisherKey, ReleaseSignature};
use crate::keys::{SignedKeys, TurnedKeys, signers};
use crate::policy::{OlderRule, Publisher, TrustPolicy, UnsignedRule};
use crate::release::Release;
use crate::seen::SeenReleases;

/// The claim that a bundle is what a name stands for.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// Name that was asked for.
    pub name: &'a str,
    /// The bundle.
    pub bundle: SectionId,
    /// Bytes of `release.json`, if there is one.
    pub release: Option<&'a [u8]>,
    /// Contents of the `.minisig` files.
    pub signatures: &'a [&'a [u8]],
    /// The publisher's changes of keys, in any order.
    pub changes: &'a [SignedKeys<'a>],
}

/// Use of an accepted bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// It is here already, and shall run.
    Run,
    /// It shall come here, or take the place of another.
    Update,
}

/// The machine's knowledge of the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// A clock says so.
    Now(Timestamp),
    /// The device has no clock that counts.
    Unknown,
}

/// An accepted claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// The keys that count signed it.
    Signed {
        /// The release.
        release: Release,
        /// The keys that signed it.
        keys: Vec<PublisherKey>,
        /// Remarks for people.
        warnings: Vec<Warning>,
        /// The publisher's keys, if it has changed them: to be remembered.
        turned: Option<Box<TurnedKeys>>,
    },
    /// Nobody signed it, and the policy allows that.
    Unsigned,
}

/// A remark on an accepted claim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// It is older than one that was here.
    #[error("{0}")]
    Older(TrustError),
    /// It is past its date.
    #[error("{0}")]
    Expired(TrustError),
    /// It is older than the policy wants.
    #[error("{0}")]
    Stale(TrustError),
    /// Its date was not checked.
    #[error("the age of the release was not checked: this device has no clock")]
    NoClock,
}

/// Decides about a claim.
///
/// Errors: every variant of [`TrustError`] but those of policies. [`TrustError::AskUnsigned`] is for the caller to ask a
/// person, where there is one.
pub fn judge(
    policy: &TrustPolicy,
    claim: &Claim<'_>,
    seen: &SeenReleases,
    purpose: Purpose,
    moment: Moment,
) -> Result<Word, TrustError> {
    let Some((publisher, names)) = policy.publisher(claim.name) else {
        return unsigned(policy.unsigned, claim, seen);
    };
    let Some(bytes) = claim.release.filter(|_| !claim.signatures.is_empty()) else {
        return unsigned(publisher.unsigned, claim, seen);
    };
    let publisher = &publisher.after(claim.changes)?;
    let keys = release_signers(publisher, claim, bytes)?;
    let release = Release::parse(bytes)?;
    if !names.contains(&release.name) {
        return Err(TrustError::OtherName {
            found: release.name,
            expected: names.join("`, `"),
        });
    }
    if release.slice_of(claim.bundle).is_none() {
        return Err(TrustError::OtherBundle {
            number: release.number,
            found: claim.bundle,
        });
    }
    let mut warnings = Vec::new();
    let past = match &publisher.turned {
        Some(turned) => &turned.past(&release.name, seen),
        None => seen,
    };
    check_number(publisher, &release, past, &mut warnings)?;
    check_age(publisher, &release, purpose, moment, &mut warnings)?;
    Ok(Word::Signed {
        release,
        keys,
        warnings,
        turned: publisher.turned.clone().map(Box::new),
    })
}

fn unsigned(
    rule: UnsignedRule,
    claim: &Claim<'_>,
    seen: &SeenReleases,
) -> Result<Word, TrustError> {
    let name = claim.name.to_owned();
    match rule {
        // Whatever the rule: signatures must not vanish on the way.
        _ if seen.signed => Err(TrustError::NoLongerSigned { name }),
        UnsignedRule::Allow => Ok(Word::Unsigned),
        UnsignedRule::Ask => Err(TrustError::AskUnsigned { name }),
        UnsignedRule::Refuse => Err(TrustError::Unsigned { name }),
    }
}

/// The publisher's keys that signed the release, if they are enough.
fn release_signers(
    publisher: &Publisher,
    claim: &Claim<'_>,
    bytes: &[u8],
) -> Result<Vec<PublisherKey>, TrustError> {
    let signatures = ReleaseSignature::parse_all(claim.signatures)?;
    let signed = signers(&publisher.keys, bytes, &signatures);
    let keys: Vec<PublisherKey> = signed.into_iter().cloned().collect();
    if keys.len() < publisher.threshold {
        return Err(TrustError::TooFewKeys {
            name: claim.name.to_owned(),
            found: keys.len(),
            expected: publisher.threshold,
        });
    }
    Ok(keys)
}

fn check_number(
    publisher: &Publisher,
    release: &Release,
    seen: &SeenReleases,
    warnings: &mut Vec<Warning>,
) -> Result<(), TrustError> {
    let number = release.number;
    if seen.withdrawn.contains(&number) {
        return Err(TrustError::Withdrawn { number });
    }
    if number < seen.newest {
        let older = TrustError::Older {
            found: number,
            newest: seen.newest,
        };
        match publisher.older {
            OlderRule::Refuse => return Err(older),
            OlderRule::Warn => warnings.push(Warning::Older(older)),
        }
    }
    Ok(())
}

/// Refuses to fetch a release that is too old. One that is here goes on running: a device must not stop because a publisher is late.
fn check_age(
    publisher: &Publisher,
    release: &Release,
    purpose: Purpose,
    moment: Moment,
    warnings: &mut Vec<Warning>,
) -> Result<(), TrustError> {
    let number = release.number;
    let Moment::Now(now) = moment else {
        if release.expires.is_some() || publisher.stale_days.is_some() {
            warnings.push(Warning::NoClock);
        }
        return Ok(());
    };
    let mut found = Vec::new();
    if let Some(expired) = release.expires.filter(|expires| *expires < now) {
        found.push(Warning::Expired(TrustError::Expired { number, expired }));
    }
    let age_seconds = now.as_second().saturating_sub(release.issued.as_second());
    let found_days = u64::try_from(age_seconds).unwrap_or(0) / SECONDS_A_DAY;
    if let Some(most_days) = publisher
        .stale_days
        .filter(|most| found_days > u64::from(*most))
    {
        found.push(Warning::Stale(TrustError::Stale {
            number,
            found_days,
            most_days,
        }));
    }
    match (purpose, found.first()) {
        (Purpose::Update, Some(Warning::Expired(error) | Warning::Stale(error))) => {
            Err(error.clone())
        }
        _ => {
            warnings.append(&mut found);
            Ok(())
        }
    }
}

const SECONDS_A_DAY: u64 = 24 * 60 * 60;
