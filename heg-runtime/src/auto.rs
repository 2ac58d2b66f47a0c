//! The devices of a machine that nobody named: its CPU, and a GPU beside it that is known to be worth it.
//!
//! A GPU is chosen only by a verdict that `heg doctor --gpu` left in the cache folder: probing takes longer than the first
//! token of a small model, so no start does it for a guess. Without such a verdict nothing of Vulkan is loaded.

use heg_files::OwnFolder;
use heg_gpu::{GpuDevice, GpuError, GpuInfo};
use heg_spec::soc::Gpu;
use heg_spec::{Soc, shipped};

use crate::error::RuntimeError;
use heg_exec::{GpuVerdict, chain};

/// The devices that were chosen.
#[derive(Debug, Clone)]
pub struct ChosenDevices {
    /// A shipped SoC, with the name of the GPU if there is one.
    pub soc: Soc,
    /// Why these.
    pub reason: String,
}

/// Chooses the devices of this machine: those of `host-cpu`, or of `host-cpu-gpu` where a GPU that is no software was
/// examined with the driver that it has now, and computes what CPU programs compute.
///
/// # Errors
///
/// None but those of shipped files.
pub fn choose(cache: Option<&OwnFolder>) -> Result<ChosenDevices, RuntimeError> {
    let verdict = cache.and_then(GpuVerdict::recall);
    decide(verdict.as_ref(), GpuDevice::list)
}

/// `list` is called only if the verdict is for the GPU: it loads Vulkan.
fn decide(
    verdict: Option<&GpuVerdict>,
    list: impl FnOnce() -> Result<Vec<GpuInfo>, GpuError>,
) -> Result<ChosenDevices, RuntimeError> {
    let cpu = |reason: String| -> Result<ChosenDevices, RuntimeError> {
        let soc = shipped::soc("host-cpu")?;
        Ok(ChosenDevices { soc, reason })
    };
    let Some(verdict) = verdict else {
        return cpu("no GPU was examined here, which `heg doctor --gpu` does".to_owned());
    };
    let name = &verdict.name;
    if verdict.is_software {
        return cpu(format!("`{name}` is emulated on the CPU"));
    }
    if let Some(differs) = &verdict.differs {
        return cpu(format!(
            "`{name}` does not compute as CPU programs do: {differs}"
        ));
    }
    match list() {
        Err(error) => cpu(chain(&error)),
        Ok(found) if !found.iter().any(|info| is_examined(info, verdict)) => cpu(format!(
            "`{name}` is not there with the driver that was examined; `heg doctor --gpu` examines it again"
        )),
        Ok(_) => {
            let mut soc = shipped::soc("host-cpu-gpu")?;
            for gpu in soc.devices.iter_mut().filter_map(|it| it.gpu.as_mut()) {
                *gpu = Gpu {
                    name: Some(name.clone()),
                    ..Gpu::default()
                };
            }
            let reason = format!("`{name}` computes what CPU programs compute");
            Ok(ChosenDevices { soc, reason })
        }
    }
}

/// Whether a device is the one of a verdict, with the same driver.
fn is_examined(info: &GpuInfo, verdict: &GpuVerdict) -> bool {
    info.identity == verdict.identity && info.kind != "software" && info.lacks.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict() -> GpuVerdict {
        GpuVerdict {
            name: "Arc 140V".to_owned(),
            identity: "11-22-3".to_owned(),
            is_software: false,
            differs: None,
        }
    }

    fn info() -> GpuInfo {
        GpuInfo {
            name: "Arc 140V".to_owned(),
            driver: "a driver".to_owned(),
            kind: "integrated",
            vulkan: "1.3.0".to_owned(),
            identity: "11-22-3".to_owned(),
            lacks: None,
        }
    }

    /// The SoC and the reason, where Vulkan must not be asked.
    fn unasked(verdict: Option<&GpuVerdict>) -> String {
        line(verdict, || unreachable!("nobody needs a list of devices"))
    }

    fn line(
        verdict: Option<&GpuVerdict>,
        list: impl FnOnce() -> Result<Vec<GpuInfo>, GpuError>,
    ) -> String {
        let ChosenDevices { soc, reason } = decide(verdict, list).unwrap();
        format!("{}: {reason}", soc.name)
    }

    #[test]
    fn a_gpu_is_chosen_by_its_verdict_alone() {
        let with = |change: fn(&mut GpuVerdict)| {
            let mut changed = verdict();
            change(&mut changed);
            changed
        };
        let software = with(|it| it.is_software = true);
        let close = with(|it| it.differs = Some("`root` is not rounded once".to_owned()));
        let other = |change: fn(&mut GpuInfo)| {
            let mut changed = info();
            change(&mut changed);
            line(Some(&verdict()), || Ok(vec![changed]))
        };
        let lines = [
            unasked(None),
            unasked(Some(&software)),
            unasked(Some(&close)),
            line(Some(&verdict()), || {
                let reason = "libvulkan.so.1 is not there".to_owned();
                Err(GpuError::NoLoader { reason })
            }),
            other(|it| it.identity = "11-22-4".to_owned()),
            other(|it| it.kind = "software"),
            other(|it| it.lacks = Some("timeline semaphores")),
            line(Some(&verdict()), || Ok(vec![info()])),
        ];
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn the_chosen_gpu_is_named_and_the_cpu_stays() {
        let chosen = decide(Some(&verdict()), || Ok(vec![info()])).unwrap();
        let named = chosen.soc.devices.iter().map(|device| {
            let gpu = device.gpu.as_ref();
            gpu.and_then(|gpu| gpu.name.as_deref())
        });
        assert_eq!(named.collect::<Vec<_>>(), [Some("Arc 140V"), None]);
        let cpu = decide(None, || Ok(Vec::new())).unwrap();
        assert_eq!(cpu.soc.name, "host-cpu");
    }
}
