//! An overdue proactive prompt has the lane of dynamic kernels while a reactive one has the NPU, and takes turns there
//! with reactive decoding (§4.5).
//!
//! An overdue request has a place in every iteration. Its prompt then has the iGPU too, unless the policy counts
//! from the prompt's turn (`ageing.prompts_from`): then it has the iGPU once it has waited as long since no other
//! proactive prompt is before it. The time that reactive prompts lose then helps the prompts that they hold up, and
//! not those that wait for each other.

use heg_spec::policy::AgeingStart;

use super::{
    Card, Counted, Lane, Micros, Proposal, Question, Rule, RuleCard, Slot, Verdict, View,
    is_agent_xpu,
};

/// Ageing. It counts when a request becomes overdue.
pub(crate) const CARD: Card = Card {
    name: "ageing (4.5)",
    is_on: |policy| is_agent_xpu(policy) && policy.ageing.is_some(),
    remove: |policy| policy.ageing = None,
    rule: Some(RuleCard {
        about: &[Question::Promotion, Question::Place, Question::Precedence],
        counts: Counted::ByTheScheduler,
        hold: None,
        rule: |policy| {
            policy.ageing?;
            Some(Box::new(Ageing {
                has_share: policy.decode.proactive_share.is_some(),
            }))
        },
    }),
};

/// Ageing of prompts from their turn on.
pub(crate) const FROM_TURN: Card = Card {
    name: "ageing of prompts from their turn on",
    is_on: |policy| {
        let from = policy.ageing.map(|ageing| ageing.prompts_from);
        is_agent_xpu(policy) && from == Some(AgeingStart::Turn)
    },
    remove: |policy| {
        if let Some(ageing) = &mut policy.ageing {
            ageing.prompts_from = AgeingStart::Arrival;
        }
    },
    rule: Some(RuleCard {
        about: &[Question::Promotion],
        counts: Counted::WhenItHolds,
        hold: None,
        rule: |policy| {
            let ageing = policy.ageing?;
            let from_turn = ageing.prompts_from == AgeingStart::Turn;
            from_turn.then(|| {
                Box::new(FromTurn {
                    threshold: Micros::from_millis(ageing.threshold_ms),
                }) as Box<dyn Rule>
            })
        },
    }),
};

#[derive(Debug)]
struct Ageing {
    /// Whether proactive prompts have a share of the lane if there is no NPU; then no turns are needed.
    has_share: bool,
}

impl Rule for Ageing {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        match proposal {
            Proposal::Promotion { entry } => Verdict::go_if(entry.own.is_overdue()),
            Proposal::Place { entry, .. } => match view.prefills().holder(Slot::Overdue) {
                Some(id) if id == entry.id() => Verdict::OnDynamicLane,
                Some(_) => Verdict::OnNpu,
                None => Verdict::Pass,
            },
            Proposal::Turn { lane } => {
                Verdict::wait_if(self.takes_turns(view, lane) && view.turns().answers_are_next())
            }
            Proposal::Interruption { lane } => Verdict::wait_if(self.takes_turns(view, lane)),
            _ => Verdict::Pass,
        }
    }
}

impl Ageing {
    /// Whether the next prefill kernel of the lane is an overdue request's, beside reactive decoding: its whole
    /// prefill runs there, and would suspend the reactive execution if it went first each time.
    fn takes_turns(&self, view: &dyn View, lane: Lane) -> bool {
        let overdue = view.prefills().holder(Slot::Overdue);
        let shares = self.has_share && !view.lanes().is_present(Lane::Npu);
        overdue.is_some()
            && !shares
            && view.decodes_reactive()
            && view.next_prefill(lane).map(|next| next.id) == overdue
    }
}

#[derive(Debug)]
struct FromTurn {
    threshold: Micros,
}

impl Rule for FromTurn {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        let Proposal::Promotion { entry } = proposal else {
            return Verdict::Pass;
        };
        let turn = entry.own.turn();
        let has_waited = turn.is_some_and(|turn| view.now().since(turn) >= self.threshold);
        Verdict::wait_if(entry.own.is_overdue() && !has_waited)
    }
}
