//! Windows and others: nobody is known to own a file or to be able to write to it, so that only kinds are checked.
//! What a user's profile folder holds, Windows keeps from other users by itself.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io;

use super::Links;

/// The owner's number.
pub(crate) fn owner(_data: &Metadata) -> Option<u32> {
    None
}

/// Permissions under which others than the owner can write.
pub(crate) fn writable_mode(_data: &Metadata) -> Option<u32> {
    None
}

/// Whether only owners can replace what a shared folder holds.
pub(crate) fn is_sticky(_data: &Metadata) -> bool {
    false
}

/// The number of this process's user.
pub(crate) fn effective_user() -> u32 {
    0
}

/// Whether an open file still has a name.
pub(crate) fn is_linked(_file: &File) -> bool {
    true
}

/// Opens without waiting for the other end of a pipe.
pub(crate) fn open_at_once(_options: &mut OpenOptions, _links: Links) {}

/// Makes new folders for this user alone.
pub(crate) fn for_this_user(_builder: &mut DirBuilder) {}

/// Takes a file's permissions from all but this user.
pub(crate) fn protect(_file: &File) -> io::Result<()> {
    Ok(())
}
