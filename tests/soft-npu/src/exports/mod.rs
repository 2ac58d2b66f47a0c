//! The functions of Level Zero that the plugin looks up by name. `tests/soft-npu/plugin-symbols.txt` lists those that
//! it cannot do without.
//!
//! A caller's pointers are those that Level Zero's specification asks for: null, or aligned and of the structure that
//! the function names, alone for the call. Handles are looked up, so that they need no promise.

mod absent;
mod device;
mod driver;
mod fence;
pub(crate) mod list;
mod loader;
mod memory;
mod queue;

pub(crate) use driver::extension_address;

use crate::abi::Handle;
use std::ptr;

// Handles of what there is one of; never followed.
const DRIVER: Handle = ptr::without_provenance_mut(0x1000);
const DEVICE: Handle = ptr::without_provenance_mut(0x2000);
const CONTEXT: Handle = ptr::without_provenance_mut(0x3000);
