//! Writing pages, and giving up others for them.
//!
//! Who writes has the folder's lock, so that two processes do not exceed the budget together. Pages of the owner that
//! has most go first, the least recently used ones first: nobody makes another owner's pages go by writing many.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use crate::disk::{DiskFile, LEFTOVER, Lock};
use crate::error::StateError;
use crate::folder::{StateFolder, used_at, wait_for_lock};
use crate::page::{HEAD_BYTES, PageHead, StateModel};
use crate::secret::{PageName, StateOwner};

/// A prompt whose pages are to be kept.
#[derive(Debug, Clone, Copy)]
pub struct Keeping<'a> {
    /// The model that computed them.
    pub model: &'a StateModel,
    /// The owner of the prompt.
    pub owner: StateOwner,
    /// The tokens from the start.
    pub tokens: &'a [u32],
    /// The time by which its pages count as older than they are: others outlive them. Pages that somebody else has used
    /// later than that stay as they are.
    pub age: Duration,
}

/// The fate of a prompt's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeepEnd {
    /// Pages that were written.
    pub pages: u64,
    /// Bytes that were written.
    pub bytes: u64,
    /// Pages of others, or of earlier prompts, that went for them.
    pub given_up: u64,
    /// Whether the budget has room for no more of its pages.
    pub is_full: bool,
}

/// The pages of a folder, as of one look, under its lock.
pub(crate) struct Stock<'l> {
    pages: BTreeMap<PageName, (u64, SystemTime)>,
    /// Bytes of files that are being written by nobody, and could not be removed.
    leftovers: u64,
    _lock: &'l Lock,
}

impl StateFolder {
    /// Keeps the pages of a prompt that the folder does not have. `fill` writes the content of the page with this
    /// number, and returns false if it is no longer there, which ends it.
    ///
    /// # Errors
    ///
    /// [`StateError::Io`] if a page cannot be written, [`StateError::Busy`]; pages before it are kept.
    pub fn keep(
        &self,
        what: Keeping<'_>,
        mut fill: impl FnMut(usize, &mut [u8]) -> bool,
    ) -> Result<KeepEnd, StateError> {
        let mut end = KeepEnd::default();
        let payload_bytes = what.model.payload_bytes;
        let page_bytes = payload_bytes.saturating_add(HEAD_BYTES as u64);
        if page_bytes > self.limits.budget_bytes {
            end.is_full = true;
            return Ok(end);
        }
        let chain: Vec<(PageName, PageHead)> =
            self.chain(what.model, what.owner, what.tokens).collect();
        if chain.is_empty() {
            return Ok(end);
        }
        let lock = wait_for_lock(&*self.disk)?;
        let mut stock = Stock::take(self, &lock)?;
        let own: BTreeSet<&PageName> = chain.iter().map(|(name, _)| name).collect();
        let mut payload = vec![0; usize::try_from(payload_bytes).unwrap_or(usize::MAX)];
        // Of one time, so that later pages count as older than those before them.
        let now = self.disk.now();
        let now = now.checked_sub(what.age).unwrap_or(now);
        for (at, (name, head)) in chain.iter().enumerate() {
            let used = used_at(now, head.index);
            if let Some((_, known)) = stock.pages.get(name) {
                if what.age.is_zero() || *known < used {
                    let _ = self.disk.touch(name.as_str(), used);
                }
                continue;
            }
            let room = stock.make_room(self, page_bytes, &own);
            end.given_up += room.given_up;
            if !room.is_there {
                end.is_full = true;
                break;
            }
            if !fill(at, &mut payload) {
                break;
            }
            let seal = self.secret.seal(head, &payload);
            let parts = [&head.to_bytes(&seal), &payload[..]];
            self.disk.write(name.as_str(), &parts, used)?;
            stock.pages.insert(name.clone(), (page_bytes, used));
            end.pages += 1;
            end.bytes += page_bytes;
        }
        Ok(end)
    }
}

/// Whether there is room for a page.
struct Room {
    is_there: bool,
    given_up: u64,
}

impl<'l> Stock<'l> {
    /// Looks at a folder, and removes what killed writers have left.
    pub(crate) fn take(folder: &StateFolder, lock: &'l Lock) -> Result<Self, StateError> {
        // What is left counts.
        let _ = folder.disk.remove_leftovers();
        let mut stock = Self {
            pages: BTreeMap::new(),
            leftovers: 0,
            _lock: lock,
        };
        let now = folder.disk.now();
        for DiskFile { name, bytes, used } in folder.disk.list()? {
            match PageName::parse(&name) {
                // If the clock went back, it was used just now.
                Some(page) => drop(stock.pages.insert(page, (bytes, used.min(now)))),
                None if name.starts_with(LEFTOVER) => stock.leftovers += bytes,
                None => {}
            }
        }
        Ok(stock)
    }

    /// Gives up pages that are too old, and those that exceed the budget.
    pub(crate) fn trim(mut self, folder: &StateFolder) -> Result<(), StateError> {
        let (now, age_max) = (folder.disk.now(), folder.limits.age_max);
        let is_old = |_: &PageName, (_, used): &mut (u64, SystemTime)| {
            now.duration_since(*used).is_ok_and(|age| age > age_max)
        };
        let old: Vec<PageName> = self
            .pages
            .extract_if(.., is_old)
            .map(|(name, _)| name)
            .collect();
        for name in old {
            folder.disk.remove(name.as_str())?;
        }
        self.make_room(folder, 0, &BTreeSet::new());
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.pages.values().map(|(bytes, _)| bytes).sum::<u64>() + self.leftovers
    }

    /// Gives up pages until `bytes` more fit the budget, but none of `own`.
    fn make_room(&mut self, folder: &StateFolder, bytes: u64, own: &BTreeSet<&PageName>) -> Room {
        let mut given_up = 0;
        let mut total = self.bytes();
        while total.saturating_add(bytes) > folder.limits.budget_bytes {
            let Some(next) = self.next_to_go(own) else {
                break;
            };
            // One that cannot be removed still counts.
            if folder.disk.remove(next.as_str()).is_err() {
                break;
            }
            let gone = self.pages.remove(&next);
            total -= gone.map_or(0, |(bytes, _)| bytes);
            given_up += 1;
        }
        let is_there = total.saturating_add(bytes) <= folder.limits.budget_bytes;
        Room { is_there, given_up }
    }

    /// Returns the page to give up next: the least recently used one of the owner that has most.
    fn next_to_go(&self, own: &BTreeSet<&PageName>) -> Option<PageName> {
        let others = || self.pages.iter().filter(|(name, _)| !own.contains(name));
        let mut held: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, (bytes, _)) in &self.pages {
            *held.entry(name.owner()).or_default() += bytes;
        }
        let has_some: BTreeSet<&str> = others().map(|(name, _)| name.owner()).collect();
        let most = has_some
            .into_iter()
            .max_by_key(|owner| held.get(owner).copied())?;
        let of_most = others().filter(|(name, _)| name.owner() == most);
        let oldest = of_most.min_by_key(|(_, (_, used))| *used);
        oldest.map(|(name, _)| name.clone())
    }
}
