//! A proactive prompt fills bubbles of the NPU beside a reactive one; its kernels have to end before the bubble does
//! (v1 6.3).

use super::{
    Card, Class, Cost, Counted, HoldCard, Lane, Micros, Proposal, Question, Rule, RuleCard, Slot,
    Verdict, View,
};

pub(crate) const CARD: Card = Card {
    name: "bubbles filled (v1 6.3)",
    is_on: |policy| policy.pressure.is_some_and(|tiers| tiers.duration_bound),
    remove: |policy| {
        if let Some(pressure) = &mut policy.pressure {
            pressure.duration_bound = false;
        }
    },
    rule: Some(RuleCard {
        about: &[Question::Start, Question::Place, Question::Backfill],
        counts: Counted::WhenItHolds,
        hold: Some(HoldCard {
            word: "bubble",
            explanation: "waiting for a bubble to fit into (pressure.duration_bound)",
            holds_up_others: true,
        }),
        rule: |policy| {
            let bounds = policy.pressure?.duration_bound;
            bounds.then(|| Box::new(Bubble) as Box<dyn Rule>)
        },
    }),
};

#[derive(Debug)]
struct Bubble;

impl Rule for Bubble {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        let fills = |id| view.prefills().holds(Slot::Backfill, id);
        match proposal {
            Proposal::Backfill => Verdict::Go,
            Proposal::Place { entry, .. } if fills(entry.id()) => Verdict::OnNpu,
            Proposal::Prompt { entry, cost, .. } if fills(entry.id()) => {
                Verdict::wait_if(outlasts_reactive(view, cost))
            }
            _ => Verdict::Pass,
        }
    }
}

/// Whether a kernel that starts now ends after all reactive ones that run.
fn outlasts_reactive(view: &dyn View, cost: Cost) -> bool {
    let ends = view.now() + Micros::from_f64(cost.latency_us);
    let running = Lane::ALL
        .into_iter()
        .filter_map(|lane| view.lanes().running(lane));
    let reactive = running.filter(|running| running.class == Class::Reactive);
    let until = reactive.map(|running| running.ends).max();
    until.is_none_or(|until| ends > until)
}
