//! Chooses the next work of the lane of dynamic kernels: attention and remainders of prompts first, then decoding
//! (§4.3), unless a rule between the two reverses that.

use super::AgentXpu;
use super::decode_pipeline::NextIteration;
use super::prefill_pipeline::Next;
use crate::costs::Costs;
use crate::event::{Action, Actions, Work};
use crate::mechanism::Mechanism;
use crate::request::Lane;

/// The next work of the lane.
#[must_use]
enum LaneChoice {
    /// Begin or continue decoding; `Turn::Own` if decoding comes before prompts.
    Decode(NextIteration, Turn),
    /// Run a kernel of a prompt.
    Prefill(Next, Account),
    /// Stop the decode run at the next layer, for a prompt.
    Yield,
    /// Leave the lane as it is, running or idle.
    Leave,
}

/// The reason why decoding has the lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Own,
    /// No prompt has a kernel for it.
    Spare,
}

/// The account that a prompt's kernel runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Account {
    Prefill,
    /// The time that proactive prompts have saved up beside reactive decoding.
    Share,
}

/// Whether a prompt's kernel or decoding goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Precedence {
    /// The prompt's kernel, at the next layer of an iteration that runs.
    Prompt,
    /// The prompt's kernel, once the running iteration has ended.
    PromptBetween,
    /// The kernel of a proactive prompt, for which time was saved up, once the running iteration has ended.
    Share,
    /// Decoding.
    Answers,
}

impl<C: Costs> AgentXpu<C> {
    /// Gives the lane of dynamic kernels its next work.
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

    /// Returns whether the next kernel of a prompt or decoding goes first: applies the rules between the two, in
    /// order.
    fn precedence(&self, lane: Lane) -> Precedence {
        let prefill_first = self.policy.decode.prefill_first && !self.would_hold_up_client(lane);
        let decode_is_next = self.turns.decode_is_next;
        if self.takes_turns(lane) {
            return match prefill_first && !decode_is_next {
                true => Precedence::PromptBetween,
                false => Precedence::Answers,
            };
        }
        let holds_up = self.would_hold_up_reactive(lane);
        if prefill_first && !holds_up && !self.would_hold_up_answer(lane) {
            return Precedence::Prompt;
        }
        match holds_up && !decode_is_next && self.is_owed(lane) {
            true => Precedence::Share,
            false => Precedence::Answers,
        }
    }

    fn choose(&self, lane: Lane) -> LaneChoice {
        let precedence = self.precedence(lane);
        if !self.lanes.is_free(lane) {
            let yields = precedence == Precedence::Prompt && self.next_prefill(lane).is_some();
            return match yields {
                true => LaneChoice::Yield,
                false => LaneChoice::Leave,
            };
        }
        let decode = |turn| Some(LaneChoice::Decode(self.next_iteration(lane)?, turn));
        let prefill = |account| Some(LaneChoice::Prefill(self.next_prefill(lane)?, account));
        let choice = match precedence {
            Precedence::Prompt | Precedence::PromptBetween => {
                prefill(Account::Prefill).or_else(|| decode(Turn::Spare))
            }
            Precedence::Share => prefill(Account::Share).or_else(|| decode(Turn::Spare)),
            Precedence::Answers => decode(Turn::Own).or_else(|| prefill(Account::Prefill)),
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
