//! Bundles of some megabytes, and the device that they go to.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use heg_artifacts::manifest::{Blob, Compatibility, Variant};
use heg_artifacts::{Bundle, Manifest, SectionId, Store, write_bundle};
use heg_ship::{
    Amounts, BundleSource, DeviceStore, FetchOptions, MachineTrust, ModelName, Pull, PullOutcome,
    Pulled, ShipError, SliceWish, TransferProgress, now,
};
use heg_spec::{DeviceClass, NpuPlatform};
use heg_trust::TrustPolicy;

/// The bundle of the format's tests, the smallest that there is.
const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/v1/tiny.heg");

/// Noise of some length, the same for the same seed.
pub(crate) fn noise(seed: &str, bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    let mut output = blake3::Hasher::new().update(seed.as_bytes()).finalize_xof();
    output.fill(&mut noise);
    noise
}

/// The content that the tests change.
#[derive(Clone)]
pub(crate) struct Content {
    pub(crate) template: String,
    /// The tokenizer takes the place of weights: its length is free, and it has blocks.
    pub(crate) tokenizer: Vec<u8>,
}

impl Default for Content {
    fn default() -> Self {
        Self {
            template: "{{ messages }}".to_owned(),
            tokenizer: noise("tokenizer", (3 << 20) + 12_345),
        }
    }
}

/// Writes the tiny bundle with this content into a folder. It has no blobs, as a slice for all devices: its file is the
/// one that is sent.
pub(crate) fn bundle(folder: &Path, name: &str, content: &Content) -> PathBuf {
    bundle_with_blobs(folder, name, content, &[])
}

/// As [`bundle`], with blobs of 100 kB for these platforms and versions of the ELF layout.
pub(crate) fn bundle_with_blobs(
    folder: &Path,
    name: &str,
    content: &Content,
    blobs: &[(NpuPlatform, &str)],
) -> PathBuf {
    let tiny = Bundle::open(TINY).unwrap();
    let store = Store::open(folder.join("store")).unwrap();
    let mut manifest: Manifest = heg_artifacts::slice(tiny.manifest(), None);
    let replaced = [manifest.text.tokenizer, manifest.text.chat_template];
    manifest
        .sections
        .retain(|section| !replaced.contains(&Some(section.id)));
    for section in &manifest.sections {
        store.put_bytes(tiny.section(section.id).unwrap()).unwrap();
    }
    for (bytes, place) in [
        (&content.tokenizer[..], &mut manifest.text.tokenizer),
        (
            content.template.as_bytes(),
            &mut manifest.text.chat_template,
        ),
    ] {
        let section = store.put_bytes(bytes).unwrap();
        manifest.sections.push(section);
        *place = Some(section.id);
    }
    for kernel in &mut manifest.kernels {
        let for_npu = |variant: &&mut Variant| variant.device == DeviceClass::Npu;
        for variant in kernel.variants.iter_mut().filter(for_npu) {
            for (platform, elf) in blobs {
                let bytes = noise(&format!("{} {platform} {elf}", kernel.name), 100_000);
                let section = store.put_bytes(&bytes).unwrap();
                variant.blobs.push(blob(*platform, elf, section.id));
                if !manifest.sections.contains(&section) {
                    manifest.sections.push(section);
                }
            }
        }
    }
    let path = folder.join(format!("{name}.heg"));
    write_bundle(&path, &manifest, &store, &|_| ()).unwrap();
    path
}

fn blob(platform: NpuPlatform, elf: &str, section: SectionId) -> Blob {
    Blob {
        platform,
        compatibility: Compatibility {
            compiler: "8.4".to_owned(),
            elf: elf.to_owned(),
            tiles: None,
            stepping: None,
            text: format!("compiler=8.4;npu={platform};elf={elf}"),
        },
        section,
    }
}

pub(crate) fn open(path: &Path) -> Bundle {
    Bundle::open(path).unwrap()
}

pub(crate) fn id(path: &Path) -> SectionId {
    open(path).manifest_id()
}

pub(crate) fn name(text: &str) -> ModelName {
    text.parse().unwrap()
}

/// Remembers what it is told.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) amounts: Mutex<Amounts>,
    pub(crate) lines: Mutex<Vec<String>>,
}

impl TransferProgress for Told {
    fn planned(&self, amounts: &Amounts) {
        *self.amounts.lock().unwrap() = *amounts;
    }

    fn arrived(&self, _bytes: u64) {}

    fn say(&self, text: &str) {
        self.lines.lock().unwrap().push(text.to_owned());
    }
}

/// A machine with a store and a policy.
pub(crate) struct Device {
    pub(crate) store: DeviceStore,
    pub(crate) trust: MachineTrust,
    pub(crate) told: Told,
    pub(crate) options: FetchOptions,
    /// Wanted kind of devices.
    pub(crate) slice: SliceWish<'static>,
    _folder: tempfile::TempDir,
}

impl Device {
    /// A machine that takes what nobody signed.
    pub(crate) fn trusting() -> Self {
        Self::with_policy("(revision: 1, unsigned: Allow)")
    }

    pub(crate) fn with_policy(policy: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let trust = MachineTrust {
            policy: TrustPolicy::parse(policy).unwrap(),
            moment: now(),
        };
        Self {
            store: DeviceStore::open(&folder.path().join("store")).unwrap(),
            trust,
            told: Told::default(),
            options: FetchOptions::default(),
            slice: SliceWish::Best(None),
            _folder: folder,
        }
    }

    pub(crate) fn pull(
        &self,
        source: &dyn BundleSource,
        name: &ModelName,
    ) -> Result<Option<Pulled>, ShipError> {
        let outcome = self.with(name, |pull| pull.from_source(source, name.tag()))?;
        Ok(match outcome {
            PullOutcome::Pulled(pulled) => Some(*pulled),
            PullOutcome::Unchanged => None,
            PullOutcome::PassedOver(bad) => panic!("{name}: {bad} was passed over"),
        })
    }

    pub(crate) fn import(&self, path: &Path, name: &ModelName) -> Result<Pulled, ShipError> {
        self.with(name, |pull| pull.from_file(path))
    }

    pub(crate) fn with<T>(&self, name: &ModelName, run: impl FnOnce(&Pull<'_>) -> T) -> T {
        run(&Pull {
            store: &self.store,
            trust: &self.trust,
            name,
            slice: self.slice,
            agrees: &|_| false,
            examine: &|_| Ok(()),
            takes_bad: true,
            keep: 1,
            options: self.options,
            progress: &self.told,
        })
    }

    /// Whether a name's bundle opens, is whole, and has the bytes of a file.
    pub(crate) fn has(&self, name: &ModelName, file: &Path) {
        let held = self.store.name(name).unwrap().unwrap().now;
        let bundle = self.store.bundle(held.bundle).unwrap();
        bundle.verify(std::num::NonZero::<usize>::MIN).unwrap();
        assert!(**bundle.mapping() == std::fs::read(file).unwrap(), "{name}");
    }

    /// Files below a folder of the store.
    pub(crate) fn files(&self, folder: &str) -> usize {
        fn count(folder: &Path) -> usize {
            let Ok(entries) = std::fs::read_dir(folder) else {
                return 0;
            };
            let paths = entries.map(|entry| entry.unwrap().path());
            paths
                .map(|path| if path.is_dir() { count(&path) } else { 1 })
                .sum()
        }
        count(&self.store.path().join(folder))
    }
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// As `heg_tests::skipped`, which this crate cannot depend on: it would build the compiler.
pub(crate) fn skipped(what: &str) {
    use std::io::Write;
    println!("skipped: {what}");
    let Some(path) = std::env::var_os("HEG_SKIPPED") else {
        return;
    };
    let file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(path);
    let written = file.and_then(|mut file| file.write_all(format!("{what}\n").as_bytes()));
    written.unwrap();
}
