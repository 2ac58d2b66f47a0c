//! The settings of a world: what the machine is, what it lacks, and how it fails. Environment variables that begin with
//! `SOFT_NPU_`, read once, as the plugin and its driver are one for a process.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use crate::abi::version;
use crate::error::SoftNpuError;
use crate::fault::Fault;

/// The settings of this process.
pub(crate) struct Settings {
    pub(crate) machine: NpuMachine,
    /// Version of the graph extension.
    pub(crate) graph: u32,
    /// Version of the loader.
    pub(crate) loader: [i32; 3],
    /// Version of the compiler in the driver, 0.0 for a driver without one.
    pub(crate) compiler: (u16, u16),
    /// Parts that the machine lacks.
    pub(crate) without: BTreeSet<MachinePart>,
    pub(crate) faults: Vec<Fault>,
    /// File of a plan that is made while the process runs.
    pub(crate) plan: Option<PathBuf>,
    /// Bundles whose programs compute blobs.
    pub(crate) bundles: Vec<PathBuf>,
    /// Least time of a run, by the name of its kernel; `*` is all others.
    times: BTreeMap<String, Duration>,
}

/// An NPU as its driver describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NpuMachine {
    pub(crate) platform: u32,
    pub(crate) device_id: u32,
    pub(crate) tiles: u32,
    /// Reported as the revision of the device.
    pub(crate) stepping: u32,
    /// Lanes of an engine (driver, `vpu_driver/source/device/vpu_37xx/vpu_hw_37xx.cpp` and its likes).
    pub(crate) simd_width: u32,
    /// Newest version of the ELF layout that the driver reads for the platform (`npu_plugin_elf`, `VersionsProvider`).
    pub(crate) elf: [u32; 3],
    /// Version of the mapped inference that the firmware reads.
    pub(crate) inference: [u32; 3],
}

/// A part that a machine may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MachinePart {
    /// The NPU itself.
    Device,
    /// The graph extension.
    Graph,
    /// Command lists that can be changed.
    Mutable,
    /// Import of the caller's pages.
    PageImport,
    /// The profiling extension.
    Profiling,
    /// The extension of queues.
    Queue,
    /// The extension of contexts.
    Context,
    /// The extension of drivers.
    Driver,
    /// Knowledge of the compiler's options.
    Options,
}

impl NpuMachine {
    // Device ids are those of Linux' `ivpu_drv.h`; tiles are the bits of `tileFuseMask` in the driver's `vpu_hw_*.cpp`.
    const NPU3720: Self = Self {
        platform: 3720,
        device_id: 0x7D1D,
        tiles: 2,
        stepping: 0,
        simd_width: 4096,
        // The version of driver 1.32.1.
        elf: [1, 2, 5],
        inference: [7, 0, 4],
    };
    const NPU4000: Self = Self {
        platform: 4000,
        device_id: 0x643E,
        tiles: 6,
        inference: [11, 4, 10],
        ..Self::NPU3720
    };
    const NPU5010: Self = Self {
        platform: 5010,
        device_id: 0xB03E,
        tiles: 3,
        simd_width: 8192,
        // The version that the compiler writes for it.
        elf: [2, 0, 0],
        ..Self::NPU4000
    };

    /// The machine of a platform.
    fn of(platform: u32) -> Option<Self> {
        let all = [Self::NPU3720, Self::NPU4000, Self::NPU5010];
        all.into_iter().find(|machine| machine.platform == platform)
    }
}

impl Settings {
    /// Whether the machine has a part.
    pub(crate) fn has(&self, part: MachinePart) -> bool {
        !self.without.contains(&part)
    }

    /// Least time of a run of a kernel.
    pub(crate) fn time_of(&self, kernel: &str) -> Duration {
        let time = self.times.get(kernel).or_else(|| self.times.get("*"));
        time.copied().unwrap_or_default()
    }

    /// Reads variables, given by their names without `SOFT_NPU_`.
    ///
    /// # Errors
    ///
    /// [`SoftNpuError::Setting`] for a value that means nothing.
    fn read(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, SoftNpuError> {
        let reader = Reader { variable };
        let platform = reader.number("PLATFORM", 3720)?;
        let machine = NpuMachine::of(platform).ok_or_else(|| {
            refused(
                "PLATFORM",
                &platform.to_string(),
                "`3720`, `4000` or `5010`",
            )
        })?;
        let machine = NpuMachine {
            device_id: reader.number("DEVICE_ID", machine.device_id)?,
            tiles: reader.number("TILES", machine.tiles)?,
            stepping: reader.number("STEPPING", machine.stepping)?,
            elf: reader.triple("ELF", machine.elf)?,
            ..machine
        };
        let (graph_major, graph_minor) = reader.pair("GRAPH", (1, 14))?;
        let (loader_major, loader_minor) = reader.pair("LOADER", (1, 28))?;
        let mut without = reader.list("WITHOUT", MachinePart::from_name)?;
        // Driver, `vpu_driver/source/device/vpu_device.cpp`: "Disable userptr for NPU37XX to avoid performance
        // degradation".
        if platform == 3720 {
            without.push(MachinePart::PageImport);
        }
        Ok(Self {
            machine,
            graph: version(graph_major, graph_minor),
            loader: [loader_major.into(), loader_minor.into(), 0],
            compiler: reader.pair("COMPILER", (8, 4))?,
            without: without.into_iter().collect(),
            faults: reader.list("FAULTS", Fault::parse)?,
            plan: variable("PLAN").map(PathBuf::from),
            bundles: reader.list("BUNDLES", |path| Some(PathBuf::from(path)))?,
            times: reader.list("TIMES", time)?.into_iter().collect(),
        })
    }

    /// The settings of a machine without an NPU.
    fn nothing() -> Self {
        Self {
            machine: NpuMachine::NPU3720,
            graph: 0,
            loader: [0; 3],
            compiler: (0, 0),
            without: BTreeSet::from([MachinePart::Device]),
            faults: Vec::new(),
            plan: None,
            bundles: Vec::new(),
            times: BTreeMap::new(),
        }
    }
}

/// The settings of this process. Where one means nothing, a line on standard error says so and there is no NPU.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let variable = |name: &str| std::env::var(format!("SOFT_NPU_{name}")).ok();
        Settings::read(&variable).unwrap_or_else(|error| {
            eprintln!("software NPU: {error}");
            Settings::nothing()
        })
    })
}

/// Whether the machine of this process has a part.
pub(crate) fn has(part: MachinePart) -> bool {
    settings().has(part)
}

impl MachinePart {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "device" => Self::Device,
            "graph" => Self::Graph,
            "mutable" => Self::Mutable,
            "import" => Self::PageImport,
            "profiling" => Self::Profiling,
            "queue" => Self::Queue,
            "context" => Self::Context,
            "driver" => Self::Driver,
            "options" => Self::Options,
            _ => return None,
        })
    }
}

/// Reads values out of variables.
struct Reader<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl Reader<'_> {
    fn number<T: FromStr>(&self, name: &str, default: T) -> Result<T, SoftNpuError> {
        let Some(text) = (self.variable)(name) else {
            return Ok(default);
        };
        text.parse().map_err(|_| refused(name, &text, "a number"))
    }

    fn pair(&self, name: &str, default: (u16, u16)) -> Result<(u16, u16), SoftNpuError> {
        let Some(text) = (self.variable)(name) else {
            return Ok(default);
        };
        let pair = || {
            let (major, minor) = text.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        pair().ok_or_else(|| refused(name, &text, "`MAJOR.MINOR`"))
    }

    fn triple(&self, name: &str, default: [u32; 3]) -> Result<[u32; 3], SoftNpuError> {
        let Some(text) = (self.variable)(name) else {
            return Ok(default);
        };
        let numbers: Option<Vec<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
        let triple = numbers.and_then(|numbers| numbers.try_into().ok());
        triple.ok_or_else(|| refused(name, &text, "`MAJOR.MINOR.PATCH`"))
    }

    /// Values with commas between them.
    fn list<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Vec<T>, SoftNpuError> {
        let text = (self.variable)(name).unwrap_or_default();
        let parts = text.split(',').filter(|part| !part.is_empty());
        parts
            .map(|part| {
                parse(part).ok_or_else(|| refused(name, part, "a name that README.md lists"))
            })
            .collect()
    }
}

/// `KERNEL=MICROSECONDS`.
fn time(text: &str) -> Option<(String, Duration)> {
    let (kernel, us) = text.split_once('=')?;
    Some((kernel.to_owned(), Duration::from_micros(us.parse().ok()?)))
}

fn refused(name: &str, found: &str, expected: &str) -> SoftNpuError {
    SoftNpuError::Setting {
        name: format!("SOFT_NPU_{name}"),
        found: found.to_owned(),
        expected: expected.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Settings::read(&variable).map_err(|error| error.to_string())
    }

    #[test]
    fn a_platform_is_a_machine_and_parts_of_it_may_be_others() {
        let machine = |variables| read(variables).unwrap().machine;
        assert_eq!(machine(&[]).platform, 3720);
        assert_eq!(machine(&[("PLATFORM", "5010")]).device_id, 0xB03E);
        let few = machine(&[("PLATFORM", "4000"), ("TILES", "2"), ("STEPPING", "1")]);
        assert_eq!((few.device_id, few.tiles, few.stepping), (0x643E, 2, 1));
        assert!(Settings::nothing().without.contains(&MachinePart::Device));
    }

    #[test]
    fn the_oldest_platform_takes_no_pages_of_others() {
        assert!(!read(&[]).unwrap().has(MachinePart::PageImport));
        let newer = read(&[("PLATFORM", "4000"), ("WITHOUT", "queue,context")]).unwrap();
        assert!(newer.has(MachinePart::PageImport) && !newer.has(MachinePart::Queue));
    }

    #[test]
    fn a_kernel_has_its_time_or_that_of_all() {
        let settings = read(&[("TIMES", "mha=500,*=20")]).unwrap();
        assert_eq!(settings.time_of("mha"), Duration::from_micros(500));
        assert_eq!(settings.time_of("ffn"), Duration::from_micros(20));
        assert_eq!(read(&[]).unwrap().time_of("ffn"), Duration::ZERO);
    }

    #[test]
    fn a_value_that_means_nothing_is_refused() {
        for (name, value, expected) in [
            ("PLATFORM", "9999", "`3720`, `4000` or `5010`"),
            ("TILES", "two", "a number"),
            ("GRAPH", "14", "`MAJOR.MINOR`"),
            ("WITHOUT", "luck", "a name that README.md lists"),
            ("FAULTS", "lost@", "a name that README.md lists"),
            ("TIMES", "mha", "a name that README.md lists"),
        ] {
            let error = read(&[(name, value)]).err().unwrap();
            let text =
                format!("environment variable `SOFT_NPU_{name}` is `{value}`, expected {expected}");
            assert_eq!(error, text);
        }
    }
}
