//! Turns between clients of one rank: a prompt takes the lanes from another client's that is due later, and answers
//! of a client that was served less come before its next kernel once prompts have had as much time as an iteration.
//!
//! No policy switches this: it acts whenever there is more than one client. `agent_xpu/client_turns.rs` has the order
//! of the queue and the bound on a first request's wait.

use std::cmp::Ordering;

use super::{Card, Counted, Entry, Lane, Proposal, Question, Rule, RuleCard, Verdict, View};

pub(crate) const CARD: Card = Card {
    name: "turns between clients",
    is_on: |_| false,
    remove: |_| {},
    rule: Some(RuleCard {
        about: &[Question::Precedence, Question::Preemption],
        counts: Counted::ByTheScheduler,
        hold: None,
        rule: |policy| {
            Some(Box::new(ClientTurns {
                preempts: policy.prefill.preempt,
                prefill_first: policy.decode.prefill_first,
            }))
        },
    }),
};

#[derive(Debug)]
struct ClientTurns {
    /// Whether a prompt takes the lanes from another one at all.
    preempts: bool,
    /// Whether prompts go before answers unless a rule says otherwise.
    prefill_first: bool,
}

impl Rule for ClientTurns {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        match proposal {
            Proposal::Turn { lane } if self.prefill_first => {
                Verdict::wait_if(would_hold_up_client(view, lane))
            }
            Proposal::Interruption { lane } => Verdict::wait_if(would_hold_up_client(view, lane)),
            Proposal::Preemption { next, current } if self.preempts => {
                let of_one_rank =
                    current.client() != next.client() && current.class() == next.class();
                let goes = of_one_rank
                    && current.ending.is_none()
                    && Due::of(view, next).compare(Due::of(view, current)).is_lt();
                Verdict::go_if(goes)
            }
            _ => Verdict::Pass,
        }
    }
}

/// The due time of a prompt, which orders prompts of different clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Due {
    /// Time that the client was served, plus the prompt's rest, in µs.
    time_us: f64,
    /// Place in the order of arrival.
    order: u64,
}

impl Due {
    pub(crate) fn of(view: &dyn View, entry: &Entry) -> Self {
        let clients = view.ledger().clients();
        let served_us = clients.served_us(entry.client(), entry.class());
        Self {
            time_us: served_us + view.left_us(entry),
            order: entry.order,
        }
    }

    /// Compares by time, and by arrival at the same time.
    pub(crate) fn compare(self, other: Self) -> Ordering {
        let by_time = self.time_us.total_cmp(&other.time_us);
        by_time.then(self.order.cmp(&other.order))
    }
}

/// Whether prompts have had as much of the lane as the last iteration, and an answer of the next prompt's class
/// waits whose client was served less.
fn would_hold_up_client(view: &dyn View, lane: Lane) -> bool {
    if !view.ledger().clients().are_several() || !view.turns().prompts_had_an_iteration() {
        return false;
    }
    let next = view
        .next_prefill(lane)
        .and_then(|next| view.ledger().get(next.id));
    next.is_some_and(|next| {
        let answers = view.decode().requests();
        let mut answers = answers.filter_map(|id| view.ledger().get(*id));
        answers.any(|it| it.may_run() && view.ledger().goes_first(it, next))
    })
}
