//! Compiles the form of a request's answers off the event loop.

use std::sync::Arc;
use std::time::Instant;

use heg_confine::Wait;

use super::State;
use super::account::Scope;
use super::error::Result;
use super::preparation::Effort;
use super::served::ServedModel;
use super::tools::{AnswerConstraint, AskedForm};

/// Returns the constraints on `count` answers. A form is compiled once for all of them, unless it is cached.
///
/// # Errors
/// `Deadline`, if the deadline passes first; those of forms that cannot be compiled.
pub(super) async fn constraints(
    state: &Arc<State>,
    served: &Arc<ServedModel>,
    scope: Scope,
    form: Option<Box<AskedForm>>,
    count: usize,
    deadline: Option<Instant>,
) -> Result<Vec<AnswerConstraint>> {
    let Some(form) = form else {
        return Ok((0..count).map(|_| AnswerConstraint::default()).collect());
    };
    let effort = match form.is_known {
        true => Effort::Small,
        false => Effort::Form,
    };
    let served = Arc::clone(served);
    let hold = move |wait: Wait<'_>| served.hold(scope, &form, count, wait);
    state
        .preparation
        .run_until(scope, effort, deadline, hold)
        .await
}
