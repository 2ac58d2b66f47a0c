//! The differences between operating systems: how a process gets its work, how it is limited, and how it is ended.

#[cfg(any(windows, test))]
mod line;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::work;
#[cfg(unix)]
pub(crate) use unix::{Collar, Control, FORMS_KEPT, Frames, Live, limits, this_program};
#[cfg(windows)]
pub use windows::work;
#[cfg(windows)]
pub(crate) use windows::{Collar, Control, FORMS_KEPT, Frames, Live, limits, this_program};
