//! A reactive prompt takes the lanes from a proactive one, at the next kernel boundary (§4.4).

use super::{
    Card, Class, Counted, Proposal, Question, Rule, RuleCard, Verdict, View, is_agent_xpu,
};

pub(crate) const CARD: Card = Card {
    name: "kernel-level preemption (4.4)",
    is_on: |policy| is_agent_xpu(policy) && policy.prefill.preempt,
    remove: |policy| policy.prefill.preempt = false,
    rule: Some(RuleCard {
        about: &[Question::Preemption],
        counts: Counted::ByTheScheduler,
        hold: None,
        rule: |policy| {
            let preempts = policy.prefill.preempt;
            preempts.then(|| Box::new(Preemption) as Box<dyn Rule>)
        },
    }),
};

#[derive(Debug)]
struct Preemption;

impl Rule for Preemption {
    fn judge(&self, _: &dyn View, proposal: Proposal<'_>) -> Verdict {
        let Proposal::Preemption { next, current } = proposal else {
            return Verdict::Pass;
        };
        let classes = (next.class(), current.class());
        Verdict::go_if(classes == (Class::Reactive, Class::Proactive))
    }
}
