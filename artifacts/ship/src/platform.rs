//! The differences between operating systems: reading and writing at a place of a file, room on a disk, and copies that
//! the kernel makes.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::path::Path;

/// Takes the right to write from a part, and lets nobody else read it.
pub(crate) fn protect_part(file: &File) -> io::Result<()> {
    let mut permissions = file.metadata()?.permissions();
    #[cfg(unix)]
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o444);
    #[cfg(not(unix))]
    permissions.set_readonly(false);
    file.set_permissions(permissions)
}

/// Writes all bytes at a place of a file.
#[cfg(unix)]
pub(crate) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

/// Writes all bytes at a place of a file.
#[cfg(windows)]
pub(crate) fn write_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, offset)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = bytes.get(written..).unwrap_or_default();
        offset = offset.saturating_add(written as u64);
    }
    Ok(())
}

/// Fills `bytes` from a place of a file.
#[cfg(unix)]
pub(crate) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

/// Fills `bytes` from a place of a file.
#[cfg(windows)]
pub(crate) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0_usize;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let place = offset.saturating_add(done as u64);
        let read = std::os::windows::fs::FileExt::seek_read(file, rest, place)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        done = done.saturating_add(read);
    }
    Ok(())
}

/// Copies bytes from file to file in the kernel, which shares blocks on file systems that can. Returns whether it did:
/// else nothing may be believed of the target.
#[cfg(target_os = "linux")]
pub(crate) fn copy_range(
    from: &File,
    from_offset: u64,
    to: &File,
    to_offset: u64,
    bytes: u64,
) -> bool {
    let (mut source, mut target, mut left) = (from_offset, to_offset, bytes);
    while left > 0 {
        let step = usize::try_from(left).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), step) {
            Ok(copied) if copied > 0 => left = left.saturating_sub(copied as u64),
            _ => return false,
        }
    }
    true
}

/// Copies nothing: this system has no call for it.
#[cfg(not(target_os = "linux"))]
pub(crate) fn copy_range(_: &File, _: u64, _: &File, _: u64, _: u64) -> bool {
    false
}

/// Reserves room for a range within a file, where the file system can.
#[cfg(target_os = "linux")]
pub(crate) fn reserve(file: &File, range: Range<u64>) -> io::Result<()> {
    let bytes = range.end.saturating_sub(range.start);
    match rustix::fs::fallocate(
        file,
        rustix::fs::FallocateFlags::empty(),
        range.start,
        bytes,
    ) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Reserves nothing: this system has no call for it.
#[cfg(not(target_os = "linux"))]
pub(crate) fn reserve(_: &File, _: Range<u64>) -> io::Result<()> {
    Ok(())
}

/// Bytes that this user may still write to the file system of a folder; `None` if the system does not say.
#[cfg(unix)]
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    found.f_bavail.checked_mul(found.f_frsize)
}

/// `None`: the standard library does not say.
#[cfg(not(unix))]
pub(crate) fn free_bytes(_folder: &Path) -> Option<u64> {
    None
}

/// Bytes that a file takes on its disk.
#[cfg(unix)]
pub(crate) fn room_taken(data: &Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    data.blocks().saturating_mul(512)
}

/// Length of a file.
#[cfg(not(unix))]
pub(crate) fn room_taken(data: &Metadata) -> u64 {
    data.len()
}
