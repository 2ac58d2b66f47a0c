//! Memory pressure decides whether a kernel starts beside running ones (v1 6.4, Algorithm 1).

use heg_spec::policy::Pressure;

use super::{
    Card, Class, Counted, HoldCard, Lane, Proposal, Question, Rule, RuleCard, Verdict, View,
};

pub(crate) const CARD: Card = Card {
    name: "memory pressure tiers (v1 6.4)",
    is_on: |policy| policy.pressure.is_some(),
    remove: |policy| policy.pressure = None,
    rule: Some(RuleCard {
        about: &[Question::Start],
        counts: Counted::WhenItHolds,
        hold: Some(HoldCard {
            word: "pressure",
            explanation: "held back by memory pressure (pressure)",
            holds_up_others: true,
        }),
        rule: |policy| Some(Box::new(Tiers(policy.pressure?))),
    }),
};

#[derive(Debug)]
struct Tiers(Pressure);

impl Rule for Tiers {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        let (cost, class) = match proposal {
            Proposal::Prompt { entry, cost, .. } => (cost, entry.class()),
            Proposal::Iteration { cost, class, .. } => (cost, class),
            _ => return Verdict::Pass,
        };
        let Self(tiers) = self;
        let current = view.lanes().pressure();
        if current == 0.0 {
            return Verdict::Pass;
        }
        if current + cost.bandwidth > tiers.high {
            return Verdict::Wait;
        }
        let both_memory_bound = || {
            let mut running = Lane::ALL
                .into_iter()
                .filter_map(|lane| view.lanes().running(lane));
            cost.bandwidth >= tiers.medium
                && running.any(|running| running.cost.bandwidth >= tiers.medium)
        };
        let proactive = class == Class::Proactive;
        Verdict::wait_if(proactive && current >= tiers.medium && both_memory_bound())
    }

    fn excludes(&self) -> bool {
        true
    }
}
