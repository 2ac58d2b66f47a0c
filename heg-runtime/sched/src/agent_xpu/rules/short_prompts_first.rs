//! A short reactive prompt takes the lanes from a longer one of its client (`prefill.short_prompts_first`), if that
//! preempts at all (`prefill.preempt`). In the queue their ranks order them (`forecast::rank`).
//!
//! Only one of a client's reactive prompts is preempted by a shorter one at a time: with the one in progress and the
//! one aside, at most three have activations.

use super::{
    Card, Class, Counted, Entry, Phase, Proposal, Question, Rule, RuleCard, Verdict, View,
    is_agent_xpu,
};
use crate::forecast::rank;

pub(crate) const CARD: Card = Card {
    name: "short reactive prompts first",
    is_on: |policy| is_agent_xpu(policy) && policy.prefill.short_prompts_first.is_some(),
    remove: |policy| policy.prefill.short_prompts_first = None,
    rule: Some(RuleCard {
        about: &[Question::Preemption],
        counts: Counted::ByTheScheduler,
        hold: None,
        rule: |policy| {
            let times = policy.prefill.short_prompts_first?;
            let preempts = policy.prefill.preempt;
            preempts.then(|| Box::new(ShortPromptsFirst { times }) as Box<dyn Rule>)
        },
    }),
};

#[derive(Debug)]
struct ShortPromptsFirst {
    /// Weight of a prompt's remaining time against the time since which it waits.
    times: f64,
}

impl Rule for ShortPromptsFirst {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        let Proposal::Preemption { next, current } = proposal else {
            return Verdict::Pass;
        };
        let both_reactive = [next, current].map(Entry::class) == [Class::Reactive; 2];
        let goes = both_reactive
            && next.client() == current.client()
            && current.ending.is_none()
            && !has_preempted(view, current)
            && next.own.rank() < rank(self.times, current.waits_since, view.left_us(current));
        Verdict::go_if(goes)
    }
}

/// Whether a prompt of the same client has begun and waits.
fn has_preempted(view: &dyn View, current: &Entry) -> bool {
    let waiting = view.prefills().queue(Class::Reactive).iter();
    let mut waiting = waiting.filter_map(|id| view.ledger().get(*id));
    waiting.any(|other| {
        !matches!(other.own.phase(), Phase::Queued) && other.client() == current.client()
    })
}
