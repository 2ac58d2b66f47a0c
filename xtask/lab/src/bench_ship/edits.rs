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
    let edits = Edits::new(world)?;
    for _ in 0..rounds {
        let device = world.device()?;
        device.pull()?;
        world.push(&edits.other_template()?)?;
        template.add(&device.pull()?);
        let (other, bytes) = edits.other_down()?;
        tensor_bytes = bytes;
        world.push(&other)?;
        // From the bundle with the other template to that with the other tensor and the old template again.
        tensor.add(&device.pull()?);
        world.push(&world.bundle)?;
    }
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

/// The bundle's sections, to be written with another one among them.
struct Edits {
    bundle: Bundle,
    store: Store,
    folder: PathBuf,
}

impl Edits {
    fn new(world: &World) -> Result<Self> {
        let bundle = Bundle::open(&world.bundle)?;
        let folder = world.folder().to_owned();
        let store = Store::open(folder.join("sections"))?;
        for section in &bundle.manifest().sections {
            store.put_bytes(bundle.section(section.id)?)?;
        }
        Ok(Self {
            bundle,
            store,
            folder,
        })
    }

    fn other_template(&self) -> Result<PathBuf> {
        let mut manifest = self.bundle.manifest().clone();
        let id = manifest
            .text
            .chat_template
            .context("the bundle has no template")?;
        let mut text = self.bundle.section(id)?.to_vec();
        text.extend(b"{# edited #}");
        let section = self.store.put_bytes(&text)?;
        manifest.text.chat_template = Some(section.id);
        self.write("template.heg", manifest, id, section)
    }

    /// Writes the bundle with other bits in all rows of a layer's `down`, and returns its length, too.
    fn other_down(&self) -> Result<(PathBuf, usize)> {
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
        let to = self.write("tensor.heg", manifest, id, section)?;
        Ok((to, changed.len()))
    }

    fn write(
        &self,
        name: &str,
        mut manifest: Manifest,
        old: SectionId,
        new: Section,
    ) -> Result<PathBuf> {
        let to = self.folder.join(name);
        manifest.sections.retain(|section| section.id != old);
        manifest.sections.push(new);
        write_bundle(&to, &manifest, &self.store, &|_| ())?;
        Ok(to)
    }
}

/// Documents that a pull may move beside a tensor: the goal of the design for 25.2 MB is 25.5.
const DOCUMENTS_MB: f64 = 0.3;
