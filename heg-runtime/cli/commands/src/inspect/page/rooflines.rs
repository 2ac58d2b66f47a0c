//! The data of a machine's rooflines: each device's ceilings and anchors, and a point for each variant.

use heg_artifacts::manifest::{Kernel, Manifest, Variant};
use heg_profiler::annotation::{
    DeviceAnnotation, Estimate, KernelCall, Prediction, SocAnnotation, estimate, run_work,
};
use heg_profiler::{AnchorSource, Roofline};
use heg_spec::Group;
use serde::Serialize;

use super::super::kernels::scaled;
use super::roofline_svg::{Chart, Point, figure, mark};
use super::svg::Svg;
use super::{DEVICES_MAX, Fact, KERNELS_MAX, VARIANTS_MAX, fact, names};

/// The figure of one device.
#[derive(Serialize)]
pub(super) struct RooflineFigure {
    style: &'static str,
    device: &'static str,
    openvino: String,
    /// The chart; `None` if no ceiling is known.
    chart_svg: Option<String>,
    facts: Vec<Fact>,
    anchors: Vec<AnchorRow>,
    /// Sentences about data that the chart does not show.
    notes: Vec<String>,
}

#[derive(Serialize)]
struct AnchorRow {
    of: String,
    regime: &'static str,
    intensity: String,
    utilisation: String,
    source: &'static str,
}

/// Maximum number of calibrations in a chart. Chosen: one for each kernel of a model with two kinds of layers.
const ROOFLINES_MAX: usize = 8;

/// Returns the legend: the marks of the charts with their meaning.
pub(super) fn key() -> Vec<[String; 2]> {
    let groups = [
        (Group::Qkv, "qkv"),
        (Group::Mha, "mha"),
        (Group::Ffn, "ffn"),
        (Group::Head, "head"),
    ];
    let drawn = groups.map(|(group, name)| {
        let mut svg = Svg::new("sign", "img", [14.0, 14.0], name);
        mark(&mut svg, group, [7.0, 7.0]);
        [svg.finish(), name.to_owned()]
    });
    let mut key = Vec::from(drawn);
    let mut anchor = Svg::new("sign", "img", [14.0, 14.0], "anchor");
    anchor.line("cross", &[[2.0, 2.0], [12.0, 12.0]]);
    anchor.line("cross", &[[2.0, 12.0], [12.0, 2.0]]);
    key.push([anchor.finish(), "anchor".to_owned()]);
    for (class, words) in [("ceiling", "calibrated ceiling"), ("peak", "peak")] {
        let mut svg = Svg::new("sign", "img", [26.0, 14.0], words);
        svg.line(class, &[[0.0, 7.0], [26.0, 7.0]]);
        key.push([svg.finish(), words.to_owned()]);
    }
    key
}

/// Returns a figure for each device.
pub(super) fn figures(
    manifest: &Manifest,
    soc: &SocAnnotation,
    call: KernelCall,
) -> Vec<RooflineFigure> {
    let devices = soc.devices.iter().take(DEVICES_MAX);
    devices
        .map(|device| device_figure(manifest, device, call))
        .collect()
}

fn device_figure(
    manifest: &Manifest,
    device: &DeviceAnnotation,
    call: KernelCall,
) -> RooflineFigure {
    let calibrated = calibrated(device);
    let peaks = device
        .peaks
        .or(calibrated.first().map(|found| found.roofline.peaks()));
    let points = points(manifest, device, call);
    let mut notes = Vec::new();
    let name = names::device(device.class);
    let chart_svg = match peaks {
        None => {
            notes.push(match points.is_empty() {
                true => "Nothing is known of its speed.".to_owned(),
                false => "Its peaks are not known, so it has no roofline; its estimates are below."
                    .to_owned(),
            });
            None
        }
        Some(peaks) => {
            let chart = Chart {
                style: names::style(device.class),
                label: format!(
                    "Roofline of the {name} with {} runs of variants; the tables below have their numbers",
                    points.len()
                ),
                peaks,
                rooflines: calibrated
                    .iter()
                    .take(ROOFLINES_MAX)
                    .map(|found| found.roofline)
                    .collect(),
                points,
            };
            let (drawn, beyond) = chart.draw();
            if beyond > 0 {
                notes.push(format!("{beyond} points lie beyond the chart."));
            }
            Some(drawn)
        }
    };
    let more = calibrated.len().saturating_sub(ROOFLINES_MAX);
    if more > 0 {
        notes.push(format!("{more} more calibrations are not shown."));
    }
    let shown = calibrated.iter().take(ROOFLINES_MAX);
    RooflineFigure {
        style: names::style(device.class),
        device: name,
        openvino: names::name(&device.openvino, names::NAME),
        chart_svg,
        facts: device_facts(device, calibrated.first()),
        anchors: shown.flat_map(anchor_rows).collect(),
        notes,
    }
}

/// A roofline, with the kernels to which it was fitted.
struct Calibrated {
    /// Names of kernels.
    of: Vec<String>,
    roofline: Roofline,
    source: AnchorSource,
}

/// Returns all calibrations of a device, each once: the data sheet's, then those of variants.
fn calibrated(device: &DeviceAnnotation) -> Vec<Calibrated> {
    let all = match device.variants.is_empty() {
        true => "all",
        false => "others",
    };
    let spec = device.spec.map(|roofline| Calibrated {
        of: vec![all.to_owned()],
        roofline,
        source: AnchorSource::Spec,
    });
    let mut found: Vec<Calibrated> = spec.into_iter().collect();
    for entry in &device.variants {
        let Prediction::Roofline(roofline) = entry.prediction else {
            continue;
        };
        let name = names::name(&entry.kernel, 16);
        let same =
            |known: &&mut Calibrated| known.roofline == roofline && known.source == entry.source;
        let full = found.len() >= 2 * ROOFLINES_MAX;
        match found.iter_mut().find(same) {
            Some(known) if known.of.len() >= KERNELS_MAX || known.of.contains(&name) => {}
            Some(known) => known.of.push(name),
            // Calibrations beyond twice the limit are neither shown nor told apart.
            None if full => {}
            None => found.push(Calibrated {
                of: vec![name],
                roofline,
                source: entry.source,
            }),
        }
    }
    found
}

fn device_facts(device: &DeviceAnnotation, first: Option<&Calibrated>) -> Vec<Fact> {
    let mut facts = Vec::new();
    if let Some(npu) = device.npu {
        facts.push(fact("platform", npu.platform.to_string()));
        facts.extend(
            npu.frequency_mhz
                .map(|mhz| fact("clock", format!("{mhz} MHz"))),
        );
    }
    let calibrated = first.map(|found| found.roofline.peaks());
    if let Some(peaks) = device.peaks.or(calibrated) {
        facts.push(fact(
            "throughput, peak",
            scaled(peaks.flops_per_sec(), "FLOP/s"),
        ));
        facts.push(fact(
            "bandwidth, peak",
            scaled(peaks.bytes_per_sec(), "B/s"),
        ));
    }
    if let Some(Calibrated { roofline, .. }) = first {
        let effective = roofline.effective_flops_per_sec();
        facts.push(fact("throughput, effective", scaled(effective, "FLOP/s")));
        let effective = roofline.effective_bytes_per_sec();
        facts.push(fact("bandwidth, effective", scaled(effective, "B/s")));
        let knee = figure(roofline.knee_flops_per_byte());
        facts.push(fact("knee I*", format!("{knee} FLOP/B")));
        if roofline.launch_us() > 0.0 {
            facts.push(fact("launch", scaled(roofline.launch_us() * 1e-6, "s")));
        }
    }
    if let Some(power) = device.power {
        let watts = |watts| scaled(watts, "W");
        facts.push(fact("power, prefill", watts(power.prefill_watts())));
        facts.push(fact("power, decode", watts(power.decode_watts())));
    }
    facts
}

fn anchor_rows(found: &Calibrated) -> [AnchorRow; 2] {
    let anchors = found.roofline.anchors();
    [
        ("memory-bound", anchors.memory_bound()),
        ("compute-bound", anchors.compute_bound()),
    ]
    .map(|(regime, anchor)| AnchorRow {
        of: found.of.join(", "),
        regime,
        intensity: figure(anchor.intensity_flops_per_byte()),
        utilisation: format!("{}%", figure(anchor.utilisation() * 100.0)),
        source: names::source(found.source),
    })
}

fn points(manifest: &Manifest, device: &DeviceAnnotation, call: KernelCall) -> Vec<Point> {
    let mut points = Vec::new();
    for (index, kernel) in manifest.kernels.iter().enumerate().take(KERNELS_MAX) {
        let call = kernel_call(manifest, index, call);
        let own = own_variants(kernel, device);
        let taken = taken(&own, call);
        for (variant, place) in own.iter().zip(0..) {
            let found = estimate(device, kernel, variant, call, 0);
            let taken = taken == Some(place);
            points.extend(found.map(|found| point(kernel, variant, call, &found, taken)));
        }
    }
    points
}

/// Returns the call as a kernel sees it: only the last row needs logits.
pub(super) fn kernel_call(manifest: &Manifest, index: usize, call: KernelCall) -> KernelCall {
    match index == manifest.head.kernel.0 as usize {
        true => KernelCall { tokens: 1, ..call },
        false => call,
    }
}

/// Returns the variants that a device of this class runs.
pub(super) fn own_variants<'m>(kernel: &'m Kernel, device: &DeviceAnnotation) -> Vec<&'m Variant> {
    let variants = kernel.variants.iter();
    variants
        .filter(|variant| variant.device == device.class)
        .take(VARIANTS_MAX)
        .collect()
}

/// Returns the index of the variant that the call takes, as in the sweep: the smallest that admits it, or else the
/// largest.
pub(super) fn taken(own: &[&Variant], call: KernelCall) -> Option<usize> {
    let size = |index: &usize| {
        let shape = own.get(*index).map(|variant| variant.shape);
        let limit = |size: Option<u32>| size.unwrap_or(u32::MAX);
        shape.map(|shape| (limit(shape.chunk()), limit(shape.bucket())))
    };
    let admits = |index: &usize| {
        own.get(*index).is_some_and(|variant| {
            let rows = call.tokens as usize * call.batch as usize;
            variant.shape.admits(rows, call.context as usize)
        })
    };
    let all = 0..own.len();
    all.clone()
        .filter(admits)
        .min_by_key(size)
        .or_else(|| all.max_by_key(size))
}

fn point(
    kernel: &Kernel,
    variant: &Variant,
    call: KernelCall,
    found: &Estimate,
    taken: bool,
) -> Point {
    let work = run_work(kernel, variant, call);
    let run_us = found.latency_us / found.runs.max(1) as f64;
    let intensity = work.flops / work.bytes;
    let speed = work.flops / (run_us * 1e-6);
    let name = names::name(&kernel.name, 16);
    let shape = names::shape(variant.shape);
    let source = names::source(found.source);
    let [time, speed_text] = [scaled(run_us * 1e-6, "s"), scaled(speed, "FLOP/s")];
    Point {
        readout: format!(
            "{name}, {shape}: {time}, {speed_text}, {} FLOP/B",
            figure(intensity)
        ),
        title: format!(
            "{name}, {shape}, {}: {time} a run, {speed_text}, {} FLOP/B ({} over {}); {source}",
            names::binding(kernel, variant.binding),
            figure(intensity),
            scaled(work.flops, "FLOP"),
            scaled(work.bytes, "B"),
        ),
        kernel: name,
        group: kernel.group,
        intensity_flops_per_byte: intensity,
        flops_per_sec: speed,
        taken,
    }
}
