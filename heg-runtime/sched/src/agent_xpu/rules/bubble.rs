//! A proactive prompt that fills a bubble beside a reactive one has to end before the bubble does (v1 6.3).

use super::{Lane, Micros, Proposal, Rule, RuleCard, Verdict, View};
use crate::mechanism::Card;
use crate::request::Class;

pub(crate) const CARD: Card = Card {
    name: "bubbles filled (v1 6.3)",
    is_on: |policy| policy.pressure.is_some_and(|tiers| tiers.duration_bound),
    remove: |policy| {
        if let Some(pressure) = &mut policy.pressure {
            pressure.duration_bound = false;
        }
    },
    rule: Some(RuleCard {
        word: "bubble",
        explanation: "waiting for a bubble to fit into (pressure.duration_bound)",
        holds_up_others: true,
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
        let Proposal::Prompt { entry, cost, .. } = proposal else {
            return Verdict::Start;
        };
        if !view.fills_bubbles(entry.id()) {
            return Verdict::Start;
        }
        let ends = view.now() + Micros::from_f64(cost.latency_us);
        let running = Lane::ALL.into_iter().filter_map(|lane| view.running(lane));
        let reactive = running.filter(|running| running.class == Class::Reactive);
        let until = reactive.map(|running| running.ends).max();
        Verdict::wait_if(until.is_none_or(|until| ends > until))
    }
}
