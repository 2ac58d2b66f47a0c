//! Plans: which faults happen on a device, and when.
//!
//! The text of a plan has a rule in each line: the fault's name, the number of occasions that are let pass before it, the
//! number of times that it happens, and for a late wait the milliseconds. An occasion is a call that the fault may happen
//! to. Lines `as KIND` and `driver VERSION` change what the device says of itself.

use std::fmt;
use std::str::FromStr;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VkFault {
    /// A submission finds that the device is lost, and so does every call behind it.
    LostAtSubmission,
    /// A wait finds that the device is lost, and so does every call behind it.
    LostAtWait,
    /// The end of a submission is signalled late.
    Late {
        /// Time from the submission on in which nothing is signalled.
        millis: u64,
    },
    /// A submission is accepted and never carried out, and neither is any behind it.
    NeverSignalled,
    /// An allocation of memory is refused.
    NoMemory,
    /// The process is aborted while pages of the host are imported.
    CrashAtImport,
    /// Words that a submission wrote are damaged before anybody reads them.
    WrongAnswer,
    /// The process is aborted while a pipeline is made, as a compiler's bug does.
    CrashAtPipeline,
    /// A pipeline is never finished.
    HangAtPipeline,
    /// A pipeline is refused.
    NoPipeline,
}

/// A call that a fault may happen to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occasion {
    Submission,
    Wait,
    Allocation,
    Import,
    Pipeline,
}

impl VkFault {
    /// All faults; a late one by 50 ms.
    pub const ALL: [Self; 10] = [
        Self::LostAtSubmission,
        Self::LostAtWait,
        Self::Late { millis: 50 },
        Self::NeverSignalled,
        Self::NoMemory,
        Self::CrashAtImport,
        Self::WrongAnswer,
        Self::CrashAtPipeline,
        Self::HangAtPipeline,
        Self::NoPipeline,
    ];

    /// The name in plans and records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LostAtSubmission => "lost-at-submission",
            Self::LostAtWait => "lost-at-wait",
            Self::Late { .. } => "late",
            Self::NeverSignalled => "never-signalled",
            Self::NoMemory => "no-memory",
            Self::CrashAtImport => "crash-at-import",
            Self::WrongAnswer => "wrong-answer",
            Self::CrashAtPipeline => "crash-at-pipeline",
            Self::HangAtPipeline => "hang-at-pipeline",
            Self::NoPipeline => "no-pipeline",
        }
    }

    pub(crate) const fn occasion(self) -> Occasion {
        match self {
            Self::LostAtWait => Occasion::Wait,
            Self::NoMemory => Occasion::Allocation,
            Self::CrashAtImport => Occasion::Import,
            Self::CrashAtPipeline | Self::HangAtPipeline | Self::NoPipeline => Occasion::Pipeline,
            Self::LostAtSubmission
            | Self::Late { .. }
            | Self::NeverSignalled
            | Self::WrongAnswer => Occasion::Submission,
        }
    }
}

/// A fault that is to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VkRule {
    /// The fault that happens.
    pub fault: VkFault,
    /// Number of occasions that are let pass before it happens.
    pub after: u64,
    /// Number of times that it happens.
    pub times: u64,
}

/// The kind of device that a device says to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PretendedKind {
    /// A GPU that shares the host's memory.
    Integrated,
    /// A GPU with memory of its own.
    Discrete,
}

/// The faults of a device, and what it says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VkPlan {
    /// Faults, in any order.
    pub rules: Vec<VkRule>,
    /// The kind of device that it says to be, instead of its own.
    pub kind: Option<PretendedKind>,
    /// The version of the driver that it says to have, instead of its own.
    pub driver_version: Option<u32>,
}

impl VkPlan {
    /// A plan with one fault.
    pub fn of(fault: VkFault, after: u64, times: u64) -> Self {
        Self {
            rules: vec![VkRule {
                fault,
                after,
                times,
            }],
            ..Self::default()
        }
    }

    /// The fault that happens to a call now, if any does.
    pub(crate) fn next(&mut self, occasion: Occasion) -> Option<VkFault> {
        let mut due = None;
        for rule in &mut self.rules {
            if rule.fault.occasion() != occasion || rule.times == 0 {
                continue;
            }
            match rule.after.checked_sub(1) {
                Some(after) => rule.after = after,
                None if due.is_none() => {
                    rule.times -= 1;
                    due = Some(rule.fault);
                }
                None => {}
            }
        }
        due
    }
}

/// A line of a plan that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of a plan is `{found}`, expected {expected}")]
pub struct VkPlanError {
    /// Number of the line, from 1 on.
    line: usize,
    /// The line.
    found: String,
    /// The form that it should have.
    expected: &'static str,
}

impl FromStr for VkPlan {
    type Err = VkPlanError;

    fn from_str(text: &str) -> Result<Self, VkPlanError> {
        let mut plan = Self::default();
        for (index, line) in text.lines().enumerate() {
            let wrong = |expected| VkPlanError {
                line: index + 1,
                found: line.to_owned(),
                expected,
            };
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["as", "integrated"] => plan.kind = Some(PretendedKind::Integrated),
                ["as", "discrete"] => plan.kind = Some(PretendedKind::Discrete),
                ["as", _] => return Err(wrong("`as integrated` or `as discrete`")),
                ["driver", version] => {
                    let version = version.parse();
                    plan.driver_version = Some(version.map_err(|_| wrong("`driver VERSION`"))?);
                }
                words => {
                    let read = rule(words);
                    plan.rules.push(
                        read.ok_or_else(|| wrong("`FAULT AFTER TIMES`, `late` with MILLIS"))?,
                    );
                }
            }
        }
        Ok(plan)
    }
}

fn rule(words: &[&str]) -> Option<VkRule> {
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    let name = words.first()?;
    let mut all = VkFault::ALL.into_iter();
    let fault = all.find(|fault| fault.name() == *name)?;
    let fault = match (fault, words.len()) {
        (VkFault::Late { .. }, 4) => VkFault::Late { millis: number(3)? },
        (VkFault::Late { .. }, _) => return None,
        (fault, 3) => fault,
        _ => return None,
    };
    Some(VkRule {
        fault,
        after: number(1)?,
        times: number(2)?,
    })
}

impl fmt::Display for VkPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for VkRule {
            fault,
            after,
            times,
        } in &self.rules
        {
            write!(f, "{} {after} {times}", fault.name())?;
            if let VkFault::Late { millis } = fault {
                write!(f, " {millis}")?;
            }
            writeln!(f)?;
        }
        match self.kind {
            Some(PretendedKind::Integrated) => writeln!(f, "as integrated")?,
            Some(PretendedKind::Discrete) => writeln!(f, "as discrete")?,
            None => {}
        }
        match self.driver_version {
            Some(version) => writeln!(f, "driver {version}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        let rule = |(index, fault)| VkRule {
            fault,
            after: index as u64,
            times: u64::MAX,
        };
        let plan = VkPlan {
            rules: VkFault::ALL.into_iter().enumerate().map(rule).collect(),
            kind: Some(PretendedKind::Integrated),
            driver_version: Some(7),
        };
        assert_eq!(plan.to_string().parse(), Ok(plan));
        assert_eq!("".parse(), Ok(VkPlan::default()));
    }

    #[test]
    fn other_lines_are_refused() {
        for line in [
            "lost",
            "late 1 1",
            "no-memory 1 1 1",
            "no-memory 1",
            "no-memory -1 1",
            "as software",
            "driver new",
            "",
        ] {
            let text = format!("no-memory 0 1\n{line}\n");
            let error = text.parse::<VkPlan>().unwrap_err();
            assert_eq!((error.line, error.found.as_str()), (2, line));
        }
    }

    #[test]
    fn a_fault_happens_to_its_own_calls_behind_those_before() {
        let mut plan = VkPlan::of(VkFault::NoMemory, 1, 2);
        let mut next = |occasion| plan.next(occasion);
        assert_eq!(next(Occasion::Submission), None);
        let all = [(); 4].map(|()| next(Occasion::Allocation));
        let fault = Some(VkFault::NoMemory);
        assert_eq!(all, [None, fault, fault, None]);
    }
}
