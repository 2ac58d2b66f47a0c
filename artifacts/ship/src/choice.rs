//! The choice among the slices under a tag: the one for this machine, or the next best with the reason.

use std::fmt;

use heg_artifacts::ElfVersion;
use heg_spec::NpuPlatform;

use crate::error::ShipError;
use crate::npu::MachineNpu;
use crate::oci::{Descriptor, NPU, SLICE};
use crate::offer::DEFAULT_SLICE;

/// The kind of devices that a bundle is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SliceWish<'w> {
    /// This one, or none.
    Named(&'w str),
    /// The one that a name has, else as for a machine without an NPU.
    Kept(&'w str),
    /// The one for a machine with this NPU: of its blobs the newest that the driver reads, else the slice without blobs,
    /// else the first.
    Best(Option<MachineNpu>),
}

/// The reason why a machine does not get the newest blobs for its NPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecondBest {
    /// No slice has blobs for it.
    NoBlobs {
        /// Platform of the machine.
        platform: NpuPlatform,
    },
    /// The driver does not read the newest blobs.
    Driver {
        /// Slice with the newest blobs.
        slice: String,
        /// Version of their ELF layout.
        needs: ElfVersion,
        /// Newest version that the driver reads.
        reads: ElfVersion,
    },
}

impl fmt::Display for SecondBest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoBlobs { platform } => {
                write!(f, "no slice has blobs for this machine's NPU, `{platform}`")
            }
            Self::Driver {
                slice,
                needs,
                reads,
            } => write!(
                f,
                "the blobs of `{slice}` need a driver for ELF {needs}, and this machine's reads {reads}"
            ),
        }
    }
}

/// The name of the slice with blobs for a platform, or without any.
pub(crate) fn slice_name(platform: Option<NpuPlatform>) -> String {
    match platform {
        Some(platform) => format!("npu-{platform}"),
        None => DEFAULT_SLICE.to_owned(),
    }
}

/// The slice that an entry of an index is for.
pub(crate) fn slice_of(entry: &Descriptor) -> &str {
    entry.annotation(SLICE).unwrap_or(DEFAULT_SLICE)
}

/// The entry of an index for the wanted slice, and the reason if it is not the best for the machine's NPU.
///
/// Errors: [`ShipError::NoSlice`]; `name` is for people.
pub(crate) fn choose<'d>(
    entries: &'d [Descriptor],
    wanted: SliceWish<'_>,
    name: &str,
) -> Result<(&'d Descriptor, Option<SecondBest>), ShipError> {
    let of = |slice: &str| entries.iter().find(|entry| slice_of(entry) == slice);
    let without_blobs = || of(DEFAULT_SLICE).or(entries.first());
    let (expected, found, why) = match wanted {
        SliceWish::Named(slice) => (slice, of(slice), None),
        SliceWish::Kept(slice) => (slice, of(slice).or_else(without_blobs), None),
        SliceWish::Best(None) => (DEFAULT_SLICE, without_blobs(), None),
        SliceWish::Best(Some(npu)) => {
            let (readable, why) = newest_readable(entries, npu);
            (DEFAULT_SLICE, readable.or_else(without_blobs), why)
        }
    };
    let found = found.ok_or_else(|| no_slice(entries, expected, name))?;
    Ok((found, why))
}

/// The entry with the newest blobs for an NPU that its driver reads, the first of equal ones. A driver that does not say what
/// it reads is taken to read all.
fn newest_readable(
    entries: &[Descriptor],
    npu: MachineNpu,
) -> (Option<&Descriptor>, Option<SecondBest>) {
    let platform = npu.platform;
    let base = slice_name(Some(platform));
    let is_for_it = |entry: &&Descriptor| {
        let rest = slice_of(entry).strip_prefix(&base);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let needs = |entry: &&Descriptor| entry.annotation(NPU).and_then(ElfVersion::of_needs);
    // `max_by_key` gives the last of equal ones.
    let for_it = entries.iter().rev().filter(is_for_it);
    let Some(newest) = for_it.clone().max_by_key(needs) else {
        return (None, Some(SecondBest::NoBlobs { platform }));
    };
    match npu.elf.zip(needs(&newest)) {
        Some((reads, newest_needs)) if !reads.reads(newest_needs) => {
            let is_read = |entry: &&Descriptor| needs(entry).is_none_or(|it| reads.reads(it));
            let why = SecondBest::Driver {
                slice: slice_of(newest).to_owned(),
                needs: newest_needs,
                reads,
            };
            (for_it.filter(is_read).max_by_key(needs), Some(why))
        }
        _ => (Some(newest), None),
    }
}

fn no_slice(entries: &[Descriptor], expected: &str, name: &str) -> ShipError {
    let found: Vec<String> = entries
        .iter()
        .map(|entry| format!("`{}`", slice_of(entry)))
        .collect();
    ShipError::NoSlice {
        name: name.to_owned(),
        expected: expected.to_owned(),
        found: match found.is_empty() {
            true => "none".to_owned(),
            false => found.join(", "),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::described;

    /// The slice that is chosen, and the reason if it is not the best.
    fn chosen(slices: &[(&str, &str)], wish: SliceWish<'_>) -> (String, String) {
        let entry = |(slice, elf): &(&str, &str)| {
            let entry = described("manifest", slice.as_bytes()).annotated(SLICE, *slice);
            match *elf {
                "" => entry,
                elf => entry.annotated(NPU, format!("compiler=8.4;npu=4000;elf={elf}")),
            }
        };
        let index: Vec<Descriptor> = slices.iter().map(entry).collect();
        let (found, why) = match choose(&index, wish, "chat") {
            Ok(found) => found,
            Err(error) => return (String::new(), error.to_string()),
        };
        let why = why.map(|why| why.to_string()).unwrap_or_default();
        (slice_of(found).to_owned(), why)
    }

    fn best(platform: NpuPlatform, elf: Option<&str>) -> SliceWish<'static> {
        let elf = elf.map(|text| text.parse().unwrap());
        SliceWish::Best(Some(MachineNpu { platform, elf }))
    }

    #[test]
    fn a_wish_is_met_by_name_or_by_the_best_that_is_offered() {
        let all = [("npu-3720", ""), ("cpu", ""), ("npu-4000", "")];
        let takes = |slice: &str, why: &str| (slice.to_owned(), why.to_owned());
        let other = "no slice has blobs for this machine's NPU, `5010`";
        for (wish, slice, why) in [
            (SliceWish::Named("npu-3720"), "npu-3720", ""),
            (SliceWish::Kept("npu-4000"), "npu-4000", ""),
            (SliceWish::Kept("npu-5010"), "cpu", ""),
            (best(NpuPlatform::NPU4000, None), "npu-4000", ""),
            (best(NpuPlatform::NPU4000, Some("1.2.5")), "npu-4000", ""),
            (best(NpuPlatform::NPU5010, None), "cpu", other),
            (best(NpuPlatform::NPU5010, Some("1.2.5")), "cpu", other),
            (SliceWish::Best(None), "cpu", ""),
        ] {
            assert_eq!(chosen(&all, wish), takes(slice, why), "{wish:?}");
        }
        let first = chosen(&all[2..], SliceWish::Best(None));
        assert_eq!(first, takes("npu-4000", ""));
        let (_, absent) = chosen(&all, SliceWish::Named("npu-5010"));
        insta::assert_snapshot!(
            absent,
            @"`chat` has no slice `npu-5010`, only `npu-3720`, `cpu`, `npu-4000`: choose one with `--slice`"
        );
    }

    #[test]
    fn a_driver_gets_the_newest_blobs_that_it_reads() {
        let all = [
            ("cpu", ""),
            ("npu-4000", "2.0.0"),
            ("npu-4000.2", "1.2.0"),
            ("npu-4000.3", "1.1.0"),
            ("npu-40001", "1.2.0"),
        ];
        let mut told = String::new();
        for driver in ["2.1.0", "1.2.5", "1.1.0", "1.0.0", "3.0.0"] {
            let (slice, why) = chosen(&all, best(NpuPlatform::NPU4000, Some(driver)));
            told.push_str(&format!("{driver}: {slice} ({why})\n"));
        }
        let (slice, why) = chosen(&all, best(NpuPlatform::NPU4000, None));
        told.push_str(&format!("not told: {slice} ({why})\n"));
        insta::assert_snapshot!(told, @r"
        2.1.0: npu-4000 ()
        1.2.5: npu-4000.2 (the blobs of `npu-4000` need a driver for ELF 2.0.0, and this machine's reads 1.2.5)
        1.1.0: npu-4000.3 (the blobs of `npu-4000` need a driver for ELF 2.0.0, and this machine's reads 1.1.0)
        1.0.0: cpu (the blobs of `npu-4000` need a driver for ELF 2.0.0, and this machine's reads 1.0.0)
        3.0.0: cpu (the blobs of `npu-4000` need a driver for ELF 2.0.0, and this machine's reads 3.0.0)
        not told: npu-4000 ()
        ");
    }
}
