//! Fetching the pieces of a plan: threads that ask for ranges, hash what they read, and write what is right.

use std::collections::VecDeque;
use std::io::Read;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use heg_artifacts::BLOCK_BYTES;

use crate::error::{RECEIVE, ShipError};
use crate::offer::Offer;
use crate::partial::Piece;
use crate::plan::{Amounts, Plan};

/// Options of a transfer.
#[derive(Debug, Clone, Copy)]
pub struct FetchOptions {
    /// Number of connections.
    pub jobs: NonZero<usize>,
    /// Bytes per second for all of them together; `None` for as many as come.
    pub limit_bytes_per_s: Option<NonZero<u64>>,
    /// Least time that a range gets, so that nothing hangs.
    pub patience: Duration,
}

impl Default for FetchOptions {
    fn default() -> Self {
        Self {
            jobs: JOBS,
            limit_bytes_per_s: None,
            patience: DEADLINE_MIN,
        }
    }
}

/// Listens to a transfer while it goes on, from several threads.
pub trait TransferProgress: Sync {
    /// The amounts are known, and bytes begin to arrive.
    fn planned(&self, amounts: &Amounts);
    /// Bytes were checked and written.
    fn arrived(&self, bytes: u64);
    /// Something is worth a line.
    fn say(&self, text: &str);
}

/// A transfer in progress.
struct Transfer<'t> {
    offer: &'t Offer<'t>,
    plan: &'t Plan,
    options: &'t FetchOptions,
    progress: &'t dyn TransferProgress,
    queue: Mutex<VecDeque<Wanted>>,
    /// Number of the place that is asked first: the one behind the last that lied or broke off.
    first_place: AtomicUsize,
    /// Moment up to which the rate is used up.
    paid: Mutex<Instant>,
    /// Tries since the last piece arrived.
    failures: AtomicU64,
    arrived_bytes: AtomicU64,
    stops: AtomicBool,
    error: Mutex<Option<ShipError>>,
}

/// A piece that is to be fetched.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    /// Index of its partial file in the plan.
    file: usize,
    piece: Piece,
    /// Number of times that wrong bytes came.
    wrong: u32,
}

/// Fetches all that a plan lacks. Returns the bytes that arrived also where it fails.
pub(crate) fn fetch(
    offer: &Offer<'_>,
    plan: &Plan,
    options: &FetchOptions,
    progress: &dyn TransferProgress,
) -> (u64, Result<(), ShipError>) {
    let queue = plan.missing.iter().enumerate().flat_map(|(file, pieces)| {
        pieces.iter().map(move |piece| Wanted {
            file,
            piece: *piece,
            wrong: 0,
        })
    });
    let transfer = Transfer {
        offer,
        plan,
        options,
        progress,
        queue: Mutex::new(queue.collect()),
        first_place: AtomicUsize::new(0),
        paid: Mutex::new(Instant::now()),
        failures: AtomicU64::new(0),
        arrived_bytes: AtomicU64::new(0),
        stops: AtomicBool::new(false),
        error: Mutex::new(None),
    };
    thread::scope(|scope| {
        for _ in 1..options.jobs.get().min(JOBS_MAX) {
            scope.spawn(|| transfer.work());
        }
        transfer.work();
    });
    let arrived = transfer.arrived_bytes.into_inner();
    let error = transfer.error.into_inner();
    match error.unwrap_or_else(PoisonError::into_inner) {
        Some(error) => (arrived, Err(error)),
        None => (arrived, Ok(())),
    }
}

impl Transfer<'_> {
    fn work(&self) {
        let mut want_bytes = FIRST_RANGE_BYTES;
        let mut buffer = vec![0; BLOCK_BYTES as usize];
        while !self.stops.load(Ordering::Relaxed) {
            let wanted = self.take(want_bytes);
            if wanted.is_empty() {
                return;
            }
            let started = Instant::now();
            let (rest, outcome) = self.range(&wanted, &mut buffer);
            let fetched: u64 = wanted.iter().map(|wanted| wanted.piece.bytes).sum();
            // A short range says more about the way there and back than about the line.
            if fetched >= BLOCK_BYTES {
                want_bytes = next_range(fetched, started.elapsed());
            }
            self.give_back(rest);
            if let Err(error) = outcome {
                self.failed(error);
            }
        }
    }

    /// Takes neighbouring pieces of one part from the queue.
    fn take(&self, want_bytes: u64) -> Vec<Wanted> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken: Vec<Wanted> = Vec::new();
        let mut bytes = 0_u64;
        while let Some(next) = queue.front() {
            let follows = taken.last().is_none_or(|last| {
                let end = last.piece.offset.saturating_add(last.piece.bytes);
                let gap = next.piece.offset.checked_sub(end);
                last.file == next.file
                    && gap.is_some_and(|gap| gap < heg_artifacts::layout::ALIGNMENT)
            });
            if !follows || (bytes > 0 && bytes.saturating_add(next.piece.bytes) > want_bytes) {
                break;
            }
            bytes = bytes.saturating_add(next.piece.bytes);
            taken.extend(queue.pop_front());
        }
        taken
    }

    fn give_back(&self, rest: Vec<Wanted>) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        for wanted in rest.into_iter().rev() {
            queue.push_front(wanted);
        }
    }

    /// Fetches neighbouring pieces in one request. Returns those that did not come, or came wrong.
    fn range(
        &self,
        wanted: &[Wanted],
        buffer: &mut Vec<u8>,
    ) -> (Vec<Wanted>, Result<(), ShipError>) {
        let mut rest = Vec::new();
        let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else {
            return (rest, Ok(()));
        };
        let Some(partial) = self.plan.partials.get(first.file) else {
            return (rest, Ok(()));
        };
        let range = first.piece.offset..last.piece.offset.saturating_add(last.piece.bytes);
        let deadline = self.deadline(range.end - range.start);
        let place = self.first_place.load(Ordering::Relaxed);
        let reader = self
            .offer
            .read(place, partial.part, range.clone(), deadline);
        let mut reader = match reader {
            Ok(reader) => reader,
            Err(error) => return (wanted.to_vec(), Err(error)),
        };
        let mut at = range.start;
        for (position, next) in wanted.iter().enumerate() {
            let piece = next.piece;
            let read = skip(&mut reader, piece.offset.saturating_sub(at))
                .and_then(|()| {
                    buffer.resize(usize::try_from(piece.bytes).unwrap_or(usize::MAX), 0);
                    reader.read_exact(buffer)
                })
                .map_err(ShipError::io(RECEIVE, self.offer.place()));
            at = piece.offset.saturating_add(piece.bytes);
            let outcome = read.and_then(|()| self.keep(next, buffer));
            match outcome {
                Ok(None) => {}
                Ok(Some(again)) => {
                    rest.push(again);
                    if self.offer.places() > 1 {
                        // The next bytes of a place that lies are no better: another one is asked for them.
                        let next = position.saturating_add(1);
                        rest.extend(wanted.get(next..).unwrap_or_default());
                        self.turn_from(place);
                        return (rest, Ok(()));
                    }
                }
                Err(error) => {
                    self.turn_from(place);
                    rest.extend(wanted.get(position..).unwrap_or_default());
                    return (rest, Err(error));
                }
            }
            if self.stops.load(Ordering::Relaxed) {
                break;
            }
        }
        (rest, Ok(()))
    }

    /// Asks another place first from now on, if nobody has seen to that already.
    fn turn_from(&self, place: usize) {
        let next = place.wrapping_add(1);
        let order = Ordering::Relaxed;
        // It failed if another thread was faster, which is as good.
        let _ = self.first_place.compare_exchange(place, next, order, order);
    }

    /// Writes a piece if it is right; else it is to be fetched again.
    fn keep(&self, wanted: &Wanted, bytes: &[u8]) -> Result<Option<Wanted>, ShipError> {
        let piece = &wanted.piece;
        self.pay(piece.bytes);
        let Some(partial) = self.plan.partials.get(wanted.file) else {
            return Ok(None);
        };
        if !self
            .plan
            .blocks
            .is_right(piece.section, piece.position, bytes)
        {
            let wrong = wanted.wrong.saturating_add(1);
            let places = u32::try_from(self.offer.places()).unwrap_or(u32::MAX);
            if wrong < WRONG_MAX.saturating_mul(places) {
                return Ok(Some(Wanted { wrong, ..*wanted }));
            }
            let section = self.offer.manifest().sections.get(piece.section);
            let label = section.and_then(|section| self.offer.labels().remove(&section.id));
            let part = self.offer.parts.get(partial.part);
            return Err(ShipError::WrongBytes {
                place: self.offer.place(),
                part: part.map_or_else(String::new, |part| part.name.clone()),
                section: label.unwrap_or_default(),
                tries: wrong,
            });
        }
        partial.write(piece, bytes)?;
        self.failures.store(0, Ordering::Relaxed);
        self.arrived_bytes.fetch_add(piece.bytes, Ordering::Relaxed);
        self.progress.arrived(piece.bytes);
        Ok(None)
    }

    /// Waits a moment after what may pass; ends the transfer after all else.
    fn failed(&self, error: ShipError) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        // Each connection may fail as often.
        let most = TRIES_MAX.saturating_mul(self.options.jobs.get().min(JOBS_MAX) as u64);
        if error.may_pass() && failures < most {
            let round = failures
                .checked_div(self.options.jobs.get() as u64)
                .unwrap_or(0);
            thread::sleep(PAUSE.saturating_mul(1 << round.min(5)));
            return;
        }
        self.stops.store(true, Ordering::Relaxed);
        let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(error);
    }

    /// Waits until the rate allows some more bytes.
    fn pay(&self, bytes: u64) {
        let Some(rate) = self.options.limit_bytes_per_s else {
            return;
        };
        let cost = Duration::from_secs_f64(bytes as f64 / rate.get() as f64);
        let until = {
            let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
            *paid = (*paid).max(Instant::now()) + cost;
            *paid
        };
        thread::sleep(until.saturating_duration_since(Instant::now()));
    }

    /// The longest time for a range: ten times what was planned, so that nothing hangs, on slow lines neither.
    fn deadline(&self, bytes: u64) -> Duration {
        let shared = self.options.limit_bytes_per_s.map_or(0.0, |rate| {
            bytes as f64 * self.options.jobs.get() as f64 / rate.get() as f64
        });
        let patience = self.options.patience;
        patience + Duration::try_from_secs_f64(2.0 * shared).unwrap_or(patience)
    }
}

/// The length of a range that this connection brings in some seconds, by what the last one took.
fn next_range(fetched: u64, took: Duration) -> u64 {
    let bytes = fetched as f64 * RANGE_SECONDS / took.as_secs_f64().max(1e-3);
    (bytes as u64).clamp(BLOCK_BYTES, RANGE_BYTES_MAX)
}

fn skip(reader: &mut dyn Read, bytes: u64) -> std::io::Result<()> {
    let skipped = std::io::copy(&mut reader.take(bytes), &mut std::io::sink())?;
    match skipped == bytes {
        true => Ok(()),
        false => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Connections by default: enough to fill a line whose packets get lost. Chosen.
const JOBS: NonZero<usize> = NonZero::<usize>::MIN.saturating_add(3);

/// Most connections. Chosen.
const JOBS_MAX: usize = 64;

/// First and longest range, in bytes, and the time that one should take. Chosen.
const FIRST_RANGE_BYTES: u64 = 8 << 20;
const RANGE_BYTES_MAX: u64 = 64 << 20;
const RANGE_SECONDS: f64 = 4.0;

/// Least time for a range. Chosen: 1 MiB at 9 KB/s.
const DEADLINE_MIN: Duration = Duration::from_secs(120);

/// Most tries of a connection without a piece, and the pause after the first, which grows.
const TRIES_MAX: u64 = 5;
const PAUSE: Duration = Duration::from_millis(200);

/// Most times that wrong bytes of a piece may come, for each place.
const WRONG_MAX: u32 = 3;
