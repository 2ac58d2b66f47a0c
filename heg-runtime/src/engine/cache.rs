//! A request's KV cache as the conductor hands it out: what is still on flash is of a type that nothing can be computed
//! on, and gives a [`KvCache`] when it was read.

use std::sync::{Arc, Mutex, PoisonError};

use super::flash::Parked;
use crate::error::RuntimeError;
use crate::mem::KvCache;

/// The cache of a request. Whoever runs a kernel on it gets it by [`read`](Self::read).
#[derive(Clone)]
pub(super) enum RequestCache {
    /// Every row that counts is there.
    Here(Arc<KvCache>),
    /// Rows are still on flash, or were when the request got its memory.
    Parked(Arc<Unread>),
}

/// Rows that are to be read before anything runs on them.
pub(super) struct Unread(Mutex<Rows>);

enum Rows {
    /// The first `reused` rows of `parked` belong into `room`.
    Parked {
        parked: Arc<Parked>,
        room: KvCache,
        reused: usize,
    },
    Here(Arc<KvCache>),
    /// They could not be read.
    Gone,
}

/// A cache that nobody else has.
pub(super) enum Sole {
    /// In memory.
    Memory(KvCache),
    /// Nothing ran on it since it was parked.
    Parked(Arc<Parked>),
}

impl RequestCache {
    /// A cache whose first `reused` rows are those of `parked`, to be read into `room`.
    pub(super) fn parked(parked: Arc<Parked>, room: KvCache, reused: usize) -> Self {
        let rows = Rows::Parked {
            parked,
            room,
            reused,
        };
        Self::Parked(Arc::new(Unread(Mutex::new(rows))))
    }

    /// The cache with all its rows. Whoever comes first reads them, and whoever comes meanwhile waits.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Flash`], from then on.
    pub(super) fn read(&self) -> Result<Arc<KvCache>, RuntimeError> {
        match self {
            Self::Here(cache) => Ok(Arc::clone(cache)),
            Self::Parked(unread) => unread.read(),
        }
    }

    /// Whether a lane has it too.
    pub(super) fn is_shared(&self) -> bool {
        match self {
            Self::Here(cache) => Arc::strong_count(cache) > 1,
            Self::Parked(unread) => {
                Arc::strong_count(unread) > 1
                    || matches!(&*unread.rows(), Rows::Here(cache) if Arc::strong_count(cache) > 1)
            }
        }
    }

    /// The cache for its sole owner; itself where a lane has it too, or nothing of it can be used.
    pub(super) fn into_sole(self) -> Result<Sole, Self> {
        match self {
            Self::Here(cache) => Arc::try_unwrap(cache).map(Sole::Memory).map_err(Self::Here),
            Self::Parked(unread) => {
                let unread = Arc::try_unwrap(unread).map_err(Self::Parked)?;
                let rows = unread.0.into_inner();
                match rows.unwrap_or_else(PoisonError::into_inner) {
                    Rows::Parked { parked, .. } => Ok(Sole::Parked(parked)),
                    Rows::Here(cache) => Self::Here(cache).into_sole(),
                    Rows::Gone => Err(Self::Parked(Arc::new(Unread(Mutex::new(Rows::Gone))))),
                }
            }
        }
    }
}

impl Unread {
    fn rows(&self) -> std::sync::MutexGuard<'_, Rows> {
        // Whoever panicked while reading left no rows.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> Result<Arc<KvCache>, RuntimeError> {
        let mut rows = self.rows();
        let read = match std::mem::replace(&mut *rows, Rows::Gone) {
            Rows::Parked {
                parked,
                room,
                reused,
            } => Arc::new(parked.fetch(room, reused)?),
            Rows::Here(cache) => cache,
            Rows::Gone => {
                return Err(RuntimeError::Flash {
                    source: std::io::ErrorKind::NotFound.into(),
                });
            }
        };
        *rows = Rows::Here(Arc::clone(&read));
        Ok(read)
    }
}
