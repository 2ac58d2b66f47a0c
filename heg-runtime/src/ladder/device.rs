//! What a device says about itself, and whether a blob fits it. Pure: who asks the device is elsewhere.
//!
//! The NPU plugin has a check of its own (`COMPATIBILITY_CHECK` with `RUNTIME_REQUIREMENTS` as an argument), which
//! OpenVINO's C interface cannot pass on, and it looks at platform, tiles and stepping as this does. The ELF
//! version that a driver knows is no property of any device; import finds out.

use std::fmt;

use heg_artifacts::manifest::Blob;
use heg_spec::{DeviceClass, NpuPlatform};
use serde::Serialize;

/// A device of the SoC in its role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFacts {
    /// The role it plays.
    pub role: DeviceClass,
    /// OpenVINO's name, e.g. `CPU`, `NPU`.
    pub name: String,
    /// The vendor's name, e.g. `Intel(R) AI Boost`.
    pub full_name: String,
    /// Version of its driver, where it has one.
    pub driver: Option<String>,
    /// Present where it is an NPU.
    pub npu: Option<NpuFacts>,
    /// Why it cannot be used, if so.
    pub missing: Option<String>,
}

/// What an NPU says about itself. What it does not say is not held against a blob.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NpuFacts {
    /// Which platform it is.
    pub platform: Option<NpuPlatform>,
    /// Tiles that it has.
    pub tiles: Option<u32>,
    /// Its stepping.
    pub stepping: Option<String>,
    /// Version of the compiler that comes with it, `major.minor`.
    pub compiler: Option<String>,
    /// Version of the ELF layout that its driver reads, `major.minor.patch`.
    pub elf: Option<String>,
}

/// Why a blob does not fit a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Misfit {
    /// The device is no NPU.
    NotAnNpu {
        /// OpenVINO's name of the device.
        device: String,
    },
    /// The device does not say which NPU it is.
    UnknownPlatform,
    /// It was compiled for another platform.
    Platform {
        /// The device's.
        device: u32,
        /// The blob's.
        blob: u32,
    },
    /// It was scheduled for more tiles than there are.
    Tiles {
        /// The device's.
        device: u32,
        /// The blob's.
        blob: u32,
    },
    /// It is bound to another stepping.
    Stepping {
        /// The device's.
        device: String,
        /// The blob's.
        blob: String,
    },
    /// Its compiler is of a later generation than the driver's.
    Compiler {
        /// The device's.
        device: String,
        /// The blob's.
        blob: String,
    },
    /// Its ELF layout is one that the driver does not read.
    Elf {
        /// The device's.
        device: String,
        /// The blob's.
        blob: String,
    },
}

impl DeviceFacts {
    /// Whether the device may be given a blob.
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
        let pair = |device: &String, blob: &String| (device.clone(), blob.clone());
        if let Some(device) = &npu.compiler
            && major(&needs.compiler) > major(device)
        {
            let (device, blob) = pair(device, &needs.compiler);
            return Err(Misfit::Compiler { device, blob });
        }
        match &npu.elf {
            Some(device) if !reads(device, &needs.elf) => {
                let (device, blob) = pair(device, &needs.elf);
                Err(Misfit::Elf { device, blob })
            }
            _ => Ok(()),
        }
    }
}

/// A reader knows its own major version, up to its own minor one.
fn reads(reader: &str, file: &str) -> bool {
    let (reader, file) = (numbers(reader), numbers(file));
    file.first() == reader.first() && file.get(1) <= reader.get(1)
}

fn major(version: &str) -> Option<u32> {
    numbers(version).first().copied()
}

/// Leading numbers of a version; what is no number ends it.
fn numbers(version: &str) -> Vec<u32> {
    let parts = version.split('.').map(str::parse);
    parts.map_while(Result::ok).collect()
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
            Self::Compiler { device, blob } => {
                write!(
                    f,
                    "the blob is of compiler {blob}, the driver's is {device}"
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
