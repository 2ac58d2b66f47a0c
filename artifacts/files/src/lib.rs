//! Files and folders on a machine with other users.
//!
//! [`Owners`] checks whether anyone but the rightful owners can change a place, [`OwnFolder`] is a folder that has
//! passed this check, and [`TempFile`] is a file that is either complete or absent. Code that runs or trusts files in a
//! folder takes an [`OwnFolder`], or checks [`Owners`] first. The content of the files is the concern of other crates.

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
pub use temp::{TempFile, create_own, remove_stale, write_own, write_whole};
