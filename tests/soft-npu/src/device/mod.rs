//! The device: command lists, and one thread that runs what queues are given, the most urgent first.

mod completion;
mod event;
mod fence;
mod job;
mod list;
mod queue;
mod worker;

pub(crate) use event::{EVENTS, Event, EventState};
pub(crate) use fence::{FENCES, Fence};
pub(crate) use job::Command;
pub(crate) use list::{COMMAND_LISTS, CommandList};
pub(crate) use queue::{Priority, QUEUES, Queue};
