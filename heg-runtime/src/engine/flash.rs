//! KV caches of idle flows on flash, moved by the engine's choice rather than by the system's paging.
//!
//! A thread of its own writes. A cache that is taken back before it was written comes back as it is; otherwise the lane
//! that needs it reads it. Files have no name: whatever happens to the process, nothing is left of them.

use std::fs::{File, create_dir_all};
use std::io::{self, BufReader, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::error::RuntimeError;
use crate::mem::KvCache;

/// Where caches go.
pub(super) struct Flash {
    writer: Option<Sender<Arc<Parked>>>,
}

/// A cache on its way to flash, or there.
pub(super) struct Parked {
    tokens: usize,
    state: Mutex<State>,
}

enum State {
    Memory(Arc<KvCache>),
    File(File),
    Taken,
}

/// A cache that is back.
pub(super) enum Back {
    /// As it was.
    Memory(Arc<KvCache>),
    /// In a file, to be read before anything else runs on the cache it is read into.
    File(Unread),
}

/// Rows of a cache that are to be read.
pub(super) struct Unread(Mutex<Option<(File, usize)>>);

impl Flash {
    /// Files in `folder`; without one caches stay in memory.
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        let writer = folder.map(|folder| {
            let (sender, parked) = channel::<Arc<Parked>>();
            thread::spawn(move || {
                // What cannot be made is missed when the first cache is written.
                let _ = create_dir_all(&folder);
                for parked in parked {
                    // Given up while it waited its turn, where nobody else has it.
                    if Arc::strong_count(&parked) > 1 {
                        // What cannot be written stays where it is.
                        let _ = parked.write(&folder);
                    }
                }
            });
            sender
        });
        Self { writer }
    }

    /// Takes a cache with so many tokens in it.
    pub(super) fn park(&self, cache: Arc<KvCache>, tokens: usize) -> Arc<Parked> {
        let parked = Arc::new(Parked {
            tokens,
            state: Mutex::new(State::Memory(cache)),
        });
        if let Some(writer) = &self.writer {
            // The thread lives as long as this sender.
            let _ = writer.send(Arc::clone(&parked));
        }
        parked
    }
}

impl Parked {
    fn write(&self, folder: &Path) -> io::Result<()> {
        let state = || self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = match &*state() {
            State::Memory(cache) => Arc::clone(cache),
            State::File(_) | State::Taken => return Ok(()),
        };
        let mut file = BufWriter::new(tempfile::tempfile_in(folder)?);
        cache.save(self.tokens, &mut file)?;
        file.flush()?;
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        let mut state = state();
        if matches!(*state, State::Memory(_)) {
            *state = State::File(file);
        }
        Ok(())
    }

    /// Gives the cache back, once.
    pub(super) fn take(&self) -> Option<Back> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Taken) {
            State::Memory(cache) => Some(Back::Memory(cache)),
            State::File(file) => {
                let unread = Mutex::new(Some((file, self.tokens)));
                Some(Back::File(Unread(unread)))
            }
            State::Taken => None,
        }
    }
}

impl Unread {
    /// Reads the rows into `cache`, unless that was done. Whoever comes meanwhile waits.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Flash`]; the next call tries again.
    pub(super) fn read_into(&self, cache: &KvCache) -> Result<(), RuntimeError> {
        let mut unread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((file, tokens)) = &mut *unread {
            let read = file
                .rewind()
                .and_then(|()| cache.restore(*tokens, &mut BufReader::new(file)));
            read.map_err(|source| RuntimeError::Flash { source })?;
            *unread = None;
        }
        Ok(())
    }
}
