//! The book of a device: its plan, its counts, and what it is like since a fault happened. No call of Vulkan is here.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ash::vk;

use crate::plan::{Occasion, VkFault, VkPlan};
use crate::record::{VkCounts, VkEntry};

/// The layer's knowledge of a device.
pub(super) struct Book {
    plan: VkPlan,
    record: Option<PathBuf>,
    pub(super) counts: VkCounts,
    /// Memory that was not freed.
    pub(super) memories: BTreeMap<vk::DeviceMemory, Allocation>,
    is_lost: bool,
    /// The value of the timeline from which on nothing is signalled.
    silent_from: Option<u64>,
    /// Values of the timeline that are not signalled before a time.
    late: Vec<(u64, Instant)>,
}

/// A memory of the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allocation {
    pub(super) bytes: u64,
    /// Whether it consists of pages of the host.
    pub(super) is_imported: bool,
    /// Address at which the process has mapped it.
    pub(super) mapped: Option<usize>,
}

/// The fate of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Submission {
    Carried,
    /// It is carried out, and what it wrote is damaged.
    Damaged,
    /// It is accepted, and that is all.
    Withheld,
    Lost,
}

/// The fate of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    Asked,
    /// Nothing is signalled for a time.
    Silent(Duration),
    Lost,
}

impl Book {
    pub(super) fn new(plan: VkPlan, record: Option<PathBuf>) -> Self {
        let book = Self {
            plan,
            record,
            counts: VkCounts::default(),
            memories: BTreeMap::new(),
            is_lost: false,
            silent_from: None,
            late: Vec::new(),
        };
        book.write(&VkEntry::Device);
        book
    }

    /// The fault that happens to a call, noted in the record.
    pub(super) fn due(&mut self, occasion: Occasion) -> Option<VkFault> {
        let fault = self.plan.next(occasion)?;
        self.write(&VkEntry::Fault {
            name: fault.name().to_owned(),
            submission: self.counts.submissions,
        });
        Some(fault)
    }

    /// A submission whose end has a value of the timeline.
    pub(super) fn submission(&mut self, value: u64) -> Submission {
        if self.is_lost {
            return Submission::Lost;
        }
        let fault = self.due(Occasion::Submission);
        self.counts.submissions += 1;
        if self.silent_from.is_some() {
            return Submission::Withheld;
        }
        match fault {
            Some(VkFault::LostAtSubmission) => {
                self.is_lost = true;
                Submission::Lost
            }
            Some(VkFault::NeverSignalled) => {
                self.silent_from = Some(value);
                Submission::Withheld
            }
            Some(VkFault::Late { millis }) => {
                let until = Instant::now() + Duration::from_millis(millis);
                self.late.push((value, until));
                Submission::Carried
            }
            Some(VkFault::WrongAnswer) => Submission::Damaged,
            _ => Submission::Carried,
        }
    }

    /// A wait for a value of the timeline.
    pub(super) fn wait(&mut self, value: u64) -> Wait {
        if self.is_lost {
            return Wait::Lost;
        }
        self.counts.waits += 1;
        if self.due(Occasion::Wait).is_some() {
            self.is_lost = true;
            return Wait::Lost;
        }
        if self.silent_from.is_some_and(|from| from <= value) {
            return Wait::Silent(Duration::MAX);
        }
        let now = Instant::now();
        self.late.retain(|(_, until)| *until > now);
        let of_value = self.late.iter().filter(|(late, _)| *late <= value);
        match of_value.map(|(_, until)| *until).max() {
            Some(until) => Wait::Silent(until - now),
            None => Wait::Asked,
        }
    }

    /// Notes the end of the device.
    pub(super) fn end(&mut self) {
        self.counts.memories_left = self.memories.len() as u64;
        self.write(&VkEntry::End(self.counts));
    }

    fn write(&self, entry: &VkEntry) {
        if let Some(path) = &self.record {
            entry.append(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(fault: VkFault, after: u64) -> Book {
        Book::new(VkPlan::of(fault, after, 1), None)
    }

    #[test]
    fn a_lost_device_stays_lost() {
        let mut book = book(VkFault::LostAtSubmission, 1);
        let all = [1, 2, 3].map(|value| book.submission(value));
        assert_eq!(
            all,
            [Submission::Carried, Submission::Lost, Submission::Lost]
        );
        assert_eq!(book.wait(1), Wait::Lost);
        assert_eq!(book.counts.submissions, 2);
    }

    #[test]
    fn what_was_withheld_is_never_signalled_and_what_came_before_is() {
        let mut book = book(VkFault::NeverSignalled, 1);
        let all = [1, 2, 3].map(|value| book.submission(value));
        let withheld = Submission::Withheld;
        assert_eq!(all, [Submission::Carried, withheld, withheld]);
        let silent = Wait::Silent(Duration::MAX);
        let waits = [1, 2, 3].map(|value| book.wait(value));
        assert_eq!(waits, [Wait::Asked, silent, silent]);
    }

    #[test]
    fn a_late_end_is_signalled_in_the_end() {
        let mut book = book(VkFault::Late { millis: 20 }, 0);
        assert_eq!(book.submission(1), Submission::Carried);
        assert!(matches!(book.wait(1), Wait::Silent(time) if time <= Duration::from_millis(20)));
        std::thread::sleep(Duration::from_millis(25));
        assert_eq!(book.wait(1), Wait::Asked);
    }
}
