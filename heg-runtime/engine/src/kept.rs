//! Kept state: prefixes of prompts that are written to disk when their requests end, and read by later ones, also of
//! later processes.
//!
//! Whoever submits a request looks for its prefix, on its own thread. The lane that runs the request first reads the
//! pages, as it reads a cache from flash; if one of them is not what it was, the prompt is computed. A thread of its
//! own writes: it reads a cache at rest a few rows at a time, and gives up when the cache is taken for another call.

use std::fs::File;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use heg_artifacts::SectionId;
use heg_exec::Loader;
use heg_exec::mem::{KvCache, KvShape};
use heg_sched::Class;
use heg_state::{
    HEAD_BYTES, KeepEnd, Keeping, KeptPrefix, Miss, PAGE_TOKENS, PageRoom, StateFolder, StateModel,
    StateOwner,
};

use super::cache::Shelved;
use super::program_hash::program_hash;
use crate::error::EngineError;

/// The kept state of an engine's model. Clones share it.
#[derive(Clone)]
pub(super) struct KeptState(Arc<Shared>);

struct Shared {
    folder: Arc<StateFolder>,
    shape: KvShape,
    bundle: SectionId,
    /// Everything that decides the bits of rows, but for the program.
    arithmetic: String,
    model: OnceLock<Option<StateModel>>,
    status: Mutex<KeptStatus>,
}

/// Counts of kept state since the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeptStatus {
    /// Prompts that began with a kept prefix.
    pub found: u64,
    /// Prompts that did not.
    pub absent: u64,
    /// Prefixes that were gone when they were to be read.
    pub gone: u64,
    /// Prefixes with a damaged page.
    pub damaged: u64,
    /// Prefixes that could not be read.
    pub unread: u64,
    /// Tokens whose keys and values were read.
    pub read_tokens: u64,
    /// Time that it took to read them, in µs.
    pub read_us: u64,
    /// Pages that were written.
    pub written_pages: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Pages that were given up for others.
    pub given_up_pages: u64,
    /// Prompts that were not kept since too many waited to be written, or the disk refused.
    pub unwritten: u64,
    /// The latest trouble with the folder.
    pub trouble: Option<String>,
}

/// The rows of a kept prefix, to be read into a cache.
#[derive(Clone)]
pub(super) struct KeptRows {
    prefix: Arc<KeptPrefix>,
    state: KeptState,
}

/// Hands caches at rest to the thread that writes them.
pub(super) struct Keeper {
    orders: SyncSender<Order>,
    finished: Receiver<()>,
    state: KeptState,
}

/// The prompt of a cache at rest that is to be written.
struct Order {
    shelved: Shelved,
    owner: StateOwner,
    tokens: Vec<u32>,
    class: Class,
}

/// Time by which pages of background work count as older than they are. Chosen: a working day, so that all that a person
/// has asked for today outlives what was read in the background meanwhile.
const PROACTIVE_AGE: Duration = Duration::from_secs(12 * 60 * 60);

/// Most prompts that wait to be written; further ones are not kept. Chosen: each costs its tokens only.
const QUEUED_MAX: usize = 64;

impl KeptState {
    /// Makes the kept state of a loader's model, whose caches have rows of this shape.
    ///
    /// # Errors
    ///
    /// The reason why nothing can be kept: bits of other arithmetic than that of our own programs vary with the version
    /// of a library and with the company that a row has.
    pub(super) fn new(
        folder: Arc<StateFolder>,
        loader: &Loader,
        shape: KvShape,
    ) -> Result<Self, String> {
        let forms = loader.activations()?;
        let forms: Vec<String> = forms.iter().map(|form| format!("{form:?}")).collect();
        let arithmetic = format!(
            "{} {:?} {} {} {:?}",
            forms.join(" "),
            shape.element,
            shape.layers,
            shape.width,
            loader.pair().is_some(),
        );
        Ok(Self(Arc::new(Shared {
            folder,
            shape,
            bundle: loader.bundle().manifest_id(),
            arithmetic,
            model: OnceLock::new(),
            status: Mutex::default(),
        })))
    }

    /// The model of its pages; `None` if this program cannot be told from others. The first call hashes the program.
    fn model(&self) -> Option<StateModel> {
        let make = || {
            let program = program_hash()?;
            let form = format!("{} {program}", self.0.arithmetic);
            Some(StateModel {
                bundle: *self.0.bundle.as_bytes(),
                form: *SectionId::of(form.as_bytes()).as_bytes(),
                payload_bytes: (PAGE_TOKENS * self.0.shape.token_bytes()) as u64,
            })
        };
        *self.0.model.get_or_init(make)
    }

    /// Finds the longest kept prefix of an owner's prompt.
    pub(super) fn find(&self, owner: StateOwner, prompt: &[u32]) -> Option<KeptRows> {
        let model = self.model()?;
        let (prefix, miss) = self.0.folder.find(&model, owner, prompt);
        if let Some(miss) = miss {
            self.missed(&miss);
        }
        if prefix.tokens() == 0 {
            self.status_mut().absent += 1;
            return None;
        }
        self.status_mut().found += 1;
        Some(KeptRows {
            prefix: Arc::new(prefix),
            state: self.clone(),
        })
    }

    fn status_mut(&self) -> MutexGuard<'_, KeptStatus> {
        let status = &self.0.status;
        status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn missed(&self, miss: &Miss) {
        let mut status = self.status_mut();
        let count = match miss.kind() {
            "gone" => &mut status.gone,
            "damaged" => &mut status.damaged,
            _ => &mut status.unread,
        };
        *count += 1;
        status.trouble = Some(heg_exec::chain(miss));
    }

    fn wrote(&self, end: KeepEnd) {
        let mut status = self.status_mut();
        status.written_pages += end.pages;
        status.written_bytes += end.bytes;
        status.given_up_pages += end.given_up;
    }

    fn not_written(&self, why: String) {
        let mut status = self.status_mut();
        status.unwritten += 1;
        status.trouble = Some(why);
    }

    /// Returns the counts since the start.
    pub(super) fn status(&self) -> KeptStatus {
        self.status_mut().clone()
    }

    fn keep(&self, order: &Order) {
        let Some(model) = self.model() else {
            return self.not_written("this program cannot be told from others".to_owned());
        };
        let what = Keeping {
            model: &model,
            owner: order.owner,
            tokens: &order.tokens,
            age: match order.class {
                Class::Reactive => Duration::ZERO,
                Class::Proactive => PROACTIVE_AGE,
            },
        };
        let kept = self
            .0
            .folder
            .keep(what, |page, into| self.fill(order, page, into));
        match kept {
            Ok(end) => self.wrote(end),
            Err(error) => self.not_written(heg_exec::chain(&error)),
        }
    }

    /// Reads a page's rows from a cache at rest, those of one half of a layer at a time; returns false if it was taken.
    fn fill(&self, order: &Order, page: usize, into: &mut [u8]) -> bool {
        let shape = self.0.shape;
        let half_bytes = PAGE_TOKENS * shape.row_bytes();
        let mut halves = shape.halves().zip(into.chunks_exact_mut(half_bytes.max(1)));
        halves.all(|((layer, half), rows)| {
            let read = |cache: &KvCache| cache.read_rows(layer, half, page * PAGE_TOKENS, rows);
            matches!(order.shelved.with(read), Some(Ok(())))
        })
    }
}

impl KeptRows {
    /// Number of rows.
    pub(super) fn tokens(&self) -> usize {
        self.prefix.tokens()
    }

    /// Reads the first `tokens` rows into a cache.
    ///
    /// # Errors
    ///
    /// [`EngineError::KeptState`] if one of the pages is gone or damaged; some rows may have been written.
    pub(super) fn read(&self, room: &KvCache, tokens: usize) -> Result<(), EngineError> {
        let start = Instant::now();
        let folder = &self.state.0.folder;
        if let Err(miss) = folder.read(&self.prefix, tokens, &Wanted { room, tokens }) {
            self.state.missed(&miss);
            return Err(miss.into());
        }
        let mut status = self.state.status_mut();
        status.read_tokens += tokens as u64;
        status.read_us += start.elapsed().as_micros() as u64;
        Ok(())
    }
}

/// The cache that gets the first rows of a prefix.
struct Wanted<'c> {
    room: &'c KvCache,
    tokens: usize,
}

impl Wanted<'_> {
    /// The first row of a page, and how many are wanted.
    fn rows(&self, page: usize) -> (usize, usize) {
        let first = page * PAGE_TOKENS;
        (first, self.tokens.saturating_sub(first).min(PAGE_TOKENS))
    }
}

impl PageRoom for Wanted<'_> {
    fn map(&self, page: usize, file: &File, see: &mut dyn FnMut(&[u8])) -> bool {
        let (first, count) = self.rows(page);
        let file = (file, HEAD_BYTES as u64);
        count == PAGE_TOKENS && self.room.map_rows(first, count, file, see)
    }

    fn copy(&self, page: usize, rows: &[u8]) -> bool {
        let (first, count) = self.rows(page);
        self.room.place_rows(first, count, rows)
    }
}

impl Keeper {
    /// Starts the writer.
    pub(super) fn start(state: KeptState) -> Self {
        let (orders, waiting) = sync_channel::<Order>(QUEUED_MAX);
        let (finish, finished) = channel();
        let writer = state.clone();
        thread::spawn(move || {
            // So that no request waits for it.
            writer.model();
            waiting.into_iter().for_each(|order| writer.keep(&order));
            // Nobody may wait for it any more.
            let _ = finish.send(());
        });
        Self {
            orders,
            finished,
            state,
        }
    }

    /// Has the whole pages of a cache at rest written, if there are any. Never waits.
    pub(super) fn keep(&self, shelved: Shelved, owner: StateOwner, tokens: &[u32], class: Class) {
        if tokens.len() < PAGE_TOKENS {
            return;
        }
        let order = Order {
            shelved,
            owner,
            tokens: tokens.to_vec(),
            class,
        };
        if self.orders.try_send(order).is_err() {
            self.state
                .not_written("too many prompts wait to be written".to_owned());
        }
    }

    /// Waits until all that was handed over is written, for at most this long.
    pub(super) fn finish(self, patience: Duration) {
        drop(self.orders);
        let _ = self.finished.recv_timeout(patience);
    }
}
