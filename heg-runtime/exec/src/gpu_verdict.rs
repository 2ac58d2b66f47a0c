//! Remembers what was found of a GPU of this machine, so that a later start can choose it without asking Vulkan first.
//!
//! One small file in the cache folder, about the device that was examined last. It is of one version of the driver: a
//! device that has another one now was not examined.

use heg_files::OwnFolder;
use heg_gpu::GpuInfo;
use serde::{Deserialize, Serialize};

use crate::error::ExecError;
use crate::verdict_file;

/// The findings about a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuVerdict {
    /// Name of the device.
    pub name: String,
    /// The identity across processes: identifiers of device and driver, and the driver's version.
    pub identity: String,
    /// Whether it is emulated on the CPU.
    pub is_software: bool,
    /// Differences of its results from those of CPU programs; `None` where bits are equal.
    pub differs: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    revision: u32,
    examined: GpuVerdict,
}

impl GpuVerdict {
    /// The verdict on a device whose results differ so from those of CPU programs, or do not.
    pub fn new(info: &GpuInfo, differs: Option<String>) -> Self {
        Self {
            name: info.name.clone(),
            identity: info.identity.clone(),
            is_software: info.kind == "software",
            differs,
        }
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// The mistake in the text; callers treat it like a missing file.
    pub fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        let file: File = serde_json::from_slice(text)?;
        match file.revision == REVISION {
            true => Ok(file.examined),
            false => Err(serde::de::Error::custom("another revision")),
        }
    }

    /// The text of a file that [`parse`](Self::parse) reads.
    pub fn to_text(&self) -> String {
        let file = File {
            revision: REVISION,
            examined: self.clone(),
        };
        // The file has only text and a flag, which JSON can always represent.
        serde_json::to_string(&file).unwrap_or_default()
    }

    /// Reads the verdict in the cache folder; there is none if the file is missing or unreadable.
    pub fn recall(cache: &OwnFolder) -> Option<Self> {
        let text = verdict_file::read(cache, NAME, FILE_BYTES_MAX)?;
        Self::parse(&text).ok()
    }

    /// Remembers this verdict in the cache folder, instead of the one before.
    ///
    /// # Errors
    ///
    /// [`ExecError::Cache`] if the folder is not the user's own, or cannot be written.
    pub fn remember(&self, cache: &OwnFolder) -> Result<(), ExecError> {
        verdict_file::write(cache, NAME, &self.to_text())
    }
}

const NAME: &str = "gpu.json";

const REVISION: u32 = 1;

/// Most bytes of a file. Chosen: names of devices have at most 256 bytes.
const FILE_BYTES_MAX: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict_file::FOLDER;

    fn verdict() -> GpuVerdict {
        GpuVerdict {
            name: "a GPU".to_owned(),
            identity: "00-11-2".to_owned(),
            is_software: false,
            differs: Some("`root` is not rounded once".to_owned()),
        }
    }

    #[test]
    fn a_file_gives_back_what_was_written_and_no_other_is_believed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = OwnFolder::create(folder.path()).unwrap();
        assert_eq!(GpuVerdict::recall(&cache), None);
        verdict().remember(&cache).unwrap();
        assert_eq!(GpuVerdict::recall(&cache), Some(verdict()));
        let path = folder.path().join(FOLDER).join(NAME);
        let text = std::fs::read_to_string(&path).unwrap();
        insta::assert_snapshot!(text);
        for wrong in [
            text.replace("\"revision\":1", "\"revision\":2"),
            text.replace("\"name\"", "\"title\""),
            text[..text.len() - 1].to_owned(),
            String::new(),
            "[".repeat(10_000),
            " ".repeat(FILE_BYTES_MAX as usize + 1),
        ] {
            std::fs::write(&path, wrong).unwrap();
            assert_eq!(GpuVerdict::recall(&cache), None);
        }
    }
}
