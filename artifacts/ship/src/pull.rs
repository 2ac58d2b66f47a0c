//! A bundle on its way to this machine: trust, plan, transfer, and last of all its name.

use std::path::Path;

use heg_artifacts::{Bundle, SectionId};
use heg_trust::{TrustError, Word};

use crate::bad::{BadBundle, BadReason};
use crate::choice::{SecondBest, SliceWish, slice_name};
use crate::chosen::{Choice, Chosen};
use crate::counted::CountedSource;
use crate::error::{ShipError, ShipErrorKind};
use crate::fetch::{FetchOptions, TransferProgress, fetch};
use crate::name::ModelName;
use crate::names::{Held, SignedRelease};
use crate::oci::Digest;
use crate::offer::{DEFAULT_SLICE, Offer};
use crate::plan::{Amounts, Plan};
use crate::source::BundleSource;
use crate::store::{DeviceStore, PARTIAL};
use crate::trust::{Accepted, MachineTrust};

/// A transfer to this machine.
pub struct Pull<'p> {
    /// The store.
    pub store: &'p DeviceStore,
    /// The policy.
    pub trust: &'p MachineTrust,
    /// Name that the bundle gets.
    pub name: &'p ModelName,
    /// Wanted kind of devices.
    pub slice: SliceWish<'p>,
    /// Asked where the policy leaves it to a person.
    pub agrees: &'p dyn Fn(&TrustError) -> bool,
    /// Asked before the name moves, with the path by which the bundle is opened; a reason keeps the name where it is.
    pub examine: &'p dyn Fn(&Path) -> Result<(), ShipError>,
    /// Whether a bundle that turned out badly here is taken all the same, since a person asks for it.
    pub takes_bad: bool,
    /// Number of bundles that the name stood for and that are kept.
    pub keep: usize,
    /// Options of the transfer.
    pub options: FetchOptions,
    /// Told what happens.
    pub progress: &'p dyn TransferProgress,
}

/// The outcome of looking for a bundle under a tag.
#[derive(Debug, Clone)]
pub enum PullOutcome {
    /// The bundle is here, and the name stands for it.
    Pulled(Box<Pulled>),
    /// The name stands for just that already.
    Unchanged,
    /// The bundle turned out badly here before: nothing of it was fetched.
    PassedOver(BadBundle),
}

/// A transfer that ended well.
#[derive(Debug, Clone)]
pub struct Pulled {
    /// Bundle that the name stands for now.
    pub held: Held,
    /// Bundle that it stood for before; `None` for a new name.
    pub before: Option<Held>,
    /// Name of the model, for people.
    pub model: String,
    /// The decision about it.
    pub accepted: Accepted,
    /// The reason if it is not the best slice for the machine's NPU.
    pub second_best: Option<SecondBest>,
    /// Bytes of the bundle.
    pub amounts: Amounts,
    /// Bytes that came from the source, documents included.
    pub moved_bytes: u64,
    /// Requests that brought them.
    pub requests: u64,
    /// Names of the parts that were not here.
    pub changed_parts: Vec<String>,
}

impl Pull<'_> {
    /// Brings the bundle under a tag of a source.
    ///
    /// Errors: every variant of [`ShipError`] but those of pushing. The name then stands for what it stood for, and what
    /// arrived is kept for the next try.
    pub fn from_source(
        &self,
        source: &dyn BundleSource,
        tag: &str,
    ) -> Result<PullOutcome, ShipError> {
        let source = CountedSource::new(source);
        let record = self.store.name(self.name)?;
        let before = record.as_ref().map(|record| record.now.clone());
        let bytes = source.tagged(tag)?;
        let index = Digest::of(&bytes);
        let (name, place) = (self.name.to_string(), source.place());
        let choice = Choice::of(&bytes, self.slice, &name, &place)?;
        if let Some(held) = before.as_ref().filter(|held| held.index == Some(index))
            && held.slice == choice.slice
            && held.slice_asked == self.slice_asked(Some(held))
            && self.store.bundle_path(held.bundle).is_some()
            && self.is_complete(held.bundle)?
        {
            return Ok(PullOutcome::Unchanged);
        }
        let chosen = Chosen::read(&source, choice)?;
        let (bundle, signed) = (chosen.bundle, chosen.signed.as_ref());
        let bad = record.as_ref().and_then(|record| record.bad(bundle));
        if let Some(bad) = bad.filter(|_| !self.takes_bad) {
            return Ok(PullOutcome::PassedOver(bad.clone()));
        }
        let accepted = self.decide(bundle, signed)?;
        let offer = chosen.offer(&source)?;
        let held = Held {
            slice: chosen.slice.clone(),
            slice_asked: self.slice_asked(before.as_ref()),
            index: Some(index),
            agreed: accepted.agreed,
            ..new_held(bundle, offer.head.file_bytes())
        };
        let pulled = self.bring(&offer, held, before, signed, accepted)?;
        Ok(PullOutcome::Pulled(Box::new(Pulled {
            moved_bytes: source.bytes(),
            requests: source.requests(),
            second_best: chosen.why,
            ..pulled
        })))
    }

    /// Brings a bundle's file, with the statement beside it if there is one.
    ///
    /// Errors: as [`Pull::from_source`].
    pub fn from_file(&self, path: &Path) -> Result<Pulled, ShipError> {
        let bundle = Bundle::open(path).map_err(ShipError::bundle(path.display()))?;
        let signed = SignedRelease::beside(path)?;
        let accepted = self.decide(bundle.manifest_id(), signed.as_ref())?;
        let before = self.store.name(self.name)?.map(|record| record.now);
        let offer = Offer::of_file(path, &bundle)?;
        let platforms = heg_artifacts::platforms(bundle.manifest());
        let held = Held {
            slice: slice_name(platforms.first().copied()),
            agreed: accepted.agreed,
            ..new_held(bundle.manifest_id(), offer.head.file_bytes())
        };
        self.bring(&offer, held, before, signed.as_ref(), accepted)
    }

    /// Whether the slice of a new bundle is one that a person chose.
    fn slice_asked(&self, before: Option<&Held>) -> bool {
        match self.slice {
            SliceWish::Named(_) => true,
            SliceWish::Kept(_) => before.is_some_and(|held| held.slice_asked),
            SliceWish::Best(_) => false,
        }
    }

    fn is_complete(&self, bundle: SectionId) -> Result<bool, ShipError> {
        let view = self.store.view(bundle)?;
        Ok(view.is_some_and(|view| {
            let mut parts = view.parts().iter();
            parts.all(|part| self.store.has_part(part.id, part.bytes))
        }))
    }

    fn decide(
        &self,
        bundle: SectionId,
        signed: Option<&SignedRelease>,
    ) -> Result<Accepted, ShipError> {
        let store = Some(self.store);
        self.trust
            .of_offer(store, self.name, bundle, signed, self.agrees)
    }

    /// Brings the parts of an accepted offer, and lets the name stand for it.
    fn bring(
        &self,
        offer: &Offer<'_>,
        held: Held,
        before: Option<Held>,
        signed: Option<&SignedRelease>,
        accepted: Accepted,
    ) -> Result<Pulled, ShipError> {
        let say = || {
            self.progress
                .say("another command changes the store: waiting for it")
        };
        let _lock = self.store.lock(&say)?;
        let plan = Plan::new(self.store, offer)?;
        self.progress.planned(&plan.amounts);
        let (arrived, fetched) = fetch(offer, &plan, &self.options, self.progress);
        fetched.map_err(|source| self.interrupted(source, &plan.amounts, arrived))?;
        let mut changed_parts = Vec::new();
        for partial in &plan.partials {
            let Some(part) = offer.parts.get(partial.part) else {
                continue;
            };
            if part.sections.is_empty() {
                // The head was read whole and checked.
                let written = crate::platform::write_at(&partial.file, offer.head.bytes(), 0);
                written.map_err(ShipError::io("write", &partial.path))?;
            }
            self.store.put_part(part.id, &partial.path, &partial.file)?;
            changed_parts.push(part.name.clone());
        }
        self.store.put_view(held.bundle, &offer.parts)?;
        let mut held = held;
        if let Word::Signed { release, .. } = &accepted.word {
            held.number = Some(release.number);
            held.version = Some(release.version.clone());
        }
        self.examined(&held)?;
        held.release = signed
            .map(|signed| self.store.put_release(signed))
            .transpose()?;
        if let Word::Signed { .. } = &accepted.word {
            self.store.note_release(self.name, &accepted.word)?;
        }
        self.store.point(self.name, held.clone(), self.keep)?;
        Ok(Pulled {
            held,
            before,
            model: offer.manifest().model.name.clone(),
            accepted,
            amounts: plan.amounts,
            moved_bytes: arrived,
            requests: 0,
            second_best: None,
            changed_parts,
        })
    }

    /// Asks whether the name may move to a bundle that is here; one that fails is marked.
    fn examined(&self, held: &Held) -> Result<(), ShipError> {
        let Some(path) = self.store.bundle_path(held.bundle) else {
            return Ok(());
        };
        let examined = (self.examine)(&path);
        if let Err(error) = &examined
            && error.kind() == ShipErrorKind::Finding
        {
            let bad = BadBundle::of(held, BadReason::WrongAnswers);
            self.store.mark_bad(self.name, bad)?;
        }
        examined
    }

    /// The bytes that are here after a transfer that broke off. A lie or a full disk is told as such.
    fn interrupted(&self, source: ShipError, amounts: &Amounts, arrived: u64) -> ShipError {
        if !source.may_pass() {
            return source;
        }
        let here = amounts.here_bytes.saturating_add(arrived);
        let percent = here.saturating_mul(100).checked_div(amounts.bundle_bytes);
        ShipError::Interrupted {
            name: self.name.to_string(),
            percent: percent.unwrap_or(0),
            source: Box::new(source),
        }
    }
}

impl DeviceStore {
    /// Partial files that transfers left, with their room on the disk in bytes.
    ///
    /// Errors: [`ShipError::Io`].
    pub fn partial_bytes(&self) -> Result<u64, ShipError> {
        Ok(self.files_below(PARTIAL)?.values().sum())
    }
}

fn new_held(bundle: SectionId, bytes: u64) -> Held {
    Held {
        bundle,
        bytes,
        slice: DEFAULT_SLICE.to_owned(),
        slice_asked: false,
        index: None,
        release: None,
        number: None,
        version: None,
        agreed: false,
        went_back: false,
    }
}
