//! What the lane of dynamic kernels does next: attention and remainders of prompts first, then decoding (§4.3), unless a
//! rule between the two says otherwise.

use super::AgentXpu;
use super::decode_pipeline::NextIteration;
use super::prefill_pipeline::Next;
use crate::costs::Costs;
use crate::event::{Action, Actions, Work};
use crate::mechanism::Mechanism;
use crate::request::Lane;

/// What the lane does next.
#[must_use]
enum LaneChoice {
    /// It decodes; for `Turn::Own`, since decoding comes before prompts.
    Decode(NextIteration, Turn),
    /// It runs a kernel of a prompt.
    Prefill(Next, Account),
    /// It is asked to stop its decode run at the next layer, for a prompt.
    Yield,
    /// It goes on with what it runs, or has nothing to do.
    Leave,
}

/// Why decoding has the lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Own,
    /// No prompt has a kernel for it.
    Spare,
}

/// On whose time a prompt's kernel runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Account {
    Prefill,
    /// What proactive prompts have saved up beside reactive decoding.
    Share,
}

impl<C: Costs> AgentXpu<C> {
    /// Gives the lane of dynamic kernels something to do.
    pub(super) fn fill_dynamic_lane(&mut self, actions: &mut Actions) {
        let Some(lane) = self.dynamic_lane() else {
            return;
        };
        match self.choose(lane) {
            LaneChoice::Decode(next, turn) => {
                if turn == Turn::Own {
                    self.turns.decode_is_next = false;
                }
                self.start_iteration(lane, next, actions);
            }
            LaneChoice::Prefill(next, account) => {
                self.turns.decode_is_next = true;
                if account == Account::Share {
                    self.share.paid();
                }
                self.start_prefill(lane, next, actions);
            }
            LaneChoice::Yield => self.ask_to_yield(lane, actions),
            LaneChoice::Leave => {}
        }
    }

    fn choose(&self, lane: Lane) -> LaneChoice {
        let takes_turns = self.takes_turns(lane);
        let holds_up = !takes_turns && self.would_hold_up_reactive(lane);
        let waits = holds_up || (!takes_turns && self.would_hold_up_answer(lane));
        let prefill_first = self.policy.decode.prefill_first && !waits;
        if !self.lanes.is_free(lane) {
            let yields = prefill_first && !takes_turns && self.next_prefill(lane).is_some();
            return match yields {
                true => LaneChoice::Yield,
                false => LaneChoice::Leave,
            };
        }
        let decode_is_next = self.turns.decode_is_next;
        let owed = holds_up && !decode_is_next && self.is_owed(lane);
        let decode_first = !(prefill_first || owed) || (takes_turns && decode_is_next);
        let decode = |turn| Some(LaneChoice::Decode(self.next_iteration(lane)?, turn));
        let prefill = || {
            let account = match owed {
                true => Account::Share,
                false => Account::Prefill,
            };
            Some(LaneChoice::Prefill(self.next_prefill(lane)?, account))
        };
        let choice = match decode_first {
            true => decode(Turn::Own).or_else(prefill),
            false => prefill().or_else(|| decode(Turn::Spare)),
        };
        choice.unwrap_or(LaneChoice::Leave)
    }

    /// Asks a decode run to stop at its next layer.
    pub(super) fn ask_to_yield(&mut self, lane: Lane, actions: &mut Actions) {
        if let Some(running) = self.lanes.running_mut(lane)
            && matches!(running.work, Work::Decode(_))
            && !running.yielding
        {
            running.yielding = true;
            self.tally.note(Mechanism::PrefillFirst);
            actions.push(Action::Yield(running.ticket));
        }
    }
}
