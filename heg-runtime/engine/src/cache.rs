//! A request's KV cache as the conductor hands it to lanes. A cache that is still on flash has a type that kernels
//! cannot run on; reading it gives a [`KvCache`].

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::flash::Parked;
use crate::error::EngineError;
use heg_exec::mem::KvCache;

/// The cache of a request. A lane that runs a kernel on it calls [`read`](Self::read).
#[derive(Clone)]
pub(super) enum RequestCache {
    /// A cache in memory, with all its rows.
    Here(Arc<KvCache>),
    /// A cache on flash, or one that was there when the request got its memory.
    Parked(Arc<Unread>),
}

/// Rows on flash, which the first lane reads before it runs a kernel on them.
pub(super) struct Unread(Mutex<Rows>);

enum Rows {
    /// Not read yet: the first `reused` rows of `parked` go to `room`.
    Parked {
        parked: Arc<Parked>,
        room: KvCache,
        reused: usize,
    },
    Here(Arc<KvCache>),
    /// The rows could not be read.
    Gone,
}

/// A cache in memory that waits for the next call of its flow. A writer of kept state may read rows of it meanwhile,
/// some at a time; whoever takes the cache waits for no more than those.
pub(super) struct Shelf(Arc<Mutex<Option<KvCache>>>);

/// A reader's view of a cache on a shelf. It does not keep the cache in memory.
pub(super) struct Shelved(Weak<Mutex<Option<KvCache>>>);

impl Shelf {
    pub(super) fn new(cache: KvCache) -> Self {
        Self(Arc::new(Mutex::new(Some(cache))))
    }

    /// Takes the cache, which nobody has taken before.
    pub(super) fn take(self) -> Option<KvCache> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn view(&self) -> Shelved {
        Shelved(Arc::downgrade(&self.0))
    }
}

impl Shelved {
    /// Gives the cache to `read` if it is still there. Nothing else uses it meanwhile.
    pub(super) fn with<T>(&self, read: impl FnOnce(&KvCache) -> T) -> Option<T> {
        let shelf = self.0.upgrade()?;
        let cache = shelf.lock().unwrap_or_else(PoisonError::into_inner);
        cache.as_ref().map(read)
    }
}

/// A flow's cache between two calls.
pub(super) enum AtRest {
    /// In memory.
    Memory(Shelf),
    /// On flash, or on its way there.
    Parked(Arc<Parked>),
}

/// A cache with a single owner.
pub(super) enum Sole {
    /// In memory.
    Memory(KvCache),
    /// On flash; no kernel has run on it since it was parked.
    Parked(Arc<Parked>),
}

impl RequestCache {
    /// Makes a cache whose first `reused` rows are those of `parked`, to be read into `room`.
    pub(super) fn parked(parked: Arc<Parked>, room: KvCache, reused: usize) -> Self {
        let rows = Rows::Parked {
            parked,
            room,
            reused,
        };
        Self::Parked(Arc::new(Unread(Mutex::new(rows))))
    }

    /// Returns the cache with all its rows. The first caller reads them from flash; callers that come meanwhile wait.
    ///
    /// # Errors
    ///
    /// [`EngineError::Flash`] if the file cannot be read; every later call fails too.
    pub(super) fn read(&self) -> Result<Arc<KvCache>, EngineError> {
        match self {
            Self::Here(cache) => Ok(Arc::clone(cache)),
            Self::Parked(unread) => unread.read(),
        }
    }

    /// Whether a lane holds it too.
    pub(super) fn is_shared(&self) -> bool {
        match self {
            Self::Here(cache) => Arc::strong_count(cache) > 1,
            Self::Parked(unread) => {
                Arc::strong_count(unread) > 1
                    || matches!(&*unread.rows(), Rows::Here(cache) if Arc::strong_count(cache) > 1)
            }
        }
    }

    /// Returns the cache for its sole owner, or itself if a lane holds it too or it could not be read.
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
        // A reader that panicked left no rows.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> Result<Arc<KvCache>, EngineError> {
        let mut rows = self.rows();
        let read = match std::mem::replace(&mut *rows, Rows::Gone) {
            Rows::Parked {
                parked,
                room,
                reused,
            } => Arc::new(parked.fetch(room, reused)?),
            Rows::Here(cache) => cache,
            Rows::Gone => {
                return Err(EngineError::Flash {
                    source: std::io::ErrorKind::NotFound.into(),
                });
            }
        };
        *rows = Rows::Here(Arc::clone(&read));
        Ok(read)
    }
}
