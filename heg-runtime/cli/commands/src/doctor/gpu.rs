//! `heg doctor --gpu`: the device, its driver, and the distance of its results from those of the CPU programs. Another
//! process computes on it, so a driver that crashes is a line of the report. What is found is remembered, for `--soc auto`.

use std::io::Write;

use anyhow::Context;
use heg_artifacts::plain::escape;
use heg_gpu::{GpuDevice, GpuInfo, GpuOptions};
use heg_runtime::exec::{ExecError, GpuFailure, GpuReport, GpuVerdict};
use heg_runtime::{RuntimeError, gpu_process, verified};
use serde::Serialize;

use crate::GPU_EXAMINER;

#[derive(Serialize)]
struct Report {
    device: Device,
    /// Agreement with the CPU programs: `equal`, `close`, or `none` where the driver failed.
    results: &'static str,
    /// The failure of the driver, if it failed.
    failed: Option<String>,
    #[serde(flatten)]
    found: Option<GpuReport>,
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

/// Runs the command; a machine without a GPU that can run programs is an error with the reason, and so is a driver that
/// failed, behind the report.
pub(super) fn run(name: &str, json: bool) -> anyhow::Result<()> {
    let mut options = GpuOptions::from_environment();
    if !name.is_empty() {
        options.name = Some(name.to_owned());
    }
    let info = GpuDevice::find(&options)?.info();
    let this = std::env::current_exe().context("find the program that examines GPUs")?;
    let found = gpu_process(this, vec![GPU_EXAMINER.into()]).probe(&options);
    remember(&info, &found)?;
    let report = Report::new(info, &found)?;
    let mut out = std::io::stdout().lock();
    match json {
        true => writeln!(out, "{}", serde_json::to_string(&report)?)?,
        false => write!(out, "{}", report.text())?,
    }
    match found {
        Ok(_) => Ok(()),
        Err(GpuFailure { reason, .. }) => {
            Err(RuntimeError::from(ExecError::Examination { message: reason }).into())
        }
    }
}

/// Remembers what a later start would find again.
fn remember(info: &GpuInfo, found: &Result<GpuReport, GpuFailure>) -> anyhow::Result<()> {
    let differs = match found {
        Ok(report) => report.differs.clone(),
        Err(failure) if failure.is_lasting => Some(failure.reason.clone()),
        Err(_) => return Ok(()),
    };
    if let Some(cache) = verified::cache_folder()? {
        let verdict = GpuVerdict::new(info, differs);
        verdict.remember(&cache).map_err(RuntimeError::from)?;
    }
    Ok(())
}

impl Report {
    fn new(info: GpuInfo, found: &Result<GpuReport, GpuFailure>) -> anyhow::Result<Self> {
        let failure = found.as_ref().err();
        Ok(Self {
            results: match found {
                Ok(report) if report.differs.is_none() => "equal",
                Ok(_) => "close",
                Err(_) => "none",
            },
            failed: failure.map(|failure| escape(&failure.reason).to_string()),
            found: found.as_ref().ok().cloned(),
            devices: GpuDevice::list()?.into_iter().map(Device::from).collect(),
            device: info.into(),
        })
    }

    fn text(&self) -> String {
        let Device {
            name,
            driver,
            kind,
            vulkan,
            ..
        } = &self.device;
        let differs = self.found.as_ref().and_then(|it| it.differs.as_ref());
        let why = self.failed.as_ref().or(differs);
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        let mut text = format!(
            "device    {name}, {kind}, Vulkan {vulkan}\n\
             driver    {driver}\n\
             results   {}{why}\n",
            self.results
        );
        if let Some(found) = &self.found {
            text.push_str(&lines(found));
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

/// The lines about a device that was probed.
fn lines(found: &GpuReport) -> String {
    let dots = if found.dots {
        "instruction"
    } else {
        "products"
    };
    let mut text = format!(
        "fma       {}\ndivision  {}\nroot      {}\ndots      {dots}\n\
         weights   {}\ncaches    {}\n",
        found.fma, found.division, found.root, found.weights, found.caches
    );
    for (operation, wrong) in found.wrong.iter().filter(|(_, wrong)| **wrong > 0) {
        let cases = found.cases;
        text.push_str(&format!("wrong     {operation}: {wrong} of {cases}\n"));
    }
    text
}
