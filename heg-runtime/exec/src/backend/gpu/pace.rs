//! The number of launches that a lane submits together: as many as a lane may keep others waiting for.

use std::collections::BTreeMap;
use std::time::Duration;

/// Times of launches, by their rows.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Times of one launch, in the latest pass of as many rows, where these are rounded up to a power of two.
    launch_times: BTreeMap<usize, Duration>,
}

/// The time of a submission, at most. Chosen: a lane gives way behind two of them, well before a person notices.
const SUBMISSION_TIME: Duration = Duration::from_millis(2);

impl Pace {
    /// Launches of a submission: one as long as no time is known.
    pub(super) fn together(&self, rows: usize) -> usize {
        let Some(of_launch) = self.launch_times.get(&rows.next_power_of_two()) else {
            return 1;
        };
        let count = SUBMISSION_TIME.as_nanos() / of_launch.as_nanos().max(1);
        usize::try_from(count).unwrap_or(usize::MAX).max(1)
    }

    /// Notes the time of launches from the first submission to the end of the last.
    pub(super) fn note(&mut self, rows: usize, launches: usize, time: Duration) {
        if let Some(of_launch) = u32::try_from(launches)
            .ok()
            .and_then(|it| time.checked_div(it))
        {
            self.launch_times
                .insert(rows.next_power_of_two(), of_launch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submission_has_as_many_launches_as_fit() {
        let mut pace = Pace::default();
        assert_eq!(pace.together(1), 1);
        pace.note(1, 10, Duration::from_millis(1));
        assert_eq!(pace.together(1), 20);
        assert_eq!(pace.together(2), 1);
        pace.note(3, 2, Duration::from_secs(1));
        assert_eq!(pace.together(4), 1);
        pace.note(1, 0, Duration::from_millis(1));
        assert_eq!(pace.together(1), 20);
    }
}
