//! The next kernel of a prompt.

use crate::costs::Cost;
use crate::prefill::Step;
use crate::request::{Class, RequestId};

/// Work of a prompt that a lane may run now.
pub(crate) struct Next {
    pub(super) id: RequestId,
    pub(super) class: Class,
    pub(super) cost: Cost,
    /// Its place in the prompt; `None` for the head.
    pub(super) kernel: Option<Step>,
}
