//! The input of static attention that says which new token sees which, since drafted tokens may be a tree.

use half::f16;
use heg_openvino::{Tensor, TensorType};

use crate::error::ExecError;
use crate::mem::{MemoryHome, RowBuffer};

/// A row for each token of a form: 1 at itself and at those that it comes after, 0 at the others.
pub(super) struct TreeRows {
    rows: RowBuffer,
    /// The tree in them, as [`Batch::trees`](crate::Batch::trees) has it. Tokens behind its last follow each other.
    follows: Vec<u16>,
}

impl TreeRows {
    /// Rows for `tokens` tokens that come one after the other.
    pub(super) fn new(
        tokens: usize,
        element: TensorType,
        home: &MemoryHome,
    ) -> Result<Self, ExecError> {
        let rows = Self {
            rows: RowBuffer::new(tokens, tokens, element, home)?,
            follows: Vec::new(),
        };
        rows.write()?;
        Ok(rows)
    }

    /// The rows as a tensor, which stays the same.
    pub(super) fn tensor(&self) -> Result<Tensor, ExecError> {
        self.rows.view(0, self.rows.count())
    }

    /// Takes a tree; an empty one where tokens come one after the other.
    pub(super) fn set(&mut self, follows: &[u16]) -> Result<(), ExecError> {
        if self.follows == follows {
            return Ok(());
        }
        self.follows.clear();
        self.follows.extend_from_slice(follows);
        self.write()
    }

    fn write(&self) -> Result<(), ExecError> {
        let number = |sees: bool| -> Vec<u8> {
            let number = f32::from(u8::from(sees));
            match self.rows.element() {
                TensorType::F16 => f16::from_f32(number).to_le_bytes().to_vec(),
                _ => number.to_le_bytes().to_vec(),
            }
        };
        let numbers = [number(false), number(true)];
        for (at, row) in seen(&self.follows, self.rows.count()).iter().enumerate() {
            let numbers = row.iter().map(|sees| &numbers[usize::from(*sees)]);
            let bytes: Vec<u8> = numbers.flatten().copied().collect();
            self.rows.write_row(at, &bytes)?;
        }
        Ok(())
    }
}

/// Which of `tokens` tokens each of them sees.
fn seen(follows: &[u16], tokens: usize) -> Vec<Vec<bool>> {
    let mut all: Vec<Vec<bool>> = Vec::with_capacity(tokens);
    for token in 0..tokens {
        let before = token.checked_sub(1);
        let before = before.map(|last| follows.get(last).map_or(last, |it| usize::from(*it)));
        let before = before.and_then(|before| all.get(before));
        let mut row = before.cloned().unwrap_or_else(|| vec![false; tokens]);
        row[token] = true;
        all.push(row);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(follows: &[u16], tokens: usize) -> Vec<String> {
        let rows = seen(follows, tokens).into_iter();
        let shown = |row: Vec<bool>| {
            row.iter()
                .map(|sees| if *sees { 'x' } else { '.' })
                .collect()
        };
        rows.map(shown).collect()
    }

    #[test]
    fn tokens_see_the_way_that_leads_to_them() {
        // 0 ─ 1 ─ 2, and 3 ─ 4 follows 1; 5 is padding.
        let rows = ["x.....", "xx....", "xxx...", "xx.x..", "xx.xx.", "xx.xxx"];
        assert_eq!(shown(&[0, 1, 1, 3], 6), rows);
        assert_eq!(shown(&[], 3), ["x..", "xx.", "xxx"]);
    }

    #[test]
    fn rows_hold_the_latest_tree() {
        for (element, one) in [
            (TensorType::F16, 0x3c00_u16.to_le_bytes().to_vec()),
            (TensorType::F32, 1_f32.to_le_bytes().to_vec()),
        ] {
            let mut rows = TreeRows::new(3, element, &MemoryHome::default()).unwrap();
            let sees = |rows: &TreeRows, at: usize, of: usize| {
                let mut found = vec![0; one.len()];
                rows.rows.read_element(at, of, &mut found).unwrap();
                assert!(found == one || found.iter().all(|byte| *byte == 0));
                found == one
            };
            assert!(sees(&rows, 2, 1) && !sees(&rows, 1, 2));
            rows.set(&[0, 0]).unwrap();
            assert!(!sees(&rows, 2, 1) && sees(&rows, 2, 0) && sees(&rows, 2, 2));
            rows.set(&[]).unwrap();
            assert!(sees(&rows, 2, 1));
        }
    }
}
