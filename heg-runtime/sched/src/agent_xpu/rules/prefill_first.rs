//! Kernels of prompts go before decoding on the iGPU, at the next layer of an iteration that runs (§4.3), unless a rule
//! before this one says otherwise. Without this rule decoding goes first.

use super::{Card, Counted, Proposal, Question, Rule, RuleCard, Verdict, View};

/// It counts when an iteration gives way.
pub(crate) const CARD: Card = Card {
    name: "prefill first on the iGPU (4.3)",
    is_on: |policy| policy.decode.prefill_first,
    remove: |policy| policy.decode.prefill_first = false,
    rule: Some(RuleCard {
        about: &[Question::Precedence],
        counts: Counted::ByTheScheduler,
        hold: None,
        rule: |policy| {
            let first = policy.decode.prefill_first;
            first.then(|| Box::new(PrefillFirst) as Box<dyn Rule>)
        },
    }),
};

#[derive(Debug)]
struct PrefillFirst;

impl Rule for PrefillFirst {
    fn judge(&self, _: &dyn View, _: Proposal<'_>) -> Verdict {
        Verdict::Go
    }
}
