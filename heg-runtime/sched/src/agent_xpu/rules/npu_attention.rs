//! The NPU takes attention where a static kernel, compiled for the request while it waited, ends earlier (§4.3).

use heg_spec::policy::NpuAttention;

use super::{Card, Counted, Proposal, Question, Rule, RuleCard, Verdict, View};

pub(crate) const CARD: Card = Card {
    name: "NPU attention on the fly (4.3)",
    is_on: |policy| policy.prefill.attention != NpuAttention::Off,
    remove: |policy| policy.prefill.attention = NpuAttention::Off,
    rule: Some(RuleCard {
        about: &[Question::Attention],
        counts: Counted::ByTheScheduler,
        hold: None,
        rule: |policy| match policy.prefill.attention {
            NpuAttention::Off => None,
            NpuAttention::WarmUp => Some(Box::new(CompiledAttention)),
        },
    }),
};

#[derive(Debug)]
struct CompiledAttention;

impl Rule for CompiledAttention {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        let Proposal::Attention { segment } = proposal else {
            return Verdict::Pass;
        };
        view.warm_cost(segment).map_or(Verdict::Pass, Verdict::At)
    }
}
