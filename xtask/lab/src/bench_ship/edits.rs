//! Another template, another tensor, other rows of the embedding, and blobs for another driver, in a bundle that a device
//! has: the bytes that move, and the time.

use super::world::World;
use crate::goal::Goal;
use crate::lines::{Line, Report};
use anyhow::{Context, Result};
use heg_artifacts::manifest::{Manifest, Weight};
use heg_artifacts::{Bundle, Section, SectionId, Store, platforms, write_bundle};
use std::collections::BTreeMap;
use std::path::PathBuf;
use xtask::workspace::note;

pub(super) fn measure(world: &World, rounds: usize, report: &mut Report) -> Result<()> {
    let edits = Edits::new(world)?;
    let bare: &[&str] = &[];
    let template = edits.other_template()?;
    edits.measured(&template, bare, rounds, report)?;
    edits.measured(&edits.other_down()?, bare, rounds, report)?;
    edits.measured(&edits.other_rows()?, bare, rounds, report)?;
    match platforms(edits.bundle.manifest()).first() {
        Some(platform) => {
            let slice = format!("npu-{platform}");
            let blobs = edits.other_blobs()?;
            edits.measured(&blobs, &["--slice", &slice], rounds, report)
        }
        None => {
            note("the bundle has no blobs: no driver is updated");
            Ok(())
        }
    }
}

/// A bundle that differs from the one that a device has.
struct Edit {
    what: String,
    bundle: PathBuf,
    /// Bytes that may move.
    most_bytes: f64,
}

/// The bundle's sections, to be written with others among them.
struct Edits<'w> {
    world: &'w World,
    bundle: Bundle,
    store: Store,
}

impl<'w> Edits<'w> {
    fn new(world: &'w World) -> Result<Self> {
        let bundle = Bundle::open(&world.bundle)?;
        let store = Store::open(world.folder().join("sections"))?;
        for section in &bundle.manifest().sections {
            store.put_bytes(bundle.section(section.id)?)?;
        }
        Ok(Self {
            world,
            bundle,
            store,
        })
    }

    /// Pulls the bundle, then the edit, on a new device each round.
    fn measured(
        &self,
        edit: &Edit,
        options: &[&str],
        rounds: usize,
        report: &mut Report,
    ) -> Result<()> {
        let (mut megabytes, mut took_ms) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let device = self.world.device()?;
            device.pull(options)?;
            self.world.push(&edit.bundle)?;
            let pulled = device.pull(&[])?;
            let moved = pulled.figure("pulled", "moved_bytes");
            megabytes.push(moved.map_or(f64::NAN, |bytes| bytes as f64 / 1e6));
            took_ms.push(pulled.seconds * 1e3);
            self.world.push(&self.world.bundle)?;
        }
        let line = Line::of(&format!("{}: bytes moved", edit.what), "heg", megabytes);
        let goal = Goal::AtMost(edit.most_bytes / 1e6);
        report.add(line.in_unit("MB").held_to(goal));
        report.add(Line::of(
            &format!("{}: the pull", edit.what),
            "heg",
            took_ms,
        ));
        Ok(())
    }

    fn other_template(&self) -> Result<Edit> {
        let template = self.bundle.manifest().text.chat_template;
        let id = template.context("the bundle has no template")?;
        let mut text = self.bundle.section(id)?.to_vec();
        text.extend(b"{# edited #}");
        Ok(Edit {
            what: "template edited".to_owned(),
            bundle: self.write("template", &BTreeMap::from([(id, text)]))?,
            most_bytes: DOCUMENTS_BYTES,
        })
    }

    /// Other bits in all rows of a layer's `down`.
    fn other_down(&self) -> Result<Edit> {
        let id = self.weight("down_proj")?.values;
        let bytes: Vec<u8> = self.bundle.section(id)?.iter().map(flipped).collect();
        let length = bytes.len() as f64;
        Ok(Edit {
            what: format!("{:.1} MB of a tensor edited", length / 1e6),
            bundle: self.write("tensor", &BTreeMap::from([(id, bytes)]))?,
            most_bytes: length + DOCUMENTS_BYTES,
        })
    }

    /// Other bits in some rows in the middle of the embedding.
    fn other_rows(&self) -> Result<Edit> {
        let weight = self.weight("embed_tokens")?;
        let mut bytes = self.bundle.section(weight.values)?.to_vec();
        let rows = weight.shape.first().copied().unwrap_or(1) as usize;
        let row_bytes = bytes.len() / rows.max(1);
        let first = rows / 2 * row_bytes;
        let changed = bytes.iter_mut().skip(first).take(ROWS * row_bytes);
        changed.for_each(|byte| *byte = flipped(byte));
        let megabytes = (ROWS * row_bytes) as f64 / 1e6;
        Ok(Edit {
            what: format!("{megabytes:.1} MB of embedding edited"),
            bundle: self.write("rows", &BTreeMap::from([(weight.values, bytes)]))?,
            most_bytes: ROWS_MOST_BYTES,
        })
    }

    /// Other bits in every blob.
    fn other_blobs(&self) -> Result<Edit> {
        let manifest = self.bundle.manifest();
        let variants = manifest.kernels.iter().flat_map(|kernel| &kernel.variants);
        let blobs = variants.flat_map(|variant| &variant.blobs);
        let blobs = blobs.chain(manifest.pieces.iter().flat_map(|piece| &piece.blobs));
        let mut changed = BTreeMap::new();
        for blob in blobs {
            let bytes = self.bundle.section(blob.section)?;
            changed.insert(blob.section, bytes.iter().map(flipped).collect());
        }
        let length: usize = changed.values().map(Vec::len).sum();
        let count = changed.len();
        Ok(Edit {
            what: format!("{count} blobs ({:.1} MB) edited", length as f64 / 1e6),
            bundle: self.write("blobs", &changed)?,
            most_bytes: BLOBS_MOST_BYTES,
        })
    }

    fn weight(&self, part: &str) -> Result<&Weight> {
        let mut weights = self.bundle.manifest().weights.iter();
        let found = weights.find(|weight| weight.name.contains(part));
        found.with_context(|| format!("the bundle has no `{part}`"))
    }

    /// Writes the bundle with other sections in place of some.
    fn write(&self, name: &str, changed: &BTreeMap<SectionId, Vec<u8>>) -> Result<PathBuf> {
        let mut manifest = self.bundle.manifest().clone();
        for (old, bytes) in changed {
            let new = self.store.put_bytes(bytes)?;
            manifest.sections.retain(|section| section.id != *old);
            if !manifest.sections.contains(&new) {
                manifest.sections.push(new);
            }
            refer(&mut manifest, *old, new);
        }
        let to = self.world.folder().join(format!("{name}.heg"));
        write_bundle(&to, &manifest, &self.store, &|_| ())?;
        Ok(to)
    }
}

/// Lets a template, weights and blobs of a manifest refer to another section.
fn refer(manifest: &mut Manifest, old: SectionId, new: Section) {
    let template = manifest.text.chat_template.iter_mut();
    let weights = manifest.weights.iter_mut().map(|weight| &mut weight.values);
    let variants = manifest.kernels.iter_mut();
    let variants = variants.flat_map(|kernel| &mut kernel.variants);
    let blobs = variants.flat_map(|variant| &mut variant.blobs);
    let pieces = manifest.pieces.iter_mut();
    let blobs = blobs.chain(pieces.flat_map(|piece| &mut piece.blobs));
    let blobs = blobs.map(|blob| &mut blob.section);
    for place in template
        .chain(weights)
        .chain(blobs)
        .filter(|id| **id == old)
    {
        *place = new.id;
    }
}

fn flipped(byte: &u8) -> u8 {
    byte ^ 1
}

/// Rows of the embedding that are edited: those of some new tokens.
const ROWS: usize = 64;

/// Bytes of documents that a pull may move: an index, a manifest, a list of blocks.
const DOCUMENTS_BYTES: f64 = 0.3e6;

/// Bytes that may move for those rows: two blocks and documents.
const ROWS_MOST_BYTES: f64 = 2.4e6;

/// Bytes that may move for the blobs of a platform: those of 3B's shape.
const BLOBS_MOST_BYTES: f64 = 42e6;
