//! A folder of kept state: opening it, finding the longest kept prefix of a prompt, and reading its pages.

use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use heg_files::OwnFolder;

use crate::disk::{Disk, FolderDisk, Lock};
use crate::error::{Miss, StateError};
use crate::keep::Stock;
use crate::page::{HEAD_BYTES, HeldTokens, PAGE_TOKENS, PageHead, StateModel};
use crate::public::read_pages;
use crate::reading::{PageRoom, Wanted};
use crate::secret::{PageName, Secret, StateOwner};

/// A folder of pages, with its secret and limits. Any number of threads and processes may use one folder.
pub struct StateFolder {
    pub(crate) disk: Box<dyn Disk>,
    pub(crate) secret: Secret,
    pub(crate) limits: KeptLimits,
}

/// Limits of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptLimits {
    /// Bytes of all pages, those included that are being written.
    pub budget_bytes: u64,
    /// Time after its last use when a page goes.
    pub age_max: Duration,
}

impl KeptLimits {
    /// No limits, to look at a folder without changing it.
    pub const NONE: Self = Self {
        budget_bytes: u64::MAX,
        age_max: Duration::MAX,
    };

    /// Limits of a budget in MiB.
    pub fn of_mib(mib: u32) -> Self {
        Self {
            budget_bytes: u64::from(mib) << 20,
            age_max: AGE_MAX,
        }
    }
}

/// The leading pages of a prompt that a folder has, by their heads. Their content is checked when it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptPrefix {
    pages: Vec<(PageName, PageHead)>,
}

impl KeptPrefix {
    /// Tokens of all its pages.
    pub fn tokens(&self) -> usize {
        self.pages.len() * PAGE_TOKENS
    }
}

impl StateFolder {
    /// Opens the folder at `path`, which is created if it is missing, and gives up what exceeds the limits.
    ///
    /// # Errors
    ///
    /// [`StateError::Folder`] if other users could change it, [`StateError::Io`], [`StateError::Busy`].
    pub fn open(path: &Path, limits: KeptLimits) -> Result<Self, StateError> {
        Self::on(Box::new(FolderDisk::new(OwnFolder::create(path)?)), limits)
    }

    /// Opens the folder on a disk.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn on(disk: Box<dyn Disk>, limits: KeptLimits) -> Result<Self, StateError> {
        let lock = wait_for_lock(&*disk)?;
        disk.remove_leftovers()?;
        let secret = match disk.read(KEY, Secret::BYTES + 1)?.map(<[u8; 32]>::try_from) {
            Some(Ok(known)) => Secret::new(&known),
            // None, or one that was never whole: no page can be found without it.
            None | Some(Err(_)) => {
                let mut random = [0; Secret::BYTES];
                getrandom::fill(&mut random).map_err(std::io::Error::other)?;
                disk.write(KEY, &[&random], disk.now())?;
                Secret::new(&random)
            }
        };
        let folder = Self {
            disk,
            secret,
            limits,
        };
        Stock::take(&folder, &lock)?.trim(&folder)?;
        Ok(folder)
    }

    /// Limits of the folder.
    pub fn limits(&self) -> KeptLimits {
        self.limits
    }

    /// Returns the pages that a prompt of these tokens has, each behind the one before it.
    pub(crate) fn chain<'a>(
        &'a self,
        model: &'a StateModel,
        owner: StateOwner,
        tokens: &'a [u32],
    ) -> impl Iterator<Item = (PageName, PageHead)> + 'a {
        let owner = self.secret.owner(owner);
        let mut before = [0; 32];
        let whole = tokens.chunks_exact(PAGE_TOKENS);
        let pages = whole.filter_map(HeldTokens::new);
        (0..).zip(pages).map(move |(index, tokens)| {
            let head = PageHead {
                model: *model,
                owner,
                before,
                index,
                tokens,
            };
            before = self.secret.link(&head);
            (PageName::new(&owner, &before), head)
        })
    }

    /// Finds the longest prefix of a prompt that the folder has for an owner, and why it ends if that is not for want
    /// of a page. Only heads are read. A page whose head is another is removed.
    pub fn find(
        &self,
        model: &StateModel,
        owner: StateOwner,
        tokens: &[u32],
    ) -> (KeptPrefix, Option<Miss>) {
        let mut pages = Vec::new();
        for (name, head) in self.chain(model, owner, tokens) {
            match self.has(&name, &head) {
                Ok(true) => pages.push((name, head)),
                Ok(false) => break,
                Err(miss) => {
                    self.remove_if_damaged(&name, &miss);
                    return (KeptPrefix { pages }, Some(miss));
                }
            }
        }
        (KeptPrefix { pages }, None)
    }

    fn has(&self, name: &PageName, head: &PageHead) -> Result<bool, Miss> {
        let index = head.index;
        let read = self.disk.read(name.as_str(), HEAD_BYTES);
        let Some(bytes) = read.map_err(|source| Miss::Unread { index, source })? else {
            return Ok(false);
        };
        match PageHead::parse(&bytes) {
            Ok((found, _)) if found == *head => Ok(true),
            Ok(_) => Err(Miss::Other { index }),
            Err(source) => Err(Miss::Damaged { index, source }),
        }
    }

    /// Makes room for a good page of the name of one that is damaged: the next writer writes it again.
    fn remove_if_damaged(&self, name: &PageName, miss: &Miss) {
        if miss.is_damage() {
            let _ = self.disk.remove(name.as_str());
        }
    }

    /// Reads the pages that hold the first `tokens` tokens of a prefix into a room, on several threads. A damaged page is
    /// removed.
    ///
    /// # Errors
    ///
    /// The first [`Miss`]; the room may have some pages then, and some that are wrong.
    pub fn read(
        &self,
        prefix: &KeptPrefix,
        tokens: usize,
        room: &dyn PageRoom,
    ) -> Result<(), Miss> {
        let wanted = tokens.div_ceil(PAGE_TOKENS).min(prefix.pages.len());
        let pages = prefix.pages.get(..wanted).unwrap_or_default();
        read_pages(wanted, &|at, memory| {
            let Some((name, head)) = pages.get(at) else {
                return Ok(());
            };
            let page = Wanted {
                disk: &*self.disk,
                secret: &self.secret,
                name,
                head,
                at,
            };
            let read = page.read_to(room, memory);
            read.inspect_err(|miss| self.remove_if_damaged(name, miss))
        })
    }

    /// Notes that a prefix was used, so that others go first. A failure costs only that.
    pub fn touch(&self, prefix: &KeptPrefix) {
        let now = self.disk.now();
        for (name, head) in &prefix.pages {
            let _ = self.disk.touch(name.as_str(), used_at(now, head.index));
        }
    }
}

/// The time of use of a page: later pages of a prompt count as a little older, so that they go before those that they
/// are of no use without.
pub(crate) fn used_at(now: SystemTime, index: u64) -> SystemTime {
    now.checked_sub(Duration::from_micros(index)).unwrap_or(now)
}

/// Locks a folder; waits for a writer that has it.
pub(crate) fn wait_for_lock(disk: &dyn Disk) -> Result<Lock, StateError> {
    for _ in 0..LOCK_ATTEMPTS {
        if let Some(lock) = disk.lock()? {
            return Ok(lock);
        }
        thread::sleep(LOCK_PAUSE);
    }
    Err(StateError::Busy)
}

/// The file with a folder's random bytes.
pub(crate) const KEY: &str = "heg-state.key";

/// Attempts to lock a folder, with a pause after each: two seconds, longer than writing a long prompt takes.
const LOCK_ATTEMPTS: usize = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Age at which pages go. Chosen: a month in which nobody asked the like.
const AGE_MAX: Duration = Duration::from_hours(30 * 24);
