//! Files and folders on a machine that others use too.
//!
//! [`Owners`] says whether a place can be changed by anyone but its rightful owners, [`OwnFolder`] is a folder that
//! has passed this, and [`TempFile`] is a file that is either complete or not there. Code that runs or believes what it
//! finds in a folder takes an [`OwnFolder`], or asks [`Owners`] first. What files hold is for other crates to say.

#![warn(missing_docs)]

mod error;
mod folder;
mod owners;
mod platform;
mod read;
mod temp;

pub use error::FileError;
pub use folder::OwnFolder;
pub use owners::Owners;
pub use read::open_regular;
pub use temp::{TempFile, remove_stale, write_own, write_whole};
