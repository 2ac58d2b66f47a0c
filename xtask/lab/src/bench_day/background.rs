//! Work that nobody waits for: digests by the small model, and vectors of passages, as fast as the system does them.

use super::client::Client;
use super::day::Day;
use super::dialect::{DIGEST, Prompt};
use heg_sched::Class;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;
use xtask::fail::Fail;

/// The work that is done.
#[derive(Debug, Default)]
pub(super) struct Done {
    tokens: AtomicU64,
    passages: AtomicU64,
    /// The first refusal, if any. Lines are cut by the restart, which is none.
    refusal: Mutex<Option<String>>,
}

/// The sums of a day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Sums {
    /// Tokens of texts that have a digest, and of these.
    pub(super) tokens: u64,
    /// Passages that have a vector.
    pub(super) passages: u64,
}

impl Done {
    pub(super) fn sums(&self) -> Sums {
        Sums {
            tokens: self.tokens.load(Ordering::Relaxed),
            passages: self.passages.load(Ordering::Relaxed),
        }
    }

    pub(super) fn refusal(&self) -> Option<String> {
        let refusal = self.refusal.lock();
        refusal.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes digests until the day is over, one behind the other: those with the numbers `first`, `first + step`, ….
    pub(super) fn write_digests(&self, day: &Day, client: Client<'_>, first: usize, step: usize) {
        let texts = day.digests.iter().cycle().skip(first).step_by(step);
        for ids in texts.take_while(|_| !is_over(client)) {
            let prompt = Prompt {
                model: DIGEST,
                ids,
                tokens: day.digest,
                class: Class::Proactive,
            };
            match client.complete(prompt) {
                Ok(digest) => {
                    let tokens = ids.len() + digest.ids.len();
                    self.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
                }
                Err(error) => self.rest(&error),
            }
        }
    }

    /// Makes vectors of passages until the day is over.
    pub(super) fn index(&self, day: &Day, client: Client<'_>) {
        let batches = day.passages.iter().cycle();
        for texts in batches.take_while(|_| !is_over(client)) {
            match client.embed(texts, Class::Proactive) {
                Ok(()) => {
                    let passages = texts.len() as u64;
                    self.passages.fetch_add(passages, Ordering::Relaxed);
                }
                Err(error) => self.rest(&error),
            }
            sleep(BETWEEN_BATCHES);
        }
    }

    /// Waits a moment after a failure: the server is being started again, perhaps.
    fn rest(&self, error: &anyhow::Error) {
        if let Some(refused) = error.downcast_ref::<Fail>() {
            let refusal = self.refusal.lock();
            let mut refusal = refusal.unwrap_or_else(PoisonError::into_inner);
            refusal.get_or_insert_with(|| refused.to_string());
        }
        sleep(REST);
    }
}

fn is_over(client: Client<'_>) -> bool {
    client.over.load(Ordering::Relaxed)
}

/// Chosen: a small part of any server's start.
const REST: Duration = Duration::from_millis(50);

/// Chosen: a folder is indexed while its files are read, and digests go on beside it.
const BETWEEN_BATCHES: Duration = Duration::from_millis(500);
