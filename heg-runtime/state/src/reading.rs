//! Reading pages: mapped where their rows go and checked there, or copied once they are checked.

use std::fs::File;
use std::io::Read;

use crate::disk::Disk;
use crate::error::Miss;
use crate::page::{HEAD_BYTES, PageError, PageHead};
use crate::secret::{PageName, Secret};

/// The place where the rows of pages go. Functions that copy rows are such places, too.
pub trait PageRoom: Sync {
    /// Has the rows of a page be those of its file, behind the first [`HEAD_BYTES`] bytes, and shows all of them to `see`
    /// in their order in the file. Returns false if they have to be copied; some may be those of the file then.
    ///
    /// Nobody writes to a file that has the name of a page: it is replaced by another, or removed.
    fn map(&self, _page: usize, _file: &File, _see: &mut dyn FnMut(&[u8])) -> bool {
        false
    }

    /// Copies the rows of a page, which were checked; returns false if there is no room.
    fn copy(&self, page: usize, rows: &[u8]) -> bool;
}

impl<F: Fn(usize, &[u8]) -> bool + Sync> PageRoom for F {
    fn copy(&self, page: usize, rows: &[u8]) -> bool {
        self(page, rows)
    }
}

/// A page that is to be read.
pub(crate) struct Wanted<'p> {
    pub(crate) disk: &'p dyn Disk,
    pub(crate) secret: &'p Secret,
    pub(crate) name: &'p PageName,
    pub(crate) head: &'p PageHead,
    /// Its number among those that are read.
    pub(crate) at: usize,
}

impl Wanted<'_> {
    /// Reads the page into a room; `memory` is for the rows that have to be copied.
    pub(crate) fn read_to(&self, room: &dyn PageRoom, memory: &mut Vec<u8>) -> Result<(), Miss> {
        if self.is_mapped(room)? {
            return Ok(());
        }
        let rows = self.rows(memory)?;
        let index = self.head.index;
        let is_copied = room.copy(self.at, rows);
        is_copied.then_some(()).ok_or(Miss::Room { index })
    }

    /// Maps the page, and returns whether that was possible; it is what it was when it was written then.
    fn is_mapped(&self, room: &dyn PageRoom) -> Result<bool, Miss> {
        let index = self.head.index;
        let unread = |source| Miss::Unread { index, source };
        let Some(mut file) = self.disk.open(self.name.as_str()).map_err(unread)? else {
            return Ok(false);
        };
        let payload_bytes = file.metadata().map_err(unread)?.len();
        let mut head = [0; HEAD_BYTES];
        let Some(payload_bytes) = payload_bytes.checked_sub(head.len() as u64) else {
            return Ok(false);
        };
        file.read_exact(&mut head).map_err(unread)?;
        let seal = self.seal_of(&head, payload_bytes)?;
        let mut hasher = self.secret.sealing(self.head);
        let mut see = |rows: &[u8]| {
            hasher.update(rows);
        };
        let is_mapped = room.map(self.at, &file, &mut see);
        match is_mapped && *hasher.finalize().as_bytes() != seal {
            true => Err(Miss::Seal { index }),
            false => Ok(is_mapped),
        }
    }

    /// Reads the page, and returns its rows if it is what it was when it was written.
    fn rows<'m>(&self, memory: &'m mut Vec<u8>) -> Result<&'m [u8], Miss> {
        let (index, expected) = (self.head.index, self.head.payload_bytes());
        let most = usize::try_from(expected)
            .ok()
            .and_then(|most| most.checked_add(HEAD_BYTES + 1));
        let Some(most) = most else {
            return Err(Miss::Room { index });
        };
        let read = self.disk.read_into(self.name.as_str(), most, memory);
        if !read.map_err(|source| Miss::Unread { index, source })? {
            return Err(Miss::Gone { index });
        }
        let bytes: &[u8] = memory;
        let rows = bytes.get(HEAD_BYTES..).unwrap_or_default();
        let seal = self.seal_of(bytes, rows.len() as u64)?;
        let mut hasher = self.secret.sealing(self.head);
        match *hasher.update(rows).finalize().as_bytes() == seal {
            true => Ok(rows),
            false => Err(Miss::Seal { index }),
        }
    }

    /// The seal in a head, if it is the head that was asked for and the payload has its length.
    fn seal_of(&self, bytes: &[u8], payload_bytes: u64) -> Result<[u8; 32], Miss> {
        let index = self.head.index;
        let damaged = |source| Miss::Damaged { index, source };
        let (found, seal) = PageHead::parse(bytes).map_err(damaged)?;
        if found != *self.head {
            return Err(Miss::Other { index });
        }
        let (found, expected) = (payload_bytes, self.head.payload_bytes());
        match found == expected {
            true => Ok(seal),
            false => Err(damaged(PageError::Payload { found, expected })),
        }
    }
}
