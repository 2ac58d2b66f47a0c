//! Bundles for several NPUs under one name: each device takes the blobs of its own, and weights travel and lie once.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use heg_ship::{Layout, MachineNpu, ModelName, PullOutcome, SliceWish, export_layout};
use heg_spec::NpuPlatform;

use crate::bundles::{Content, Device, Told, bundle_with_blobs, name, open};

/// A layout in which releases are published one after the other.
struct Published {
    folder: tempfile::TempDir,
    chat: ModelName,
}

impl Published {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            chat: name("h.example/chat:stable"),
        }
    }

    fn layout(&self) -> PathBuf {
        self.folder.path().join("layout")
    }

    /// Publishes one bundle for each list of platforms with the versions of their drivers' layout, the latest first.
    fn publish(&self, bundles: &[&[(NpuPlatform, &str)]]) {
        let written: Vec<_> = bundles
            .iter()
            .zip(0..)
            .map(|(blobs, number)| {
                let name = format!("bundle-{number}");
                let folder = self.folder.path();
                open(&bundle_with_blobs(
                    folder,
                    &name,
                    &Content::default(),
                    blobs,
                ))
            })
            .collect();
        export_layout(&self.layout(), "stable", &written, None, &Told::default()).unwrap();
    }

    /// Pulls to a device; returns what moved, as a line.
    fn pull(&self, device: &Device) -> String {
        let source = Layout::new(&self.layout());
        let outcome = device.with(&self.chat, |pull| pull.from_source(&source, "stable"));
        let PullOutcome::Pulled(pulled) = outcome.unwrap() else {
            return "nothing is new\n".to_owned();
        };
        let bundle = device.store.bundle(pulled.held.bundle).unwrap();
        bundle.verify(std::num::NonZero::<usize>::MIN).unwrap();
        let why = pulled.second_best.map(|why| format!("; {why}"));
        format!(
            "{}: fetched {} of {} bytes, parts {}{}\n",
            pulled.held.slice,
            pulled.amounts.fetch_bytes,
            pulled.amounts.bundle_bytes,
            pulled.changed_parts.join(", "),
            why.unwrap_or_default()
        )
    }
}

fn device(slice: &'static str) -> Device {
    let mut device = Device::trusting();
    device.slice = SliceWish::Kept(slice);
    device
}

/// An NPU whose driver reads some version of the ELF layout.
fn npu(platform: NpuPlatform, reads: &str) -> SliceWish<'static> {
    let elf = Some(reads.parse().unwrap());
    SliceWish::Best(Some(MachineNpu { platform, elf }))
}

/// A driver update is other blobs for one platform: devices with that NPU fetch those, the others nothing at all.
#[test]
fn a_driver_update_moves_no_weights() {
    let published = Published::new();
    let (old, other) = (NpuPlatform::NPU3720, NpuPlatform::NPU4000);
    let devices = ["npu-4000", "npu-3720", "cpu"].map(device);
    published.publish(&[&[(old, "1.2.0"), (other, "1.10.0")]]);
    let mut told = String::from("first\n");
    for device in &devices {
        told.push_str(&published.pull(device));
    }
    told.push_str("a driver with another layout\n");
    published.publish(&[&[(old, "1.2.0"), (other, "2.0.0")]]);
    for device in &devices {
        told.push_str(&published.pull(device));
    }
    insta::assert_snapshot!("driver_update", told);
}

/// Blobs for two drivers of one platform stand under one name, each as a slice of its own.
#[test]
fn both_drivers_of_a_platform_are_offered() {
    let published = Published::new();
    let platform = NpuPlatform::NPU4000;
    published.publish(&[&[(platform, "2.0.0")], &[(platform, "1.10.0")]]);
    let told = ["npu-4000", "npu-4000.2", "npu-3720"].map(|slice| published.pull(&device(slice)));
    insta::assert_snapshot!("two_drivers", told.concat());
}

/// A device gets the newest blobs that its driver reads, and none that it cannot; a new driver changes that with nothing
/// new under the tag.
#[test]
fn blobs_are_chosen_by_what_the_driver_reads() {
    let published = Published::new();
    let platform = NpuPlatform::NPU4000;
    let mut device = Device::trusting();
    let mut told = String::new();
    let bundles: [&[(NpuPlatform, &str)]; 2] = [&[(platform, "2.0.0")], &[(platform, "1.10.0")]];
    for (offered, drivers) in [
        (&bundles[..1], &["1.12.0"][..]),
        (&bundles, &["1.12.0", "1.12.0", "2.1.0", "1.2.0"]),
    ] {
        published.publish(offered);
        for driver in drivers {
            device.slice = npu(platform, driver);
            told.push_str(&format!("driver for {driver}: {}", published.pull(&device)));
        }
    }
    device.slice = npu(NpuPlatform::NPU5010, "1.12.0");
    told.push_str(&format!("another NPU: {}", published.pull(&device)));
    insta::assert_snapshot!("drivers_read", told);
}

/// The slice that a person asked for stays, whatever the machine has.
#[test]
fn a_slice_that_was_asked_for_is_kept() {
    let published = Published::new();
    let platform = NpuPlatform::NPU4000;
    let mut device = Device::trusting();
    let held = |device: &Device| device.store.name(&published.chat).unwrap().unwrap().now;
    published.publish(&[&[(platform, "1.10.0")]]);
    device.slice = npu(platform, "1.12.0");
    published.pull(&device);
    assert!(!held(&device).slice_asked);
    device.slice = SliceWish::Named("cpu");
    published.pull(&device);
    assert_eq!(
        (held(&device).slice.as_str(), held(&device).slice_asked),
        ("cpu", true)
    );
    device.slice = SliceWish::Kept("cpu");
    assert_eq!(published.pull(&device), "nothing is new\n");
    assert!(held(&device).slice_asked);
}

/// Of three platforms a device fetches one, and a registry keeps the weights of all of them once.
#[test]
fn a_first_pull_leaves_out_other_platforms() {
    let published = Published::new();
    let platforms = [
        NpuPlatform::NPU3720,
        NpuPlatform::NPU4000,
        NpuPlatform::NPU5010,
    ];
    published.publish(&[&platforms.map(|platform| (platform, "1.10.0"))]);
    let all = fs::metadata(published.folder.path().join("bundle-0.heg")).unwrap();
    let mut told = format!("the bundle for all of them: {} bytes\n", all.len());
    told.push_str(&published.pull(&device("npu-4000")));
    let mut long: BTreeMap<u64, usize> = BTreeMap::new();
    for entry in fs::read_dir(published.layout().join("blobs/sha256")).unwrap() {
        let bytes = entry.unwrap().metadata().unwrap().len();
        if bytes > 99_000 {
            *long.entry(bytes).or_default() += 1;
        }
    }
    told.push_str(&format!("blobs by length: {long:?}\n"));
    insta::assert_snapshot!("three_platforms", told);
}
