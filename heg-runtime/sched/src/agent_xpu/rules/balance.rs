//! NPU and iGPU share the chunks of a proactive prompt where decoding can wait, and the NPU takes its remainder where
//! somebody reads (v1 6.5).

use super::split::npu_share;
use super::{Card, Class, Counted, Proposal, Question, Rule, RuleCard, Slot, Verdict, View};

pub(crate) const CARD: Card = Card {
    name: "load balancing of proactive prompts (v1 6.5)",
    is_on: |policy| policy.prefill.balance,
    remove: |policy| policy.prefill.balance = false,
    rule: Some(RuleCard {
        about: &[Question::Place],
        counts: Counted::ByTheScheduler,
        hold: None,
        rule: |policy| {
            let balances = policy.prefill.balance;
            balances.then(|| Box::new(Balance) as Box<dyn Rule>)
        },
    }),
};

#[derive(Debug)]
struct Balance;

impl Rule for Balance {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        let Proposal::Place {
            entry,
            prefill,
            step,
        } = proposal
        else {
            return Verdict::Pass;
        };
        if entry.class() != Class::Proactive || !view.prefills().holds(Slot::Foreground, entry.id())
        {
            return Verdict::Pass;
        }
        if step.part >= prefill.chunks() {
            // The NPU pads it, and the iGPU has other work.
            return match view.decodes_reactive() {
                true => Verdict::OnNpu,
                false => Verdict::Pass,
            };
        }
        let splits = view.decode().is_idle() || prefill_lags(view);
        match splits && step.part >= npu_share(view, prefill) {
            true => Verdict::OnDynamicLane,
            false => Verdict::Pass,
        }
    }
}

/// Whether more proactive requests wait for their prefill than decode, and no reactive one decodes.
///
/// An iteration takes about as long for many requests as for one: decoding loses little when it waits for
/// more of them, and the prefill, on which all depend, goes on twice as fast (v1 6.5).
fn prefill_lags(view: &dyn View) -> bool {
    view.prefills().queue(Class::Proactive).len() > view.decode().len() && !view.decodes_reactive()
}
