//! Chooses the next work of the lane of dynamic kernels: attention and remainders of prompts first, then decoding
//! (§4.3), unless a rule between the two reverses that.

use super::AgentXpu;
use super::decode_pipeline::NextIteration;
use super::next::Next;
use super::rules::{Proposal, Verdict};
use crate::costs::Costs;
use crate::event::{Action, Actions, Work};
use crate::mechanism::Mechanism;
use crate::request::Lane;

/// The next work of the lane.
#[must_use]
enum LaneChoice {
    /// Begin or continue decoding; `Turn::Own` if decoding comes before prompts.
    Decode(NextIteration, Turn),
    /// Run a kernel of a prompt, for which the rule of this mechanism decided, if any did.
    Prefill(Next, Option<Mechanism>),
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

impl<C: Costs> AgentXpu<C> {
    /// Gives the lane of dynamic kernels its next work.
    pub(super) fn fill_dynamic_lane(&mut self, actions: &mut Actions) {
        let Some(lane) = self.dynamic_lane() else {
            return;
        };
        match self.choose(lane) {
            LaneChoice::Decode(next, turn) => {
                if turn == Turn::Own {
                    self.turns.answers_go();
                }
                self.start_iteration(lane, next, actions);
            }
            LaneChoice::Prefill(next, decided) => {
                self.turns.prompt_goes();
                if let Some(mechanism) = decided {
                    self.rules.granted(mechanism, &self.tally);
                }
                self.start_prefill(lane, next, actions);
            }
            LaneChoice::Yield => self.ask_to_yield(lane, actions),
            LaneChoice::Leave => {}
        }
    }

    fn choose(&self, lane: Lane) -> LaneChoice {
        if !self.lanes.is_free(lane) {
            let yields = self.goes(Proposal::Interruption { lane });
            return match yields && self.next_prefill(lane).is_some() {
                true => LaneChoice::Yield,
                false => LaneChoice::Leave,
            };
        }
        let decode = |turn| Some(LaneChoice::Decode(self.next_iteration(lane)?, turn));
        let prefill = |decided| Some(LaneChoice::Prefill(self.next_prefill(lane)?, decided));
        let choice = match self.judged(Proposal::Turn { lane }) {
            (Verdict::Go, decided) => prefill(decided).or_else(|| decode(Turn::Spare)),
            _ => decode(Turn::Own).or_else(|| prefill(None)),
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
