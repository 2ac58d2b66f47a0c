//! The contents of a folder, for people, and emptying it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use crate::error::StateError;
use crate::folder::{StateFolder, wait_for_lock};
use crate::page::{HEAD_BYTES, PAGE_TOKENS, PageHead};
use crate::secret::PageName;

/// The pages of a folder.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// Pages by name.
    pub pages: Vec<ListedPage>,
    /// Files with the name of a page that are none, with the reason.
    pub damaged: Vec<(PageName, String)>,
    /// Bytes of all these files.
    pub bytes: u64,
}

/// A page in a folder.
#[derive(Debug, Clone)]
pub struct ListedPage {
    /// Name of its file.
    pub name: PageName,
    /// Its own head; the content is not checked.
    pub head: PageHead,
    /// Length of its file.
    pub bytes: u64,
    /// The time when it was last used.
    pub used: SystemTime,
}

/// A prefix in a folder: a page that no other continues, and those before it.
#[derive(Debug, Clone, Copy)]
pub struct ListedPrefix<'a> {
    /// Its last page.
    pub last: &'a ListedPage,
    /// Tokens of its pages.
    pub tokens: usize,
    /// Whether all pages before the last are there.
    pub is_whole: bool,
}

/// The pages to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purge {
    /// Every page.
    All,
    /// The pages of one bundle.
    Bundle([u8; 32]),
}

impl StateFolder {
    /// Returns the number and the bytes of all pages, without reading any.
    ///
    /// # Errors
    ///
    /// [`StateError::Io`].
    pub fn usage(&self) -> Result<(usize, u64), StateError> {
        let files = self.disk.list()?.into_iter();
        let pages = files.filter(|file| PageName::parse(&file.name).is_some());
        let add = |(pages, bytes), file: crate::disk::DiskFile| (pages + 1, bytes + file.bytes);
        Ok(pages.fold((0, 0), add))
    }

    /// Lists all pages of all owners and models.
    ///
    /// # Errors
    ///
    /// [`StateError::Io`].
    pub fn list(&self) -> Result<Listing, StateError> {
        let mut listing = Listing::default();
        for file in self.disk.list()? {
            let Some(name) = PageName::parse(&file.name) else {
                continue;
            };
            listing.bytes += file.bytes;
            let read = self.disk.read(name.as_str(), HEAD_BYTES);
            match read.map(|bytes| bytes.map(|bytes| PageHead::parse(&bytes))) {
                Ok(Some(Ok((head, _)))) => {
                    let (bytes, used) = (file.bytes, file.used);
                    let page = ListedPage {
                        name,
                        head,
                        bytes,
                        used,
                    };
                    listing.pages.push(page);
                }
                Ok(Some(Err(why))) => listing.damaged.push((name, why.to_string())),
                // Given up meanwhile.
                Ok(None) => listing.bytes -= file.bytes,
                Err(why) => listing.damaged.push((name, why.to_string())),
            }
        }
        listing.pages.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listing)
    }

    /// Removes pages. Returns their number and bytes.
    ///
    /// # Errors
    ///
    /// [`StateError::Busy`] if another process writes for long, [`StateError::Io`].
    pub fn purge(&self, what: Purge) -> Result<(u64, u64), StateError> {
        let _lock = wait_for_lock(&*self.disk)?;
        let listing = self.list()?;
        let is_wanted = |page: &&ListedPage| match what {
            Purge::All => true,
            Purge::Bundle(bundle) => page.head.model.bundle == bundle,
        };
        let pages = listing.pages.iter().filter(is_wanted);
        let mut wanted: Vec<(&PageName, u64)> =
            pages.map(|page| (&page.name, page.bytes)).collect();
        // Nobody can say whose a damaged page is.
        wanted.extend(listing.damaged.iter().map(|(name, _)| (name, 0)));
        for (name, _) in &wanted {
            self.disk.remove(name.as_str())?;
        }
        let bytes = wanted.iter().map(|(_, bytes)| bytes).sum();
        Ok((wanted.len() as u64, bytes))
    }
}

impl Listing {
    /// Returns the prefixes of all owners, the longest first.
    pub fn prefixes(&self) -> Vec<ListedPrefix<'_>> {
        let links = self.links();
        let befores: Vec<String> = self
            .pages
            .iter()
            .map(|page| page.head.before_link())
            .collect();
        let continued: BTreeSet<&str> = befores.iter().map(String::as_str).collect();
        let leaves = self
            .pages
            .iter()
            .filter(|page| !continued.contains(page.name.link()));
        let mut prefixes: Vec<ListedPrefix<'_>> = leaves
            .map(|last| ListedPrefix {
                last,
                tokens: usize::try_from(last.head.index)
                    .unwrap_or(usize::MAX)
                    .saturating_mul(PAGE_TOKENS)
                    .saturating_add(last.head.tokens().len()),
                is_whole: before(&links, last).last().unwrap_or(last).head.index == 0,
            })
            .collect();
        prefixes.sort_by(|a, b| b.tokens.cmp(&a.tokens).then(a.last.name.cmp(&b.last.name)));
        prefixes
    }
    /// Returns the pages of a prefix from the start, or from the first one that no gap is behind.
    pub fn pages_of(&self, prefix: &ListedPrefix<'_>) -> Vec<&ListedPage> {
        let own = self
            .pages
            .iter()
            .filter(|page| page.name == prefix.last.name);
        let mut pages: Vec<&ListedPage> = own.collect();
        if let Some(last) = pages.first().copied() {
            pages.extend(before(&self.links(), last));
        }
        pages.reverse();
        pages
    }

    /// All pages by the hash of their heads.
    fn links(&self) -> BTreeMap<&str, &ListedPage> {
        let pages = self.pages.iter();
        pages.map(|page| (page.name.link(), page)).collect()
    }
}

/// Returns the pages before a page, the nearest first.
fn before<'a>(
    links: &BTreeMap<&str, &'a ListedPage>,
    page: &'a ListedPage,
) -> impl Iterator<Item = &'a ListedPage> {
    let before = |page: &&'a ListedPage| {
        let found = links.get(page.head.before_link().as_str()).copied()?;
        // Heads whose numbers do not fit each other may form a circle.
        (found.head.index.checked_add(1) == Some(page.head.index)).then_some(found)
    };
    std::iter::successors(before(&page), before)
}
