//! The NPU takes attention where it has a static kernel that ends earlier (§4.3): one compiled for the request while
//! it waits, or one of the bundle's.

use heg_spec::policy::NpuAttention;

use super::{Card, Counted, Lane, Proposal, Question, Rule, RuleCard, Verdict, View};

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
            NpuAttention::WarmUp => Some(Box::new(Kernels::Compiled)),
            NpuAttention::Bundle => Some(Box::new(Kernels::Bundled)),
        },
    }),
};

/// The static attention kernels of the NPU.
#[derive(Debug)]
enum Kernels {
    Compiled,
    Bundled,
}

impl Rule for Kernels {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        let Proposal::Attention { segment, call } = proposal else {
            return Verdict::Pass;
        };
        let cost = match self {
            Self::Compiled => view.warm_cost(segment),
            Self::Bundled => view.cost(Lane::Npu, call),
        };
        cost.map_or(Verdict::Pass, Verdict::At)
    }
}
