//! A GPU of this machine: found, probed, and ready to take programs.

use std::fmt;
use std::sync::Arc;

use heg_artifacts::Bundle;
use heg_files::OwnFolder;
use heg_spirv::{BundleModules, StepShape};

use crate::arithmetic::Arithmetic;
use crate::error::GpuError;
use crate::kept::KeptPipelines;
use crate::pipelines::Pipelines;
use crate::probe::{Probe, probe};
use crate::region::{GpuRegion, Owner};
use crate::shared::{CacheMemory, Views};
use crate::vulkan::{Candidate, Device, Instance, Kind, Memory};
use crate::{Fidelity, sharing};

/// The wanted device, and how it is watched.
#[derive(Debug, Clone, Default)]
pub struct GpuOptions {
    /// Part of the name of a device or of its driver; without it, the first hardware, or else the first of all.
    pub name: Option<String>,
    /// Whether Vulkan's validation layer watches, if it is installed.
    pub validation: bool,
    /// Whether it is taken for what it is.
    pub treatment: Treatment,
    /// The findings of an examination with the present driver; without them the device is probed.
    pub known: GpuFindings,
}

/// The facts about a device that an earlier examination may have found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GpuFindings {
    /// The way in which weights reach it.
    pub sharing: Option<Sharing>,
    /// The memory of keys and values.
    pub caches: Option<CacheMemory>,
    /// The variant of modules in which its results have the bits of the CPU programs.
    pub arithmetic: Option<Arithmetic>,
}

/// The kind of device that one is taken for; bits do not depend on it, so that each way can be tested on any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Treatment {
    /// Its own.
    #[default]
    Own,
    /// A processor: some invocations, which read memory one by one.
    Processor,
    /// A GPU with memory apart from the host's: thousands of invocations, which read memory side by side.
    Discrete,
}

impl GpuOptions {
    /// Reads the options from `HEG_VK_DRIVER` and from `HEG_VK_AS`, which may be `processor` or `discrete`.
    pub fn from_environment() -> Self {
        Self {
            name: std::env::var("HEG_VK_DRIVER")
                .ok()
                .filter(|name| !name.is_empty()),
            treatment: match std::env::var("HEG_VK_AS").as_deref() {
                Ok("processor") => Treatment::Processor,
                Ok("discrete") => Treatment::Discrete,
                _ => Treatment::Own,
            },
            ..Self::default()
        }
    }
}

/// The way in which weights reach a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// It reads pages of the host where they lie.
    Imported,
    /// They are copied to memory of its own.
    Copied,
}

/// The origin of the modules that a device runs for a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleOrigin {
    /// The bundle's.
    Bundle,
    /// This program; the bundle has none.
    Own,
    /// The bundle, and this program in place of some that another version of HEG wrote.
    OtherVersion {
        /// Number of the bundle's modules that are not run.
        unknown: usize,
    },
}

impl fmt::Display for ModuleOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bundle => f.write_str("the bundle's modules"),
            Self::Own => f.write_str("modules of its own"),
            Self::OtherVersion { unknown } => write!(
                f,
                "modules of its own for {unknown} that another version wrote"
            ),
        }
    }
}

/// The facts about a device that are known without computing on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInfo {
    /// Name of the device.
    pub name: String,
    /// Name and version of its driver.
    pub driver: String,
    /// `discrete`, `integrated`, `virtual`, `software` or `other`.
    pub kind: &'static str,
    /// Version of Vulkan, as in `1.3.230`.
    pub vulkan: String,
    /// The identity across processes: identifiers of both, and the driver's version.
    pub identity: String,
    /// The first requirement of programs that the device lacks, if any.
    pub lacks: Option<&'static str>,
}

/// A device of this machine that was chosen, and computes nothing yet.
pub struct FoundGpu {
    instance: Arc<Instance>,
    candidate: Candidate,
}

/// A device that was probed.
pub struct GpuDevice {
    pub(crate) pipelines: Pipelines,
    probe: Probe,
    sharing: Sharing,
    caches: CacheMemory,
    is_wide: bool,
    pub(crate) views: Views,
}

impl GpuDevice {
    /// All devices that the system's loader lists.
    ///
    /// # Errors
    ///
    /// [`GpuError::NoLoader`], and what the loader says.
    pub fn list() -> Result<Vec<GpuInfo>, GpuError> {
        let candidates = Instance::load(false)?.candidates()?;
        Ok(candidates.iter().map(info).collect())
    }

    /// Looks for the device that is asked for.
    ///
    /// # Errors
    ///
    /// [`GpuError::NoLoader`] and [`GpuError::NoDevice`] where there is none, and what the loader says.
    pub fn find(options: &GpuOptions) -> Result<FoundGpu, GpuError> {
        let instance = Instance::load(options.validation)?;
        let candidate = choose(instance.candidates()?, options.name.as_deref())?;
        Ok(FoundGpu {
            instance,
            candidate,
        })
    }

    /// Opens the device that is asked for, and probes it.
    ///
    /// # Errors
    ///
    /// Those of [`find`](Self::find), and what the device's driver says.
    pub fn open(options: &GpuOptions) -> Result<Self, GpuError> {
        Self::find(options)?.open(options)
    }

    /// Name, driver and versions.
    pub fn info(&self) -> GpuInfo {
        info(&self.device().candidate)
    }

    /// Returns the properties of its arithmetic.
    pub fn probe(&self) -> &Probe {
        &self.probe
    }

    /// Returns the agreement of its results with those of the CPU programs.
    pub fn fidelity(&self) -> &Fidelity {
        &self.probe.fidelity
    }

    /// Returns the way in which weights reach it.
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Returns the way in which keys and values are in memory that the host works on, too.
    pub fn cache_memory(&self) -> CacheMemory {
        self.caches
    }

    /// Whether products are divided among thousands of invocations.
    pub(crate) fn is_wide(&self) -> bool {
        self.is_wide
    }

    /// Memory that the invocations of a workgroup share at most, in bytes.
    pub(crate) fn shared_bytes(&self) -> u32 {
        self.device().candidate.shared_bytes
    }

    /// Invocations of a workgroup at most.
    pub(crate) fn invocations(&self) -> u32 {
        self.device().candidate.invocations
    }

    /// Whether it was lost, or did not finish in time: nothing that was made on it can run again.
    pub fn is_lost(&self) -> bool {
        self.device().is_lost()
    }

    /// Whether Vulkan's validation layer watches.
    pub fn is_validated(&self) -> bool {
        self.device().instance.is_validated()
    }

    /// Returns the messages of the validation layer so far.
    pub fn complaints(&self) -> Vec<String> {
        self.device().instance.complaints()
    }

    /// Pipelines that were made so far.
    pub fn pipeline_count(&self) -> usize {
        self.pipelines.count()
    }

    /// The modules of these, each with the constants of its shape and of calls; in no order.
    pub fn pipeline_shapes(&self) -> Vec<StepShape> {
        self.pipelines.shapes()
    }

    /// Takes the modules of a bundle that this version knows, and says whose are run from then on. For modules that a
    /// bundle lacks, and for those of another version, the device has its own.
    ///
    /// # Errors
    ///
    /// [`GpuError::Modules`] if a section is damaged.
    pub fn take_modules(&self, bundle: &Bundle) -> Result<ModuleOrigin, GpuError> {
        let modules = BundleModules::read(bundle).map_err(|source| GpuError::Modules { source })?;
        let origin = match (modules.count(), modules.unknown().len()) {
            (0, 0) => ModuleOrigin::Own,
            (_, 0) => ModuleOrigin::Bundle,
            (_, unknown) => ModuleOrigin::OtherVersion { unknown },
        };
        self.pipelines.take_modules(modules);
        Ok(origin)
    }

    /// Makes further pipelines from what an earlier process kept in a folder, and keeps all there when the device is
    /// closed: in a file for this device and version of its driver.
    ///
    /// # Errors
    ///
    /// Error of the driver. A file that cannot be used is none.
    pub fn keep_pipelines(&self, folder: &OwnFolder) -> Result<KeptPipelines, GpuError> {
        self.pipelines.keep(folder)
    }

    /// Memory where the device is fastest.
    ///
    /// # Errors
    ///
    /// Error of the driver, above all that there is no more memory.
    pub fn memory(&self, bytes: u64) -> Result<GpuRegion, GpuError> {
        Memory::new(self.device(), bytes, Kind::Device).map(GpuRegion::whole)
    }

    /// Memory that the host reads and writes without a copy.
    ///
    /// # Errors
    ///
    /// As [`memory`](Self::memory).
    pub fn host_memory(&self, bytes: u64) -> Result<GpuRegion, GpuError> {
        Memory::new(self.device(), bytes, Kind::Host).map(GpuRegion::whole)
    }

    /// Memory that the host writes without a copy, and the device reads fastest.
    pub(crate) fn written_memory(&self, bytes: u64) -> Result<GpuRegion, GpuError> {
        Memory::new(self.device(), bytes, Kind::Written).map(GpuRegion::whole)
    }

    /// Pages as memory of the device.
    ///
    /// # Safety
    ///
    /// The bytes from `start` on stay mapped and unchanged for as long as `owner` lives; both are whole pages.
    #[allow(unsafe_code, reason = "the device reads pages of the host")]
    pub(crate) unsafe fn import(
        &self,
        start: *const u8,
        bytes: u64,
        owner: Owner,
    ) -> Result<GpuRegion, GpuError> {
        // SAFETY: the caller's.
        let memory = unsafe { Memory::import(self.device(), start, bytes, owner) }?;
        Ok(GpuRegion::whole(memory))
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        self.pipelines.device()
    }
}

impl FoundGpu {
    /// Name, driver and versions.
    pub fn info(&self) -> GpuInfo {
        info(&self.candidate)
    }

    /// Opens and probes it.
    ///
    /// # Errors
    ///
    /// Error of the driver.
    pub fn open(&self, options: &GpuOptions) -> Result<GpuDevice, GpuError> {
        let candidate = &self.candidate;
        let maps_own_memory = options.treatment != Treatment::Discrete;
        let device = Device::open(&self.instance, candidate, maps_own_memory)?;
        let pipelines = Pipelines::new(&device)?;
        let probe = match options.known.arithmetic {
            Some(arithmetic) => Probe::known(arithmetic, candidate.floats),
            None => probe(&pipelines)?,
        };
        let is_discrete = match options.treatment {
            Treatment::Own => candidate.kind == "discrete",
            treatment => treatment == Treatment::Discrete,
        };
        // Pages of the host are behind a bus that is tens of times slower than memory of its own.
        let sharing = match options.known.sharing {
            _ if is_discrete => Sharing::Copied,
            Some(known) => known,
            None => sharing::try_import(&pipelines, probe.arithmetic),
        };
        let is_unified = match options.treatment {
            Treatment::Own => matches!(candidate.kind, "integrated" | "software"),
            treatment => treatment == Treatment::Processor,
        };
        let may_import = options.known.sharing != Some(Sharing::Copied);
        let caches = match options.known.caches {
            _ if !is_unified => CacheMemory::Copied,
            Some(known) => known,
            None => sharing::try_caches(&pipelines, probe.arithmetic, may_import),
        };
        Ok(GpuDevice {
            pipelines,
            probe,
            sharing,
            caches,
            is_wide: match options.treatment {
                Treatment::Own => candidate.kind != "software",
                Treatment::Processor => false,
                Treatment::Discrete => true,
            },
            views: Views::default(),
        })
    }
}

fn info(candidate: &Candidate) -> GpuInfo {
    let (major, minor, patch) = candidate.api;
    GpuInfo {
        name: candidate.name.clone(),
        driver: candidate.driver.clone(),
        kind: candidate.kind,
        vulkan: format!("{major}.{minor}.{patch}"),
        identity: candidate.identity.clone(),
        lacks: candidate.lacks,
    }
}

/// The first device of the name that lacks nothing; without a name, hardware before software.
fn choose(candidates: Vec<Candidate>, name: Option<&str>) -> Result<Candidate, GpuError> {
    let wanted = name.map(|name| match name.to_lowercase().as_str() {
        // The driver has the name of its compiler.
        "lavapipe" => "llvmpipe".to_owned(),
        name => name.to_owned(),
    });
    let is_wanted = |it: &&Candidate| {
        let names = format!("{} {}", it.name, it.driver).to_lowercase();
        it.lacks.is_none() && wanted.as_ref().is_none_or(|wanted| names.contains(wanted))
    };
    let fitting = || candidates.iter().filter(is_wanted);
    let hardware = fitting().find(|it| it.kind != "software");
    let chosen = hardware.or_else(|| fitting().next()).cloned();
    chosen.ok_or_else(|| GpuError::NoDevice {
        wanted: name.map(str::to_owned),
        found: candidates.iter().map(found).collect(),
    })
}

fn found(candidate: &Candidate) -> String {
    match candidate.lacks {
        Some(lacks) => format!("`{}` (without {lacks})", candidate.name),
        None => format!("`{}`", candidate.name),
    }
}
