//! The results of a completed launch: tokens for its requests, and the drafts of the next tokens.

use super::Simulation;
use heg_sched::{Costs, Given, RequestId, Work};

/// The results of a launch.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Requests that got their last token.
    pub(super) ended: Vec<RequestId>,
    /// Each request's tokens and its next draft, if drafts are simulated.
    pub(super) given: Vec<Given>,
}

impl<C: Costs> Simulation<'_, C> {
    /// Returns the results of `work`; `through` says whether a decode run has completed its last layer.
    pub(super) fn outcome(&mut self, work: &Work, through: bool) -> Outcome {
        let mut outcome = Outcome::default();
        for id in self.meter.receivers(work, through) {
            let Some((generated, left)) = self.meter.answer(id) else {
                continue;
            };
            let member = work.decoding(id);
            let mut tokens = 1;
            if let Some(drafts) = &self.machine.drafts {
                let fed = member.map_or(0, |member| member.drafted);
                let accepted = drafts.after(id, generated).accepted.min(fed);
                // The answer's last token may be within the draft.
                tokens = (1 + accepted).min(left.max(1));
                outcome.given.push(Given {
                    request: id,
                    tokens,
                    draft: drafts.after(id, generated + tokens).reach,
                });
            }
            if let Some(member) = member {
                self.meter.decoded(member, tokens);
            }
            if left <= tokens {
                outcome.ended.push(id);
            }
        }
        outcome
    }
}
