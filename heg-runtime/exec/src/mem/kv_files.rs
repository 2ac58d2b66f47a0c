//! Rows of a cache on their way to files and back.

use std::fs::File;
use std::io::{self, Read, Write};

use super::kv::KvCache;
use crate::platform;

impl KvCache {
    /// Writes the first `tokens` rows of every half of every layer, one after the other.
    pub fn save(&self, tokens: usize, to: &mut impl Write) -> io::Result<()> {
        let mut rows = vec![0; tokens * self.shape.row_bytes()];
        for (layer, half) in self.halves() {
            if !self.region.read(self.offset(layer, half, 0), &mut rows) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            to.write_all(&rows)?;
        }
        Ok(())
    }

    /// Reads the first `tokens` rows of every half from the output of [`save`](Self::save) for `saved` tokens.
    pub fn restore(&self, tokens: usize, saved: usize, from: &mut impl Read) -> io::Result<()> {
        self.note_write(0);
        let mut rows = vec![0; saved * self.shape.row_bytes()];
        let wanted = tokens.min(saved) * self.shape.row_bytes();
        for (layer, half) in self.halves() {
            from.read_exact(&mut rows)?;
            let rows = rows.get(..wanted).unwrap_or(&rows);
            if !self.region.write(self.offset(layer, half, 0), rows) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        }
        Ok(())
    }

    /// Writes rows from `first` on of every half of every layer: the leading `count` of the rows that each has in
    /// `saved`, one half after the other. Returns false if they do not fit.
    #[must_use]
    pub fn place_rows(&self, first: usize, count: usize, saved: &[u8]) -> bool {
        let half_bytes = saved.len() / (2 * self.shape.layers).max(1);
        let wanted = count.checked_mul(self.shape.row_bytes());
        let end = first.checked_add(count);
        let limit = self.shape.context_tokens + self.shape.padding_rows;
        let (Some(wanted), Some(end)) = (wanted, end) else {
            return false;
        };
        if end > limit || wanted > half_bytes || half_bytes == 0 {
            return false;
        }
        self.note_write(first);
        let mut halves = self.halves().zip(saved.chunks_exact(half_bytes));
        halves.all(|((layer, half), rows)| {
            let rows = rows.get(..wanted).unwrap_or_default();
            let offset = self.offset(layer, half, first);
            self.region.commit(offset..offset + rows.len());
            self.region.write(offset, rows)
        })
    }

    /// Maps rows from `first` on of every half of every layer, `count` of each, from a file that has them at a place and
    /// behind it, one half after the other, and shows them to `see` in that order. They take no time to copy, and memory
    /// only where they are written to. Returns false where that cannot be; some rows may be those of the file then.
    ///
    /// The file may be removed or replaced, but neither written to nor cut short. Nobody else uses the cache meanwhile, but
    /// to map or write other rows.
    #[must_use]
    pub fn map_rows(
        &self,
        first: usize,
        count: usize,
        (file, at): (&File, u64),
        see: &mut dyn FnMut(&[u8]),
    ) -> bool {
        let half_bytes = count.checked_mul(self.shape.row_bytes());
        let end = first.checked_add(count);
        let limit = self.shape.context_tokens + self.shape.padding_rows;
        let (Some(half_bytes), true) = (half_bytes, end.is_some_and(|end| end <= limit)) else {
            return false;
        };
        self.note_write(first);
        platform::read_ahead(file);
        (0..).zip(self.halves()).all(|(number, (layer, half))| {
            let offset = self.offset(layer, half, first);
            let at = at + number * half_bytes as u64;
            let rows = offset..offset + half_bytes;
            self.region.map(rows.clone(), (file, at)) && self.region.show(rows, see)
        })
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use heg_openvino::TensorType;

    use super::*;
    use crate::mem::KvShape;

    #[test]
    fn a_part_of_what_was_saved_is_restored_and_the_rest_stays_untouched() {
        let shape = KvShape {
            layers: 2,
            width: 3,
            context_tokens: 10,
            padding_rows: 0,
            element: TensorType::F32,
        };
        let saved: Vec<u8> = (0..10 * shape.token_bytes())
            .map(|at| at as u8 | 1)
            .collect();
        let cache = KvCache::reserve(shape).unwrap();
        cache.restore(4, 10, &mut saved.as_slice()).unwrap();
        let mut rows = Vec::new();
        cache.save(10, &mut rows).unwrap();
        let (read, untouched) = (4 * shape.row_bytes(), 10 * shape.row_bytes());
        for (found, expected) in rows.chunks(untouched).zip(saved.chunks(untouched)) {
            assert_eq!(found[..read], expected[..read]);
            assert!(found[read..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn rows_of_a_page_are_placed_where_they_were_and_nowhere_else() {
        let shape = KvShape {
            layers: 2,
            width: 3,
            context_tokens: 10,
            padding_rows: 0,
            element: TensorType::F32,
        };
        let cache = KvCache::reserve(shape).unwrap();
        let page: Vec<u8> = (0..4 * shape.token_bytes())
            .map(|at| at as u8 | 1)
            .collect();
        assert!(cache.place_rows(4, 3, &page));
        let (row, half) = (shape.row_bytes(), 4 * shape.row_bytes());
        for ((layer, which), saved) in shape.halves().zip(page.chunks(half)) {
            let mut rows = vec![0; 10 * row];
            cache.read_rows(layer, which, 0, &mut rows).unwrap();
            assert_eq!(rows[4 * row..7 * row], saved[..3 * row]);
            rows[4 * row..7 * row].fill(0);
            assert!(rows.iter().all(|byte| *byte == 0));
        }
        for (first, count) in [(7, 4), (0, 5), (usize::MAX, 1), (1, usize::MAX)] {
            assert!(!cache.place_rows(first, count, &page), "{first} {count}");
        }
        assert!(!cache.place_rows(0, 1, &[]));
    }

    #[test]
    fn rows_of_a_file_are_mapped_written_to_and_given_back() {
        // Four rows of a half are a page of memory.
        let shape = KvShape {
            layers: 2,
            width: 256,
            context_tokens: 16,
            padding_rows: 0,
            element: TensorType::F32,
        };
        let half = 4 * shape.row_bytes();
        let head = vec![0; half];
        let saved: Vec<u8> = (0..4 * half).map(|at| (at / 512) as u8 | 1).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[&head[..], &saved].concat()).unwrap();
        let cache = KvCache::reserve(shape).unwrap();
        let ones = vec![1; 16 * shape.token_bytes()];
        cache.restore(16, 16, &mut ones.as_slice()).unwrap();
        let rows_of = |layer, which, first: usize, count: usize| {
            let mut rows = vec![0; count * shape.row_bytes()];
            cache.read_rows(layer, which, first, &mut rows).unwrap();
            rows
        };
        let mut seen: Vec<u8> = Vec::new();
        assert!(cache.map_rows(4, 4, (&file, half as u64), &mut |rows| seen.extend(rows)));
        assert!(seen == saved);
        for ((layer, which), saved) in shape.halves().zip(saved.chunks(half)) {
            assert!(rows_of(layer, which, 4, 4) == saved);
            assert!(rows_of(layer, which, 0, 4).iter().all(|byte| *byte == 1));
            assert!(rows_of(layer, which, 8, 8).iter().all(|byte| *byte == 1));
        }
        // What is written to the cache does not come into the file.
        let (layer, which) = (1, crate::mem::Half::Values);
        let row = vec![7; shape.row_bytes()];
        cache.write_row(layer, which, 5, &row).unwrap();
        assert!(rows_of(layer, which, 5, 1) == row);
        let again = KvCache::reserve(shape).unwrap();
        assert!(again.map_rows(0, 4, (&file, half as u64), &mut |_| ()));
        let mut kept = vec![0; half];
        again.read_rows(layer, which, 0, &mut kept).unwrap();
        assert!(kept == saved[3 * half..]);
        // Discarded rows are nobody's any more.
        cache.discard(0);
        assert!(rows_of(layer, which, 4, 4).iter().all(|byte| *byte == 0));
        for (first, count, at) in [(2, 4, half), (4, 3, half), (4, 4, 512), (14, 4, half)] {
            assert!(
                !cache.map_rows(first, count, (&file, at as u64), &mut |_| ()),
                "{first} {count} {at}"
            );
        }
    }
}
