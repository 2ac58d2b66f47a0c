//! The mechanisms of a policy, one file each.
//!
//! A rule is a file: its card, and a function from a [`View`] of the scheduler and a [`Proposal`] to a [`Verdict`]. The
//! card has the mechanism's name, its switch, the proposals that the rule is asked about, and, if the rule holds work
//! back, the word and the sentence that explain the wait. A policy's rules are a list of values with their constants
//! (`rule_list`). A new rule is a file here, its line among the mechanisms (`mechanism.rs`), and a test.

pub(crate) mod ageing;
pub(crate) mod aside;
pub(crate) mod balance;
pub(crate) mod bandwidth;
pub(crate) mod bubble;
pub(crate) mod client_turns;
pub(crate) mod company;
pub(crate) mod ending_first;
pub(crate) mod graphics;
pub(crate) mod npu_attention;
pub(crate) mod power;
pub(crate) mod preemption;
pub(crate) mod prefill_first;
pub(crate) mod pressure;
pub(crate) mod proactive_share;
pub(crate) mod reactive_first;
pub(crate) mod remainder;
pub(crate) mod short_prompts_first;
pub(crate) mod split;
pub(crate) mod young_first;

use std::fmt;

use heg_spec::Policy;
use heg_spec::policy::SchedulerKind;

use super::prefills::Slot;
use super::stage::{Entry, Phase};
use super::view::View;
use crate::batch::Candidate;
use crate::costs::Cost;
use crate::event::Segment;
use crate::lanes::Running;
use crate::prefill::{Prefill, Step};
use crate::request::{Class, Lane, Micros};

/// A step that the scheduler could take now, and asks its rules about.
#[derive(Clone, Copy)]
pub(crate) enum Proposal<'a> {
    /// A kernel of a prompt, or its head, starts on a lane.
    Prompt {
        entry: &'a Entry,
        lane: Lane,
        cost: Cost,
        /// Its place in the prompt; `None` for the head.
        step: Option<(&'a Prefill, Step)>,
    },
    /// A decode run starts on a lane.
    Iteration {
        class: Class,
        lane: Lane,
        cost: Cost,
    },
    /// The lane of dynamic kernels, which is free, runs the next kernel of a prompt before it decodes.
    Turn { lane: Lane },
    /// A decode run on the lane of dynamic kernels gives way to the next kernel of a prompt, at its next layer.
    Interruption { lane: Lane },
    /// A token-wise kernel of a prompt runs where it usually does: a chunk on the NPU, the remainder on the lane of
    /// dynamic kernels.
    Place {
        entry: &'a Entry,
        prefill: &'a Prefill,
        step: Step,
    },
    /// Attention over a segment runs on the NPU.
    Attention { segment: Segment },
    /// A waiting prompt takes the lanes from the one in progress.
    Preemption { next: &'a Entry, current: &'a Entry },
    /// The lane of dynamic kernels is lent to a second reactive prompt.
    Loan,
    /// A waiting reactive prompt begins on the lent lane.
    Aside { entry: &'a Entry },
    /// A waiting proactive prompt has the lane of dynamic kernels beside a reactive one.
    Promotion { entry: &'a Entry },
    /// A waiting proactive prompt fills bubbles of the NPU beside a reactive one.
    Backfill,
    /// A batch of answers, reactive ones first and overdue ones next, decodes on a lane.
    Batch { lane: Lane, batch: &'a [Candidate] },
}

/// The kind of a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// [`Proposal::Prompt`] and [`Proposal::Iteration`].
    Start,
    /// [`Proposal::Turn`] and [`Proposal::Interruption`].
    Precedence,
    /// [`Proposal::Place`].
    Place,
    /// [`Proposal::Attention`].
    Attention,
    /// [`Proposal::Preemption`].
    Preemption,
    /// [`Proposal::Loan`] and [`Proposal::Aside`].
    Aside,
    /// [`Proposal::Promotion`].
    Promotion,
    /// [`Proposal::Backfill`].
    Backfill,
    /// [`Proposal::Batch`].
    Batch,
}

impl Question {
    /// The number of questions.
    pub(super) const COUNT: usize = Self::Batch as usize + 1;
}

impl Proposal<'_> {
    /// Its kind, by which the rules that are asked about it are found.
    pub(super) fn question(&self) -> Question {
        match self {
            Self::Prompt { .. } | Self::Iteration { .. } => Question::Start,
            Self::Turn { .. } | Self::Interruption { .. } => Question::Precedence,
            Self::Place { .. } => Question::Place,
            Self::Attention { .. } => Question::Attention,
            Self::Preemption { .. } => Question::Preemption,
            Self::Loan | Self::Aside { .. } => Question::Aside,
            Self::Promotion { .. } => Question::Promotion,
            Self::Backfill => Question::Backfill,
            Self::Batch { .. } => Question::Batch,
        }
    }
}

/// The answer of a rule to a proposal. Of the rules in a policy's list, the first that does not pass decides.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Verdict {
    /// The rule does not decide.
    Pass,
    /// The proposal is carried out.
    Go,
    /// The proposal has to wait.
    Wait,
    /// The kernel belongs on the NPU.
    OnNpu,
    /// The kernel belongs on the lane of dynamic kernels.
    OnDynamicLane,
    /// The NPU has a kernel for it, at this cost.
    At(Cost),
    /// The first members of the batch decode, this many.
    First(usize),
}

impl Verdict {
    /// Returns [`Verdict::Wait`] if `waits`.
    fn wait_if(waits: bool) -> Self {
        match waits {
            true => Self::Wait,
            false => Self::Pass,
        }
    }

    /// Returns [`Verdict::Go`] if `goes`.
    fn go_if(goes: bool) -> Self {
        match goes {
            true => Self::Go,
            false => Self::Pass,
        }
    }
}

/// A rule with its constants. State that it keeps between proposals is in cells.
pub(crate) trait Rule: fmt::Debug + Send {
    /// Judges a proposal. Pure: called more than once, and for proposals that are not carried out after all.
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict;

    /// The time at which waiting work may start, if time alone decides that.
    fn opens_at(&self, _view: &dyn View) -> Option<Micros> {
        None
    }

    /// Notes that a launch starts on a lane.
    fn started(&self, _now: Micros, _lane: Lane, _launch: &Running) {}

    /// Notes that a decode run of this cost ended on a lane.
    fn decoded(&self, _view: &dyn View, _lane: Lane, _cost: Cost) {}

    /// Notes that a prompt goes before decoding because this rule decided so.
    fn granted(&self) {}

    /// Whether work moves to another lane instead of waiting for this rule.
    fn diverts(&self) -> bool {
        false
    }

    /// Whether work that starts first may keep other work from starting.
    fn excludes(&self) -> bool {
        false
    }
}

/// The name and the switch of a mechanism.
pub(crate) struct Card {
    /// Its name in tables, with its section.
    pub(crate) name: &'static str,
    /// Whether a policy has it on.
    pub(crate) is_on: fn(&Policy) -> bool,
    /// Switches it off in a policy.
    pub(crate) remove: fn(&mut Policy),
    /// Its rule, if it is one of its own.
    pub(crate) rule: Option<RuleCard>,
}

/// The description of a rule, and its constructor.
pub(crate) struct RuleCard {
    /// The proposals that it is asked about.
    pub(crate) about: &'static [Question],
    /// The point at which the mechanism counts as having acted.
    pub(crate) counts: Counted,
    /// The explanation of a wait for which it is the reason, if there can be one.
    pub(crate) hold: Option<HoldCard>,
    /// Makes the rule of a policy, with its constants.
    pub(crate) rule: fn(&Policy) -> Option<Box<dyn Rule>>,
}

/// The point at which a mechanism counts as having acted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Its rule makes work wait, or leaves answers out.
    WhenItHolds,
    /// A prompt goes before decoding because its rule decided so.
    WhenGranted,
    /// The scheduler takes the step that the mechanism is named for, and notes it there.
    ByTheScheduler,
}

/// The explanation of a wait.
pub(crate) struct HoldCard {
    /// Its word in traces.
    pub(crate) word: &'static str,
    /// The sentence part that says what a request does while it is held back.
    pub(crate) explanation: &'static str,
    /// Whether it also explains the wait of requests behind the one that it holds back.
    pub(crate) holds_up_others: bool,
}

/// Whether a policy is for Agent.xpu's scheduler, which distinguishes classes.
pub(crate) fn is_agent_xpu(policy: &Policy) -> bool {
    policy.scheduler == SchedulerKind::AgentXpu
}
