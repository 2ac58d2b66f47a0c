//! The iGPU rests after each launch, so that it works for only a share of the time and graphics has it meanwhile
//! (4.1).

use std::cell::Cell;

use super::{
    Card, Counted, HoldCard, Lane, Micros, Proposal, Question, Rule, RuleCard, Running, Verdict,
    View,
};

pub(crate) const CARD: Card = Card {
    name: "bounded use of the iGPU (4.1)",
    is_on: |policy| policy.limits.igpu_percent_max.is_some(),
    remove: |policy| policy.limits.igpu_percent_max = None,
    rule: Some(RuleCard {
        about: &[Question::Start],
        counts: Counted::WhenItHolds,
        hold: Some(HoldCard {
            word: "graphics",
            explanation: "waiting for the iGPU, which rests for graphics (limits.igpu_percent_max)",
            holds_up_others: true,
        }),
        rule: |policy| {
            let percent_max = u64::from(policy.limits.igpu_percent_max?.max(1));
            Some(Box::new(Graphics {
                percent_max,
                rests_until: Cell::new(Micros(0)),
            }))
        },
    }),
};

#[derive(Debug)]
struct Graphics {
    /// Greatest share of time in which the iGPU works.
    percent_max: u64,
    /// The time until which the iGPU rests.
    rests_until: Cell<Micros>,
}

impl Rule for Graphics {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        let (Proposal::Prompt { lane, .. } | Proposal::Iteration { lane, .. }) = proposal else {
            return Verdict::Pass;
        };
        Verdict::wait_if(lane == Lane::Igpu && view.now() < self.rests_until.get())
    }

    fn opens_at(&self, view: &dyn View) -> Option<Micros> {
        Some(self.rests_until.get()).filter(|until| *until > view.now())
    }

    fn started(&self, now: Micros, lane: Lane, launch: &Running) {
        if lane == Lane::Igpu {
            let latency = launch.ends.since(now);
            let rests_until = now + Micros(latency.0.saturating_mul(100) / self.percent_max);
            self.rests_until.set(rests_until);
        }
    }
}
