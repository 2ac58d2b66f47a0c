//! A second reactive prompt has the iGPU while the NPU has the first
//! (`prefill.short_prompts_aside`, `prefill.long_prompts_aside_ms`).
//!
//! Prompts of a class run one by one, since each uses a device fully; but a prompt shorter than a chunk belongs to
//! the iGPU anyway, and one of several chunks can run on the NPU alone meanwhile. Two long prompts have a device
//! each: together they take as long as one after the other on both, and neither device idles.

use heg_spec::Policy;

use super::{
    Card, Counted, Entry, Micros, Proposal, Question, Rule, RuleCard, Slot, Verdict, View,
    is_agent_xpu,
};

/// Prompts shorter than a chunk.
pub(crate) const SHORT: Card = Card {
    name: "short reactive prompts aside",
    is_on: |policy| is_agent_xpu(policy) && policy.prefill.short_prompts_aside,
    remove: |policy| policy.prefill.short_prompts_aside = false,
    rule: Some(RuleCard {
        about: &[Question::Aside, Question::Place],
        counts: Counted::ByTheScheduler,
        hold: None,
        rule: |policy| {
            let has = policy.prefill.short_prompts_aside;
            has.then(|| Box::new(Aside::of(policy, Length::Short)) as Box<dyn Rule>)
        },
    }),
};

/// Prompts of any other length.
pub(crate) const LONG: Card = Card {
    name: "long reactive prompts aside",
    is_on: |policy| is_agent_xpu(policy) && policy.prefill.long_prompts_aside_ms.is_some(),
    remove: |policy| policy.prefill.long_prompts_aside_ms = None,
    rule: Some(RuleCard {
        about: &[Question::Aside, Question::Place],
        counts: Counted::ByTheScheduler,
        hold: None,
        rule: |policy| {
            let has = policy.prefill.long_prompts_aside_ms.is_some();
            has.then(|| Box::new(Aside::of(policy, Length::Long)) as Box<dyn Rule>)
        },
    }),
};

/// The length of a prompt's new part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    /// Less than a chunk.
    Short,
    /// A chunk or more.
    Long,
}

#[derive(Debug)]
struct Aside {
    /// The prompts that may run aside.
    length: Length,
    /// Time for which a prompt aside may keep a reactive answer from its next token.
    patience: Micros,
    /// The same for an overdue answer.
    overdue_patience: Micros,
}

impl Rule for Aside {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        match proposal {
            Proposal::Loan => match self.somebody_waits(view) {
                true => Verdict::Wait,
                false => Verdict::Go,
            },
            Proposal::Aside { entry } => Verdict::go_if(length(view, entry) == self.length),
            Proposal::Place { entry, prefill, .. }
                if view.prefills().holds(Slot::Aside, entry.id()) =>
            {
                // A short one keeps the lane: it ends soon anyway.
                match prefill.chunks() > 0 && self.somebody_waits(view) {
                    true => Verdict::OnNpu,
                    false => Verdict::OnDynamicLane,
                }
            }
            _ => Verdict::Pass,
        }
    }
}

impl Aside {
    fn of(policy: &Policy, length: Length) -> Self {
        let prefill = &policy.prefill;
        Self {
            length,
            patience: Micros::from_millis(prefill.long_prompts_aside_ms.unwrap_or(0)),
            overdue_patience: Micros::from_millis(prefill.split_beside_proactive_ms.unwrap_or(0)),
        }
    }

    fn somebody_waits(&self, view: &dyn View) -> bool {
        view.decodes_for_somebody(self.patience, self.overdue_patience)
    }
}

fn length(view: &dyn View, entry: &Entry) -> Length {
    let is_short = match entry.prefill() {
        Some(prefill) => prefill.chunks() == 0,
        None => {
            let shared = entry.submission.known_tokens();
            entry.prompt_tokens.saturating_sub(shared) < view.model().chunk_tokens
        }
    };
    match is_short {
        true => Length::Short,
        false => Length::Long,
    }
}
