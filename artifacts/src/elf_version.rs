//! Versions of the ELF layout of NPU blobs, which decide whether a driver can load one.

use std::fmt;
use std::str::FromStr;

/// Version of the ELF layout of a blob, or the newest one that a driver reads: `major.minor.patch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ElfVersion {
    major: u32,
    minor: u32,
    patch: u32,
}

impl ElfVersion {
    /// The version with these numbers.
    pub const fn new([major, minor, patch]: [u32; 3]) -> Self {
        Self {
            major,
            minor,
            patch,
        }
    }

    /// Whether a driver of this version reads a blob of another: the same major version, and a minor one no later
    /// (`npu_plugin_elf`, `Version::checkVersionCompatibility`).
    pub fn reads(self, blob: Self) -> bool {
        self.major == blob.major && self.minor >= blob.minor
    }

    /// The version in a record of needs, e.g. of `compiler=8.4;npu=4000;elf=1.2.0`.
    pub fn of_needs(needs: &str) -> Option<Self> {
        let mut fields = needs.split(';');
        fields.find_map(|field| field.strip_prefix("elf=")?.parse().ok())
    }
}

impl FromStr for ElfVersion {
    type Err = ElfVersionError;

    /// Reads two or three numbers with dots between them.
    fn from_str(text: &str) -> Result<Self, ElfVersionError> {
        let numbers: Option<Vec<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[major, minor]) => Ok(Self::new([major, minor, 0])),
            Some(&[major, minor, patch]) => Ok(Self::new([major, minor, patch])),
            _ => Err(ElfVersionError {
                found: text.to_owned(),
            }),
        }
    }
}

/// A text that is no version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{found}`, expected a version like `1.2.0`")]
pub struct ElfVersionError {
    found: String,
}

impl fmt::Display for ElfVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> ElfVersion {
        text.parse().unwrap()
    }

    #[test]
    fn a_driver_reads_its_major_version_up_to_its_minor_one() {
        let driver = version("1.2.5");
        for (blob, reads) in [
            ("1.2.0", true),
            ("1.2.9", true),
            ("1.1", true),
            ("1.10.0", false),
            ("2.0.0", false),
            ("0.9.0", false),
        ] {
            assert_eq!(driver.reads(version(blob)), reads, "{blob}");
        }
        assert!(version("1.10.0") > version("1.2.5"));
    }

    #[test]
    fn a_version_is_found_among_needs() {
        let of = ElfVersion::of_needs;
        assert_eq!(
            of("compiler=8.4;npu=4000;elf=1.2.0"),
            Some(version("1.2.0"))
        );
        assert_eq!(of("compiler=8.4;npu=4000"), None);
        assert_eq!(of("elf=x"), None);
        let error = "1".parse::<ElfVersion>().unwrap_err().to_string();
        assert_eq!(error, "`1`, expected a version like `1.2.0`");
    }
}
