//! The tiny bundle of the format's tests, with the work of a larger model, and with the annotations of the papers'
//! machine in place of its noise.

mod graphs;

use std::path::Path;

use heg_artifacts::manifest::{Term, Work};
use heg_artifacts::{Bundle, Manifest, Store, write_bundle};
use heg_profiler::annotation::{
    Annotations, BlobKey, SweepLimits, VendorTable, VendorTables, annotate,
};
use heg_spec::shipped;
use heg_spec::{Group, NpuPlatform};

/// The bundle of the format's tests.
pub(crate) const TINY: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../artifacts/testdata/v1/tiny.heg"
);

/// Returns the tiny bundle's manifest with kernels that have work to do: 10 MB of weights, or attention of 8 heads.
pub(crate) fn manifest(tiny: &Bundle) -> Manifest {
    let term = |factor, tokens, context| Term {
        factor,
        tokens,
        context,
    };
    let mut manifest = tiny.manifest().clone();
    for kernel in &mut manifest.kernels {
        kernel.work = match kernel.group {
            Group::Mha => Work {
                flops: vec![term(2080, 1, 1)],
                bytes: vec![term(4096, 1, 0), term(2048, 0, 1)],
            },
            Group::Qkv | Group::Ffn | Group::Head => Work {
                flops: vec![term(20_000_000, 1, 0)],
                bytes: vec![term(10_000_000, 0, 0), term(12_000, 1, 0)],
            },
        };
    }
    manifest
}

/// Returns a vendor's table for each NPU variant: 100 µs and more for the larger ones, at 1300 MHz.
fn tables(manifest: &Manifest) -> VendorTables {
    let mut tables = VendorTables::new();
    for (kernel, found) in manifest.kernels.iter().enumerate() {
        for (variant, found) in found.variants.iter().enumerate() {
            let Some(chunk) = found.shape.chunk() else {
                continue;
            };
            let latency_us = 100.0 + 5.0 * f64::from(chunk) + 10.0 * kernel as f64;
            let table = [(700, latency_us * 2.0), (1300, latency_us)];
            let key = BlobKey {
                kernel,
                variant,
                platform: NpuPlatform::NPU3720,
            };
            tables.insert(key, VendorTable::new(table.to_vec()).unwrap());
        }
    }
    tables
}

/// Writes `name` into the folder: the tiny bundle with other annotations, or none.
pub(crate) fn write_tiny(folder: &Path, name: &str, annotations: Option<&str>) {
    let manifest = manifest(&Bundle::open(TINY).unwrap());
    write_changed(folder, name, manifest, annotations);
}

/// Writes a bundle with the sections of the tiny one.
pub(crate) fn write_changed(
    folder: &Path,
    name: &str,
    mut manifest: Manifest,
    annotations: Option<&str>,
) {
    let tiny = Bundle::open(TINY).unwrap();
    let store = Store::open(folder.join("store")).unwrap();
    manifest.heg = graphs::graphs(&manifest);
    let noise = manifest.annotations.take();
    manifest
        .sections
        .retain(|section| Some(section.id) != noise);
    for section in &manifest.sections {
        store.put_bytes(tiny.section(section.id).unwrap()).unwrap();
    }
    if let Some(text) = annotations {
        let section = store.put_bytes(text.as_bytes()).unwrap();
        manifest.annotations = Some(section.id);
        manifest.sections.push(section);
    }
    write_bundle(&folder.join(name), &manifest, &store, &|_| ()).unwrap();
}

/// Returns the annotations of the manifest's variants on the papers' machine, from data sheet and vendor.
pub(crate) fn annotated(manifest: &Manifest) -> Annotations {
    let soc = shipped::soc("core-ultra-5-125h").unwrap();
    annotate(manifest, &[soc], &tables(manifest), SweepLimits::default()).unwrap()
}

/// Returns the annotations of the tiny bundle, as text.
pub(crate) fn annotations() -> String {
    let manifest = manifest(&Bundle::open(TINY).unwrap());
    annotated(&manifest).to_text().unwrap()
}
