//! Responses that are kept with their conversations, for later requests of the same client (`previous_response_id`).
//!
//! A client has its own table: another client's id is unknown to it. The table is bounded in number, bytes and age, its
//! memory is on the client's account, and the least recently used responses go first.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::account::{Account, Charge, Scope};
use super::request::History;

/// The responses of all clients.
#[derive(Debug, Default)]
pub(super) struct KeptResponses(Mutex<BTreeMap<Scope, Own>>);

/// A response with the conversation that it ends.
#[derive(Debug)]
pub(super) struct KeptResponse {
    /// The response as it was sent.
    pub(super) text: Bytes,
    /// The conversation, with the answer.
    pub(super) history: History,
    /// Name of the conversation, which is that of its flow.
    pub(super) conversation: String,
    /// Memory that it takes, in bytes.
    pub(super) bytes: usize,
    /// The charge for that memory.
    #[expect(dead_code, reason = "it is held, and given back when dropped")]
    pub(super) charge: Charge,
}

/// The responses of one client.
#[derive(Debug, Default)]
struct Own {
    by_id: HashMap<String, Entry>,
    /// Number of uses so far.
    uses: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    response: Arc<KeptResponse>,
    used: u64,
    kept_at: Instant,
}

impl KeptResponses {
    /// Returns a client's response.
    pub(super) fn get(&self, scope: Scope, id: &str, now: Instant) -> Option<Arc<KeptResponse>> {
        let mut all = self.lock();
        let own = all.get_mut(&scope)?;
        own.uses += 1;
        let uses = own.uses;
        let entry = own.by_id.get_mut(id).filter(|entry| entry.is_young(now))?;
        entry.used = uses;
        Some(Arc::clone(&entry.response))
    }

    /// Charges a client for another response of this size, and drops earlier ones for it where the client has no room.
    /// Returns the charge, unless there is no room at all, and the conversations, other than `conversation`, that lost
    /// their last response.
    pub(super) fn room(
        &self,
        account: &Account,
        bytes: usize,
        conversation: &str,
        now: Instant,
    ) -> (Option<Charge>, Vec<String>) {
        let mut all = self.lock();
        let own = all.entry(account.scope()).or_default();
        let mut ended = own.drop_old(now);
        let mut charge = None;
        if bytes <= BYTES_MAX {
            loop {
                if own.by_id.len() < RESPONSES_MAX && own.bytes + bytes <= BYTES_MAX {
                    charge = account.charge(bytes).ok();
                }
                if charge.is_some() {
                    break;
                }
                let oldest = own.by_id.iter().min_by_key(|(_, entry)| entry.used);
                let Some(oldest) = oldest.map(|(id, _)| id.clone()) else {
                    break;
                };
                ended.extend(own.remove(&oldest).flatten());
            }
        }
        ended.retain(|name| name != conversation && !own.has_conversation(name));
        (charge, ended)
    }

    /// Adds a response for which there is room.
    pub(super) fn add(&self, scope: Scope, id: String, response: KeptResponse, now: Instant) {
        let mut all = self.lock();
        let own = all.entry(scope).or_default();
        own.uses += 1;
        own.bytes += response.bytes;
        let entry = Entry {
            response: Arc::new(response),
            used: own.uses,
            kept_at: now,
        };
        own.by_id.insert(id, entry);
    }

    /// Drops a client's response; `None` if it has none of this id. Returns its conversation if nothing else is kept of
    /// that.
    pub(super) fn remove(&self, scope: Scope, id: &str, now: Instant) -> Option<Option<String>> {
        let mut all = self.lock();
        let own = all.get_mut(&scope)?;
        own.by_id.get(id).filter(|entry| entry.is_young(now))?;
        own.remove(id)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Scope, Own>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Own {
    /// Drops the responses that are too old; returns the conversations that end with them.
    fn drop_old(&mut self, now: Instant) -> Vec<String> {
        let old = self.by_id.iter().filter(|(_, entry)| !entry.is_young(now));
        let old: Vec<String> = old.map(|(id, _)| id.clone()).collect();
        old.iter()
            .filter_map(|id| self.remove(id).flatten())
            .collect()
    }

    fn remove(&mut self, id: &str) -> Option<Option<String>> {
        let response = self.by_id.remove(id)?.response;
        self.bytes -= response.bytes;
        let name = &response.conversation;
        Some((!self.has_conversation(name)).then(|| name.clone()))
    }

    fn has_conversation(&self, name: &str) -> bool {
        let mut all = self.by_id.values();
        all.any(|entry| entry.response.conversation == name)
    }
}

impl Entry {
    fn is_young(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.kept_at) < TIME_MAX
    }
}

/// Maximum number of kept responses of a client. Chosen.
const RESPONSES_MAX: usize = 1024;

/// Maximum memory of a client's kept responses, in bytes. Chosen: half of what a client's large requests have for
/// themselves, and twenty turns of a long conversation.
const BYTES_MAX: usize = 8 << 20;

/// Maximum time for which a response is kept. Chosen: a day's work.
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::{Accounts, Budgets};

    const OURS: Scope = Scope::Client(0);
    const THEIRS: Scope = Scope::Client(1);

    struct Desk {
        accounts: Accounts,
        kept: KeptResponses,
        now: Instant,
    }

    impl Desk {
        fn new() -> Self {
            Self {
                accounts: Accounts::new(Budgets::default()),
                kept: KeptResponses::default(),
                now: Instant::now(),
            }
        }

        /// Keeps a response; returns the conversations that ended for it, or `None` if there was no room.
        fn keep(
            &self,
            scope: Scope,
            id: &str,
            conversation: &str,
            bytes: usize,
        ) -> Option<Vec<String>> {
            let account = self.accounts.of(scope);
            let (charge, ended) = self.kept.room(&account, bytes, conversation, self.now);
            let response = KeptResponse {
                text: Bytes::from(id.to_owned()),
                history: History::default(),
                conversation: conversation.to_owned(),
                bytes,
                charge: charge?,
            };
            self.kept.add(scope, id.to_owned(), response, self.now);
            Some(ended)
        }

        fn has(&self, scope: Scope, id: &str) -> bool {
            self.kept.get(scope, id, self.now).is_some()
        }
    }

    #[test]
    fn a_client_neither_sees_nor_drops_the_responses_of_another() {
        let desk = Desk::new();
        desk.keep(OURS, "a", "a", 100).unwrap();
        assert!(desk.has(OURS, "a") && !desk.has(THEIRS, "a"));
        assert_eq!(desk.kept.remove(THEIRS, "a", desk.now), None);
        for number in 0..3 * RESPONSES_MAX {
            desk.keep(THEIRS, &format!("b{number}"), "b", 100).unwrap();
        }
        assert!(desk.has(OURS, "a"));
        assert_eq!(desk.kept.lock()[&THEIRS].by_id.len(), RESPONSES_MAX);
        assert_eq!(
            desk.kept.remove(OURS, "a", desk.now),
            Some(Some("a".into()))
        );
        assert!(!desk.has(OURS, "a"));
    }

    #[test]
    fn the_least_recently_used_go_first_and_memory_is_bounded() {
        let desk = Desk::new();
        let third = BYTES_MAX / 3;
        for id in ["a", "b", "c"] {
            desk.keep(OURS, id, id, third).unwrap();
        }
        assert!(desk.has(OURS, "a"));
        // Its conversation ends with it.
        assert_eq!(desk.keep(OURS, "d", "d", third), Some(vec!["b".to_owned()]));
        assert!(desk.has(OURS, "a") && !desk.has(OURS, "b"));
        // A conversation that goes on does not end with its earlier response.
        assert_eq!(desk.keep(OURS, "e", "c", third), Some(Vec::new()));
        assert!(!desk.has(OURS, "c"));
        assert!(desk.keep(OURS, "f", "f", BYTES_MAX + 1).is_none());
        assert!(desk.has(OURS, "e"), "what can never fit drops nothing");
        let own: usize = desk.kept.lock()[&OURS].bytes;
        assert_eq!(own, 3 * third);
    }

    #[test]
    fn a_response_is_kept_for_a_day() {
        let mut desk = Desk::new();
        desk.keep(OURS, "a", "a", 100).unwrap();
        desk.now += TIME_MAX - Duration::from_secs(1);
        assert!(desk.has(OURS, "a"));
        desk.now += Duration::from_secs(1);
        assert!(!desk.has(OURS, "a"));
        assert_eq!(desk.kept.remove(OURS, "a", desk.now), None);
        assert_eq!(desk.keep(OURS, "b", "b", 100), Some(vec!["a".to_owned()]));
        assert_eq!(desk.kept.lock()[&OURS].bytes, 100);
    }

    #[test]
    fn an_account_without_room_keeps_nothing() {
        let desk = Desk::new();
        desk.keep(OURS, "a", "a", 1 << 20).unwrap();
        let account = desk.accounts.of(OURS);
        let _all: Vec<Charge> = std::iter::from_fn(|| account.charge(1 << 20).ok()).collect();
        // There is room for one in place of another, and for no more.
        assert!(desk.keep(OURS, "b", "b", 1 << 20).is_some());
        assert!(!desk.has(OURS, "a"));
        assert!(desk.keep(OURS, "c", "c", 2 << 20).is_none());
    }
}
