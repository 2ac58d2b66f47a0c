//! A Vulkan layer that injects faults between the GPU role and a driver. It is for tests, and nothing ships it.
//!
//! A test writes a [`VkPlan`] to a file and starts a process with the environment that [`Installed`] gives: the loader then
//! opens this library and leads every call of the process through it. The plan is read whenever a device is made, so a
//! process that opens one device after the other has a plan for each. What happens is appended to another file, which
//! [`VkEntry::read`] reads: each fault at once, and at the end of a device what it was asked for and what was left on it.
//!
//! No fault is a mock's: the calls that are not refused reach the driver, and what is damaged are the driver's results.

mod install;
mod layer;
mod plan;
mod record;

pub use install::Installed;
pub use plan::{PretendedKind, VkFault, VkPlan, VkPlanError, VkRule};
pub use record::{VkCounts, VkEntry};
