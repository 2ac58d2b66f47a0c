//! Facts that a device reports about itself, and checks that a blob fits it. Pure: back ends read the devices.
//!
//! The NPU plugin has a check of its own (`COMPATIBILITY_CHECK` with `RUNTIME_REQUIREMENTS` as an argument), which
//! OpenVINO's C interface cannot pass on; it compares platform, tiles and stepping, as this module does. The ELF layout
//! that a driver reads is asked of the driver itself. Importing a blob shows whether the mapped inference fits. The
//! version of the driver's compiler says nothing about that, since nothing is compiled.

use std::fmt;

use heg_artifacts::ElfVersion;
use heg_artifacts::manifest::{Blob, Variant};
use heg_spec::soc::Device;
use heg_spec::{DeviceClass, NpuPlatform};
use serde::Serialize;

/// A device of the SoC in its role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFacts {
    /// The role that the device plays.
    pub role: DeviceClass,
    /// OpenVINO's name, e.g. `CPU`, `NPU`.
    pub name: String,
    /// The vendor's name, e.g. `Intel(R) AI Boost`.
    pub full_name: String,
    /// The version of its driver, if it has one.
    pub driver: Option<String>,
    /// Facts about an NPU; `None` for other devices.
    pub npu: Option<NpuFacts>,
    /// The runner of CPU programs in this role, e.g. `avx512-vnni, I8`; `None` if only OpenVINO's device plays it.
    pub programs: Option<String>,
    /// The GPU that runs CPU programs before the CPU or OpenVINO's device does, or the reason why it cannot; `None` for a
    /// role without one.
    pub gpu: Option<Result<GpuFacts, String>>,
    /// The reason why the device cannot be used; `None` if it can.
    pub missing: Option<String>,
}

/// Facts that an NPU reports about itself. A fact that is missing rules out no blob.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NpuFacts {
    /// The platform.
    pub platform: Option<NpuPlatform>,
    /// Number of tiles.
    pub tiles: Option<u32>,
    /// The stepping.
    pub stepping: Option<String>,
    /// Version of the compiler in its driver, `major.minor`; `None` for a driver without one. Only reported: a blob is
    /// imported without it.
    pub compiler: Option<String>,
    /// Newest version of the ELF layout that its driver reads.
    pub elf: Option<ElfVersion>,
}

/// A GPU that runs CPU programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuFacts {
    /// Name of the device.
    pub name: String,
    /// Identifiers of device and driver, and the driver's version: the same in every process.
    pub identity: String,
    /// Whether the device is emulated on the CPU: its kernels wait for cores, and do not hang.
    pub is_software: bool,
}

/// The reason why a blob does not fit a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Misfit {
    /// The device is no NPU.
    NotAnNpu {
        /// OpenVINO's name of the device.
        device: String,
    },
    /// The device does not report its platform.
    UnknownPlatform,
    /// It was compiled for another platform.
    Platform {
        /// The value of the device.
        device: u32,
        /// The value of the blob.
        blob: u32,
    },
    /// It was scheduled for more tiles than there are.
    Tiles {
        /// The value of the device.
        device: u32,
        /// The value of the blob.
        blob: u32,
    },
    /// It is bound to another stepping.
    Stepping {
        /// The value of the device.
        device: String,
        /// The value of the blob.
        blob: String,
    },
    /// Its ELF layout is one that the driver does not read.
    Elf {
        /// The value of the device.
        device: String,
        /// The value of the blob.
        blob: String,
    },
}

impl DeviceFacts {
    /// The facts that are known of a device before anybody asked it.
    pub(crate) fn of(device: &Device) -> Self {
        Self {
            role: device.class,
            name: device.openvino.clone(),
            full_name: String::new(),
            driver: None,
            npu: None,
            programs: None,
            gpu: None,
            missing: None,
        }
    }

    /// Leaves the device nothing but CPU programs on the CPU: for a model whose tokens see their whole text.
    pub(crate) fn keep_to_programs(&mut self) {
        let why = "its tokens see their whole text, which only CPU programs on the CPU compute";
        if self.gpu.is_some() {
            self.gpu = Some(Err(why.to_owned()));
        }
        if self.programs.is_none() {
            self.missing.get_or_insert_with(|| why.to_owned());
        }
    }

    /// The class of variants that it runs: the CPU's if the CPU plays the role with programs, else those of its role.
    pub(crate) fn variants(&self) -> DeviceClass {
        match self.programs {
            Some(_) => DeviceClass::Cpu,
            None => self.role,
        }
    }

    /// Whether a GPU runs the CPU's programs in its role, and OpenVINO's device has variants of its own.
    pub(crate) fn has_gpu_first(&self) -> bool {
        self.programs.is_none() && matches!(self.gpu, Some(Ok(_)))
    }

    /// Whether a variant is one that a GPU runs in its role, and not its own.
    pub(crate) fn gives_gpu(&self, variant: &Variant) -> bool {
        let is_cpus = variant.device == DeviceClass::Cpu && variant.program.is_some();
        is_cpus && self.has_gpu_first()
    }

    /// The class of variants that it runs first.
    pub(crate) fn first_variants(&self) -> DeviceClass {
        match self.has_gpu_first() {
            true => DeviceClass::Cpu,
            false => self.variants(),
        }
    }

    /// Checks that a blob fits the device.
    pub(crate) fn accepts(&self, blob: &Blob) -> Result<(), Misfit> {
        let Some(npu) = &self.npu else {
            let device = self.name.clone();
            return Err(Misfit::NotAnNpu { device });
        };
        let platform = npu.platform.ok_or(Misfit::UnknownPlatform)?;
        let needs = &blob.compatibility;
        if blob.platform != platform {
            return Err(Misfit::Platform {
                device: platform.number(),
                blob: blob.platform.number(),
            });
        }
        if let (Some(device), Some(blob)) = (npu.tiles, needs.tiles)
            && blob > device
        {
            return Err(Misfit::Tiles { device, blob });
        }
        if let (Some(device), Some(blob)) = (&npu.stepping, &needs.stepping)
            && device != blob
        {
            let (device, blob) = (device.clone(), blob.clone());
            return Err(Misfit::Stepping { device, blob });
        }
        match npu.elf.zip(needs.elf.parse::<ElfVersion>().ok()) {
            Some((device, blob)) if !device.reads(blob) => Err(Misfit::Elf {
                device: device.to_string(),
                blob: blob.to_string(),
            }),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAnNpu { device } => {
                write!(
                    f,
                    "`{device}` plays the NPU's role: blobs are for NPU devices"
                )
            }
            Self::UnknownPlatform => {
                f.write_str("the device does not say which NPU platform it is")
            }
            Self::Platform { device, blob } => {
                write!(f, "the blob is for NPU {blob}, the device is NPU {device}")
            }
            Self::Tiles { device, blob } => {
                write!(f, "the blob needs {blob} tiles, the device has {device}")
            }
            Self::Stepping { device, blob } => {
                write!(
                    f,
                    "the blob is for stepping {blob}, the device is stepping {device}"
                )
            }
            Self::Elf { device, blob } => {
                write!(
                    f,
                    "the blob has ELF version {blob}, the driver reads {device}"
                )
            }
        }
    }
}
