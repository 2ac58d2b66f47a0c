//! A bundle under a name, looked at before any of its weights is fetched.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

use heg_artifacts::{
    BundleHead, FilePart, Manifest, Reference, SectionId, references, slice, without_answers,
};
use heg_trust::TrustError;

use crate::choice::{SecondBest, SliceWish};
use crate::chosen::{Choice, Chosen};
use crate::error::ShipError;
use crate::name::ModelName;
use crate::offer::{Offer, part_bytes};
use crate::plan::{Amounts, LocalSections};
use crate::platform;
use crate::source::{BundleSource, from_any};
use crate::store::DeviceStore;
use crate::trust::{Accepted, MachineTrust};

/// A look at a name. It fetches documents and the bundle's head, and changes nothing on this machine.
pub struct Look<'l> {
    /// The store, where there is one.
    pub store: Option<&'l DeviceStore>,
    /// The policy.
    pub trust: &'l MachineTrust,
    /// Name that is looked at.
    pub name: &'l ModelName,
    /// Wanted kind of devices.
    pub slice: SliceWish<'l>,
    /// Asked where the policy leaves it to a person.
    pub agrees: &'l dyn Fn(&TrustError) -> bool,
}

/// A bundle that could be fetched.
pub struct Candidate<'s> {
    offer: Offer<'s>,
    /// The decision about it.
    pub accepted: Accepted,
    /// Kind of devices that it is for.
    pub slice: String,
    /// Slices under the tag.
    pub offered: Vec<String>,
    /// The reason if it is not the best slice for the machine's NPU.
    pub second_best: Option<SecondBest>,
    /// Amounts of a transfer: `here_bytes` counts whole sections that this machine has.
    pub amounts: Amounts,
    /// Room on the store's disk, in bytes, where the system says.
    pub free_bytes: Option<u64>,
}

impl Look<'_> {
    /// Looks at what stands under a tag of a source.
    ///
    /// Errors: [`ShipError::Refused`] by the policy; [`ShipError::NoSlice`], [`ShipError::Document`],
    /// [`ShipError::OtherBundle`], and those of the source.
    pub fn at<'s>(
        &self,
        source: &'s dyn BundleSource,
        tag: &str,
    ) -> Result<Candidate<'s>, ShipError> {
        let tagged = source.tagged(tag)?;
        let (name, place) = (self.name.to_string(), source.place());
        let choice = Choice::of(&tagged, self.slice, &name, &place)?;
        let chosen = Chosen::read(source, choice)?;
        let accepted = self.trust.of_offer(
            self.store,
            self.name,
            chosen.bundle,
            chosen.signed.as_ref(),
            self.agrees,
        )?;
        let offer = chosen.offer(source)?;
        Ok(Candidate {
            accepted,
            slice: chosen.slice,
            offered: chosen.offered,
            second_best: chosen.why,
            amounts: self.amounts(&offer)?,
            free_bytes: self.store.and_then(|it| platform::free_bytes(it.path())),
            offer,
        })
    }

    fn amounts(&self, offer: &Offer<'_>) -> Result<Amounts, ShipError> {
        let local = match self.store {
            Some(store) => LocalSections::of(store)?,
            None => LocalSections::default(),
        };
        let mut amounts = Amounts::default();
        for section in &offer.manifest().sections {
            amounts.bundle_bytes = amounts.bundle_bytes.saturating_add(section.bytes);
            if local.has(section.id) {
                amounts.here_bytes = amounts.here_bytes.saturating_add(section.bytes);
            }
        }
        amounts.fetch_bytes = amounts.bundle_bytes.saturating_sub(amounts.here_bytes);
        Ok(amounts)
    }
}

impl Candidate<'_> {
    /// The bundle's manifest.
    pub fn manifest(&self) -> &Manifest {
        self.offer.manifest()
    }

    /// Writes a bundle of the same kernels over empty weights into `file`: a launch takes the time that it would take over
    /// the real ones. Kernels are fetched and checked; weights, rotary tables and the tokenizer are holes, which take no
    /// room. It has no known answers, since its kernels give others, and no blobs.
    ///
    /// Errors: [`ShipError::Document`] if kernels exceed 64 MiB or are not what the bundle's manifest names; those of the
    /// source; [`ShipError::Bundle`] and [`ShipError::Io`].
    pub fn write_sketch(&self, file: &File) -> Result<(), ShipError> {
        let kernels = self.kernels()?;
        let place = self.offer.place();
        let bare = without_answers(&slice(self.manifest(), None));
        let head = BundleHead::of(bare).map_err(ShipError::bundle(&place))?;
        let io = || ShipError::io("write", "a temporary file");
        platform::write_at(file, head.bytes(), 0).map_err(io())?;
        file.set_len(head.file_bytes()).map_err(io())?;
        for (index, section) in head.manifest().sections.iter().enumerate() {
            let (Some(bytes), Some(range)) = (kernels.get(&section.id), head.section_range(index))
            else {
                continue;
            };
            platform::write_at(file, bytes, range.start).map_err(io())?;
        }
        Ok(())
    }

    /// The sections that say how the model is computed, with their bytes.
    fn kernels(&self) -> Result<BTreeMap<SectionId, Vec<u8>>, ShipError> {
        let place = self.offer.place();
        let wrong = |message: String| ShipError::document("the bundle", &place, message);
        let sections = &self.manifest().sections;
        let wanted: BTreeSet<SectionId> = references(self.manifest())
            .into_iter()
            .filter(|(reference, _)| is_kernel(*reference))
            .map(|(_, id)| id)
            .collect();
        let has_one = |part: &FilePart| {
            let of_part = sections.get(part.sections.clone()).unwrap_or_default();
            of_part.iter().any(|section| wanted.contains(&section.id))
        };
        let parts = self.offer.parts.iter().enumerate();
        let parts: Vec<(usize, &FilePart)> = parts.filter(|(_, part)| has_one(part)).collect();
        let bytes: u64 = parts.iter().map(|(_, part)| part_bytes(part)).sum();
        if bytes > KERNEL_BYTES_MAX {
            return Err(wrong(format!(
                "its kernels have `{bytes}` bytes, expected at most `{KERNEL_BYTES_MAX}`"
            )));
        }
        let mut found = BTreeMap::new();
        for (index, part) in parts {
            found.append(&mut from_any(self.offer.places(), |first| {
                self.sections_of(first, index, part)
            })?);
        }
        Ok(found)
    }

    /// The sections of a part, checked, from the places in order from `first` on.
    fn sections_of(
        &self,
        first: usize,
        index: usize,
        part: &FilePart,
    ) -> Result<BTreeMap<SectionId, Vec<u8>>, ShipError> {
        let whole = self.offer.read_whole(first, index)?;
        let mut found = BTreeMap::new();
        for index in part.sections.clone() {
            let section = self.manifest().sections.get(index);
            let Some((section, range)) = section.zip(self.offer.head.section_range(index)) else {
                continue;
            };
            let start = range.start.saturating_sub(part.range.start) as usize;
            let bytes = whole.get(start..start.saturating_add(section.bytes as usize));
            let bytes = bytes.filter(|bytes| SectionId::of(bytes) == section.id);
            let bytes = bytes.ok_or_else(|| {
                let message = format!("a section of part `{}` differs from its name", part.name);
                ShipError::document("the bundle", self.offer.place(), message)
            })?;
            found.insert(section.id, bytes.to_vec());
        }
        Ok(found)
    }
}

fn is_kernel(reference: Reference) -> bool {
    match reference {
        Reference::Literals
        | Reference::VariantIr(..)
        | Reference::VariantProgram(..)
        | Reference::GpuModule(_)
        | Reference::Annotations
        | Reference::Partitions
        | Reference::ChatTemplate => true,
        Reference::Tokenizer
        | Reference::RopeCos(_)
        | Reference::RopeSin(_)
        | Reference::WeightValues(_)
        | Reference::WeightScales(_)
        | Reference::WeightCentres(_)
        | Reference::Blob(..)
        | Reference::PieceBlob(..)
        | Reference::StateBeginning(_)
        | Reference::StatePage(..)
        | Reference::Answer(..) => false,
    }
}

/// Most bytes of kernels that are fetched to be measured. A 3B bundle has some 4 MB; chosen.
const KERNEL_BYTES_MAX: u64 = 64 << 20;
