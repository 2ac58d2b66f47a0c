//! The rows of a KV cache that were written since somebody looked, so that a device with a copy brings these alone.

/// The latest writes, each behind those before it in time and in rows: an earlier one with later rows says nothing more.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Writes so far.
    count: u64,
    latest: Vec<Change>,
}

#[derive(Debug, Clone, Copy)]
struct Change {
    /// Number of the write.
    number: u64,
    /// The first row that it wrote; those behind it count as written, too.
    first: usize,
}

/// Writes that are told apart. Chosen: a copy that is further behind brings some rows that it has.
const CHANGES_MAX: usize = 64;

impl Changes {
    /// Notes a write of the rows from one on.
    pub(super) fn note(&mut self, first: usize) {
        self.count += 1;
        let number = self.count;
        while self.latest.last().is_some_and(|last| last.first >= first) {
            self.latest.pop();
        }
        self.latest.push(Change { number, first });
        if self.latest.len() > CHANGES_MAX {
            let oldest = self.latest.remove(0);
            if let Some(next) = self.latest.first_mut() {
                next.first = oldest.first;
            }
        }
    }

    /// Number of writes.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The first row that was written after a number of writes; `None` if none was.
    pub(super) fn since(&self, count: u64) -> Option<usize> {
        let mut latest = self.latest.iter();
        let later = latest.find(|change| change.number > count);
        later.map(|change| change.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_row_since_any_write_is_known() {
        // Against a list of all writes.
        let mut all: Vec<usize> = Vec::new();
        let mut changes = Changes::default();
        let mut next = 7_usize;
        for _ in 0..60 {
            next = (next * 1_103 + 12_345) % 10_007;
            let first = next % 50;
            changes.note(first);
            all.push(first);
            for count in 0..=all.len() {
                let expected = all[count..].iter().min().copied();
                assert_eq!(changes.since(count as u64), expected, "{all:?} {count}");
            }
        }
        assert_eq!(changes.count(), 60);
    }

    #[test]
    fn what_is_no_more_told_apart_counts_as_written() {
        let mut changes = Changes::default();
        for row in 0..1000 {
            changes.note(row);
        }
        assert_eq!(changes.since(0), Some(0));
        assert_eq!(changes.since(999), Some(999));
        assert_eq!(changes.since(1000), None);
        for count in 0..1000 {
            assert!(changes.since(count).unwrap() <= count as usize);
        }
        assert!(changes.latest.len() <= CHANGES_MAX);
    }
}
