//! KV caches of idle flows on flash, moved by the engine's choice rather than by the system's paging.
//!
//! A parked cache has one owner at a time: it waits for the writer, the writer has it, or it is in a file. So no kernel
//! runs on rows that are being written. A request that takes the cache back before it is written gets it as it is; one
//! that comes while it is written waits for the writer; later ones read the file. Files have no name: whatever happens
//! to the process, nothing is left of them.

use std::fs::{File, create_dir_all};
use std::io::{self, BufReader, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::conductor::Message;
use super::machine::Machine;
use crate::error::RuntimeError;
use crate::mem::KvCache;
use heg_sched::{Event, Transfer};

/// The writer of caches to flash.
pub(super) struct Flash {
    writer: Option<SyncSender<Order>>,
}

type Order = (Transfer, Arc<Parked>);

/// A cache on its way to flash, or there.
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
    /// Taken back, or lost.
    Gone,
}

/// Whether a request waits for the cache that is being written.
enum Wanted {
    No,
    Yes,
}

/// Caches that wait for the writer, at most; what is more stays in memory. Chosen: as many as a scheduler has on flash.
const QUEUED_MAX: usize = 128;

impl Flash {
    /// Files in `folder`; without one caches stay in memory.
    pub(super) fn new(
        folder: Option<PathBuf>,
        machine: Arc<dyn Machine>,
        inbox: Sender<Message>,
    ) -> Self {
        let writer = folder.map(|folder| {
            let (sender, orders) = sync_channel(QUEUED_MAX);
            thread::spawn(move || write_all(&orders, &folder, &*machine, &inbox));
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
                // Nobody else had it.
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
    inbox: &Sender<Message>,
) {
    // What cannot be made is missed when the first cache is written.
    let _ = create_dir_all(folder);
    for (transfer, parked) in orders {
        // Given up while it waited its turn, where nobody else has it.
        let wanted = Arc::strong_count(&parked) > 1;
        let event = match wanted && parked.write(folder, machine) {
            true => Event::Offloaded(transfer),
            false => Event::OffloadFailed(transfer),
        };
        // The memory of what was given up goes before anybody hears of it.
        drop(parked);
        if inbox.send(Message::Transferred(event)).is_err() {
            return;
        }
    }
}

impl Parked {
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
        let file = save(&cache, self.tokens, folder, machine);
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

    /// Takes the cache back: as it was, or its first `tokens` rows read into `room`. Waits for the writer if it has it.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Flash`] if the file cannot be read; the cache is lost then.
    pub(super) fn fetch(&self, room: KvCache, tokens: usize) -> Result<KvCache, RuntimeError> {
        let mut place = self.place();
        loop {
            match std::mem::replace(&mut *place, Place::Gone) {
                Place::Memory(cache) => {
                    // What is not reused is in nobody's budget.
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
                        .map_err(|source| RuntimeError::Flash { source });
                }
                Place::Gone => {
                    let source = io::ErrorKind::NotFound.into();
                    return Err(RuntimeError::Flash { source });
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
