//! Reactive answers that have just begun go before a long reactive prompt, where one lane runs all kernels
//! (`decode.young_answers_first`). An answer is ahead for at most a part of its own length, since it grows older.

use super::ending_first::{reactive_answers, time_of_tokens, waiting_prompt};
use super::{Card, Counted, Proposal, Question, Rule, RuleCard, Verdict, View, is_agent_xpu};

pub(crate) const CARD: Card = Card {
    name: "young answers first on one device",
    is_on: |policy| is_agent_xpu(policy) && policy.decode.young_answers_first.is_some(),
    remove: |policy| policy.decode.young_answers_first = None,
    rule: Some(RuleCard {
        about: &[Question::Precedence],
        counts: Counted::WhenItHolds,
        hold: None,
        rule: |policy| {
            // If prompts are not first, answers are.
            let times = policy.decode.young_answers_first?;
            let matters = policy.decode.prefill_first;
            matters.then(|| Box::new(YoungFirst { times }) as Box<dyn Rule>)
        },
    }),
};

#[derive(Debug)]
struct YoungFirst {
    /// Length of a prompt that waits, in multiples of an answer's time so far.
    times: f64,
}

impl Rule for YoungFirst {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        let (Proposal::Turn { lane } | Proposal::Interruption { lane }) = proposal else {
            return Verdict::Pass;
        };
        let goes_before = || {
            let prompt = waiting_prompt(view, lane)?;
            let answers = reactive_answers(view, prompt);
            let youngest = answers.min_by_key(|it| (it.generated, it.id()))?;
            let youngest_us = time_of_tokens(view, lane, youngest, youngest.generated)?;
            Some(view.left_us(prompt) > self.times * youngest_us)
        };
        Verdict::wait_if(goes_before().unwrap_or(false))
    }
}
