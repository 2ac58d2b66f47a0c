//! Kept state: the KV cache of prompts in pages on disk, so that no later process computes it again.
//!
//! A page holds the keys and values of [`PAGE_TOKENS`] tokens in a file of its own. [`PageHead`] says which: those of a
//! model in one form of arithmetic, of an owner, of these tokens behind these earlier pages. The file's name is a keyed
//! hash of the head, so a page is found without a list, and its name says nothing to whoever lacks the folder's
//! [`Secret`]. [`StateFolder`] finds, reads, writes and gives up pages of a folder through [`Disk`].
//!
//! **Invariants**
//! - A page is used only if its head is, byte for byte, the head that was asked for, and its seal is right.
//! - Whatever happens to files, folder, clock or process: a page is right, or it is a [`Miss`] with its reason.
//! - All pages of a folder, and those that are being written, take at most the budget.

mod disk;
mod error;
mod folder;
mod keep;
mod listing;
mod page;
mod public;
mod reading;
mod secret;

pub use disk::{Disk, DiskFile, FolderDisk, LEFTOVER, Lock};
pub use error::{Miss, StateError};
pub use folder::{KeptLimits, KeptPrefix, StateFolder};
pub use keep::{KeepEnd, Keeping};
pub use listing::{ListedPage, ListedPrefix, Listing, Purge};
pub use page::{HEAD_BYTES, PAGE_TOKENS, PageError, PageHead, StateModel};
pub use public::{public_heads, public_page, public_payload, read_pages};
pub use reading::PageRoom;
pub use secret::{OwnerTag, PageName, Secret, StateOwner};
