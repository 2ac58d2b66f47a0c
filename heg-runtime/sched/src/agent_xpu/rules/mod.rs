//! Rules that hold work back although a lane is free for it.
//!
//! A rule is a file: its name, the policies that have it, and a function from a [`View`] of the scheduler and a
//! [`Proposal`] to a [`Verdict`]. A policy's rules are a list of values with their constants; each comes with the
//! mechanism that is counted, the reason that a request waits for, and the sentence that explains it. A new rule is a
//! file here, its line among the mechanisms (`mechanism.rs`), and a test.

pub(crate) mod bandwidth;
pub(crate) mod bubble;
pub(crate) mod graphics;
pub(crate) mod power;
pub(crate) mod pressure;
pub(crate) mod remainder;

use std::fmt;

use heg_spec::Policy;

use super::AgentXpu;
use super::stage::Entry;
use super::view::View;
use crate::costs::{Cost, Costs};
use crate::hold::HoldReason;
use crate::lanes::Running;
use crate::mechanism::Mechanism;
use crate::prefill::{Prefill, Step};
use crate::request::{Class, Lane, Micros};

/// Work that could start now.
#[derive(Clone, Copy)]
pub(crate) enum Proposal<'a> {
    /// A kernel of a prompt, or its head.
    Prompt {
        entry: &'a Entry,
        lane: Lane,
        cost: Cost,
        /// Its place in the prompt; `None` for the head.
        step: Option<(&'a Prefill, Step)>,
    },
    /// A decode run.
    Iteration {
        class: Class,
        lane: Lane,
        cost: Cost,
    },
}

/// The answer of a rule to a proposal.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The rule lets the work start.
    Start,
    /// The work has to wait.
    Wait,
}

impl Verdict {
    /// Returns [`Verdict::Wait`] if `waits`.
    fn wait_if(waits: bool) -> Self {
        match waits {
            true => Self::Wait,
            false => Self::Start,
        }
    }
}

/// A rule with its constants.
pub(crate) trait Rule: fmt::Debug + Send {
    /// Returns whether the work has to wait. Pure: called more than once, and for work that does not start after all.
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict;

    /// The time at which waiting work may start, if time alone decides that.
    fn opens_at(&self, _view: &dyn View) -> Option<Micros> {
        None
    }

    /// Notes that a launch starts on a lane.
    fn started(&mut self, _now: Micros, _lane: Lane, _launch: &Running) {}

    /// Whether work moves to another lane instead of waiting for this rule.
    fn diverts(&self) -> bool {
        false
    }

    /// Whether work that starts first may keep other work from starting.
    fn excludes(&self) -> bool {
        false
    }
}

/// The description of a rule, and its constructor.
pub(crate) struct RuleCard {
    /// Its word in traces.
    pub(crate) word: &'static str,
    /// The sentence part that says what a request does while it is held back, for explanations.
    pub(crate) explanation: &'static str,
    /// Whether it also explains the wait of requests behind the one that it holds back.
    pub(crate) holds_up_others: bool,
    /// Makes the rule of a policy, with its constants.
    pub(crate) rule: fn(&Policy) -> Option<Box<dyn Rule>>,
}

/// The rules of a policy, each with its mechanism.
#[derive(Debug)]
pub(super) struct Rules(Vec<(Mechanism, Box<dyn Rule>)>);

impl Rules {
    /// Returns the rules that the policy has.
    pub(super) fn of(policy: &Policy) -> Self {
        let all = Mechanism::ALL.into_iter();
        let rules = all.filter_map(|mechanism| Some((mechanism, mechanism.rule(policy)?)));
        Self(rules.collect())
    }

    /// Notes that a launch starts on a lane.
    pub(super) fn started(&mut self, now: Micros, lane: Lane, launch: &Running) {
        for (_, rule) in &mut self.0 {
            rule.started(now, lane, launch);
        }
    }

    /// Whether work that starts first may keep other work from starting.
    pub(super) fn exclude(&self) -> bool {
        self.0.iter().any(|(_, rule)| rule.excludes())
    }

    /// Returns the first of the rules that `count` that makes a proposal wait.
    fn first(
        &self,
        view: &dyn View,
        proposal: Proposal<'_>,
        count: impl Fn(&dyn Rule) -> bool,
    ) -> Option<Mechanism> {
        let mut rules = self.0.iter().filter(|(_, rule)| count(&**rule));
        let holds = |rule: &dyn Rule| rule.judge(view, proposal) == Verdict::Wait;
        let rule = rules.find(|(_, rule)| holds(&**rule));
        rule.map(|(mechanism, _)| *mechanism)
    }
}

impl<C: Costs> AgentXpu<C> {
    /// Whether no rule holds the work back.
    pub(super) fn may_start(&self, proposal: Proposal<'_>) -> bool {
        self.held_back(proposal).is_none()
    }

    /// Returns the reason why a rule holds work back; `None` if no rule does.
    pub(super) fn held_back(&self, proposal: Proposal<'_>) -> Option<HoldReason> {
        let mechanism = self.rules.first(self, proposal, |_| true)?;
        self.tally.note(mechanism);
        Some(HoldReason::Rule(mechanism))
    }

    /// Whether a prompt's attention or head would have to wait on the NPU by a rule that moves it to another lane.
    pub(super) fn is_diverted(&self, entry: &Entry, cost: Cost) -> bool {
        let proposal = Proposal::Prompt {
            entry,
            lane: Lane::Npu,
            cost,
            step: None,
        };
        let mechanism = self.rules.first(self, proposal, |rule| rule.diverts());
        mechanism.inspect(|it| self.tally.note(*it)).is_some()
    }

    /// The earliest time at which a rule may let work start by time alone.
    pub(super) fn next_opening(&self) -> Option<Micros> {
        let openings = self.rules.0.iter();
        let openings = openings.filter_map(|(_, rule)| rule.opens_at(self));
        openings.min()
    }
}
