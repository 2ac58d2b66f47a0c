//! A profile as a report for people: anchors of each device, one line per kernel, the contention table.

use std::fmt;

use heg_spec::DeviceClass;
use serde::Serialize;

use super::contention::probes;
use super::session::device_peaks;
use super::{Case, Profile};
use crate::annotation::{Contention, Regime};
use crate::predict::CallShape;

/// The numbers of a profile, for printing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The two anchors of each device.
    pub anchors: Vec<AnchorReport>,
    /// The measured cases.
    pub kernels: Vec<KernelReport>,
    /// Contention between devices.
    pub contention: Vec<Contention>,
}

/// The highest rate of a device in one regime.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AnchorReport {
    /// The device's role.
    pub device: DeviceClass,
    /// Whether the number is bandwidth or throughput.
    pub regime: Regime,
    /// The case that reached it, see [`Case::label`].
    pub kernel: String,
    /// The call that reached it.
    pub call: CallShape,
    /// I = F / Q of that call, in FLOP/B.
    pub intensity_flops_per_byte: f64,
    /// The rate, in B/s for [`Regime::MemoryBound`] and in FLOP/s for [`Regime::ComputeBound`].
    pub per_sec: f64,
}

/// One case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KernelReport {
    /// See [`Case::label`].
    pub kernel: String,
    /// Calls in its table.
    pub calls: usize,
    /// Latency of its shortest call, in µs.
    pub shortest_us: f64,
    /// Latency of its longest call, in µs.
    pub longest_us: f64,
    /// Bandwidth of its roofline, in B/s, if it has one.
    pub bytes_per_sec: Option<f64>,
    /// Throughput of its roofline, in FLOP/s.
    pub flops_per_sec: Option<f64>,
    /// Launch overhead of its roofline, in µs.
    pub launch_us: Option<f64>,
}

impl Report {
    /// Reports those cases that the profile has.
    pub fn new(cases: &[Case], profile: &Profile) -> Self {
        let anchors = probes(cases, profile).into_iter().filter_map(|probe| {
            let case = cases.get(probe.case)?;
            let (flops, bytes) = (probe.call.flops(&case.work), probe.call.bytes(&case.work));
            Some(AnchorReport {
                device: probe.device,
                regime: probe.regime,
                kernel: case.label(),
                call: probe.call,
                intensity_flops_per_byte: flops / bytes,
                per_sec: probe.per_sec,
            })
        });
        let kernels = cases.iter().filter_map(|case| {
            let peaks = device_peaks(cases, profile, case.device)?;
            let calibrated = profile.calibrated(case, peaks)?;
            let entries = calibrated.table.entries().iter().map(|entry| entry.1);
            let roofline = calibrated.roofline;
            Some(KernelReport {
                kernel: case.label(),
                calls: entries.len(),
                shortest_us: entries.clone().fold(f64::INFINITY, f64::min),
                longest_us: entries.fold(0.0, f64::max),
                bytes_per_sec: roofline.map(|roofline| roofline.effective_bytes_per_sec()),
                flops_per_sec: roofline.map(|roofline| roofline.effective_flops_per_sec()),
                launch_us: roofline.map(|roofline| roofline.launch_us()),
            })
        });
        Self {
            anchors: anchors.collect(),
            kernels: kernels.collect(),
            contention: profile.contention.clone(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_anchors(f)?;
        self.write_kernels(f)?;
        self.write_contention(f)
    }
}

impl Report {
    fn write_anchors(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<6} {:<13} {:>16} {:>12}  reached by",
            "device", "anchor", "", "FLOP/B"
        )?;
        for anchor in &self.anchors {
            let rate = match anchor.regime {
                Regime::MemoryBound => format!("{:.1} GB/s", anchor.per_sec / 1e9),
                Regime::ComputeBound => format!("{:.1} GFLOP/s", anchor.per_sec / 1e9),
            };
            let CallShape { tokens, context } = anchor.call;
            let context = match context {
                0 => String::new(),
                context => format!(", n = {context}"),
            };
            writeln!(
                f,
                "{:<6} {:<13} {rate:>16} {:>12.1}  {} at c = {tokens}{context}",
                anchor.device.name(),
                bound(anchor.regime),
                anchor.intensity_flops_per_byte,
                anchor.kernel,
            )?;
        }
        Ok(())
    }

    fn write_kernels(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<18} {:>5} {:>12} {:>12} {:>9} {:>9} {:>10}",
            "kernel", "calls", "shortest", "longest", "GB/s", "GFLOP/s", "launch"
        )?;
        for kernel in &self.kernels {
            let number = |value: Option<f64>, unit: f64| match value {
                Some(value) => format!("{:.1}", value / unit),
                None => "-".to_owned(),
            };
            let launch = kernel.launch_us.map(|us| format!("{us:.0} µs"));
            writeln!(
                f,
                "{:<18} {:>5} {:>9.0} µs {:>9.0} µs {:>9} {:>9} {:>10}",
                kernel.kernel,
                kernel.calls,
                kernel.shortest_us,
                kernel.longest_us,
                number(kernel.bytes_per_sec, 1e9),
                number(kernel.flops_per_sec, 1e9),
                launch.unwrap_or_else(|| "-".to_owned()),
            )?;
        }
        Ok(())
    }

    fn write_contention(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.contention.is_empty() {
            return writeln!(
                f,
                "\nno contention table: it takes two devices that run at once"
            );
        }
        writeln!(f, "\n{:<20} {:<20} {:>10}", "kernel", "beside", "latency")?;
        for cell in &self.contention {
            let name = |(device, regime): (DeviceClass, Regime)| {
                format!("{} {}", device.name(), bound(regime))
            };
            writeln!(
                f,
                "{:<20} {:<20} {:>9.2}×",
                name(cell.subject()),
                name(cell.neighbour()),
                cell.slowdown()
            )?;
        }
        Ok(())
    }
}

/// The limit of a regime, in words.
const fn bound(regime: Regime) -> &'static str {
    match regime {
        Regime::MemoryBound => "memory-bound",
        Regime::ComputeBound => "compute-bound",
    }
}
