//! Windows and others: owners and write permissions are unknown, so that only kinds are checked. Windows itself keeps a
//! user's profile folder from other users.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io;

use super::Links;

/// The owner's number.
pub(crate) fn owner(_data: &Metadata) -> Option<u32> {
    None
}

/// Permissions under which users other than the owner can write.
pub(crate) fn writable_mode(_data: &Metadata) -> Option<u32> {
    None
}

/// Whether only owners can replace files in a shared folder.
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

/// Makes opening not wait for the other end of a pipe.
pub(crate) fn open_at_once(_options: &mut OpenOptions, _links: Links) {}

/// Makes new folders for this user alone.
pub(crate) fn for_this_user(_builder: &mut DirBuilder) {}

/// Makes a new file for this user alone.
pub(crate) fn for_this_user_alone(_options: &mut OpenOptions) {}

/// Removes the permissions of all other users on a file.
pub(crate) fn protect(_file: &File) -> io::Result<()> {
    Ok(())
}
