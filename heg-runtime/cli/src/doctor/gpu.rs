//! `heg doctor --gpu`: the device, its driver, and the distance of its results from those of the CPU programs. What
//! it finds is remembered, for `--soc auto`.

use std::collections::BTreeMap;
use std::io::Write;

use heg_artifacts::plain::escape;
use heg_gpu::{Fidelity, GpuDevice, GpuError, GpuInfo, GpuOptions, Sharing};
use heg_runtime::exec::GpuVerdict;
use heg_runtime::{RuntimeError, verified};
use serde::Serialize;

#[derive(Serialize)]
struct Report {
    device: Device,
    /// Agreement with the CPU programs: `equal` or `close`.
    results: &'static str,
    /// Differences from the results of the CPU programs, if there are any.
    differ: Option<String>,
    fma: String,
    division: String,
    root: String,
    /// Whether dot products of bytes use the device's instruction for them.
    dots: bool,
    /// Access to weights: `imported` or `copied`.
    weights: &'static str,
    cases: usize,
    /// Operations, each with the number of cases in which its bits differed.
    wrong: BTreeMap<&'static str, usize>,
    /// All devices that the loader lists.
    devices: Vec<Device>,
}

#[derive(Serialize)]
struct Device {
    name: String,
    driver: String,
    kind: &'static str,
    vulkan: String,
    identity: String,
    lacks: Option<&'static str>,
}

impl From<GpuInfo> for Device {
    fn from(info: GpuInfo) -> Self {
        Self {
            name: escape(&info.name).to_string(),
            driver: escape(&info.driver).to_string(),
            kind: info.kind,
            vulkan: info.vulkan,
            identity: info.identity,
            lacks: info.lacks,
        }
    }
}

/// Runs the command; a machine without a GPU that can run programs is an error with the reason.
pub(super) fn run(name: &str, json: bool) -> anyhow::Result<()> {
    let mut options = GpuOptions::from_environment();
    if !name.is_empty() {
        options.name = Some(name.to_owned());
    }
    let device = GpuDevice::open(&options)?;
    let report = examine(&device)?;
    if let Some(cache) = verified::cache_folder()? {
        GpuVerdict::of(&device)
            .remember(&cache)
            .map_err(RuntimeError::from)?;
    }
    let mut out = std::io::stdout().lock();
    match json {
        true => writeln!(out, "{}", serde_json::to_string(&report)?)?,
        false => write!(out, "{}", report.text())?,
    }
    Ok(())
}

fn examine(device: &GpuDevice) -> Result<Report, GpuError> {
    let probe = device.probe();
    let (results, differ) = match device.fidelity() {
        Fidelity::Equal => ("equal", None),
        Fidelity::Close { reason } => ("close", Some(reason.clone())),
    };
    let arithmetic = probe.arithmetic;
    Ok(Report {
        results,
        differ,
        fma: arithmetic.fma.to_string(),
        division: arithmetic.division.to_string(),
        root: arithmetic.root.to_string(),
        dots: arithmetic.dots,
        weights: match device.sharing() {
            Sharing::Imported => "imported",
            Sharing::Copied => "copied",
        },
        cases: probe.cases,
        wrong: probe.wrong.iter().copied().collect(),
        devices: GpuDevice::list()?.into_iter().map(Device::from).collect(),
        device: device.info().into(),
    })
}

impl Report {
    fn text(&self) -> String {
        let Device {
            name,
            driver,
            kind,
            vulkan,
            ..
        } = &self.device;
        let differ = self.differ.as_deref();
        let differ = differ.map_or(String::new(), |differ| format!(": {differ}"));
        let dots = if self.dots { "instruction" } else { "products" };
        let mut text = format!(
            "device    {name}, {kind}, Vulkan {vulkan}\n\
             driver    {driver}\n\
             results   {}{differ}\n\
             fma       {}\ndivision  {}\nroot      {}\ndots      {dots}\n\
             weights   {}\n",
            self.results, self.fma, self.division, self.root, self.weights
        );
        for (operation, wrong) in self.wrong.iter().filter(|(_, wrong)| **wrong > 0) {
            let cases = self.cases;
            text.push_str(&format!("wrong     {operation}: {wrong} of {cases}\n"));
        }
        for other in self
            .devices
            .iter()
            .filter(|it| it.identity != self.device.identity)
        {
            let lacks = other
                .lacks
                .map_or(String::new(), |lacks| format!(" (without {lacks})"));
            text.push_str(&format!("also      {}{lacks}\n", other.name));
        }
        text
    }
}
