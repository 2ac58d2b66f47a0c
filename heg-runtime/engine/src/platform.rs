//! Differences between operating systems: a full disk.

/// Opens a file that can never be written, for tests of full disks.
pub(crate) fn full_file() -> std::io::Result<std::fs::File> {
    if cfg!(windows) {
        return Err(std::io::ErrorKind::StorageFull.into());
    }
    std::fs::File::options().write(true).open("/dev/full")
}
