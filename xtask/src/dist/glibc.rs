//! The version of glibc that a program or library needs: the newest one among its symbols' versions.

use crate::fail::Fail;
use anyhow::{Context, Result};
use elf::ElfBytes;
use elf::endian::AnyEndian;
use std::fmt;

/// A version of glibc, such as 2.28.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Glibc {
    major: u32,
    minor: u32,
}

/// What a release may need: the oldest that a distribution with years of support ahead has, RHEL 8.
pub(super) const OLDEST: Glibc = Glibc {
    major: 2,
    minor: 28,
};

impl Glibc {
    /// The end of a wheel's tag, such as `2_28`.
    pub(super) fn tag(self) -> String {
        format!("{}_{}", self.major, self.minor)
    }

    fn parse(version: &str) -> Option<Self> {
        let mut numbers = version.strip_prefix("GLIBC_")?.split('.');
        let mut number = || numbers.next()?.parse().ok();
        Some(Self {
            major: number()?,
            minor: number()?,
        })
    }
}

impl fmt::Display for Glibc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Returns the newest version that any of these files needs.
pub(super) fn newest_needed(files: &[&[u8]]) -> Result<Glibc> {
    let mut newest = Glibc { major: 2, minor: 0 };
    for file in files {
        newest = newest.max(needed(file)?);
    }
    Ok(newest)
}

/// Refuses what would not start on the oldest system that a release is for.
pub(super) fn check(needed: Glibc) -> Result<()> {
    if needed <= OLDEST {
        return Ok(());
    }
    let what = format!("expected programs for glibc {OLDEST}, found some that need {needed}");
    let hint = format!(
        "`objdump -T` of `heg`, `hegc` and `libheg.so` in `target/dist/release` shows which functions have GLIBC_{needed}"
    );
    Err(Fail::check(what).hint(hint).into())
}

fn needed(file: &[u8]) -> Result<Glibc> {
    let elf = ElfBytes::<AnyEndian>::minimal_parse(file).context("expected an ELF file")?;
    let mut newest = Glibc { major: 2, minor: 0 };
    let Some(versions) = elf.symbol_version_table()? else {
        return Ok(newest);
    };
    let symbols = elf
        .dynamic_symbol_table()?
        .map_or(0, |(symbols, _)| symbols.len());
    for index in 0..symbols {
        let needed = versions.get_requirement(index)?;
        let version = needed.and_then(|needed| Glibc::parse(needed.name));
        newest = newest.max(version.unwrap_or(newest));
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let parsed = |text| Glibc::parse(text).map(|it| it.to_string());
        assert_eq!(parsed("GLIBC_2.2.5").as_deref(), Some("2.2"));
        assert_eq!(parsed("GLIBC_PRIVATE"), None);
        assert_eq!(parsed("GCC_3.0"), None);
        assert!(Glibc::parse("GLIBC_2.28") > Glibc::parse("GLIBC_2.4"));
    }

    #[test]
    fn what_needs_a_newer_one_is_refused() {
        check(OLDEST).unwrap();
        let newer = Glibc::parse("GLIBC_2.34").unwrap();
        assert_eq!(
            check(newer).unwrap_err().to_string(),
            "expected programs for glibc 2.28, found some that need 2.34"
        );
    }
}
