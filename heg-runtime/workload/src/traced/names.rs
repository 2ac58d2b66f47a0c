//! The words of a trace: the names of our types in its file, in both directions.

use heg_sched::{Class, Finish, HoldReason, Lane, LayerKernel, Mechanism, RequestId};

use super::LaunchOutcome;

/// Process id of the lanes' tracks, followed by that of the requests'.
pub(super) const LANES: u64 = 1;
pub(super) const REQUESTS: u64 = 2;

/// The track of kernels that are compiled, beside those of the lanes.
pub(super) const COMPILER: u64 = Lane::ALL.len() as u64;

/// Categories of the slices and instants that are read again.
pub(super) const HOLD: &str = "hold";
pub(super) const AWAY: &str = "away";
pub(super) const WARM_UP: &str = "warm-up";
pub(super) const MILESTONE: &str = "milestone";
pub(super) const LEFT_OUT: &str = "left out";
pub(super) const MECHANISMS: &str = "mechanisms";

/// Names of milestones.
pub(super) const ARRIVES: &str = "arrives";
pub(super) const FIRST_TOKEN: &str = "first token";
pub(super) const STARTS_OVER: &str = "starts over";
pub(super) const ENDS: &str = "ends";

/// Returns the value for a word of a trace, if the type has one.
pub(super) fn named<T: Copy>(names: &[(T, &'static str)], word: &str) -> Option<T> {
    let mut names = names.iter();
    names
        .find(|(_, name)| *name == word)
        .map(|(value, _)| *value)
}

/// Returns the word for a value; every value has one.
pub(super) fn name<T: PartialEq>(names: &[(T, &'static str)], value: &T) -> &'static str {
    let mut names = names.iter();
    names
        .find(|(other, _)| other == value)
        .map_or("", |(_, name)| name)
}

pub(super) const CLASSES: [(Class, &str); 2] = [
    (Class::Reactive, "reactive"),
    (Class::Proactive, "proactive"),
];

pub(super) const KERNELS: [(LayerKernel, &str); 3] = [
    (LayerKernel::Qkv, "qkv"),
    (LayerKernel::Mha, "mha"),
    (LayerKernel::Ffn, "ffn"),
];

pub(super) const LANE_NAMES: [(Lane, &str); 3] =
    [(Lane::Npu, "NPU"), (Lane::Igpu, "iGPU"), (Lane::Cpu, "CPU")];

pub(super) const FINISHES: [(Finish, &str); 5] = [
    (Finish::Complete, "complete"),
    (Finish::Cancelled, "cancelled"),
    (Finish::Deadline, "deadline"),
    (Finish::Failed, "failed"),
    (Finish::Shed, "shed"),
];

pub(super) const OUTCOMES: [(LaunchOutcome, &str); 6] = [
    (LaunchOutcome::Done, "done"),
    (LaunchOutcome::Failed, "failed"),
    (LaunchOutcome::OutOfMemory, "out of memory"),
    (LaunchOutcome::Unreadable, "unreadable"),
    (LaunchOutcome::Stopped, "stopped"),
    (LaunchOutcome::Lost, "lost"),
];

/// The reasons without parameters.
const REASONS: [(HoldReason, &str); 9] = [
    (HoldReason::Turn, "turn"),
    (HoldReason::Memory, "memory"),
    (HoldReason::Flash, "flash"),
    (HoldReason::BatchFull, "full batch"),
    (HoldReason::Iteration, "iteration"),
    (HoldReason::Answers, "answers"),
    (HoldReason::NoLane, "no lane"),
    (HoldReason::Trial, "trial"),
    (HoldReason::Flow, "flow"),
];

/// A reason as a trace stores it: its name, and the request or lane that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReasonParts<'a> {
    pub(super) name: &'a str,
    pub(super) of: Option<RequestId>,
    pub(super) lane: Option<Lane>,
}

/// Splits a reason into its parts.
pub(super) fn parts(why: HoldReason) -> ReasonParts<'static> {
    let (name, of, lane) = match why {
        HoldReason::Prompt(of) => ("prompt", Some(of), None),
        HoldReason::Preempted(of) => ("preempted", Some(of), None),
        HoldReason::Overdue(of) => ("overdue", Some(of), None),
        HoldReason::Lane(lane) => ("lane", None, Some(lane)),
        HoldReason::Reset(lane) => ("reset", None, Some(lane)),
        HoldReason::Stopping => ("stopping", None, None),
        HoldReason::Rule(mechanism) => (mechanism.word().unwrap_or(""), None, None),
        other => (name(&REASONS, &other), None, None),
    };
    ReasonParts { name, of, lane }
}

/// Joins parts to a reason; `None` if they do not form one.
pub(super) fn reason(parts: ReasonParts<'_>) -> Option<HoldReason> {
    match (parts.name, parts.of, parts.lane) {
        ("prompt", Some(of), _) => Some(HoldReason::Prompt(of)),
        ("preempted", Some(of), _) => Some(HoldReason::Preempted(of)),
        ("overdue", Some(of), _) => Some(HoldReason::Overdue(of)),
        ("lane", _, Some(lane)) => Some(HoldReason::Lane(lane)),
        ("reset", _, Some(lane)) => Some(HoldReason::Reset(lane)),
        ("stopping", _, _) => Some(HoldReason::Stopping),
        (name, _, _) => named(&REASONS, name).or_else(|| rule(name)),
    }
}

/// Returns the rule with this word.
fn rule(word: &str) -> Option<HoldReason> {
    let mut rules = Mechanism::ALL.into_iter();
    let rule = rules.find(|mechanism| mechanism.word() == Some(word));
    rule.map(HoldReason::Rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_read_as_it_was_written() {
        let id = RequestId(7);
        let named = [
            HoldReason::Prompt(id),
            HoldReason::Preempted(id),
            HoldReason::Overdue(id),
            HoldReason::Lane(Lane::Igpu),
            HoldReason::Reset(Lane::Npu),
            HoldReason::Stopping,
        ];
        let plain = REASONS.map(|(why, _)| why);
        let rules = Mechanism::ALL.into_iter().filter(|it| it.word().is_some());
        let rules = rules.map(HoldReason::Rule);
        for why in named.into_iter().chain(plain).chain(rules) {
            assert_eq!(reason(parts(why)), Some(why));
            assert!(!parts(why).name.is_empty(), "{why:?}");
        }
    }
}
