//! Kernels run side by side within the machine's power budget (v1 6.2): one alone may always run, and an unknown
//! power counts as zero.

use super::{Card, Counted, HoldCard, Lane, Proposal, Question, Rule, RuleCard, Verdict, View};
use crate::costs::WorkStage;

pub(crate) const CARD: Card = Card {
    name: "power budget (v1 6.2)",
    is_on: |policy| policy.limits.power_watts_max.is_some(),
    remove: |policy| policy.limits.power_watts_max = None,
    rule: Some(RuleCard {
        about: &[Question::Start],
        counts: Counted::WhenItHolds,
        hold: Some(HoldCard {
            word: "power",
            explanation: "waiting for the power budget (limits.power_watts_max)",
            holds_up_others: true,
        }),
        rule: |policy| {
            let budget_watts = f64::from(policy.limits.power_watts_max?);
            Some(Box::new(Power { budget_watts }))
        },
    }),
};

#[derive(Debug)]
struct Power {
    budget_watts: f64,
}

impl Rule for Power {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        let watts = |lane: Lane, stage| view.watts(lane, stage).unwrap_or(0.0);
        let (own, stage) = match proposal {
            Proposal::Prompt { lane, .. } => (lane, WorkStage::Prefill),
            Proposal::Iteration { lane, .. } => (lane, WorkStage::Decode),
            _ => return Verdict::Pass,
        };
        // The launch that runs on the lane itself gives way.
        let others = Lane::ALL.into_iter().filter(|lane| *lane != own);
        let running = others.filter_map(|lane| Some((lane, view.lanes().running(lane)?)));
        let drawn: f64 = running
            .map(|(lane, it)| watts(lane, WorkStage::of(&it.work)))
            .sum();
        Verdict::wait_if(drawn > 0.0 && drawn + watts(own, stage) > self.budget_watts)
    }

    fn excludes(&self) -> bool {
        true
    }
}
