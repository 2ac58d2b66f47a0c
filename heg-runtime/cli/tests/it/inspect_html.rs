//! Tests of `heg inspect --html`: the page of tiny bundles, friendly and hostile. Its looks are for eyes to judge.

use std::path::Path;
use std::process::Command;

use crate::tiny::{TINY, annotated, annotations, manifest, write_changed, write_tiny};
use heg_artifacts::manifest::{KernelId, Layer, Manifest};
use heg_artifacts::{Bundle, SectionId};
use heg_profiler::annotation::{Contention, Prediction, RawContention, Regime, VariantAnnotation};
use heg_profiler::{
    AnchorSource, DevicePeaks, RawAnchor, RawAnchors, RawDevicePeaks, Roofline, RooflineAnchor,
    RooflineAnchors,
};
use heg_spec::DeviceClass;

/// Writes the page of `heg inspect BUNDLE --html`, and returns it.
fn page(folder: &Path, bundle: &str, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_heg"))
        .args(["inspect", bundle, "--html", "page.html"])
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    assert!(output.stdout.starts_with(b"page.html: "));
    std::fs::read_to_string(folder.join("page.html")).unwrap()
}

/// Returns the page without its style sheet, which is the template's.
fn without_style(page: &str) -> String {
    let (before, rest) = page.split_once("<style>").unwrap();
    let (_, after) = rest.split_once("</style>").unwrap();
    format!("{before}<style></style>{after}")
}

fn tiny() -> Manifest {
    manifest(&Bundle::open(TINY).unwrap())
}

/// Returns a roofline of three quarters of the peaks that a data sheet might give a CPU.
fn measured() -> Roofline {
    let peaks = RawDevicePeaks {
        flops_per_sec: 1e12,
        bytes_per_sec: 80e9,
    };
    let anchor = |intensity_flops_per_byte, utilisation| {
        RooflineAnchor::new(RawAnchor {
            intensity_flops_per_byte,
            utilisation,
        })
    };
    let anchors = RawAnchors {
        memory_bound: anchor(0.5, 0.75).unwrap(),
        compute_bound: anchor(100.0, 0.09).unwrap(),
    };
    let anchors = RooflineAnchors::new(anchors).unwrap();
    Roofline::fit(DevicePeaks::new(peaks).unwrap(), anchors, 12.0).unwrap()
}

#[test]
fn page_of_an_annotated_bundle() {
    let folder = tempfile::tempdir().unwrap();
    write_tiny(folder.path(), "tiny.heg", Some(&annotations()));
    let first = page(folder.path(), "tiny.heg", &[]);
    insta::assert_snapshot!("page", without_style(&first));
    assert_eq!(first, page(folder.path(), "tiny.heg", &[]));
    let decode = page(folder.path(), "tiny.heg", &["--tokens", "1"]);
    assert!(decode.contains("c&nbsp;=&nbsp;1"));
}

/// A page with two kinds of layers, measured anchors, and a contention table.
#[test]
fn page_of_all_that_there_may_be() {
    let mut manifest = tiny();
    let ffn = manifest.layers[0].ffn.kernel;
    let mut other = manifest.kernels[ffn.0 as usize].clone();
    other.name = "ffn.1".to_owned();
    let mut odd = manifest.layers[0].clone();
    odd.ffn.kernel = KernelId(manifest.kernels.len() as u32);
    manifest.kernels.push(other);
    manifest.layers.extend([odd.clone(), odd]);
    let mut annotations = annotated(&manifest);
    let soc = &mut annotations.socs[0];
    let cpu = soc.devices.iter_mut().find(|d| d.class == DeviceClass::Cpu);
    cpu.unwrap().variants = manifest
        .kernels
        .iter()
        .flat_map(|kernel| kernel.variants.iter().map(move |variant| (kernel, variant)))
        .filter(|(_, variant)| variant.device == DeviceClass::Cpu)
        .map(|(kernel, variant)| VariantAnnotation {
            kernel: kernel.name.clone(),
            shape: variant.shape,
            binding: variant.binding,
            source: AnchorSource::Measured,
            prediction: Prediction::Roofline(measured()),
        })
        .collect();
    let cell = |regime, slowdown| RawContention {
        device: DeviceClass::Npu,
        regime,
        neighbour: DeviceClass::Igpu,
        neighbour_regime: Regime::MemoryBound,
        slowdown,
        source: AnchorSource::Measured,
    };
    let cells = [
        cell(Regime::MemoryBound, 1.42),
        cell(Regime::ComputeBound, 1.03),
    ];
    soc.contention = cells.map(|raw| Contention::new(raw).unwrap()).to_vec();
    let folder = tempfile::tempdir().unwrap();
    let text = annotations.to_text().unwrap();
    write_changed(folder.path(), "all.heg", manifest, Some(&text));
    let page = page(folder.path(), "all.heg", &[]);
    insta::assert_snapshot!("page_of_all", without_style(&page));
}

#[test]
fn page_without_annotations() {
    let folder = tempfile::tempdir().unwrap();
    write_tiny(folder.path(), "plain.heg", None);
    let sheet = page(folder.path(), "plain.heg", &[]);
    assert!(sheet.contains("by its data sheet alone"));
    assert!(sheet.contains("Spec") && !sheet.contains("Vendor</td>"));
    let unknown = page(folder.path(), "plain.heg", &["--soc", "host-cpu"]);
    assert!(unknown.contains("Nothing is known of its speed."));
    assert!(unknown.contains("no chunk has a known speed"));
}

#[test]
fn mistakes() {
    let folder = tempfile::tempdir().unwrap();
    write_tiny(folder.path(), "plain.heg", None);
    let mistake = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_heg"))
            .args(["inspect", "plain.heg"])
            .args(arguments)
            .current_dir(folder.path())
            .output()
            .unwrap();
        let status = output.status.code().unwrap();
        format!(
            "exit status {status}\n{}",
            String::from_utf8(output.stderr).unwrap()
        )
    };
    let mistakes = [
        mistake(&["--html", "absent/page.html"]),
        mistake(&["--html", "page.html", "--json"]),
        mistake(&["--html", "page.html", "--kernels"]),
        mistake(&["--html", "page.html", "--soc", "core-ultra"]),
        mistake(&["--soc", "host-cpu"]),
    ];
    insta::assert_snapshot!("page_mistakes", mistakes.join("\n"));
}

/// Text that ends any context into which it is written.
const MARKUP: &str = "</title></style></svg>--><script>alert('x')</script>\"'&{{ 7*7 }}";

/// Text that also steers the text around it. No name in a manifest may do that; annotations have no such rule.
const HOSTILE: &str = "</title></style></svg>--><script>alert('x')</script>\"'&{{ 7*7 }}\u{202e}";

#[test]
fn hostile_names_are_text() {
    let mut manifest = tiny();
    manifest.model.name = MARKUP.to_owned();
    manifest.model.architecture = MARKUP.to_owned();
    for (index, kernel) in manifest.kernels.iter_mut().enumerate() {
        kernel.name = format!("<b>{index}{MARKUP}");
        kernel.ops = vec![MARKUP.to_owned(); 2];
    }
    manifest.provenance.compiler = MARKUP.to_owned();
    manifest.provenance.openvino = MARKUP.to_owned();
    manifest.provenance.npu_compiler = Some(MARKUP.to_owned());
    let hash = SectionId::of(b"input");
    manifest.provenance.inputs.insert(MARKUP.to_owned(), hash);
    let mut annotations = annotated(&manifest);
    annotations.socs[0].name = HOSTILE.to_owned();
    for device in &mut annotations.socs[0].devices {
        device.openvino = HOSTILE.to_owned();
    }
    let folder = tempfile::tempdir().unwrap();
    let text = annotations.to_text().unwrap();
    write_changed(folder.path(), "hostile.heg", manifest, Some(&text));
    let page = page(folder.path(), "hostile.heg", &[]);
    assert!(page.contains("&lt;script&gt;"));
    for markup in ["<script", "<b>", "\u{202e}", "-->", " 49 "] {
        assert!(!page.contains(markup), "{markup}");
    }
    for (end, count) in [("</title>", 1), ("</style>", 1)] {
        let outside_pictures = page
            .split("<svg")
            .map(|part| match part.split_once("</svg>") {
                Some((_, after)) => after,
                None => part,
            });
        let found: usize = outside_pictures.map(|part| part.matches(end).count()).sum();
        assert_eq!(found, count, "{end}");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
}

#[test]
fn nothing_is_fetched() {
    let folder = tempfile::tempdir().unwrap();
    write_tiny(folder.path(), "tiny.heg", Some(&annotations()));
    let page = page(folder.path(), "tiny.heg", &[]);
    let fetches = [
        "http:", "https:", "//", "src=", "srcset", "@import", "url(", "<link", "<script",
        "<iframe", "<img", "<object", "<base", "xlink",
    ];
    for reference in fetches {
        assert!(!page.contains(reference), "{reference}");
    }
    let anchors: Vec<&str> = page.split("href=\"").skip(1).collect();
    assert!(!anchors.is_empty() && anchors.iter().all(|target| target.starts_with('#')));
    assert!(page.contains("default-src 'none'"));
}

/// However large a bundle is, its page stays one that a browser can open.
#[test]
fn a_page_has_a_bound() {
    let mut manifest = tiny();
    let layer = manifest.layers[0].clone();
    let kernel = |id: KernelId| manifest.kernels[id.0 as usize].clone();
    let [qkv, mha, ffn] = [&layer.qkv, &layer.mha, &layer.ffn].map(|used| kernel(used.kernel));
    for index in 0..300 {
        let first = manifest.kernels.len() as u32;
        for (place, kernel) in [&qkv, &mha, &ffn].into_iter().enumerate() {
            let mut kernel = kernel.clone();
            kernel.name = format!("{}{index}.{place}", "&".repeat(1000));
            kernel.ops = vec!["\"".repeat(200); 40];
            manifest.kernels.push(kernel);
        }
        let mut layer: Layer = layer.clone();
        layer.qkv.kernel = KernelId(first);
        layer.mha.kernel = KernelId(first + 1);
        layer.ffn.kernel = KernelId(first + 2);
        manifest.layers.push(layer);
    }
    manifest.model.name = "&".repeat(1 << 20);
    for index in 0..1000 {
        let name = format!("{index}{}", "<".repeat(300));
        manifest
            .provenance
            .inputs
            .insert(name, SectionId::of(b"input"));
    }
    let folder = tempfile::tempdir().unwrap();
    write_changed(folder.path(), "large.heg", manifest, None);
    let page = page(folder.path(), "large.heg", &[]);
    assert!(page.len() < 1 << 20, "{} bytes", page.len());
    assert!(page.contains("880 more kernels are left out"));
}
