//! KV caches of idle flows on flash, moved by the engine rather than by the system's paging.
//!
//! A parked cache has one owner at a time: it waits for the writer, the writer has it, or it is in a file. So no
//! kernel runs on rows that are being written. A request that takes the cache back before it is written gets it
//! unchanged; one that comes while it is written waits for the writer; later ones read the file. Files have no name:
//! whatever happens to the process, none of them is left over.

use std::fs::{File, create_dir_all};
use std::io::{self, BufReader, BufWriter, Seek, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::health::panic_text;
use super::machine::Machine;
use super::prefix::PrefixRows;
use crate::error::EngineError;
use heg_exec::mem::KvCache;
use heg_sched::{Event, Transfer};

/// The writer of caches to flash.
pub(super) struct Flash {
    writer: Option<SyncSender<Order>>,
}

type Order = (Transfer, Arc<Parked>);

/// Reports the outcome of a transfer; returns false if the receiver is gone.
pub(super) type Outbox = Box<dyn Fn(Event) -> bool + Send>;

/// A cache on flash, or on its way there.
pub(super) struct Parked {
    tokens: usize,
    place: Mutex<Place>,
    moved: Condvar,
}

enum Place {
    /// In memory: it waits for the writer, or could not be written.
    Memory(KvCache),
    /// The writer has it.
    Writing(Wanted),
    File(File),
    /// In pages of kept state.
    Kept(PrefixRows),
    /// Taken back, or lost.
    Gone,
}

/// Whether a request waits for the cache that is being written.
enum Wanted {
    No,
    Yes,
}

/// Most caches that wait for the writer; further ones stay in memory. Chosen: the most flows that a scheduler has on
/// flash.
const QUEUED_MAX: usize = 128;

impl Flash {
    /// Starts the writer, with files in `folder`; without a folder, caches stay in memory.
    pub(super) fn new(folder: Option<PathBuf>, machine: Arc<dyn Machine>, outbox: Outbox) -> Self {
        let writer = folder.map(|folder| {
            let (sender, orders) = sync_channel(QUEUED_MAX);
            thread::spawn(move || write_all(&orders, &folder, &*machine, &*outbox));
            sender
        });
        Self { writer }
    }

    /// Queues a cache of `tokens` tokens for the writer, which reports the outcome in a message. Returns the cache if
    /// too many wait, or there is no flash.
    pub(super) fn park(
        &self,
        transfer: Transfer,
        cache: KvCache,
        tokens: usize,
    ) -> Result<Arc<Parked>, KvCache> {
        let parked = Arc::new(Parked {
            tokens,
            place: Mutex::new(Place::Memory(cache)),
            moved: Condvar::new(),
        });
        let queued = self
            .writer
            .as_ref()
            .is_some_and(|writer| writer.try_send((transfer, Arc::clone(&parked))).is_ok());
        match (queued, parked) {
            (true, parked) => Ok(parked),
            (false, parked) => match parked.take() {
                Some(cache) => Err(cache),
                // The writer never had it, and it has no other owner.
                None => Ok(parked),
            },
        }
    }
}

/// Writes one cache after the other until the engine ends.
fn write_all(
    orders: &Receiver<Order>,
    folder: &Path,
    machine: &dyn Machine,
    outbox: &(dyn Fn(Event) -> bool + Send),
) {
    // If the folder cannot be made, writing the first cache fails.
    let _ = create_dir_all(folder);
    for (transfer, parked) in orders {
        // It was given up while it waited its turn if it has no other owner.
        let wanted = Arc::strong_count(&parked) > 1;
        let event = match wanted && parked.write(folder, machine) {
            true => Event::Offloaded(transfer),
            false => Event::OffloadFailed(transfer),
        };
        // The memory of a cache that was given up is freed before its outcome is reported.
        drop(parked);
        if !outbox(event) {
            return;
        }
    }
}

impl Parked {
    /// The rows of a prefix that an earlier request left in kept state.
    pub(super) fn kept(rows: PrefixRows) -> Self {
        Self {
            tokens: rows.tokens(),
            place: Mutex::new(Place::Kept(rows)),
            moved: Condvar::new(),
        }
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the cache to a file; returns whether it is there. A cache that could not be written, or is wanted back,
    /// stays in memory.
    fn write(&self, folder: &Path, machine: &dyn Machine) -> bool {
        let cache = {
            let mut place = self.place();
            match std::mem::replace(&mut *place, Place::Writing(Wanted::No)) {
                Place::Memory(cache) => cache,
                other => {
                    *place = other;
                    return false;
                }
            }
        };
        // A lane may wait for the outcome, so there has to be one even after a panic.
        let saved = catch_unwind(AssertUnwindSafe(|| {
            save(&cache, self.tokens, folder, machine)
        }));
        let file = saved.unwrap_or_else(|panic| Err(io::Error::other(panic_text(&*panic))));
        let mut place = self.place();
        let is_wanted = matches!(*place, Place::Writing(Wanted::Yes));
        let written = match file {
            Ok(file) if !is_wanted => {
                *place = Place::File(file);
                drop(place);
                drop(cache);
                true
            }
            Ok(_) | Err(_) => {
                *place = Place::Memory(cache);
                false
            }
        };
        self.moved.notify_all();
        written
    }

    /// Takes the cache back if it is in memory and the writer does not have it.
    pub(super) fn take(&self) -> Option<KvCache> {
        let mut place = self.place();
        match std::mem::replace(&mut *place, Place::Gone) {
            Place::Memory(cache) => Some(cache),
            other => {
                *place = other;
                None
            }
        }
    }

    /// Whether its memory is still in use.
    pub(super) fn is_in_memory(&self) -> bool {
        matches!(*self.place(), Place::Memory(_) | Place::Writing(_))
    }

    /// Takes the cache back: unchanged, or its first `tokens` rows read into `room`. Waits for the writer if it has
    /// it.
    ///
    /// # Errors
    ///
    /// [`EngineError::Flash`] if the file cannot be read; the cache is lost then.
    pub(super) fn fetch(&self, room: KvCache, tokens: usize) -> Result<KvCache, EngineError> {
        let mut place = self.place();
        loop {
            match std::mem::replace(&mut *place, Place::Gone) {
                Place::Memory(cache) => {
                    // Rows that are not reused are in no budget.
                    cache.discard(tokens);
                    return Ok(cache);
                }
                Place::Writing(_) => {
                    *place = Place::Writing(Wanted::Yes);
                    place = self
                        .moved
                        .wait(place)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                Place::File(mut file) => {
                    drop(place);
                    let read = file.rewind().and_then(|()| {
                        room.restore(tokens, self.tokens, &mut BufReader::new(file))
                    });
                    return read
                        .map(|()| room)
                        .map_err(|source| EngineError::Flash { source });
                }
                Place::Kept(rows) => {
                    drop(place);
                    return rows.read(&room, tokens).map(|()| room);
                }
                Place::Gone => {
                    let source = io::ErrorKind::NotFound.into();
                    return Err(EngineError::Flash { source });
                }
            }
        }
    }
}

fn save(cache: &KvCache, tokens: usize, folder: &Path, machine: &dyn Machine) -> io::Result<File> {
    let mut file = BufWriter::new(machine.file(folder)?);
    cache.save(tokens, &mut file)?;
    file.flush()?;
    file.into_inner().map_err(io::IntoInnerError::into_error)
}

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use heg_openvino::TensorType;

    use super::*;
    use heg_exec::mem::KvShape;

    /// Begins to write a cache, and panics when a lane waits for it.
    struct Panicking {
        begun: Sender<()>,
        goes_on: Mutex<Receiver<()>>,
    }

    impl Machine for Panicking {
        fn file(&self, _: &Path) -> io::Result<File> {
            let _ = self.begun.send(());
            let _ = self.goes_on.lock().unwrap().recv();
            resume_unwind(Box::new("a bug"));
        }
    }

    #[test]
    fn a_panic_while_a_cache_is_written_gives_it_back_to_whoever_waits() {
        let (begun, has_begun) = channel();
        let (go_on, goes_on) = channel();
        let machine = Panicking {
            begun,
            goes_on: Mutex::new(goes_on),
        };
        let (outbox, told) = channel();
        let folder = tempfile::tempdir().unwrap();
        let outbox = Box::new(move |event| outbox.send(event).is_ok());
        let flash = Flash::new(Some(folder.path().to_owned()), Arc::new(machine), outbox);
        let shape = KvShape {
            layers: 1,
            width: 4,
            context_tokens: 8,
            padding_rows: 0,
            element: TensorType::F32,
        };
        let cache = || KvCache::reserve(shape).unwrap();
        let parked = flash.park(Transfer(1), cache(), 2).ok().unwrap();
        has_begun.recv().unwrap();
        let (room, waiting) = (cache(), Arc::clone(&parked));
        let (fetched, outcome) = channel();
        std::thread::spawn(move || fetched.send(waiting.fetch(room, 2).is_ok()));
        go_on.send(()).unwrap();
        let patience = Duration::from_secs(60);
        assert_eq!(
            outcome.recv_timeout(patience),
            Ok(true),
            "the cache is as it was"
        );
        let told = told.recv_timeout(patience).unwrap();
        assert!(matches!(told, Event::OffloadFailed(_)));
    }
}
