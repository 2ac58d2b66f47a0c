//! Who watches a scheduler at work.

use crate::{Action, Event, Lane, Micros};

/// Watches the scheduler at work: for traces, pictures, checks.
pub trait Observer: Send {
    /// One step: what happened, and what is done about it. Called on the conductor's thread, which waits.
    fn stepped(&mut self, now: Micros, event: &Event, actions: &[Action]);

    /// A lane cannot be used any more. Requests go on without it, if they can.
    fn lost(&mut self, _lane: Lane, _why: &str) {}
}
