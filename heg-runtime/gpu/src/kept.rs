//! Pipelines kept between processes: a file for each device and version of its driver, in the cache folder.
//!
//! ```text
//! blake3 of the rest, 32 bytes · what the driver gave: its header (VkPipelineCacheHeaderVersionOne), and its own bytes
//! ```
//!
//! Drivers read these bytes without suspicion, so they are read from a folder that only this user can change, up to a
//! bound, with their hash and the header's device compared. Anything else counts as no file, and is replaced.

use heg_artifacts::SectionId;
use heg_files::{OwnFolder, write_own};

/// Whether pipelines were kept by an earlier process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeptPipelines {
    /// There is no file.
    Nothing,
    /// The driver has what an earlier process kept.
    Taken {
        /// Bytes of the driver.
        bytes: usize,
    },
    /// There is a file that is not used.
    Ignored {
        /// The fault of the file.
        reason: String,
    },
}

/// The file of a device and its driver.
#[derive(Debug, Clone)]
pub(crate) struct KeptFile {
    folder: OwnFolder,
    name: String,
    owner: CacheOwner,
}

/// The device and driver that bytes of a pipeline cache belong to, as their header has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheOwner {
    pub(crate) vendor: u32,
    pub(crate) device: u32,
    pub(crate) uuid: [u8; 16],
}

const FOLDER: &str = "pipelines";

/// Most bytes of a file. Chosen: a driver that compiles to some 100 kB for each of 100 pipelines stays below.
const FILE_BYTES_MAX: u64 = 32 << 20;

const HASH_BYTES: usize = 32;
const HEADER_BYTES: usize = 32;
const HEADER_VERSION: u32 = 1;

impl KeptFile {
    /// The file for a device of this identity; an error's words if the folder cannot be used.
    pub(crate) fn new(
        cache: &OwnFolder,
        identity: &str,
        owner: CacheOwner,
    ) -> Result<Self, String> {
        let folder = cache.folder(FOLDER).map_err(|error| error.to_string())?;
        Ok(Self {
            folder,
            name: format!("{identity}.bin"),
            owner,
        })
    }

    /// The driver's bytes, if there is a whole file of this driver.
    pub(crate) fn read(&self) -> Result<Option<Vec<u8>>, String> {
        let file = self.folder.read(&self.name, FILE_BYTES_MAX);
        let file = file.map_err(|error| error.to_string())?;
        file.map(|file| data_of(&file, self.owner).map(<[u8]>::to_vec))
            .transpose()
    }

    /// Writes the driver's bytes, if they are not too many. A later process does without them where this fails.
    pub(crate) fn write(&self, data: &[u8]) {
        if (data.len() + HASH_BYTES) as u64 <= FILE_BYTES_MAX {
            let hash = SectionId::of(data);
            let path = self.folder.path().join(&self.name);
            let _ = write_own(&path, &[hash.as_bytes(), data]);
        }
    }
}

/// The driver's bytes of a file, or its fault.
fn data_of(file: &[u8], owner: CacheOwner) -> Result<&[u8], String> {
    let Some((hash, data)) = file.split_at_checked(HASH_BYTES) else {
        let found = file.len();
        return Err(format!(
            "it has {found} bytes, expected at least {HASH_BYTES}"
        ));
    };
    if SectionId::of(data).as_bytes().as_slice() != hash {
        return Err("its bytes do not have its hash".to_owned());
    }
    let word = |at: usize| {
        let bytes = data.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let (length, version) = (word(0), word(4));
    let is_whole = length.is_some_and(|length| {
        (HEADER_BYTES..=data.len()).contains(&(length as usize)) && version == Some(HEADER_VERSION)
    });
    if !is_whole {
        return Err(format!(
            "its header has {length:?} bytes of version {version:?}, expected {HEADER_BYTES} to {} of version \
             {HEADER_VERSION}",
            data.len()
        ));
    }
    let uuid = data.get(16..HEADER_BYTES);
    match word(8) == Some(owner.vendor)
        && word(12) == Some(owner.device)
        && uuid == Some(owner.uuid.as_slice())
    {
        true => Ok(data),
        false => Err("it is of another device or driver".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: CacheOwner = CacheOwner {
        vendor: 1,
        device: 2,
        uuid: [3; 16],
    };

    fn data() -> Vec<u8> {
        let words = [32, 1, 1, 2].map(u32::to_le_bytes);
        [&words.concat(), &[3; 16][..], b"compiled"].concat()
    }

    fn file(data: &[u8]) -> Vec<u8> {
        [SectionId::of(data).as_bytes().as_slice(), data].concat()
    }

    fn changed(at: usize, to: u8) -> Vec<u8> {
        let mut data = data();
        data[at] = to;
        file(&data)
    }

    #[test]
    fn a_whole_file_of_the_driver_is_taken_and_no_other() {
        assert_eq!(data_of(&file(&data()), OWNER), Ok(data().as_slice()));
        let refused = |file: &[u8]| data_of(file, OWNER).unwrap_err();
        assert_eq!(refused(&[]), "it has 0 bytes, expected at least 32");
        let mut flipped = file(&data());
        flipped[70] ^= 1;
        assert_eq!(refused(&flipped), "its bytes do not have its hash");
        let cut = file(&data());
        assert_eq!(refused(&cut[..50]), "its bytes do not have its hash");
        let empty = refused(&file(&[]));
        assert!(empty.starts_with("its header has None bytes"), "{empty}");
        for (at, to) in [(0, 31), (0, 41), (3, 255), (4, 2)] {
            let text = refused(&changed(at, to));
            assert!(text.starts_with("its header has Some"), "{text}");
        }
        for at in [8, 12, 16, 31] {
            let text = refused(&changed(at, 9));
            assert_eq!(text, "it is of another device or driver");
        }
    }
}
