//! Gates: rules that hold work back although a lane is free for it.
//!
//! A gate is a file with its own state. It is asked about every [`Proposal`] before the work starts, and says when its
//! answer may change by time alone. A new rule of this kind is a file here, its field and its place in the list below,
//! a switch in the policy, and a test.

mod bandwidth;
mod bubble;
mod graphics;
mod power;
mod pressure;
mod remainder;
mod stopping;

use super::AgentXpu;
use super::stage::Entry;
use crate::costs::{Cost, Costs};
use crate::hold::HoldReason;
use crate::prefill::{Prefill, Step};
use crate::request::{Class, Lane, Micros};

/// Work that could start now.
#[derive(Clone, Copy)]
pub(super) enum Proposal<'a> {
    /// A kernel of a prompt, or its head.
    Prompt {
        entry: &'a Entry,
        lane: Lane,
        cost: Cost,
        /// Its place in the prompt; `None` for the head.
        step: Option<(&'a Prefill, Step)>,
    },
    /// A request's part in the next decode iteration.
    Token { entry: &'a Entry },
    /// A decode run.
    Iteration {
        class: Class,
        lane: Lane,
        cost: Cost,
    },
}

/// A rule that holds work back.
pub(super) trait Gate<C> {
    /// Whether the work has to wait. Pure: asked more than once, and about work that does not start after all.
    fn holds_back(&self, scheduler: &AgentXpu<C>, proposal: Proposal<'_>) -> bool;

    /// When work may start that waits now, where time alone decides that.
    fn opens_at(&self, _scheduler: &AgentXpu<C>) -> Option<Micros> {
        None
    }
}

/// All gates.
#[derive(Debug, Default)]
pub(super) struct Gates {
    pressure: pressure::Pressure,
    bandwidth: bandwidth::Bandwidth,
    bubble: bubble::Bubble,
    graphics: graphics::Graphics,
    power: power::Power,
    remainder: remainder::Remainder,
    stopping: stopping::Stopping,
}

impl Gates {
    /// Each with what a request waits for that it holds back.
    fn all<C: Costs>(&self) -> [(HoldReason, &dyn Gate<C>); 7] {
        [
            (HoldReason::Pressure, &self.pressure),
            (HoldReason::Bandwidth, &self.bandwidth),
            (HoldReason::Bubble, &self.bubble),
            (HoldReason::Remainder, &self.remainder),
            (HoldReason::Graphics, &self.graphics),
            (HoldReason::Power, &self.power),
            (HoldReason::Stopping, &self.stopping),
        ]
    }
}

impl<C: Costs> AgentXpu<C> {
    /// Whether no gate holds the work back.
    pub(super) fn may_start(&self, proposal: Proposal<'_>) -> bool {
        self.held_back(proposal).is_none()
    }

    /// What work waits for that a gate holds back.
    pub(super) fn held_back(&self, proposal: Proposal<'_>) -> Option<HoldReason> {
        let mut gates = self.gates.all().into_iter();
        let gate = gates.find(|(_, gate)| gate.holds_back(self, proposal));
        gate.map(|(why, _)| why)
    }

    /// When the first gate may open by time alone.
    pub(super) fn next_opening(&self) -> Option<Micros> {
        let gates = self.gates.all();
        let openings = gates.iter().filter_map(|(_, gate)| gate.opens_at(self));
        openings.min()
    }
}
