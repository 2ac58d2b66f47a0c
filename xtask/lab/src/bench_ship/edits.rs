//! Another template, and another tensor, of a bundle that a device has: the bytes that move, and the time.

use super::world::World;
use crate::goal::Goal;
use crate::lines::{Line, Report};
use anyhow::{Context, Result};
use heg_artifacts::manifest::Manifest;
use heg_artifacts::{Bundle, Section, SectionId, Store, write_bundle};
use std::path::PathBuf;

pub(super) fn measure(world: &World, rounds: usize, report: &mut Report) -> Result<()> {
    let (mut template, mut tensor) = (Moved::default(), Moved::default());
    let mut tensor_bytes = 0;
    for round in 0..rounds {
        world.push(&world.bundle)?;
        let device = world.device()?;
        device.pull()?;
        let other = Edit::new(world, &format!("template-{round}"))?.with_other_template()?;
        world.push(&other)?;
        template.add(&device.pull()?);
        let edit = Edit::new(world, &format!("tensor-{round}"))?;
        let (other, bytes) = edit.with_other_down()?;
        tensor_bytes = bytes;
        world.push(&other)?;
        // From the bundle with the other template to that with the other tensor and the old template again.
        tensor.add(&device.pull()?);
    }
    world.push(&world.bundle)?;
    let line = Line::of("template edited: bytes moved", "heg", template.megabytes);
    report.add(line.in_unit("MB").held_to(Goal::AtMost(0.3)));
    report.add(Line::of(
        "template edited: the pull",
        "heg",
        template.took_ms,
    ));
    let what = format!(
        "{:.1} MB of a tensor edited: bytes moved",
        tensor_bytes as f64 / 1e6
    );
    let most = tensor_bytes as f64 / 1e6 + DOCUMENTS_MB;
    let line = Line::of(&what, "heg", tensor.megabytes);
    report.add(line.in_unit("MB").held_to(Goal::AtMost(most)));
    report.add(Line::of("a tensor edited: the pull", "heg", tensor.took_ms));
    Ok(())
}

#[derive(Default)]
struct Moved {
    megabytes: Vec<f64>,
    took_ms: Vec<f64>,
}

impl Moved {
    fn add(&mut self, pull: &super::world::Ended) {
        let moved = pull.figure("pulled", "moved_bytes");
        self.megabytes
            .push(moved.map_or(f64::NAN, |bytes| bytes as f64 / 1e6));
        self.took_ms.push(pull.seconds * 1e3);
    }
}

/// The bundle, about to be written with another section.
struct Edit {
    bundle: Bundle,
    store: Store,
    to: PathBuf,
}

impl Edit {
    fn new(world: &World, name: &str) -> Result<Self> {
        let bundle = Bundle::open(&world.bundle)?;
        let store = Store::open(world.folder().join("sections"))?;
        for section in &bundle.manifest().sections {
            store.put_bytes(bundle.section(section.id)?)?;
        }
        let to = world.folder().join(format!("{name}.heg"));
        Ok(Self { bundle, store, to })
    }

    fn with_other_template(self) -> Result<PathBuf> {
        let mut manifest = self.bundle.manifest().clone();
        let id = manifest
            .text
            .chat_template
            .context("the bundle has no template")?;
        let mut text = self.bundle.section(id)?.to_vec();
        text.extend(format!("{{# {} #}}", self.to.display()).bytes());
        let section = self.store.put_bytes(&text)?;
        manifest.text.chat_template = Some(section.id);
        self.write(manifest, id, section)
    }

    /// Writes the bundle with other bits in all rows of a layer's `down`, and returns its length, too.
    fn with_other_down(self) -> Result<(PathBuf, usize)> {
        let mut manifest = self.bundle.manifest().clone();
        let mut weights = manifest.weights.iter();
        let down = weights.find(|weight| weight.name.contains("down_proj"));
        let id = down.context("the bundle has no down projection")?.values;
        let bytes = self.bundle.section(id)?;
        let changed: Vec<u8> = bytes.iter().map(|byte| byte ^ 1).collect();
        let section = self.store.put_bytes(&changed)?;
        for weight in &mut manifest.weights {
            if weight.values == id {
                weight.values = section.id;
            }
        }
        Ok((self.write(manifest, id, section)?, changed.len()))
    }

    fn write(&self, mut manifest: Manifest, old: SectionId, new: Section) -> Result<PathBuf> {
        manifest.sections.retain(|section| section.id != old);
        manifest.sections.push(new);
        write_bundle(&self.to, &manifest, &self.store, &|_| ())?;
        Ok(self.to.clone())
    }
}

/// Documents that a pull may move beside a tensor: the goal of the design for 25.2 MB is 25.5.
const DOCUMENTS_MB: f64 = 0.3;
