//! SoC files: the devices of a machine, the role each plays, and what data sheets say of their speed.
//!
//! Every number has the text of its source beside it, so that a report can show how far to trust it. Numbers
//! that have not been published are absent.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::error::SpecError;
use crate::isa::Isa;
use crate::pair::{MatrixUnits, Pair};
use crate::source::{Problems, Source};
use crate::vocabulary::{DeviceClass, NpuPlatform};

/// A machine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Soc {
    /// Name, e.g. `host-cpu`.
    pub name: String,
    /// Memory that the devices share.
    #[serde(default)]
    pub dram: Option<Dram>,
    /// Devices of the machine.
    pub devices: Vec<Device>,
    /// Two devices that share products.
    #[serde(default)]
    pub pair: Option<Pair>,
}

/// The memory of a machine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dram {
    /// Peak bandwidth, in B/s.
    pub bytes_per_sec: f64,
    /// Source of the number.
    pub source: String,
}

/// A device, as the runtime opens it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Class of the kernel variants that it runs.
    pub class: DeviceClass,
    /// CPU programs, for a device that is played by the CPU itself. They come before its OpenVINO device.
    #[serde(default)]
    pub programs: Option<Programs>,
    /// A GPU that runs CPU programs in this role. It comes before the CPU, and before the OpenVINO device.
    #[serde(default)]
    pub gpu: Option<Gpu>,
    /// OpenVINO device, e.g. `CPU`, `GPU.0`, `NPU`.
    pub openvino: String,
    /// OpenVINO properties that kernels are compiled with.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    /// Properties that replace those for attention over 16-bit keys and values; `None` leaves one to the plugin.
    #[serde(default)]
    pub mha_properties: BTreeMap<String, Option<String>>,
    /// Platform of an NPU, which decides which blobs it runs.
    #[serde(default)]
    pub npu: Option<Npu>,
    /// Peak compute and bandwidth.
    #[serde(default)]
    pub peaks: Option<Peaks>,
    /// Efficiency of its matrix units by the shape of a product; the peaks and anchors alone if absent.
    #[serde(default)]
    pub matrix_units: Option<MatrixUnits>,
    /// Power draw while busy.
    #[serde(default)]
    pub power: Option<Power>,
    /// Share of the peaks that kernels achieve; the full peaks if absent.
    #[serde(default)]
    pub anchors: Option<Anchors>,
}

/// The settings of CPU programs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Programs {
    /// The form of activations in products with 8-bit weights.
    pub activations: Activations,
    /// Number of threads; if absent, one for each of the cores.
    #[serde(default)]
    pub threads: Option<NonZeroU32>,
    /// Cores that the threads run on.
    #[serde(default)]
    pub cores: Cores,
    /// Instructions that kernels use; if absent, the best that the machine has.
    #[serde(default)]
    pub isa: Option<Isa>,
}

/// A GPU that runs CPU programs by way of Vulkan.
///
/// Beside `programs`, the CPU plays the role as well, and runs what the GPU cannot. Without them the role's own device does
/// that, by OpenVINO; the GPU then has to be hardware, unless it is asked for by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Part of the name of the device or of its driver; if absent, the first hardware, or else the first of all.
    #[serde(default)]
    pub name: Option<String>,
    /// The form of activations in products with 8-bit weights, where no `programs` beside it say so.
    #[serde(default)]
    pub activations: Option<Activations>,
}

/// Cores that threads run on, of those that this process may use.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub enum Cores {
    /// The fast ones, each once: on a machine with cores of several kinds threads are kept on the fast kind, and no
    /// two are meant for one core that runs two threads at a time.
    #[default]
    Fast,
    /// All, wherever the system puts a thread.
    All,
    /// These, by the numbers that the system gives them.
    Only(Vec<u32>),
}

/// The form of activations in products with 8-bit weights. Other weights are multiplied in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Activations {
    /// In f32.
    F32,
    /// Rounded to 8 bits, in groups of 32 that share a scale.
    I8,
    /// Rounded to 16 bits, in groups that share a scale.
    I16,
}

/// The properties of an NPU that its blobs depend on.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Npu {
    /// Platform: one of [`NpuPlatform::KNOWN`].
    pub platform: NpuPlatform,
    /// Clock at which the latencies of blobs are read off the compiler's tables, in MHz.
    pub frequency_mhz: u32,
    /// Source of the numbers.
    pub source: String,
}

/// P_peak and B_peak of a device's roofline.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peaks {
    /// In FLOP/s of the number format that its kernels compute in.
    pub flops_per_sec: f64,
    /// In B/s; where absent, the memory's.
    #[serde(default)]
    pub bytes_per_sec: Option<f64>,
    /// Source of the numbers.
    pub source: String,
}

/// Power of a device while it runs kernels.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Power {
    /// With many tokens of a sequence in a call, in W.
    pub prefill_watts: f64,
    /// With one token of each sequence in a call, in W.
    pub decode_watts: f64,
    /// While it compiles a kernel for another device, in W.
    #[serde(default)]
    pub compile_watts: Option<f64>,
    /// Source of the numbers.
    pub source: String,
}

/// Two kernels that bracket the utilisation of a device (Agent.xpu, Appendix A).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anchors {
    /// The most memory-bound one.
    pub memory_bound: Anchor,
    /// The most compute-bound one.
    pub compute_bound: Anchor,
    /// Overhead of a call, in µs.
    #[serde(default)]
    pub launch_us: f64,
    /// Source of the numbers.
    pub source: String,
}

/// One kernel on the axis of the roofline.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anchor {
    /// Work per byte moved, in FLOP/B.
    pub intensity_flops_per_byte: f64,
    /// Achieved bandwidth divided by the peak bandwidth; above 0, up to 1.
    pub utilisation: f64,
}

impl Device {
    /// The GPU that runs CPU programs in this role, and their form of activations.
    pub fn gpu_programs(&self) -> Option<(&Gpu, Activations)> {
        let gpu = self.gpu.as_ref()?;
        let beside = self.programs.as_ref().map(|programs| programs.activations);
        Some((gpu, beside.or(gpu.activations)?))
    }
}

impl Soc {
    /// Parses and checks a SoC file.
    pub fn parse(source: Source<'_>) -> Result<Self, SpecError> {
        let soc: Self = source.parse()?;
        let mut problems = Problems::new(source);
        if soc.devices.is_empty() {
            problems.push("devices", "expected at least one device".to_owned());
        }
        if let Some(dram) = &soc.dram {
            check_positive(&mut problems, "dram.bytes_per_sec", dram.bytes_per_sec);
            check_source(&mut problems, "dram.source", &dram.source);
        }
        for (index, device) in soc.devices.iter().enumerate() {
            check_device(&mut problems, &format!("devices.{index}"), device, &soc);
        }
        if let Some(pair) = &soc.pair {
            pair.check(&mut problems, &soc);
        }
        problems.finish(soc)
    }
}

fn check_device(problems: &mut Problems<'_>, path: &str, device: &Device, soc: &Soc) {
    if let Some(Cores::Only(cores)) = device.programs.as_ref().map(|programs| &programs.cores) {
        check_cores(problems, &format!("{path}.programs.cores"), cores);
    }
    if let Some(gpu) = &device.gpu {
        let message = match (&gpu.activations, &device.programs) {
            (None, None) => Some("expected `activations` here, or `programs` beside `gpu`"),
            (Some(_), Some(_)) => {
                Some("expected no `activations` here, as `programs` beside `gpu` have them")
            }
            (None, Some(_)) | (Some(_), None) => None,
        };
        if let Some(message) = message {
            problems.push(&format!("{path}.gpu"), message.to_owned());
        }
    }
    if let Some(npu) = &device.npu {
        check_npu(problems, &format!("{path}.npu"), npu, device.class);
    }
    if let Some(peaks) = &device.peaks {
        let field = |name: &str| format!("{path}.peaks.{name}");
        check_positive(problems, &field("flops_per_sec"), peaks.flops_per_sec);
        check_source(problems, &field("source"), &peaks.source);
        match peaks.bytes_per_sec {
            Some(found) => check_positive(problems, &field("bytes_per_sec"), found),
            None if soc.dram.is_none() => {
                let message = "expected `bytes_per_sec` here, or `dram` beside `devices`";
                problems.push(&format!("{path}.peaks"), message.to_owned());
            }
            None => {}
        }
    }
    if let Some(units) = &device.matrix_units {
        units.check(problems, &format!("{path}.matrix_units"));
    }
    if let Some(power) = &device.power {
        let field = |name: &str| format!("{path}.power.{name}");
        check_positive(problems, &field("prefill_watts"), power.prefill_watts);
        check_positive(problems, &field("decode_watts"), power.decode_watts);
        if let Some(found) = power.compile_watts {
            check_positive(problems, &field("compile_watts"), found);
        }
        check_source(problems, &field("source"), &power.source);
    }
    if let Some(anchors) = &device.anchors {
        check_anchors(problems, &format!("{path}.anchors"), anchors);
        if device.peaks.is_none() {
            let message = "expected `peaks` beside `anchors`, which are shares of them";
            problems.push(&format!("{path}.anchors"), message.to_owned());
        }
    }
}

fn check_cores(problems: &mut Problems<'_>, path: &str, cores: &[u32]) {
    if cores.is_empty() {
        problems.push(path, "expected at least one core".to_owned());
    }
    let twice = (1..)
        .zip(cores)
        .find(|(next, core)| cores.iter().skip(*next).any(|other| other == *core));
    if let Some((_, core)) = twice {
        problems.push(path, format!("expected each core once, found {core} twice"));
    }
}

fn check_npu(problems: &mut Problems<'_>, path: &str, npu: &Npu, class: DeviceClass) {
    if class != DeviceClass::Npu {
        let message = format!("expected `npu` for a device of class `Npu`, found `{class:?}`");
        problems.push(path, message);
    }
    if let Err(unknown) = npu.platform.check() {
        problems.push(&format!("{path}.platform"), unknown.to_string());
    }
    if npu.frequency_mhz == 0 {
        let message = "expected a frequency from 1 MHz, found 0".to_owned();
        problems.push(&format!("{path}.frequency_mhz"), message);
    }
    check_source(problems, &format!("{path}.source"), &npu.source);
}

fn check_anchors(problems: &mut Problems<'_>, path: &str, anchors: &Anchors) {
    let (memory, compute) = (anchors.memory_bound, anchors.compute_bound);
    for (name, anchor) in [("memory_bound", memory), ("compute_bound", compute)] {
        let found = anchor.utilisation;
        if !(found > 0.0 && found <= 1.0) {
            let message = format!("expected a utilisation above 0 and up to 1, found {found:?}");
            problems.push(&format!("{path}.{name}.utilisation"), message);
        }
        let found = anchor.intensity_flops_per_byte;
        if !(found.is_finite() && found >= 0.0) {
            let message = format!("expected a finite number from 0, found {found:?}");
            problems.push(&format!("{path}.{name}.intensity_flops_per_byte"), message);
        }
    }
    if memory.intensity_flops_per_byte >= compute.intensity_flops_per_byte {
        let message = format!(
            "expected a larger intensity than the memory-bound anchor's {:?}, found {:?}",
            memory.intensity_flops_per_byte, compute.intensity_flops_per_byte
        );
        let field = format!("{path}.compute_bound.intensity_flops_per_byte");
        problems.push(&field, message);
    }
    if !(anchors.launch_us.is_finite() && anchors.launch_us >= 0.0) {
        let message = format!(
            "expected a finite number from 0, found {:?}",
            anchors.launch_us
        );
        problems.push(&format!("{path}.launch_us"), message);
    }
    check_source(problems, &format!("{path}.source"), &anchors.source);
}

pub(crate) fn check_positive(problems: &mut Problems<'_>, path: &str, found: f64) {
    if !(found.is_finite() && found > 0.0) {
        let message = format!("expected a finite number above 0, found {found:?}");
        problems.push(path, message);
    }
}

pub(crate) fn check_source(problems: &mut Problems<'_>, path: &str, source: &str) {
    if source.trim().is_empty() {
        problems.push(path, "expected where the number comes from".to_owned());
    }
}
