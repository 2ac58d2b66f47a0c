//! The errors on the way to a GPU, and on it.

use heg_spirv::ModuleError;
use heg_spirv::spirv::SpirvError;

/// An error of the GPU role.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The machine has no Vulkan loader.
    #[error(
        "no Vulkan loader on this machine ({reason}): install it (Debian: libvulkan1) with a driver"
    )]
    NoLoader {
        /// The words of the operating system.
        reason: String,
    },
    /// No device that can run programs, or none of the wanted name.
    #[error(
        "no Vulkan device{}: found {}",
        wanted.as_ref().map_or(String::new(), |name| format!(" whose name or driver contains `{name}`")),
        if found.is_empty() { "none".to_owned() } else { found.join(", ") }
    )]
    NoDevice {
        /// Part of a name that was asked for.
        wanted: Option<String>,
        /// Devices that are there, each with what it lacks.
        found: Vec<String>,
    },
    /// A call of the driver failed.
    #[error("Vulkan's {call} on {device}: {code}")]
    Vulkan {
        /// Name of the device.
        device: String,
        /// The call that failed.
        call: &'static str,
        /// The driver's answer.
        code: String,
    },
    /// The device is lost: nothing that was made on it can be used again.
    #[error("the GPU {device} was lost during {call}")]
    Lost {
        /// Name of the device.
        device: String,
        /// The call during which it was lost.
        call: &'static str,
    },
    /// Work did not end in time.
    #[error("the GPU {device} did not finish within {seconds} s")]
    Late {
        /// Name of the device.
        device: String,
        /// The time that it had.
        seconds: u64,
    },
    /// The device has no memory of a kind.
    #[error("the GPU {device} has no memory that {needs}")]
    NoMemoryType {
        /// Name of the device.
        device: String,
        /// The purpose of the memory.
        needs: &'static str,
    },
    /// The host has no pages for keys and values.
    #[error("no {bytes} bytes of memory for keys and values that a GPU works on, too")]
    NoPages {
        /// Size.
        bytes: u64,
    },
    /// Bytes beyond the end of a memory.
    #[error("bytes {first}..{end} of a GPU memory of {bytes}")]
    Range {
        /// First byte.
        first: u64,
        /// The byte behind the last.
        end: u64,
        /// Bytes of the memory.
        bytes: u64,
    },
    /// A program that the modules cannot run.
    #[error("kernel `{kernel}`: {what} is {found}, GPU modules need {expected}")]
    Program {
        /// Name of the kernel.
        kernel: String,
        /// The part that does not fit.
        what: String,
        /// The expected value.
        expected: String,
        /// The value that was found.
        found: String,
    },
    /// A program that is not sound for its kernel.
    #[error("the program of kernel `{kernel}` is not sound")]
    Unchecked {
        /// Name of the kernel.
        kernel: String,
        /// The contradiction.
        source: Box<heg_artifacts::Error>,
    },
    /// A call that does not give a program what it reads and writes.
    #[error("{what} {index} of a call has {found}, the program needs {expected}")]
    Call {
        /// The part that does not fit.
        what: &'static str,
        /// Its index.
        index: usize,
        /// The expected number.
        expected: u64,
        /// The number that was found.
        found: u64,
    },
    /// A committed module is not what it should be.
    #[error("GPU module `{name}`")]
    Module {
        /// Name of the module.
        name: &'static str,
        /// The fault.
        source: SpirvError,
    },
    /// A module of a bundle cannot be used.
    #[error("the bundle's GPU modules cannot be used")]
    Modules {
        /// The fault.
        source: ModuleError,
    },
    /// A section of a bundle cannot be read.
    #[error("the bundle's section cannot be read")]
    Bundle {
        /// Why not.
        source: Box<heg_artifacts::Error>,
    },
    /// A section that was not brought to the device.
    #[error("section {id} is not on the GPU: it was not among those that were brought there")]
    NoSection {
        /// The section.
        id: heg_artifacts::SectionId,
    },
    /// A kernel without a program, or without the rotary table that it needs.
    #[error("kernel `{kernel}` has no program: compile the bundle again with a newer compiler")]
    NoProgram {
        /// Name of the kernel.
        kernel: String,
    },
}

impl GpuError {
    /// Whether nothing of the device can be used any more.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::Late { .. })
    }

    pub(crate) fn bundle(source: heg_artifacts::Error) -> Self {
        Self::Bundle {
            source: Box::new(source),
        }
    }
}
